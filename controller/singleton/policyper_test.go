package singleton_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
		// On a busy machine, checks fail while the API server learns of new policies, and the next check follows after up to a minute.
		w.Eventually(func() bool { return w.isInstalled(w.key(name)) }).WithTimeout(2*time.Minute).Should(BeTrue(), "injection of %s", name)
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

	w.edit(wanted)
	w.allInstalled(singletonName, "queue")

	before := w.policy()
	w.Expect(c.Delete(t.Context(), before)).To(Succeed())
	w.Eventually(w.ruleNames).Should(Equal(wanted))
	w.Expect(w.policy().GetUID()).NotTo(Equal(before.GetUID()))

	// An invalid singleton does not affect the other singletons.
	w.createSingleton(func(s *v1.StatefulSingleton) {
		s.Name, s.Spec.Selector.MatchLabels = "broken", map[string]string{"app": "my database"}
	})
	w.Eventually(func() string { return w.installedReason("broken") }).Should(Equal("InvalidSpec"))
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
		s := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: gone.name}}
		w.Expect(c.Delete(t.Context(), s)).To(Succeed())
		w.Eventually(func() bool { return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(s), s)) }).Should(BeTrue())
		w.Expect(w.rules()).To(Equal(gone.left), "once %s is gone", gone.name)
	}
}

func (w *world) installedReason(name string) string {
	w.t.Helper()
	s := &v1.StatefulSingleton{}
	w.Expect(c.Get(w.t.Context(), w.key(name), s)).To(Succeed())
	if c := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionPolicyInstalled); c != nil {
		return c.Reason
	}
	return ""
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
			fresh := newReconciler(controllerClient, controllerClient, w.clock)
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

// After a change of policyPer, the controller writes and checks the new policies before it deletes the old policies. At
// all times, new pods are injected and not rejected.
func TestSwitchPolicyPer(t *testing.T) {
	perSingleton := func(w *world) map[string][]string {
		return map[string][]string{
			policies.Name(w.key(singletonName)): {singletonName},
			policies.Name(w.key("queue")):       {"queue"},
		}
	}
	perNamespace := func(w *world) map[string][]string {
		return map[string][]string{policies.NamespaceName(w.namespace): {singletonName, "queue"}}
	}
	tests := map[string]struct {
		from, to         policies.Per
		wantFrom, wantTo func(*world) map[string][]string
	}{
		"to one for the namespace":  {policies.PerSingleton, policies.PerNamespace, perSingleton, perNamespace},
		"to one for each singleton": {policies.PerNamespace, policies.PerSingleton, perNamespace, perSingleton},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			_, stop := w.runManager(test.from)
			w.createSingleton()
			w.createNamed("queue")
			w.allInstalled(singletonName, "queue")
			w.Eventually(w.rules).Should(Equal(test.wantFrom(w)))
			stop()

			injected := w.keepCreatingPods()
			w.kyverno(`"` + string(test.from) + `"`) // Kyverno does not serve the new policies yet
			w.run(test.to)
			both := test.wantFrom(w)
			maps.Copy(both, test.wantTo(w))
			w.Eventually(w.rules).Should(Equal(both))
			w.Eventually(func() []string {
				return []string{w.installedReason(singletonName), w.installedReason("queue")}
			}).Should(HaveEach("Installing"))
			w.Expect(w.rules()).To(Equal(both), "no policy is deleted before a check of the new policy succeeds")

			w.kyverno(serves)
			w.allInstalled(singletonName, "queue")
			w.Eventually(w.rules).Should(Equal(test.wantTo(w)))
			w.allInstalled(singletonName, "queue")
			injected()
		})
	}
}

// While no check of one singleton's own policy succeeds, the policy of the namespace stays and is updated for the other
// singletons. The policy is deleted when no singleton needs it.
func TestSwitchPolicyPerWaitsForAll(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	_, stop := w.runManager(policies.PerNamespace)
	db := w.createSingleton()
	queue := w.createNamed("queue")
	w.allInstalled(singletonName, "queue")
	stop()

	shared := policies.NamespaceName(w.namespace)
	w.label(refusedLabel, `"queue"`)
	w.run(policies.PerSingleton)
	w.Eventually(func() string { return w.installedMessage(singletonName) }).Should(ContainSubstring(policies.Name(w.key(singletonName))))
	w.Eventually(func() string { return w.installedReason("queue") }).ShouldNot(Equal("Injected"))
	w.createNamed("late")
	w.Eventually(w.rules).Should(HaveKeyWithValue(shared, []string{singletonName, "late", "queue"}))
	w.Expect(c.Delete(t.Context(), db)).To(Succeed())
	w.Eventually(w.rules).Should(HaveKeyWithValue(shared, []string{"late", "queue"}))

	w.Expect(c.Delete(t.Context(), queue)).To(Succeed())
	w.Eventually(w.rules).Should(Equal(map[string][]string{policies.Name(w.key("late")): {"late"}}))
}

// If another client enables the old policy again, the controller disables it again before the deletion. The policy is
// never deleted while Kyverno is still asked for it.
func TestSwitchPolicyPerAgainstAnotherWriter(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	_, stop := w.runManager(policies.PerSingleton)
	w.createSingleton()
	w.installed("Injected")
	stop()
	protected := w.policy()
	path := []string{"spec", "webhookConfiguration", "matchConditions"}
	conditions, _, err := unstructured.NestedSlice(protected.Object, path...)
	w.Expect(err).NotTo(HaveOccurred())
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	changes, err := c.Watch(t.Context(), list, client.MatchingFields{"metadata.name": protected.GetName()})
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(changes.Stop)

	w.run(policies.PerNamespace)
	picksNone := HaveField("Object", WithTransform(func(o runtime.Object) string { return fmt.Sprint(o) }, ContainSubstring("expression:false")))
	w.Eventually(changes.ResultChan()).Should(Receive(picksNone))
	disabled := w.policyNamed(protected.GetName())
	w.Expect(unstructured.SetNestedSlice(disabled.Object, conditions, path...)).To(Succeed())
	w.Expect(c.Update(t.Context(), disabled)).To(Succeed())
	w.Eventually(changes.ResultChan()).Should(Receive(And(HaveField("Type", watch.Deleted), picksNone)))
}

func (w *world) installedMessage(name string) string {
	w.t.Helper()
	s := &v1.StatefulSingleton{}
	w.Expect(c.Get(w.t.Context(), w.key(name), s)).To(Succeed())
	if c := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionPolicyInstalled); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}

// keepCreatingPods creates pods in dry-runs. injected stops the dry-runs, and checks that each pod was injected.
func (w *world) keepCreatingPods() (injected func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	created, failed := 0, make(chan string, 1)
	go func() {
		defer close(failed)
		for ; ctx.Err() == nil; created++ {
			pod := w.bare("new")
			err := c.Create(context.Background(), pod, client.DryRunAll)
			if err != nil || pod.Annotations[v1.InjectedAnnotation] == "" {
				failed <- fmt.Sprintf("pod %d of those created is not injected, error %v", created, err)
				return
			}
		}
	}()
	return func() {
		w.t.Helper()
		cancel()
		w.Expect(<-failed).To(BeEmpty())
		w.Expect(created).To(BeNumerically(">", 3))
	}
}
