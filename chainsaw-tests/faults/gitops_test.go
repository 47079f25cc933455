//go:build cluster

package faults_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const gitops = "../../docs/gitops"

var record = flag.Bool("record", false, "write the StatefulSingletons of docs/gitops/testdata as the cluster gives them, instead of comparing them")

// The fixtures for the health check of Argo CD are StatefulSingletons of a real cluster: here one without pods, and one
// with a holder.
func TestGitOpsSettled(t *testing.T) {
	t.Parallel()
	empty := emptyNamespace(t)
	wantState(t, "new", create(t, empty))
	awaitState(t, "no-pods", empty, stands("NoPods"))

	s := singleton(t, world.Options{})
	awaitState(t, "holds", s, stands("HolderReady"))
	wantState(t, "changed", change(t, s, `{"spec":{"maxTransitionTime":600}}`))
	must(t, s.Await(t.Context(), "the controller has seen the change", stands("HolderReady")))
	rival := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "rival"}, Spec: spec()}
	must(t, w.Create(t.Context(), rival))
	awaitState(t, "failed", s, stands("Overlapping"))
	must(t, w.Delete(t.Context(), rival))
}

// One during a handoff.
func TestGitOpsHandoff(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Env: map[string]string{"STOP_SECONDS": "15"}})
	must(t, s.Roll(t.Context()))
	awaitState(t, "hands-over", s, stands("HolderStopping"))
}

// One with a holder that is not Ready, and one that waits for a manual handoff.
func TestGitOpsNotReady(t *testing.T) {
	t.Parallel()
	// After a crash, the application is not Ready for this long.
	s := singleton(t, world.Options{Env: map[string]string{"START_SECONDS": "8"}})
	must(t, s.KillApp(t.Context()))
	starts := func(got *v1.StatefulSingleton) bool {
		return strings.HasSuffix(got.Status.Message, "container app is running and not ready")
	}
	awaitState(t, "not-ready", s, func(got *v1.StatefulSingleton) bool { return stands("HolderNotReady")(got) && starts(got) })
	must(t, s.AwaitHolder(t.Context(), 1))

	ready := func(got *v1.StatefulSingleton) bool {
		return meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady)
	}
	waits := stands("AwaitingHandover")
	change(t, s, `{"spec":{"handoff":"Manual"}}`)
	must(t, s.Roll(t.Context()))
	awaitState(t, "awaits-handover", s, func(got *v1.StatefulSingleton) bool { return waits(got) && ready(got) })
	must(t, s.KillApp(t.Context()))
	awaitState(t, "awaits-handover-not-ready", s, func(got *v1.StatefulSingleton) bool { return waits(got) && !ready(got) && starts(got) })
}

// wantGitOpsWithoutKyverno checks two singletons, of which empty does not exist yet: in a cluster whose Kyverno is scaled to zero, and
// then in a cluster that does not serve Kyverno's kind.
func wantGitOpsWithoutKyverno(t *testing.T, empty, s *world.Singleton) {
	t.Helper()
	create(t, empty)
	awaitState(t, "installing", empty, policyInstalled("Installing"))
	change(t, s, `{"spec":{"maxTransitionTime":600}}`) // otherwise the controller checks only after minutes
	awaitState(t, "kyverno-down", s, policyInstalled("ProbeRefused"))

	t.Cleanup(func() { must(t, serveClusterPolicies(context.Background(), true)) })
	must(t, serveClusterPolicies(t.Context(), false))
	awaitState(t, "no-kyverno", empty, policyInstalled("KyvernoMissing"))
	must(t, serveClusterPolicies(t.Context(), true)) // singletons that are deleted now would leave their policies behind
}

// emptyNamespace returns a singleton that does not exist yet, in a namespace without pods.
func emptyNamespace(t *testing.T) *world.Singleton {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "faults-"}}
	must(t, w.Create(t.Context(), namespace))
	s := &world.Singleton{Application: world.Application{World: w, Namespace: namespace.Name}}
	t.Cleanup(func() { must(t, s.Remove(context.Background())) })
	return s
}

func spec() v1.StatefulSingletonSpec {
	return v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: world.Labels()}}
}

// create creates the singleton and returns it as stored.
func create(t *testing.T, s *world.Singleton) *v1.StatefulSingleton {
	t.Helper()
	object := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "db"}, Spec: spec()}
	must(t, w.Create(t.Context(), object))
	return object
}

// change patches the singleton and returns it as stored. Its status still belongs to the old spec.
func change(t *testing.T, s *world.Singleton, patch string) *v1.StatefulSingleton {
	t.Helper()
	object := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "db"}}
	must(t, w.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))))
	return object
}

