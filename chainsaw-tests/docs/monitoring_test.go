package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/statefulsingleton/statefulsingleton/controller/cluster"
	"github.com/statefulsingleton/statefulsingleton/controller/lock"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

const (
	alertsFile    = "../charts/statefulsingleton/files/alerts.yaml"
	dashboardFile = "../charts/statefulsingleton/files/dashboard.json"
)

// TestMonitoredMetricsExist checks that the controller exports, and the reference names, each metric that the alerts
// and the dashboard query.
func TestMonitoredMetricsExist(t *testing.T) {
	exported, reference := exportedMetrics(t), read(t, "reference.md")
	for _, file := range []string{alertsFile, dashboardFile} {
		var parsed any
		if err := yaml.Unmarshal([]byte(read(t, file)), &parsed); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		asked := expressions(parsed)
		if len(asked) == 0 {
			t.Errorf("%s has no expressions", file)
		}
		for _, expression := range asked {
			for _, name := range metricsIn(expression) {
				// Expressions name the series of a histogram.
				if !exported[name] {
					name = strings.TrimSuffix(name, "_bucket")
				}
				if !exported[name] {
					t.Errorf("%s queries %s, which the controller does not export: %s", file, name, expression)
				}
				if !strings.Contains(reference, "`"+name+"`") {
					t.Errorf("reference.md does not name %s, which %s queries", name, file)
				}
			}
		}
	}
}

// exportedMetrics returns the names of all metrics of the controller, including those without a value.
func exportedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	own := prometheus.NewRegistry()
	singleton.NewMetrics(own, nil)
	lock.RegisterMetrics(own, nil)
	cluster.NewMetrics(own, nil)
	shared, ok := metrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatalf("controller-runtime's registry, a %T, describes no metrics", metrics.Registry)
	}
	names := map[string]bool{}
	for _, registry := range []prometheus.Collector{own, shared} {
		described := make(chan *prometheus.Desc)
		go func() {
			registry.Describe(described)
			close(described)
		}()
		for metric := range described {
			name := metricOf.FindStringSubmatch(metric.String())
			if name == nil {
				t.Fatalf("%s has no name", metric)
			}
			names[name[1]] = true
		}
	}
	return names
}

// metricOf finds the name in the text of a description, which does not export it.
var metricOf = regexp.MustCompile(`^Desc\{fqName: "([^"]+)"`)

// expressions returns the expressions of rules, panels and variables.
func expressions(value any) (found []string) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			found = append(found, expressions(item)...)
		}
	case map[string]any:
		for key, item := range value {
			if text, ok := item.(string); ok && (key == "expr" || key == "definition") {
				found = append(found, text)
			}
			found = append(found, expressions(item)...)
		}
	}
	return found
}

// compound matches a name of several words: a variable of Grafana, a function, or otherwise a metric.
var compound = regexp.MustCompile(`(\$_*)?[a-z]+(?:_[a-z0-9]+)+(\()?`)

// metricsIn returns the metrics that an expression queries. Each metric has a name of several words.
func metricsIn(expression string) (names []string) {
	for _, found := range compound.FindAllStringSubmatch(expression, -1) {
		if found[1] == "" && found[2] == "" {
			names = append(names, found[0])
		}
	}
	return names
}

var (
	alertTitle  = regexp.MustCompile(`^Stateful(Singleton|SetLock|Cluster)\w+$`)
	alertName   = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	alertReason = regexp.MustCompile(`reason(?:=~?|!=)"([\w|]+)"`)
)

// TestEachAlertHasARunbook checks that troubleshooting.md has one section for each alert, in the order of the alerts.
// The runbook_url of an alert points to the section.
func TestEachAlertHasARunbook(t *testing.T) {
	var alerts, sections []string
	for _, alert := range alertName.FindAllStringSubmatch(read(t, alertsFile), -1) {
		alerts = append(alerts, alert[1])
	}
	for _, title := range heading.FindAllStringSubmatch(read(t, "troubleshooting.md"), -1) {
		if alertTitle.MatchString(title[1]) {
			sections = append(sections, title[1])
		}
	}
	if len(alerts) == 0 {
		t.Fatalf("%s has no alert", alertsFile)
	}
	if diff := cmp.Diff(alerts, sections); diff != "" {
		t.Errorf("alerts, and sections of troubleshooting.md (-alerts +sections):\n%s", diff)
	}
}

// TestEachReasonIsWatched checks that the alerts name existing reasons only, and that each outcome has an alert or
// needs no action.
func TestEachReasonIsWatched(t *testing.T) {
	needNoAction := []string{"NoPods", "HolderReady", "Adopted"}
	all := texts(isOutcome)(t, "../controller/singleton/handoff")
	injection := texts(isReason)(t, "../controller/injection")
	var watched []string
	for _, reasons := range alertReason.FindAllStringSubmatch(read(t, alertsFile), -1) {
		watched = append(watched, strings.Split(reasons[1], "|")...)
	}
	for _, reason := range watched {
		if !slices.Contains(all, reason) && !slices.Contains(injection, reason) {
			t.Errorf("%s names reason %s, which no condition has", alertsFile, reason)
		}
	}
	for _, outcome := range all {
		if slices.Contains(watched, outcome) == slices.Contains(needNoAction, outcome) {
			t.Errorf("reason %s: add it to an alert or to needNoAction, and not to both", outcome)
		}
	}
}
