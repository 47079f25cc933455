package docs

import (
	"go/constant"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

const (
	alertsFile    = "../charts/statefulsingleton/files/alerts.yaml"
	dashboardFile = "../charts/statefulsingleton/files/dashboard.json"
)

// What alerts and dashboard ask for, the controller has, and the reference names.
func TestMonitoredMetricsExist(t *testing.T) {
	exported, reference := exportedMetrics(t), read(t, "reference.md")
	for _, file := range []string{alertsFile, dashboardFile} {
		asked := expressions(parsed(t, file))
		if len(asked) == 0 {
			t.Errorf("%s asks for nothing", file)
		}
		for _, expression := range asked {
			for _, name := range metricsIn(expression) {
				// A histogram is asked for by its parts.
				if !exported[name] {
					name = strings.TrimSuffix(name, "_bucket")
				}
				if !exported[name] {
					t.Errorf("%s asks for %s, which the controller has not: %s", file, name, expression)
				}
				if !strings.Contains(reference, "`"+name+"`") {
					t.Errorf("reference.md does not name %s, which %s asks for", name, file)
				}
			}
		}
	}
}

// exportedMetrics are the names of all metrics of the controller, of those too that have no value yet.
func exportedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	own := prometheus.NewRegistry()
	singleton.NewMetrics(own, nil)
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

// metricOf finds the name in a description, which has no other way to tell it.
var metricOf = regexp.MustCompile(`^Desc\{fqName: "([^"]+)"`)

// parsed is what a file of YAML or JSON holds.
func parsed(t *testing.T, file string) (value any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, file)), &value); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return value
}

// expressions are those of rules, panels and variables.
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

// compound is a name of several words: a variable of Grafana's, a function, or else a metric.
var compound = regexp.MustCompile(`(\$_*)?[a-z]+(?:_[a-z0-9]+)+(\()?`)

// metricsIn are the metrics that an expression asks for. None of ours has a name of one word.
func metricsIn(expression string) (names []string) {
	for _, found := range compound.FindAllStringSubmatch(expression, -1) {
		if found[1] == "" && found[2] == "" {
			names = append(names, found[0])
		}
	}
	return names
}

func TestMetricsIn(t *testing.T) {
	tests := map[string]struct {
		expression string
		want       []string
	}{
		"alone":                {`absent(a_total)`, []string{"a_total"}},
		"with labels":          {`max by (namespace) (a_b{type="Ready",reason!="C_D"}) > 0`, []string{"a_b"}},
		"of a time":            {`rate(a_total[5m]) and on (job) b_c{name="d"}`, []string{"a_total", "b_c"}},
		"of Grafana's time":    {`increase(a_2_total[$__rate_interval])`, []string{"a_2_total"}},
		"inside of a function": {`histogram_quantile(0.5, sum by (le) (a_bucket))`, []string{"a_bucket"}},
		"of a variable":        {`label_values(a_b, namespace)`, []string{"a_b"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, metricsIn(tc.expression)); diff != "" {
				t.Errorf("metrics of %s (-want +got):\n%s", tc.expression, diff)
			}
		})
	}
}

var (
	alertName   = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	alertReason = regexp.MustCompile(`reason(?:=~?|!=)"([\w|]+)"`)
)

// Whoever is woken finds what to do, and no page tells of what wakes nobody.
func TestEachAlertHasARunbook(t *testing.T) {
	var alerts, runbooks []string
	for _, alert := range alertName.FindAllStringSubmatch(read(t, alertsFile), -1) {
		alerts = append(alerts, alert[1])
	}
	for _, title := range heading.FindAllStringSubmatch(read(t, "runbooks.md"), -1) {
		if strings.HasPrefix(title[1], "StatefulSingleton") {
			runbooks = append(runbooks, title[1])
		}
	}
	if len(alerts) == 0 {
		t.Fatalf("%s has no alert", alertsFile)
	}
	if diff := cmp.Diff(alerts, runbooks); diff != "" {
		t.Errorf("alerts, and sections of runbooks.md (-alerts +sections):\n%s", diff)
	}
}

// An alert waits for no reason that there is not, and no reason is forgotten.
func TestEachReasonIsWatched(t *testing.T) {
	needNobody := []string{"NoPods", "HolderReady", "Adopted"}
	all := outcomes(t)
	injection := texts(func(name, _ string) bool { return strings.HasPrefix(name, "reason") })(t, "../controller/singleton")
	var watched []string
	for _, reasons := range alertReason.FindAllStringSubmatch(read(t, alertsFile), -1) {
		watched = append(watched, strings.Split(reasons[1], "|")...)
	}
	for _, reason := range watched {
		if !slices.Contains(all, reason) && !slices.Contains(injection, reason) {
			t.Errorf("%s waits for reason %s, which no condition has", alertsFile, reason)
		}
	}
	for _, outcome := range all {
		if slices.Contains(watched, outcome) == slices.Contains(needNobody, outcome) {
			t.Errorf("reason %s: have an alert wait for it, or say here that it needs nobody, and not both", outcome)
		}
	}
}

// outcomes are the reasons of Ready, Reconciling and Stalled.
func outcomes(t *testing.T) (values []string) {
	t.Helper()
	for _, c := range typedConstantsOf(t, "../controller/handoff") {
		if kind, ok := c.Type().(*types.Named); ok && kind.Obj().Name() == "Outcome" {
			values = append(values, constant.StringVal(c.Val()))
		}
	}
	if len(values) == 0 {
		t.Fatal("package handoff has no outcomes: look where they went")
	}
	return values
}