// stands returns true if condition Ready has the reason, and new pods are held.
func stands(wanted string) func(*v1.StatefulSingleton) bool {
	return func(got *v1.StatefulSingleton) bool {
		return told(got, v1.ConditionReady, wanted) && told(got, v1.ConditionPolicyInstalled, "Injected")
	}
}

// policyInstalled returns true if condition PolicyInstalled has the reason.
func policyInstalled(wanted string) func(*v1.StatefulSingleton) bool {
	return func(got *v1.StatefulSingleton) bool { return told(got, v1.ConditionPolicyInstalled, wanted) }
}

// told returns true if the condition has the reason for the current spec.
func told(s *v1.StatefulSingleton, kind, wanted string) bool {
	c := meta.FindStatusCondition(s.Status.Conditions, kind)
	return c != nil && c.Reason == wanted && c.ObservedGeneration == s.Generation
}

// serveClusterPolicies makes the API server serve Kyverno's kind, or stop serving it.
func serveClusterPolicies(ctx context.Context, served bool) error {
	definition := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "clusterpolicies.kyverno.io"},
	}
	patch := fmt.Appendf(nil, `[{"op":"test","path":"/spec/versions/0/name","value":"v1"},{"op":"replace","path":"/spec/versions/0/served","value":%t}]`, served)
	return w.Patch(ctx, definition, client.RawPatch(types.JSONPatchType, patch))
}

// awaitState calls wantState after the condition holds.
func awaitState(t *testing.T, name string, s *world.Singleton, so func(*v1.StatefulSingleton) bool) {
	t.Helper()
	var last *v1.StatefulSingleton
	must(t, s.Await(t.Context(), name, func(got *v1.StatefulSingleton) bool {
		last = got
		return so(got)
	}))
	wantState(t, name, last)
}

// wantState checks that the singleton equals the fixture with the name, or writes the fixture.
func wantState(t *testing.T, name string, s *v1.StatefulSingleton) {
	t.Helper()
	file := filepath.Join(gitops, "testdata", name+".yaml")
	recorded := recordOf(t, s)
	if *record {
		must(t, os.WriteFile(file, recorded, 0o644))
		return
	}
	text, err := os.ReadFile(file)
	must(t, err)
	var want, got any
	must(t, yaml.Unmarshal(text, &want))
	must(t, yaml.Unmarshal(recorded, &got))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is not what the cluster gives. If that is meant, run make gitops-fixtures, and then the tests of docs (-recorded +got):\n%s", file, diff)
	}
}

// recordOf returns the parts of the singleton that the health check may read, with names and times that do not change
// between runs.
func recordOf(t *testing.T, s *v1.StatefulSingleton) []byte {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(gitops, "argocd-health.lua"))
	must(t, err)
	kept := map[string]any{
		"apiVersion": v1.GroupVersion.String(),
		"kind":       "StatefulSingleton",
		"metadata":   map[string]any{"namespace": s.Namespace, "name": s.Name, "generation": s.Generation},
		"spec":       s.Spec,
	}
	if s.Status.ObservedGeneration > 0 { // the status exists
		conditions := slices.DeleteFunc(slices.Clone(s.Status.Conditions), func(c metav1.Condition) bool {
			return !strings.Contains(string(script), strconv.Quote(c.Type))
		})
		for i := range conditions {
			conditions[i].LastTransitionTime = metav1.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)
		}
		kept["status"] = v1.StatefulSingletonStatus{ObservedGeneration: s.Status.ObservedGeneration, Phase: s.Status.Phase, Conditions: conditions}
	}
	text, err := json.Marshal(kept)
	must(t, err)
	text, err = yaml.JSONToYAML([]byte(sameNames(s).Replace(string(text))))
	must(t, err)
	return text
}

// sameNames replaces the names of namespace, policy and pods with names that do not change between runs.
func sameNames(s *v1.StatefulSingleton) *strings.Replacer {
	const namespace = "prod"
	policyIn := func(namespace string) string {
		return policies.Name(types.NamespacedName{Namespace: namespace, Name: s.Name})
	}
	names := []string{policyIn(s.Namespace), policyIn(namespace), s.Namespace, namespace}
	if s.Status.ActivePod != "" {
		names = append(names, s.Status.ActivePod, s.Name+"-holder")
	}
	for _, pod := range s.Status.StandbyPods {
		names = append(names, pod, s.Name+"-standby")
	}
	return strings.NewReplacer(names...)
}
