package policies_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// named returns the singleton of a file with another name and UID, and with another value of the label in its selector.
func named(t *testing.T, file, name string) v1.StatefulSingleton {
	t.Helper()
	s := readSingleton(t, file)
	s.Name, s.UID, s.Spec.Selector = name, types.UID(name), v1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	return *s
}

func renderNamespace(t *testing.T, singletons ...v1.StatefulSingleton) *unstructured.Unstructured {
	t.Helper()
	policy, err := policies.RenderNamespace("shop", singletons, options)
	if err != nil {
		t.Fatalf("RenderNamespace: %v", err)
	}
	return policy
}

func TestRenderNamespaceInAnyOrder(t *testing.T) {
	db, queue := named(t, "default", "db"), named(t, "grace-period", "queue")
	if diff := cmp.Diff(renderNamespace(t, db, queue).Object, renderNamespace(t, queue, db).Object); diff != "" {
		t.Errorf("the order of the singletons matters (-first +second):\n%s", diff)
	}
}

// Kyverno rejects two rules with the same name.
func TestNamesOfRules(t *testing.T) {
	long := strings.Repeat("a", 63)
	var singletons []v1.StatefulSingleton
	for _, name := range []string{"db", "db.a", "db-a", "a-db", long, long[:62] + "b"} {
		singletons = append(singletons, named(t, "hold-init-containers", name))
	}
	rules, _, err := unstructured.NestedSlice(renderNamespace(t, singletons...).Object, "spec", "rules")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, rule := range rules {
		names = append(names, rule.(map[string]any)["name"].(string))
	}
	wantLabels(t, names)
}

// The policy of a namespace mutates each pod in the same way as the policy of its singleton. If both policies mutate a
// pod, in any order, the result is the same.
func TestBothPoliciesAreEquivalent(t *testing.T) {
	files := []string{"default", "named-containers", "hold-init-containers", "grace-period", "fencing", "fencing", "queue"}
	var singletons []v1.StatefulSingleton
	for n, file := range files {
		singletons = append(singletons, named(t, file, fmt.Sprintf("db%d", n)))
	}
	shared := newKyverno(t, sharedPolicy(singletons...))
	for n, file := range files {
		for _, pod := range []string{"scratch", "init-containers", "weird-strings", "fencing", "queue"} {
			t.Run(file+"/"+pod, func(t *testing.T) {
				t.Parallel()
				s := singletons[n]
				object := decoded[corev1.Pod](t, readFile(t, filepath.Join("testdata", "pods", pod+".yaml")))
				object.Labels["app"] = s.Name
				object.Spec.Containers[0].Name = "db" // named-containers names db, and no other
				object.Spec.Containers = append(object.Spec.Containers, corev1.Container{Name: "other", Image: "other", Command: []string{"/other"}})
				original, own := encode(t, object), newKyverno(t, ownPolicy(&s, options))

				want := own.mutate(t, original, firstRequest)
				wantSame(t, "by the namespace's policy", want, shared.mutate(t, original, firstRequest))
				wantSame(t, "by the singleton's, then by the namespace's", want, shared.mutate(t, want, secondRequest))
				wantSame(t, "by the namespace's, then by the singleton's", want, own.mutate(t, shared.mutate(t, original, firstRequest), secondRequest))
			})
		}
	}
	t.Run("nobody's", func(t *testing.T) {
		pod := readFile(t, "testdata/pods/shell.yaml")
		wantSame(t, "of no singleton", pod, shared.mutate(t, pod, firstRequest))
	})
}

// wantSame checks that two pods are equal, except for the UID of the request.
func wantSame(t *testing.T, what string, want, got []byte) {
	t.Helper()
	got = bytes.ReplaceAll(got, []byte(secondRequest), []byte(firstRequest))
	if diff := cmp.Diff(decoded[map[string]any](t, want), decoded[map[string]any](t, got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// A probe shows which policy injected it. The policies for the other value of Per can be deleted after this one answers.
func TestProbeAnswers(t *testing.T) {
	s := named(t, "default", "db")
	own, shared := policies.ClusterPolicy.Of(&s), policies.ClusterPolicy.OfNamespace("shop")
	tests := map[string]struct {
		through    []rendering
		wantOwn    bool
		wantShared bool
	}{
		"own":                       {[]rendering{ownPolicy(&s, options)}, true, false},
		"shared":                    {[]rendering{sharedPolicy(s)}, false, true},
		"both":                      {[]rendering{ownPolicy(&s, options), sharedPolicy(s)}, true, true},
		"shared without its rules":  {[]rendering{sharedPolicy(named(t, "default", "queue"))}, false, false},
		"own and shared without it": {[]rendering{ownPolicy(&s, options), sharedPolicy(named(t, "default", "queue"))}, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			probe, err := policies.ProbePod(&s, options)
			if err != nil {
				t.Fatal(err)
			}
			data := encode(t, probe)
			for _, policy := range test.through {
				data = newKyverno(t, policy).mutate(t, data, firstRequest)
			}
			pod := decoded[corev1.Pod](t, data)
			if err := policies.CheckProbe(&pod, &s, own); (err == nil) != test.wantOwn {
				t.Errorf("CheckProbe of the singleton's policy: %v, want it to pass: %t", err, test.wantOwn)
			}
			if err := policies.CheckProbe(&pod, &s, shared); (err == nil) != test.wantShared {
				t.Errorf("CheckProbe of the namespace's policy: %v, want it to pass: %t", err, test.wantShared)
			}
		})
	}
}
