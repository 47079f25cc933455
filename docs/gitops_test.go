package docs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// health is what Argo CD makes of an object.
type health struct{ Status, Message string }

func TestArgoCDHealth(t *testing.T) {
	tests := map[string]health{
		"new":                       {"Progressing", "the controller has not looked at this spec yet"},
		"changed":                   {"Progressing", "the controller has not looked at this spec yet"},
		"installing":                {"Progressing", "ClusterPolicy stfs-prod-db-0123456789abcdef was written, and Kyverno does not serve it yet"},
		"no-kyverno":                {"Degraded", "the cluster serves no kyverno.io/v1 ClusterPolicy: pods can't be injected, and the guard refuses them. Install Kyverno 1.18 or 1.19"},
		"no-pods":                   {"Healthy", "no pod matches the selector; the first that comes is held until it may run"},
		"holds":                     {"Healthy", "pod db-6d9f-x2 holds with epoch 4"},
		"hands-over":                {"Progressing", "pod db-6d9f-x2 stops; the next pod is released once the kubelet reports that it has ended"},
		"failed":                    {"Degraded", "pod db-6d9f-x2 is gone and nothing proves that its processes have ended: somebody took its finalizer off."},
		"awaits-handover":           {"Suspended", "pod db-7f8c-k7 is warm, and takes over from pod db-6d9f-x2 when you say so, since spec.handoff is Manual."},
		"awaits-handover-not-ready": {"Degraded", "pod db-7f8c-k7 is warm, and takes over from pod db-6d9f-x2 when you say so, since spec.handoff is Manual."},
		"not-ready":                 {"Degraded", "pod db-6d9f-x2 holds and is not Ready: container app waits: CrashLoopBackOff"},
		"kyverno-down":              {"Degraded", "pods created now are refused, as the dry-run of one shows: no answer."},
	}
	script := read(t, "gitops/argocd-health.lua")
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
			if diff := cmp.Diff(want, healthOf(t, script, object)); diff != "" {
				t.Errorf("health (-want +got):\n%s", diff)
			}
		})
	}
}

// healthOf runs a health script as Argo CD does: it finds the object as obj, few of Lua's
// libraries, and returns a table (argo-cd: util/lua).
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

// inLua is what JSON holds, as Lua has it.
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

// What a page has somebody write into a file can be read.
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
