package charts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

var dashboardFile = filepath.Join(chart, "files/dashboard.json")

// dashboard has the fields of the dashboard that the tests read.
type dashboard struct {
	Panels      []panel `json:"panels"`
	Annotations struct {
		List []struct {
			Name       string     `json:"name"`
			Expr       string     `json:"expr"`
			Datasource datasource `json:"datasource"`
		} `json:"list"`
	} `json:"annotations"`
}

type datasource struct {
	UID string `json:"uid"`
}

// panel has the fields of a panel that the tests read.
type panel struct {
	Title   string `json:"title"`
	Targets []struct {
		Expr       string     `json:"expr"`
		Datasource datasource `json:"datasource"`
	} `json:"targets"`
}

func readDashboard(t *testing.T) (text string, parsed dashboard) {
	t.Helper()
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &parsed); err != nil {
		t.Fatal(err)
	}
	if len(parsed.Panels) == 0 {
		t.Fatal("the dashboard has no panel")
	}
	return string(data), parsed
}

// TestDashboard: the ConfigMap has the dashboard of the file, and the label by which Grafana's sidecar selects it.
func TestDashboard(t *testing.T) {
	want, _ := readDashboard(t)
	found := slices.DeleteFunc(all[*corev1.ConfigMap](render(t, "--set", "dashboard.enabled=true")), func(c *corev1.ConfigMap) bool {
		return c.Labels["grafana_dashboard"] != "1" // the default of Grafana's chart
	})
	if len(found) != 1 {
		t.Fatalf("%d dashboards, want one", len(found))
	}
	if diff := cmp.Diff(map[string]string{"statefulsingleton.json": want}, found[0].Data); diff != "" {
		t.Errorf("data of the ConfigMap (-want +got):\n%s", diff)
	}
}

// grafanaVariables replaces the variables of the dashboard, as Grafana does before each query.
var grafanaVariables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1d", "$namespace", "prod|shop")

// TestQueries checks that Prometheus can parse all queries, that they go to the Prometheus that the reader chose, and that a graph shows
// every handoff. If the window is as long as the step, increase() misses changes between the last sample of one window and the first
// sample of the next.
func TestQueries(t *testing.T) {
	_, parsed := readDashboard(t)
	var queries []string
	for _, p := range parsed.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q queries %q, want the Prometheus that the reader chose", p.Title, target.Datasource.UID)
			}
		}
	}
	for _, a := range parsed.Annotations.List {
		queries = append(queries, a.Expr)
		if a.Datasource.UID != "${datasource}" {
			t.Errorf("annotation %q queries %q, want the Prometheus that the reader chose", a.Name, a.Datasource.UID)
		}
	}
	var asked rules
	asked.Groups = make([]group, 1)
	asked.Groups[0].Name = "dashboard"
	for i, query := range queries {
		if strings.Contains(query, "[$__interval]") {
			t.Errorf("a query has the window [$__interval], want [$__rate_interval]: %s", query)
		}
		asked.Groups[0].Rules = append(asked.Groups[0].Rules, alert{Alert: fmt.Sprintf("Query%d", i), Expr: grafanaVariables.Replace(query), For: "0s"})
	}
	data, err := yaml.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

var pageOfOurs = regexp.MustCompile(`https://github\.com/statefulsingleton/statefulsingleton/blob/main/([^"#]+)`)

// TestDashboardLinks checks that the page of each link exists.
func TestDashboardLinks(t *testing.T) {
	text, _ := readDashboard(t)
	links := pageOfOurs.FindAllStringSubmatch(text, -1)
	if len(links) == 0 {
		t.Error("the dashboard has no link to a page of the project")
	}
	for _, link := range links {
		if _, err := os.Stat(filepath.Join("..", link[1])); err != nil {
			t.Errorf("%s: %v", link[0], err)
		}
	}
}
