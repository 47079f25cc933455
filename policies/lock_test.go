package policies_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

var dbLock = &v1.StatefulSetLock{
	ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-lock", UID: "lock"},
	Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 15},
}

// memberOf returns a pod of a StatefulSet.
func memberOf(set string, labels map[string]string) *corev1.Pod {
	pod := podOf("shop", map[string]string{appsv1.StatefulSetPodNameLabel: set + "-0"})
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	maps.Copy(pod.Labels, labels)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set, UID: types.UID(set), Controller: new(true)}}
	return pod
}

// The policy of a lock makes each new pod of its StatefulSet a reader, and changes nothing else.
func TestLockPolicy(t *testing.T) {
	wantGolden(t, ownPolicy(dbLock, options), "lock")
	k := newKyverno(t, ownPolicy(dbLock, options))
	orphan := memberOf("db", nil)
	orphan.OwnerReferences = nil
	deputy := memberOf("db", nil)
	deputy.OwnerReferences[0].Controller = nil
	foreign := memberOf("db", nil)
	foreign.OwnerReferences[0].APIVersion = "apps.example.com/v1"
	tests := map[string]struct {
		pod        *corev1.Pod
		wantReader bool
	}{
		"a pod of the StatefulSet":                     {memberOf("db", nil), true},
		"the template makes it a writer":               {memberOf("db", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}), true},
		"the template names another lock":              {memberOf("db", map[string]string{v1.LockLabel: "other"}), true},
		"a pod of another StatefulSet":                 {memberOf("db2", nil), false},
		"a pod without an owner":                       {orphan, false},
		"a pod that the StatefulSet does not control":  {deputy, false},
		"a StatefulSet of another API group":           {foreign, false},
		"a pod of a StatefulSet with a name in quotes": {memberOf("`db`", nil), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := test.pod.DeepCopy()
			if test.wantReader {
				want.Labels[v1.StsRoleLabel], want.Labels[v1.LockLabel] = v1.StsRoleReader, "db-lock"
			}
			mutated := k.mutate(t, encode(t, test.pod), firstRequest)
			if diff := cmp.Diff(*want, decoded[corev1.Pod](t, mutated)); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(*want, decoded[corev1.Pod](t, k.mutate(t, mutated, secondRequest))); diff != "" {
				t.Errorf("a second pass changed the pod (-want +got):\n%s", diff)
			}
		})
	}
}

// The probe pod shows whether the policy of a lock works.
func TestLockProbe(t *testing.T) {
	t.Parallel()
	policy := policies.ClusterPolicy.Of(dbLock)
	probe, err := policies.ProbePodOf(dbLock, options)
	if err != nil {
		t.Fatal(err)
	}
	probe.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if err := policies.CheckProbeOf(probe, dbLock, policy); err == nil {
		t.Error("the check passes without the policy")
	}
	answered := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(dbLock, options)).mutate(t, encode(t, probe), firstRequest))
	if err := policies.CheckProbeOf(&answered, dbLock, policy); err != nil {
		t.Errorf("the check fails with the policy: %v", err)
	}
}

// The policies of two locks, and those of a lock and of a StatefulSingleton, have different names.
func TestLockPolicyName(t *testing.T) {
	other := dbLock.DeepCopy()
	other.Namespace, other.Name = "shop-db", "lock"
	singleton := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-lock"}}
	names := map[string]bool{policies.NameOf(dbLock): true, policies.NameOf(other): true, policies.NameOf(singleton): true}
	if len(names) != 3 {
		t.Errorf("two policies have the same name: %v", names)
	}
}
