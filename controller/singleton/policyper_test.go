package singleton_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// rules returns the policies for singletons of the namespace, and the singletons whose pods each policy injects.
func (w *world) rules() map[string][]string {
	w.t.Helper()
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	w.Expect(c.List(w.t.Context(), &list)).To(Succeed())
	all := map[string][]string{}
	for i := range list.Items {
		if injects := w.injects(&list.Items[i]); len(injects) > 0 {
			all[list.Items[i].GetName()] = injects
		}
	}
	return all
}

// injects returns the singletons of the namespace for which the policy has rules.
func (w *world) injects(policy *unstructured.Unstructured) []string {
	names := map[string]bool{}
	rules, _, _ := unstructured.NestedSlice(policy.Object, "spec", "rules")
	for _, rule := range rules {
		_, value, ok := strings.Cut(fmt.Sprint(rule), `"value":"`+w.namespace+"/")
		if name, _, _ := strings.Cut(value, `"`); ok {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// allInstalled waits until a check of each singleton's policy succeeds.
func (w *world) allInstalled(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.reports(name, "Injected")
	}
}

func (w *world) run(per policies.Per) {
	w.t.Helper()
	_, stop := w.runManager(per)
	w.t.Cleanup(stop)
}

func TestPolicyPerNamespace(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	shared := policies.NamespaceName(w.namespace)
	w.run(policies.PerNamespace)
	w.createSingleton()
	w.createNamed("queue")
	w.allInstalled(singletonName, "queue")
	w.Expect(w.rules()).To(Equal(map[string][]string{shared: {singletonName, "queue"}}))
	wanted := w.ruleNames()

	before := w.policy()
	w.delete(before)
	w.Eventually(w.ruleNames).Should(Equal(wanted))
	w.Expect(w.policy().GetUID()).NotTo(Equal(before.GetUID()))

	// An invalid singleton does not affect the other singletons.
	w.createSingleton(func(s *v1.StatefulSingleton) {
		s.Name, s.Spec.Selector.MatchLabels = "broken", map[string]string{"app": "my database"}
	})
	w.reports("broken", "InvalidSpec")
	w.createNamed("late")
	w.allInstalled(singletonName, "queue", "late")
	w.Expect(w.rules()).To(Equal(map[string][]string{shared: {singletonName, "late", "queue"}}))

	// The rules of a deleted singleton are removed. The policy is deleted with the last singleton.
	for _, gone := range []struct {
		name string
		left map[string][]string
	}{
		{"late", map[string][]string{shared: {singletonName, "queue"}}},
		{singletonName, map[string][]string{shared: {"queue"}}},
		{"queue", map[string][]string{}},
	} {
		w.deleteNamed(gone.name)
		w.Expect(w.rules()).To(Equal(gone.left), "once %s is gone", gone.name)
	}
}

// A controller lists the singletons of a namespace, and another controller writes the policy first. The delayed
// controller removes no rules from the policy.
func TestStaleWriterOfSharedPolicy(t *testing.T) {
	tests := map[string]struct{ thereBefore []string }{
		"the policy is there": {[]string{"a"}},
		"both make it":        {},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			perNamespace := func(r controllers) { r.Injection.Per = policies.PerNamespace }
			fresh := w.fresh()
			perNamespace(fresh)
			for _, name := range test.thereBefore {
				w.createNamed(name)
				w.reconcileOne(fresh, w.key(name))
			}
			w.createNamed("b")
			proceed := w.holdUp("b", ofPolicy, perNamespace) // the controller knows b, but not c

			w.createNamed("c")
			w.reconcileOne(fresh, w.key("c"))
			want := map[string][]string{policies.NamespaceName(w.namespace): append(test.thereBefore, "b", "c")}
			w.Expect(w.rules()).To(Equal(want))
			_, err := proceed()
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(w.rules()).To(Equal(want))
			w.Expect(w.installedReason("b")).To(Equal("Injected"), "being overtaken is no error")
		})
	}
}

// While no check of one singleton's own policy succeeds, the policy of the namespace stays and is updated for the other
// singletons. The policy is deleted when no singleton needs it.
func TestSwitchPolicyPerWaitsForAll(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	_, stop := w.runManager(policies.PerNamespace)
	w.createSingleton()
	w.createNamed("queue")
	w.allInstalled(singletonName, "queue")
	stop()

	shared := policies.NamespaceName(w.namespace)
	w.label(refusedLabel, `"queue"`)
	w.run(policies.PerSingleton)
	w.Eventually(func() metav1.Condition { return w.installedCondition(singletonName) }).Should(
		And(HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring(policies.Name(w.key(singletonName))))))
	w.Eventually(func() string { return w.installedReason("queue") }).ShouldNot(Equal("Injected"))
	w.createNamed("late")
	w.Eventually(w.rules).Should(HaveKeyWithValue(shared, []string{singletonName, "late", "queue"}))
	w.delete(w.singleton())
	w.Eventually(w.rules).Should(HaveKeyWithValue(shared, []string{"late", "queue"}))

	w.delete(w.named("queue"))
	w.Eventually(w.rules).Should(Equal(map[string][]string{policies.Name(w.key("late")): {"late"}}))
}
