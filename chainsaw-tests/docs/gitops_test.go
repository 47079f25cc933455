package docs

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/cel-go/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The health that the tools compute for a StatefulSingleton in each recorded state: make gitops-fixtures.
func TestHealth(t *testing.T) {
	tests := map[string]struct {
		// argoCD is the status in Argo CD, and about the type of the condition whose message Argo CD shows.
		argoCD, about string
		// With the expressions of the page, and with kstatus alone.
		flux, kstatus string
	}{
		"new":                       {"Progressing", "", "Unknown", "Current"},
		"changed":                   {"Progressing", "", "InProgress", "InProgress"},
		"installing":                {"Progressing", "PolicyInstalled", "InProgress", "InProgress"},
		"no-kyverno":                {"Degraded", "PolicyInstalled", "Failed", "InProgress"},
		"no-pods":                   {"Healthy", "Ready", "Current", "Current"},
		"holds":                     {"Healthy", "Ready", "Current", "Current"},
		"hands-over":                {"Progressing", "Reconciling", "InProgress", "InProgress"},
		"failed":                    {"Degraded", "Stalled", "Failed", "Failed"},
		"awaits-handover":           {"Suspended", "Ready", "Current", "Current"},
		"awaits-handover-not-ready": {"Degraded", "Ready", "InProgress", "InProgress"},
		"not-ready":                 {"Degraded", "Ready", "InProgress", "InProgress"},
		"kyverno-down":              {"Degraded", "PolicyInstalled", "Failed", "Current"},
	}
	asked := fluxHealthCheck(t)
	fixtures, err := filepath.Glob("gitops/testdata/*.yaml")
	if err != nil || len(fixtures) != len(tests) {
		t.Errorf("%d fixtures, %v, want %d", len(fixtures), err, len(tests))
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			fixture := []byte(read(t, filepath.Join("gitops/testdata", name+".yaml")))
			s, recorded := &v1.StatefulSingleton{}, &unstructured.Unstructured{}
			if err := errors.Join(yaml.UnmarshalStrict(fixture, s), yaml.Unmarshal(fixture, recorded)); err != nil {
				t.Fatalf("it is no StatefulSingleton: %v", err)
			}
			object, message := wantHealth(t, recorded, want.argoCD, want.kstatus)
			text := "the controller has not looked at this spec yet"
			if condition := meta.FindStatusCondition(s.Status.Conditions, want.about); condition != nil {
				text = condition.Message
			}
			if message != text {
				t.Errorf("Argo CD shows %q, want the message of condition %q: %q", message, want.about, text)
			}
			if got := asked.statusOf(t, object); got != want.flux {
				t.Errorf("Flux finds it %s, want %s", got, want.flux)
			}
		})
	}
}

// wantHealth checks the health that Argo CD computes for the object with the script of the page, and that kstatus computes, as Flux
// without expressions and Helm do. It returns the object as the tools see it, and the message of Argo CD.
func wantHealth(t *testing.T, o any, argoCD, kstatus string) (map[string]any, string) {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	got, message := healthOf(t, read(t, "gitops/argocd-health.lua"), object)
	if got != argoCD {
		t.Errorf("health in Argo CD %s: %s, want %s", got, message, argoCD)
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: object})
	if err != nil {
		t.Fatal(err)
	}
	if result.Status.String() != kstatus {
		t.Errorf("kstatus finds it %s, want %s", result.Status, kstatus)
	}
	return object, message
}

// healthOf runs a health script as Argo CD does. The script gets the object as obj, few of Lua's libraries, and returns
// a table (argo-cd: util/lua).
func healthOf(t *testing.T, script string, object map[string]any) (status, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			t.Fatalf("open Lua's %q: %v", library.name, err)
		}
	}
	state.SetGlobal("obj", inLua(state, object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	result, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %s, want a table", state.Get(-1))
	}
	return result.RawGetString("status").String(), result.RawGetString("message").String()
}

// inLua converts a value of an object to a Lua value.
func inLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case int64:
		return lua.LNumber(value)
	case string:
		return lua.LString(value)
	case []any:
		table := state.NewTable()
		for _, item := range value {
			table.Append(inLua(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range value {
			table.RawSetString(key, inLua(state, item))
		}
		return table
	}
	return lua.LNil
}

// healthCheck has the CEL expressions of a Flux health check.
type healthCheck struct{ Kind, InProgress, Failed, Current string }

// fluxHealthCheck returns the health check of the page.
func fluxHealthCheck(t *testing.T) healthCheck {
	t.Helper()
	for _, b := range blocksOf(read(t, "gitops.md")) {
		var kustomization struct {
			Spec struct{ HealthCheckExprs []healthCheck }
		}
		if b.info != "yaml" {
			continue
		}
		if err := yaml.Unmarshal([]byte(strings.Join(b.lines, "\n")), &kustomization); err != nil {
			t.Fatal(err)
		}
		for _, check := range kustomization.Spec.HealthCheckExprs {
			if check.Kind == "StatefulSingleton" {
				return check
			}
		}
	}
	t.Fatal("gitops.md has Flux ask nothing of a StatefulSingleton")
	return healthCheck{}
}

// statusOf evaluates the expressions in the order of Flux (fluxcd/pkg: runtime/cel). Flux repeats the check if the
// status is Unknown, because an expression reads a missing field.
func (c healthCheck) statusOf(t *testing.T, object map[string]any) string {
	t.Helper()
	status, _ := object["status"].(map[string]any)
	if observed, ok := status["observedGeneration"]; ok && observed != object["metadata"].(map[string]any)["generation"] {
		return "InProgress"
	}
	env, err := cel.NewEnv()
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range []struct{ expression, status string }{{c.InProgress, "InProgress"}, {c.Failed, "Failed"}, {c.Current, "Current"}} {
		if ask.expression == "" {
			continue
		}
		ast, issues := env.Parse(ask.expression)
		if issues.Err() != nil {
			t.Fatalf("parse %s: %v", ask.expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		if answer, _, err := program.Eval(object); err != nil {
			return "Unknown"
		} else if answer.Value() == true {
			return ask.status
		}
	}
	return "InProgress"
}

// The YAML blocks of the pages are valid.
func TestYAMLOfPages(t *testing.T) {
	for _, page := range pages(t) {
		for _, b := range blocksOf(read(t, page)) {
			if b.info != "yaml" {
				continue
			}
			var value any
			if err := yaml.UnmarshalStrict([]byte(strings.Join(b.lines, "\n")), &value); err != nil {
				t.Errorf("%s: %v, in %q", page, err, b.lines)
			}
		}
	}
}
