package singleton_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// createLarge creates a singleton with a selector of more than 2 KiB as CEL.
func (w *world) createLarge(name string) *v1.StatefulSingleton {
	w.t.Helper()
	return w.createSingleton(func(s *v1.StatefulSingleton) {
		s.Name, s.Spec.Selector.MatchLabels = name, map[string]string{"app": name}
		not := v1.LabelSelectorRequirement{Key: "not", Operator: metav1.LabelSelectorOpNotIn}
		for value := range 32 {
			not.Values = append(not.Values, fmt.Sprintf("%02d-", value)+strings.Repeat("x", 60))
		}
		s.Spec.Selector.MatchExpressions = []v1.LabelSelectorRequirement{not}
	})
}

// fill gives the namespace a quarter of the default budget, and creates as many singletons as it then has room for. It returns
// after the second of their creation, because the UID decides between objects of the same second.
func (w *world) fill(per policies.Per, create func(name string) *v1.StatefulSingleton) (names []string) {
	w.t.Helper()
	whole := policies.DefaultBudget
	w.room = policies.Budget{Webhooks: whole.Webhooks / 4, Policy: whole.Policy / 4, Expression: whole.Expression / 4}
	var all []policies.Subject
	for full := false; !full; {
		last := create(fmt.Sprintf("db-%02d", len(all)))
		all, names = append(all, last), append(names, last.Name)
		next := last.DeepCopy()
		next.CreationTimestamp.Time = last.CreationTimestamp.Add(time.Hour)
		full = len(w.room.Within(append(slices.Clone(all), next), per, nil)) == len(all)
	}
	newest := all[len(all)-1].GetCreationTimestamp()
	w.Eventually(func() bool { return time.Now().After(newest.Add(time.Second)) }).Should(BeTrue())
	return names
}

// injectedNames returns the singletons of the namespace whose pods a policy injects.
func (w *world) injectedNames() (names []string) {
	w.t.Helper()
	for _, injects := range w.rules() {
		names = append(names, injects...)
	}
	slices.Sort(names)
	return names
}

func (w *world) deleteNamed(name string) {
	w.t.Helper()
	s := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Expect(c.Delete(w.t.Context(), s)).To(Succeed())
	w.Eventually(func() bool { return apierrors.IsNotFound(c.Get(w.t.Context(), client.ObjectKeyFromObject(s), s)) }).Should(BeTrue())
}

// The oldest singletons of a namespace get the room in Kyverno's webhooks. The others have no policy and report why, until
// an older one is deleted. A restart of the controller changes nothing, and other namespaces are not affected.
func TestNamespaceFull(t *testing.T) {
	for _, per := range []policies.Per{policies.PerSingleton, policies.PerNamespace} {
		t.Run(string(per), func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			first := w.fill(per, w.createLarge)
			w.createLarge("late")
			_, stop := w.runManager(per)
			w.allInstalled(first...)
			w.Eventually(func() string { return w.installedReason("late") }).Should(Equal("NamespaceFull"))
			late := &v1.StatefulSingleton{}
			w.Expect(c.Get(t.Context(), w.key("late"), late)).To(Succeed())
			w.Expect(late.Status.Message).To(And(
				ContainSubstring("StatefulSingleton "+w.namespace+"/late gets no policy"),
				ContainSubstring("Create this StatefulSingleton in another namespace, or delete others (kubectl get statefulsingleton -n "+w.namespace+" "),
			))
			w.Expect(strings.Contains(late.Status.Message, "set policyPer of the chart to namespace")).To(Equal(per == policies.PerSingleton), late.Status.Message)
			w.Eventually(func() bool { return time.Now().After(late.CreationTimestamp.Add(time.Second)) }).Should(BeTrue())
			w.createNamed("later") // small, but the older one comes first
			w.Eventually(func() string { return w.installedReason("later") }).Should(Equal("NamespaceFull"))
			w.Expect(w.injectedNames()).To(Equal(first))
			w.allInstalled(first...)

			other := newLonelyWorld(t)
			other.kyverno(serves)
			db := other.createSingleton()
			everywhere := newReconciler(controllerClient, controllerClient, w.clock)
			everywhere.Injection.Per = per
			other.Eventually(func() bool {
				other.reconcileOne(everywhere, client.ObjectKeyFromObject(db))
				return other.isInstalled(client.ObjectKeyFromObject(db))
			}).Should(BeTrue())

			stop()
			created := w.policyUIDs()
			w.run(per)
			w.createNamed("last")
			w.Eventually(func() string { return w.installedReason("last") }).Should(Equal("NamespaceFull"))
			w.Expect(w.injectedNames()).To(Equal(first))
			w.Expect(w.policyUIDs()).To(Equal(created))

			w.deleteNamed(first[3])
			w.allInstalled("late")
			w.Expect(w.injectedNames()).To(ContainElements(append(slices.Delete(first, 3, 4), "late")))
		})
	}
}

