package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

// The plugin does not import package policies, but knows its kinds.
func TestPolicyKinds(t *testing.T) {
	var want []schema.GroupVersionKind
	for _, kind := range policies.Kinds {
		want = append(want, kind.GVK())
	}
	if diff := cmp.Diff(want, policyKinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// check says whether the policies fit the version of Kyverno, and what to do before an upgrade to Kyverno 1.20.
func TestCheckPolicies(t *testing.T) {
	const (
		setKind = "set policyKind=NamespacedMutatingPolicy of the chart"
		see     = "ee " + upgradePage
	)
	both := func(cluster, mutating int) string {
		return fmt.Sprintf("%d of kind ClusterPolicy, %d of kind NamespacedMutatingPolicy", cluster, mutating)
	}
	tests := map[string]struct {
		kyverno string
		// written is the argument --policy-kind of the controller.
		written           string
		cluster, mutating int
		answers           answers
		// want is the line of the result, and wantKyverno that of the check of Kyverno if it matters.
		want, wantKyverno string
	}{
		"ClusterPolicies":             {"v1.19.1", "ClusterPolicy", 2, 0, answers{}, "ok " + both(2, 0) + ". Before you upgrade to Kyverno 1.20, " + setKind + ": s" + see, "ok image kyverno:v1.19.1, 1 available"},
		"ClusterPolicies with 1.18":   {"v1.18.2", "ClusterPolicy", 2, 0, answers{}, "ok " + both(2, 0) + ". Before you upgrade to Kyverno 1.20, " + setKind + ": s" + see, "FAILED image kyverno:v1.18.2 is not supported: install Kyverno 1.19"},
		"in the middle of the change": {"v1.19.1", "NamespacedMutatingPolicy", 1, 2, answers{}, "ok " + both(1, 2) + ". Before you upgrade to Kyverno 1.20, wait until no ClusterPolicy is left: s" + see, ""},
		"changed":                     {"v1.19.1", "NamespacedMutatingPolicy", 0, 2, answers{}, "ok " + both(0, 2), ""},
		"changed, 1.20":               {"v1.20.0-rc.1", "NamespacedMutatingPolicy", 0, 2, answers{}, "ok " + both(0, 2), "ok image kyverno:v1.20.0-rc.1, 1 available. StatefulSingleton is not tested with this version: s" + see},
		"changed, 1.21":               {"v1.21.0", "NamespacedMutatingPolicy", 0, 2, answers{unserved: []string{"ClusterPolicy"}}, "ok 2 of kind NamespacedMutatingPolicy", "ok image kyverno:v1.21.0, 1 available. StatefulSingleton is not tested with this version: s" + see},
		"ClusterPolicies with 1.20":   {"v1.20.0", "ClusterPolicy", 2, 0, answers{}, "FAILED " + both(2, 0) + ". The controller writes ClusterPolicies, which Kyverno 1.20 rejects: " + setKind + ". S" + see, ""},
		"left with 1.20":              {"v1.20.0", "NamespacedMutatingPolicy", 1, 2, answers{}, "FAILED " + both(1, 2) + ". ClusterPolicies are left, which Kyverno 1.20 no longer supports. The controller deletes them after a check of the new policies: see condition PolicyInstalled of StatefulSingletons and StatefulSetLocks. S" + see, ""},
		"ClusterPolicies with 1.21":   {"v1.21.0", "ClusterPolicy", 0, 0, answers{unserved: []string{"ClusterPolicy"}}, "FAILED 0 of kind NamespacedMutatingPolicy. The controller writes ClusterPolicies, which Kyverno 1.20 rejects: " + setKind + ". S" + see, ""},
		"not served":                  {"unknown", "NamespacedMutatingPolicy", 1, 0, answers{unserved: []string{"NamespacedMutatingPolicy"}}, "FAILED 1 of kind ClusterPolicy. The controller writes NamespacedMutatingPolicies, which need Kyverno 1.19: upgrade Kyverno, or set policyKind=ClusterPolicy of the chart. S" + see, "FAILED cannot read the version of Kyverno from image kyverno:unknown: make sure that the version is 1.19"},
		"none served":                 {"v1.17.2", "ClusterPolicy", 0, 0, answers{unserved: []string{"ClusterPolicy", "NamespacedMutatingPolicy"}}, "FAILED the API server serves no kind of policies that the controller can write. Install Kyverno 1.19. S" + see, "FAILED image kyverno:v1.17.2 is not supported: install Kyverno 1.19"},
		"hidden":                      {"v1.19.1", "ClusterPolicy", 2, 0, answers{forbidden: []string{"list clusterpolicies"}}, "unknown you do not have permission to read the object: clusterpolicies is forbidden: no role allows it", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, "kyverno-down", tc.answers)
			s.deployKyverno(t, tc.kyverno)
			s.deployController(t, tc.written)
			s.createPolicies(t, clusterPolicy, tc.cluster)
			s.createPolicies(t, mutatingPolicy, tc.mutating)
			_ = s.run(t.Context(), "check") // the guards are not installed
			if diff := cmp.Diff(tc.want, row(s.out.String(), "policies")); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantKyverno, row(s.out.String(), "Kyverno")); tc.wantKyverno != "" && diff != "" {
				t.Errorf("Kyverno (-want +got):\n%s", diff)
			}
		})
	}
}

// row returns state and result of the check, separated by a space.
func row(out, check string) string {
	for line := range strings.Lines(out) {
		if state, rest, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(strings.TrimSpace(rest), check+" ") {
			return state + " " + strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(rest), check))
		}
	}
	return ""
}

// deployKyverno sets the version of Kyverno, and makes it available.
func (s *stage) deployKyverno(t *testing.T, version string) {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "kyverno", Name: "kyverno-admission-controller"}, d); err != nil {
		t.Fatal(err)
	}
	d.Spec.Template.Spec.Containers[0].Image = "kyverno:" + version
	if err := s.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	d.Status.AvailableReplicas = 1
	if err := s.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// deployController creates the Deployment of a controller that writes the kind of policies.
func (s *stage) deployController(t *testing.T, kind string) {
	t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "statefulsingleton", Name: "statefulsingleton", Labels: map[string]string{
		"app.kubernetes.io/name": "statefulsingleton", "app.kubernetes.io/component": "controller",
	}}}
	args := []string{"run", "--policy-kind=" + kind}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Args: args}}
	if err := s.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// createPolicies creates policies of the controller.
func (s *stage) createPolicies(t *testing.T, kind schema.GroupVersionKind, count int) {
	t.Helper()
	for i := range count {
		policy := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("stfs-%d", i), Labels: ownPolicies}}
		policy.SetGroupVersionKind(kind)
		if err := s.Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
	}
}
