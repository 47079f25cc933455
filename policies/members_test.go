package policies_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// dbCluster returns a StatefulCluster whose policy has all rules.
func dbCluster() *v1.StatefulCluster {
	return &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "cluster"},
		Spec: v1.StatefulClusterSpec{
			Selector: v1.LabelSelector{
				MatchLabels:      map[string]string{"app": "db", "example.com/tier": "gold", "empty": ""},
				MatchExpressions: []v1.LabelSelectorRequirement{expression("debug", metav1.LabelSelectorOpDoesNotExist)},
			},
			ServiceName:    "db",
			UpdateStrategy: v1.ClusterUpdateStrategy{Type: v1.ClusterInPlaceIfPossible},
		},
	}
}

// newMember returns a pod as the manager of StatefulClusters creates it.
func newMember(c *v1.StatefulCluster, name string) *corev1.Pod {
	pod := podOf(c.Namespace, map[string]string{v1.ClusterLabel: c.Name})
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Name, pod.GenerateName = name, ""
	pod.Finalizers = []string{v1.MemberFinalizer}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: "StatefulCluster", Name: c.Name, UID: c.UID, Controller: new(true),
	}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1.MemberGate}}
	return pod
}

// beMember changes a pod as the policy of the StatefulCluster does.
func beMember(pod *corev1.Pod, c *v1.StatefulCluster) {
	for key, value := range c.Spec.Selector.MatchLabels {
		if _, has := pod.Labels[key]; !has {
			pod.Labels[key] = value
		}
	}
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, c.Spec.ServiceName
	if c.Spec.UpdateStrategy.Type == v1.ClusterInPlaceIfPossible {
		pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1.MemberServing})
	}
}

// The policy of a StatefulCluster makes each of its new pods a member, and changes nothing else.
func TestClusterPolicyOfMembers(t *testing.T) {
	cluster := dbCluster()
	wantGolden(t, ownPolicy(cluster, options), "cluster")
	k := newKyverno(t, ownPolicy(cluster, options))
	change := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := newMember(cluster, "db-7")
		change(pod)
		return pod
	}
	tests := map[string]struct {
		pod        *corev1.Pod
		wantMember bool
	}{
		"a new pod": {newMember(cluster, "db-7"), true},
		"the template has labels": {change(func(p *corev1.Pod) {
			maps.Copy(p.Labels, map[string]string{"app": "db", "example.com/tier": "silver", "empty": "no", "team": "data"})
		}), true},
		"the template has a host name": {change(func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "theirs", "theirs" }), true},
		"the template has a readiness gate": {change(func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/theirs"}}
		}), true},
		"a pod of another StatefulCluster":                {newMember(&v1.StatefulCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db2", UID: "2"}}, "db2-7"), false},
		"a copy without an owner":                         {change(func(p *corev1.Pod) { p.OwnerReferences = nil }), false},
		"a pod that the StatefulCluster does not control": {change(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }), false},
		"a pod of another kind":                           {change(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "StatefulSet" }), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := test.pod.DeepCopy()
			if test.wantMember {
				beMember(want, cluster)
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

// Without serviceName and updates in place, pods get neither a subdomain nor a readiness gate.
func TestSmallestClusterPolicy(t *testing.T) {
	cluster := dbCluster()
	cluster.Spec.Selector = selectorOf(expression("app", metav1.LabelSelectorOpExists))
	cluster.Spec.ServiceName, cluster.Spec.UpdateStrategy.Type = "", v1.ClusterRollingUpdate
	pod := newMember(cluster, "db-0")
	pod.Labels["app"], pod.Spec.Subdomain = "db", "theirs"
	want := pod.DeepCopy()
	want.Spec.Hostname = "db-0"
	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(cluster, options)).mutate(t, encode(t, pod), firstRequest))
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
}

// Kyverno evaluates no text of a pod. Both kinds of policies leave a pod alone whose name is not the name of a host.
func TestHostileNamesOfMembers(t *testing.T) {
	cluster := dbCluster()
	k := newKyverno(t, ownPolicy(cluster, options))
	for i, name := range []string{"{{request.object.metadata.namespace}}", `db","x":"`, "{{ to_upper('x') }}", "$(./../namespace)", "db.0", "DB-0", "`db`"} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			got := decoded[corev1.Pod](t, k.mutate(t, encode(t, newMember(cluster, name)), firstRequest))
			if got.Name != name || got.Spec.Hostname != "" {
				t.Errorf("name %q and host name %q, want the name and no host name", got.Name, got.Spec.Hostname)
			}
		})
	}
}