// policyUIDs returns the UIDs of the policies for singletons of the namespace.
func (w *world) policyUIDs() map[string]types.UID {
	w.t.Helper()
	uids := map[string]types.UID{}
	for name := range w.rules() {
		uids[name] = w.policyNamed(name).GetUID()
	}
	return uids
}

// A singleton with a policy of its own keeps the policy in a full namespace, for example after an older one has grown.
func TestFullNamespaceKeepsPolicies(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	first := w.fill(policies.PerSingleton, w.createLarge)
	kept := w.createLarge("kept")
	policy, err := policies.Render(kept, policies.Options{SidecarImage: "gate"})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(c.Create(t.Context(), policy)).To(Succeed())
	w.createLarge("late")
	w.startManager()
	w.allInstalled(append(first, "kept")...)
	w.Eventually(func() string { return w.installedReason("late") }).Should(Equal("NamespaceFull"))
	w.Expect(w.policyNamed(policy.GetName()).GetUID()).To(Equal(policy.GetUID()))
}

// A shared policy keeps all its singletons if longer rules exceed the budget.
func TestFullNamespaceKeepsSharedPolicy(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	all := append(w.fill(policies.PerNamespace, w.createLarge), w.createLarge("kept").Name)
	var list v1.StatefulSingletonList
	w.Expect(c.List(t.Context(), &list, client.InNamespace(w.namespace))).To(Succeed())
	policy, err := policies.RenderNamespace(w.namespace, list.Items, policies.Options{SidecarImage: "gate"})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(c.Create(t.Context(), policy)).To(Succeed())
	w.createLarge("late")
	w.run(policies.PerNamespace)
	w.allInstalled(all...)
	w.Eventually(func() string { return w.installedReason("late") }).Should(Equal("NamespaceFull"))
	w.Expect(w.injectedNames()).To(Equal(all))
}

// A singleton that outgrows a full shared policy keeps its earlier rules, and takes the rules of no other singleton. A restart
// of the controller changes nothing. The singleton gets its new rules when there is room.
func TestGrowthInFullNamespace(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	all := w.fill(policies.PerNamespace, w.createLarge)
	_, stop := w.runManager(policies.PerNamespace)
	w.allInstalled(all...)
	w.grow(all[0])
	w.Eventually(func() string { return w.installedReason(all[0]) }).Should(Equal("NamespaceFull"))
	grown := &v1.StatefulSingleton{}
	w.Expect(c.Get(t.Context(), w.key(all[0]), grown)).To(Succeed())
	w.Expect(grown.Status.Message).To(And(
		ContainSubstring("has an earlier spec in ClusterPolicy "+policies.NamespaceName(w.namespace)+", because the policy has no room for the present one within "),
		ContainSubstring("Revert the change of these fields, or delete others (kubectl get statefulsingleton -n "+w.namespace+")"),
	))
	hasNewRules := func() bool {
		return strings.Contains(fmt.Sprint(w.policyNamed(policies.NamespaceName(w.namespace)).Object["spec"]), grown.Spec.Containers[0])
	}
	w.Expect(w.injectedNames()).To(Equal(all))
	w.Expect(hasNewRules()).To(BeFalse())

	stop()
	w.run(policies.PerNamespace)
	w.createLarge("late")
	w.Eventually(func() string { return w.installedReason("late") }).Should(Equal("NamespaceFull"))
	w.allInstalled(all[1:]...)
	w.Expect(w.installedReason(all[0])).To(Equal("NamespaceFull"))
	w.Expect(w.injectedNames()).To(Equal(all))
	w.Expect(hasNewRules()).To(BeFalse())

	for _, name := range append([]string{"late"}, all[1:4]...) {
		w.deleteNamed(name)
	}
	w.allInstalled(all[0])
	w.Expect(hasNewRules()).To(BeTrue())
}

// The controller has not seen the other singletons of a full namespace yet, so its cache shows room for everything. A singleton
// without room and a singleton that outgrows the policy still report what the policy has.
func TestLateCacheOfFullNamespace(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	all := w.fill(policies.PerNamespace, w.createLarge)
	w.createLarge("late")
	r := w.controllerOf(policies.PerNamespace, interceptor.NewClient(controllerClient, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*v1.StatefulSingletonList); ok {
				return nil
			}
			return c.List(ctx, list, options...)
		},
	}))
	w.checked(r, all[0])
	w.reconcileOne(r, w.key("late"))
	w.Expect(w.installedReason("late")).To(Equal("NamespaceFull"))

	w.grow(all[0])
	w.reconcileOne(r, w.key(all[0]))
	w.Expect(w.installedReason(all[0])).To(Equal("NamespaceFull"))
	w.Expect(w.injectedNames()).To(Equal(all))
}

