package docs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// health is the health that Argo CD computes for an object.
type health struct{ Status, Message string }

// The health that the tools compute for a StatefulSingleton in each recorded state: make gitops-fixtures.
func TestHealth(t *testing.T) {
	const missing = "the cluster serves no kyverno.io/v1 ClusterPolicy: pods cannot be injected, and the guards reject them. Install Kyverno 1.19"
	const refused = "new pods are rejected, as a dry-run shows: pods \"statefulsingleton-probe\" is forbidden: ValidatingAdmissionPolicy 'statefulsingleton-held' with binding 'statefulsingleton-held' denied request: " +
		"StatefulSingleton prod/db selects this pod, but Kyverno has not injected it. Check that Kyverno runs (kubectl get pods -n kyverno) and that the policy exists (kubectl get clusterpolicy -l app.kubernetes.io/managed-by=statefulsingleton). " +
		"See condition PolicyInstalled of the StatefulSingleton. Check whether Kyverno runs: kubectl get pods -A -l app.kubernetes.io/component=admission-controller"
	const waits = "pod db-standby is warm. spec.handoff is Manual: pod db-standby takes over from pod db-holder only when you request the handoff. Run: kubectl annotate -n prod stfs db apps.statefulsingleton.com/handover=\"$(date +%s)\" --overwrite"
	tests := map[string]struct {
		argoCD health
		// With the expressions of the page, and with kstatus alone.
		flux, kstatus string
	}{
		"new":                       {health{"Progressing", "the controller has not looked at this spec yet"}, "Unknown", "Current"},
		"changed":                   {health{"Progressing", "the controller has not looked at this spec yet"}, "InProgress", "InProgress"},
		"installing":                {health{"Progressing", "no dry-run has shown yet that ClusterPolicy stfs-prod-db-96e5a54a41f06ebb injects new pods"}, "InProgress", "InProgress"},
		"no-kyverno":                {health{"Degraded", missing}, "Failed", "InProgress"},
		"no-pods":                   {health{"Healthy", "no pod matches the selector; the first pod is held until the controller releases it"}, "Current", "Current"},
		"holds":                     {health{"Healthy", "pod db-holder is the holder with epoch 1"}, "Current", "Current"},
		"hands-over":                {health{"Progressing", "pod db-holder is terminating; the next pod is released once the kubelet reports that the pod has terminated"}, "InProgress", "InProgress"},
		"failed":                    {health{"Degraded", "StatefulSingleton rival also selects pod db-holder: no pod is released while two StatefulSingletons select the same pod. Delete one of the two StatefulSingletons"}, "Failed", "Failed"},
		"awaits-handover":           {health{"Suspended", waits}, "Current", "Current"},
		"awaits-handover-not-ready": {health{"Degraded", waits}, "InProgress", "InProgress"},
		"not-ready":                 {health{"Degraded", "pod db-holder is the holder and is not Ready: container app is running and not ready"}, "InProgress", "InProgress"},
		"kyverno-down":              {health{"Degraded", refused}, "Failed", "Current"},
	}
	script, asked := read(t, "gitops/argocd-health.lua"), fluxHealthCheck(t)
	fixtures, err := filepath.Glob("gitops/testdata/*.yaml")
	if err != nil || len(fixtures) != len(tests) {
		t.Errorf("%d fixtures, %v, want %d", len(fixtures), err, len(tests))
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			fixture := []byte(read(t, filepath.Join("gitops/testdata", name+".yaml")))
			if err := yaml.UnmarshalStrict(fixture, &v1.StatefulSingleton{}); err != nil {
				t.Fatalf("it is no StatefulSingleton: %v", err)
			}
			var object map[string]any
			if err := yaml.Unmarshal(fixture, &object); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.argoCD, healthOf(t, script, object)); diff != "" {
				t.Errorf("health in Argo CD (-want +got):\n%s", diff)
			}
			if got := asked.statusOf(t, object); got != want.flux {
				t.Errorf("Flux finds it %s, want %s", got, want.flux)
			}
			if got := kstatusOf(t, fixture); got != want.kstatus {
				t.Errorf("kstatus finds it %s, want %s", got, want.kstatus)
			}
		})
	}
}

// wantHealth checks the health that Argo CD computes for the object with the script of the page, and kstatus without one.
func wantHealth(t *testing.T, o any, argoCD, kstatus string) {
	t.Helper()
	data, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	if got := healthOf(t, read(t, "gitops/argocd-health.lua"), object); got.Status != argoCD {
		t.Errorf("health in Argo CD %+v, want %s", got, argoCD)
	}
	if got := kstatusOf(t, data); got != kstatus {
		t.Errorf("kstatus finds it %s, want %s", got, kstatus)
	}
}

// healthOf runs a health script as Argo CD does. The script gets the object as obj, few of Lua's libraries, and returns
// a table (argo-cd: util/lua).
func healthOf(t *testing.T, script string, object map[string]any) health {
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
	return health{Status: result.RawGetString("status").String(), Message: result.RawGetString("message").String()}
}

// inLua converts a JSON value to a Lua value.
func inLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case float64:
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
// status is Unknown.
func (c healthCheck) statusOf(t *testing.T, object map[string]any) string {
	t.Helper()
	status, _ := object["status"].(map[string]any)
	if observed, ok := status["observedGeneration"]; ok && observed != object["metadata"].(map[string]any)["generation"] {
		return "InProgress"
	}
	for _, ask := range []struct{ expression, status string }{{c.InProgress, "InProgress"}, {c.Failed, "Failed"}, {c.Current, "Current"}} {
		if ask.expression == "" {
			continue
		}
		answer, err := evaluate(t, ask.expression, object)
		if err != nil {
			return "Unknown"
		}
		if answer == true {
			return ask.status
		}
	}
	return "InProgress"
}

// kstatusOf returns the status that Flux without expressions, and Helm, compute.
func kstatusOf(t *testing.T, fixture []byte) string {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fixture, object); err != nil {
		t.Fatal(err)
	}
	result, err := status.Compute(object)
	if err != nil {
		t.Fatal(err)
	}
	return result.Status.String()
}

// evaluate fails if the expression reads a missing field.
func evaluate(t *testing.T, expression string, object map[string]any) (any, error) {
	t.Helper()
	env, err := cel.NewEnv()
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Parse(expression)
	if issues.Err() != nil {
		t.Fatalf("parse %s: %v", expression, issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := program.Eval(object)
	if err != nil {
		return nil, err
	}
	return value.Value(), nil
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
