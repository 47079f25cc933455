package charts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// panel is what the tests look at of a panel of the dashboard.
type panel struct {
	ID      int    `json:"id"`
	Title   string `json:"title"`
	GridPos struct {
		X int `json:"x"`
		Y int `json:"y"`
		W int `json:"w"`
		H int `json:"h"`
	} `json:"gridPos"`
	Targets []struct {
		RefID      string `json:"refId"`
		Expr       string `json:"expr"`
		Datasource struct {
			UID string `json:"uid"`
		} `json:"datasource"`
	} `json:"targets"`
}

// overlaps tells whether two panels lie on each other.
func (p panel) overlaps(other panel) bool {
	a, b := p.GridPos, other.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

// TestDashboard: Grafana's sidecar finds the dashboard, as the file has it.
func TestDashboard(t *testing.T) {
	want, err := os.ReadFile(filepath.Join(chart, "files/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	got := only[*corev1.ConfigMap](t, render(t, "--set", "dashboard.enabled=true"))
	if diff := cmp.Diff(map[string]string{"statefulsingleton.json": string(want)}, got.Data); diff != "" {
		t.Errorf("what the ConfigMap holds (-want +got):\n%s", diff)
	}
	if label := got.Labels["grafana_dashboard"]; label != "1" {
		t.Errorf("label grafana_dashboard is %q, want that of Grafana's chart, 1", label)
	}
}

// TestPanels: each panel has a place of its own, and asks the Prometheus that the reader has chosen.
func TestPanels(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "files/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Panels) == 0 {
		t.Fatal("the dashboard has no panel")
	}
	for i, p := range dashboard.Panels {
		if right := p.GridPos.X + p.GridPos.W; p.GridPos.W < 1 || p.GridPos.H < 1 || right > 24 {
			t.Errorf("panel %q is beyond the 24 columns, or has no size: %+v", p.Title, p.GridPos)
		}
		for _, other := range dashboard.Panels[:i] {
			if p.ID == other.ID || p.overlaps(other) {
				t.Errorf("panels %q and %q have one id (%d, %d), or one place", p.Title, other.Title, p.ID, other.ID)
			}
		}
		names := map[string]bool{}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" || target.Expr == "" || names[target.RefID] {
				t.Errorf("panel %q has a query that is empty, goes to %q, or is named twice: %+v", p.Title, target.Datasource.UID, target)
			}
			names[target.RefID] = true
		}
	}
}