// grow makes the singleton name so many containers that its rules take more than 50 KiB of the shared policy.
func (w *world) grow(name string) {
	w.t.Helper()
	s := &v1.StatefulSingleton{}
	w.Expect(c.Get(w.t.Context(), w.key(name), s)).To(Succeed())
	before := s.DeepCopy()
	for i := range 20 {
		s.Spec.Containers = append(s.Spec.Containers, fmt.Sprintf("container-%02d-", i)+strings.Repeat("x", 50))
	}
	w.Expect(c.Patch(w.t.Context(), s, client.MergeFrom(before))).To(Succeed())
}

// A failed read is not a missing policy: a singleton whose policy cannot be read reports the error, not NamespaceFull.
func TestFullNamespaceUnreadable(t *testing.T) {
	w := newWorld(t)
	w.fill(policies.PerSingleton, w.createLarge)
	w.createLarge("late")
	live := interceptor.NewClient(controllerClient, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == policies.ClusterPolicy.GVK() {
				return apierrors.NewInternalError(errors.New("no etcd"))
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	r := newReconciler(controllerClient, live, w.clock)
	r.Injection.Budget = w.room
	w.reconcileOne(r, w.key("late"))
	w.Expect(w.installedReason("late")).To(Equal("PolicyRefused"))
	late := &v1.StatefulSingleton{}
	w.Expect(c.Get(t.Context(), w.key("late"), late)).To(Succeed())
	w.Expect(late.Status.Message).To(And(ContainSubstring("tries again within"), ContainSubstring("no etcd")))
}

// If a namespace has no room for all its singletons after a change of policyPer, the old policy of the newest singleton stays,
// and still injects its pods. The old policy is deleted after the singleton has a new one. The steps need checks, which fail and
// wait longer and longer on a busy machine.
func TestSwitchPolicyPerWithoutRoom(t *testing.T) {
	t.Run("to singleton", func(t *testing.T) {
		w := newWorld(t)
		all := w.fill(policies.PerSingleton, w.createNamed)
		late := w.createNamed("late")
		w.switchWithoutRoom(policies.PerNamespace, policies.PerSingleton, append(slices.Clone(all), "late"))
		shared, own := policies.NamespaceName(w.namespace), policies.Name(client.ObjectKeyFromObject(late))
		w.Eventually(func() int { return len(w.rules()) }).WithPolling(time.Second).WithTimeout(3*time.Minute).Should(Equal(len(all)+1), "one policy for each but the newest, and the shared policy")
		w.Expect(w.rules()).To(And(HaveKeyWithValue(shared, append(slices.Clone(all), "late")), Not(HaveKey(own))))

		w.deleteNamed(all[0])
		w.Eventually(w.rules).WithPolling(time.Second).WithTimeout(3 * time.Minute).Should(And(HaveKey(own), Not(HaveKey(shared))))
		w.allInstalled(append(all[1:], "late")...)
	})
	t.Run("to namespace", func(t *testing.T) {
		w := newWorld(t)
		all := w.fill(policies.PerNamespace, w.createLarge)
		late := w.createLarge("late")
		w.switchWithoutRoom(policies.PerSingleton, policies.PerNamespace, append(slices.Clone(all), "late"))
		shared, own := policies.NamespaceName(w.namespace), policies.Name(client.ObjectKeyFromObject(late))
		w.Eventually(w.rules).WithPolling(time.Second).WithTimeout(3 * time.Minute).Should(Equal(map[string][]string{shared: all, own: {"late"}}))

		w.deleteNamed(all[0])
		w.Eventually(w.rules).WithPolling(time.Second).WithTimeout(3 * time.Minute).Should(Equal(map[string][]string{shared: append(all[1:], "late")}))
		w.allInstalled(append(all[1:], "late")...)
	})
}

// switchWithoutRoom changes policyPer after all singletons have a policy, and waits until the newest has no room.
func (w *world) switchWithoutRoom(from, to policies.Per, all []string) {
	w.t.Helper()
	w.kyverno(serves)
	_, stop := w.runManager(from)
	w.allInstalled(all...)
	stop()
	w.run(to)
	w.Eventually(func() string { return w.installedReason(all[len(all)-1]) }).WithTimeout(3 * time.Minute).Should(Equal("NamespaceFull"))
}
