package singleton_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// forms are the policies that there are for singletons of the namespace, and whose pods
// each injects.
func (w *world) forms() map[string][]string {
	w.t.Helper()
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(policies.GVK)
	w.Expect(c.List(w.t.Context(), &list)).To(Succeed())
	all := map[string][]string{}
	for i := range list.Items {
		if injects := w.injects(&list.Items[i]); len(injects) > 0 {
			all[list.Items[i].GetName()] = injects
		}
	}
	return all
}

// injects are the singletons of the namespace that a policy has rules for.
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

// allInstalled waits until each singleton's injection is proven.
func (w *world) allInstalled(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.Eventually(func() bool { return w.isInstalled(w.key(name)) }).Should(BeTrue(), "injection of %s", name)
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
	w.Expect(w.forms()).To(Equal(map[string][]string{shared: {singletonName, "queue"}}))
	wanted := w.ruleNames()

	w.edit(wanted)
	w.allInstalled(singletonName, "queue")

	before := w.policy()
	w.Expect(c.Delete(t.Context(), before)).To(Succeed())
	w.Eventually(w.ruleNames).Should(Equal(wanted))
	w.Expect(w.policy().GetUID()).NotTo(Equal(before.GetUID()))

	// What is wrong with one is not the others' affair.
	w.createSingleton(func(s *v1.StatefulSingleton) {
		s.Name, s.Spec.Selector.MatchLabels = "broken", map[string]string{"app": "my database"}
	})
	w.Eventually(func() string { return w.installedReason("broken") }).Should(Equal("InvalidSingleton"))
	w.createNamed("late")
	w.allInstalled(singletonName, "queue", "late")
	w.Expect(w.forms()).To(Equal(map[string][]string{shared: {singletonName, "late", "queue"}}))

	// Those that go take their rules along, and the last one the policy.
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
		w.Expect(w.forms()).To(Equal(gone.left), "once %s is gone", gone.name)
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

// Two controllers write the policy of a namespace into which singletons come in numbers.
// Neither takes out of it what the other has put there.
func TestSharedPolicyOnlyGrows(t *testing.T) {
	const singletons = 12
	w := newWorld(t)
	w.kyverno(serves)
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(policies.GVK)
	changes, err := c.Watch(t.Context(), list, client.MatchingFields{"metadata.name": policies.NamespaceName(w.namespace)})
	w.Expect(err).NotTo(HaveOccurred())
	w.run(policies.PerNamespace)
	w.run(policies.PerNamespace)
	var names []string
	for n := range singletons {
		names = append(names, w.createNamed(fmt.Sprintf("s%d", n)).Name)
	}
	w.allInstalled(names...)

	var last []string
	for len(last) < singletons {
		event := <-changes.ResultChan()
		now := w.injects(event.Object.(*unstructured.Unstructured))
		for _, name := range last {
			w.Expect(now).To(ContainElement(name), "%s of the policy", event.Type)
		}
		last = now
	}
	changes.Stop()
	w.Expect(w.forms()[policies.NamespaceName(w.namespace)]).To(HaveLen(singletons))
}

// A controller that is told of the other form writes that, and proves it, before what was
// there goes. At no moment is a pod created that is not injected.
func TestSwitchForm(t *testing.T) {
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
			w.Eventually(w.forms).Should(Equal(test.wantFrom(w)))
			stop()

			injected := w.keepCreatingPods()
			w.kyverno(`"` + string(test.from) + `"`) // Kyverno takes its time
			w.run(test.to)
			both := test.wantFrom(w)
			maps.Copy(both, test.wantTo(w))
			w.Eventually(w.forms).Should(Equal(both))
			w.Eventually(func() []string {
				return []string{w.installedReason(singletonName), w.installedReason("queue")}
			}).Should(HaveEach("Installing"))
			w.Expect(w.forms()).To(Equal(both), "nothing goes before the new form is proven")

			w.kyverno(serves)
			w.allInstalled(singletonName, "queue")
			w.Eventually(w.forms).Should(Equal(test.wantTo(w)))
			w.allInstalled(singletonName, "queue")
			injected()
		})
	}
}

// keepCreatingPods creates pods, in dry-runs, and returns what ends that and demands that
// each was injected.
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
