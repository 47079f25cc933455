package charts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// rules are a file of Prometheus' rules, and a PrometheusRule's spec.
type rules struct {
	Groups []group `json:"groups"`
}

type group struct {
	Name  string  `json:"name"`
	Rules []alert `json:"rules"`
}

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

var alertsFile = filepath.Join(chart, "files/alerts.yaml")

func readAlerts(t *testing.T) rules {
	t.Helper()
	data, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var found rules
	if err := yaml.UnmarshalStrict(data, &found); err != nil {
		t.Fatal(err)
	}
	if len(found.Groups) == 0 || len(found.Groups[0].Rules) == 0 {
		t.Fatalf("%s has no rules", alertsFile)
	}
	return found
}

// rulesOf returns the rules of the only PrometheusRule.
func rulesOf(t *testing.T, objects []client.Object) rules {
	t.Helper()
	var rule struct {
		Spec rules `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(only[*unstructured.Unstructured](t, objects).Object, &rule); err != nil {
		t.Fatal(err)
	}
	return rule.Spec
}

// TestPrometheusRule: the PrometheusRule has the rules of the file, and the URL of the runbook in the same release.
func TestPrometheusRule(t *testing.T) {
	want := readAlerts(t)
	for _, group := range want.Groups {
		for _, rule := range group.Rules {
			rule.Annotations["runbook_url"] = "https://github.com/statefulsingleton/statefulsingleton/blob/v0.1.0/docs/troubleshooting.md#" + strings.ToLower(rule.Alert)
		}
	}
	got := rulesOf(t, render(t, "--set", "prometheusRule.enabled=true"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

var (
	usedLabel   = regexp.MustCompile(`\$labels\.(\w+)`)
	groupLabels = regexp.MustCompile(`by \(([\w, ]+)\)`)
)

// TestAlertsSayWhatToDo: an alert has a severity, a summary, the object, and a command. The description uses only
// labels that the expression keeps, because other labels are empty.
func TestAlertsSayWhatToDo(t *testing.T) {
	for _, group := range readAlerts(t).Groups {
		for _, rule := range group.Rules {
			t.Run(rule.Alert, func(t *testing.T) {
				if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
					t.Errorf("severity %q, want critical or warning", severity)
				}
				if rule.For == "" || rule.Annotations["summary"] == "" {
					t.Errorf("the alert has no `for` or no summary: %+v", rule)
				}
				description := rule.Annotations["description"]
				if !strings.Contains(description, "kubectl ") {
					t.Errorf("the description has no command: %s", description)
				}
				var kept []string
				if by := groupLabels.FindStringSubmatch(rule.Expr); by != nil {
					kept = strings.Split(by[1], ", ")
				}
				var used []string
				for _, label := range usedLabel.FindAllStringSubmatch(description, -1) {
					used = append(used, label[1])
				}
				slices.Sort(kept)
				slices.Sort(used)
				if diff := cmp.Diff(kept, slices.Compact(used)); diff != "" {
					t.Errorf("labels that the expression keeps, and that the description has (-kept +used):\n%s", diff)
				}
			})
		}
	}
}

// TestAlertsFire: in its case, each alert fires and no other alert fires. In a normal handoff, no alert fires.
func TestAlertsFire(t *testing.T) {
	const cases = "testdata/alerts.yaml"
	data, err := os.ReadFile(cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range readAlerts(t).Groups {
		for _, rule := range group.Rules {
			if !strings.Contains(string(data), `alertname="`+rule.Alert+`"`) {
				t.Errorf("%s has no case in which %s fires", cases, rule.Alert)
			}
		}
	}
	promtool(t, "check", "rules", alertsFile)
	promtool(t, "test", "rules", cases)
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command("promtool", args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatal("promtool is not in PATH: run the tests by `make test`, which builds it, or put that of Prometheus 3 there")
	}
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