// For any valid labels, the policy adds exactly the labels of the selector that a pod does not have.
func TestLabelsOfMembers(t *testing.T) {
	key := rapid.StringMatching(`([a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?\.[a-z]{1,3}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,8}[A-Za-z0-9])?`)
	value := rapid.StringMatching(`([A-Za-z0-9]([-A-Za-z0-9_.]{0,8}[A-Za-z0-9])?)?`)
	rapid.Check(t, func(r *rapid.T) {
		cluster := dbCluster()
		cluster.Spec.Selector = v1.LabelSelector{MatchLabels: rapid.MapOfN(key, value, 1, 16).Draw(r, "selector")}
		pod := newMember(cluster, "db-0")
		maps.Copy(pod.Labels, rapid.MapOf(rapid.OneOf(key, rapid.SampledFrom(slices.Sorted(maps.Keys(cluster.Spec.Selector.MatchLabels)))), value).Draw(r, "template"))
		want := pod.DeepCopy()
		beMember(want, cluster)
		policy := ownPolicy(cluster, options).render(t, policies.NamespacedMutatingPolicy)
		mutated, err := engine.mutate(mustJSON(t, policy.Object), mustJSON(t, pod), firstRequest)
		if err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(*want, decoded[corev1.Pod](t, mutated)); diff != "" {
			r.Errorf("pod (-want +got):\n%s", diff)
		}
	})
}

// The probe pod shows whether the policy of a StatefulCluster works.
func TestClusterProbe(t *testing.T) {
	cluster := dbCluster()
	policy := policies.ClusterPolicy.Of(cluster)
	probe, err := policies.ProbePodOf(cluster, options)
	if err != nil {
		t.Fatal(err)
	}
	if err := policies.CheckProbeOf(probe, cluster, policy); err == nil {
		t.Error("the check passes without the policy")
	}
	answered := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(cluster, options)).mutate(t, encode(t, probe), firstRequest))
	if err := policies.CheckProbeOf(&answered, cluster, policy); err != nil {
		t.Errorf("the check fails with the policy: %v", err)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"no answer":         func(p *corev1.Pod) { p.Annotations = nil },
		"another label":     func(p *corev1.Pod) { p.Labels["example.com/tier"] = "silver" },
		"another host name": func(p *corev1.Pod) { p.Spec.Hostname = "" },
		"another subdomain": func(p *corev1.Pod) { p.Spec.Subdomain = "" },
		"no readiness gate": func(p *corev1.Pod) { p.Spec.ReadinessGates = nil },
	} {
		t.Run(name, func(t *testing.T) {
			pod := answered.DeepCopy()
			change(pod)
			if err := policies.CheckProbeOf(pod, cluster, policy); err == nil {
				t.Error("the check passes")
			}
		})
	}
}

// An invalid selector gets no policy: its labels would not be literals.
func TestClusterWithInvalidSelector(t *testing.T) {
	cluster := dbCluster()
	cluster.Spec.Selector = v1.LabelSelector{MatchLabels: map[string]string{`a" || "a`: "{{ x }}"}}
	if err := policies.ValidateOf(cluster); err == nil {
		t.Error("ValidateOf finds nothing wrong")
	}
	if _, err := policies.RenderOf(cluster, options); err == nil {
		t.Error("RenderOf finds nothing wrong")
	}
	if got := policies.WithinBudget([]policies.Subject{cluster}, policies.PerSingleton, nil); len(got) > 0 {
		t.Errorf("%d objects get a policy, want none", len(got))
	}
}

// The policies of a StatefulCluster, a StatefulSetLock and a StatefulSingleton of the same name have different names.
func TestClusterPolicyName(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "db"}
	names := map[string]bool{}
	for _, s := range []policies.Subject{
		&v1.StatefulCluster{ObjectMeta: meta}, &v1.StatefulSetLock{ObjectMeta: meta}, &v1.StatefulSingleton{ObjectMeta: meta},
		&v1.StatefulCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop-db", Name: "x"}},
		&v1.StatefulCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-x"}},
	} {
		names[policies.NameOf(s)] = true
	}
	if len(names) != 5 {
		t.Errorf("two policies have the same name: %v", names)
	}
}
