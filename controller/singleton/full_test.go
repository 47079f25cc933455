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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	w.nextSecond(all[len(all)-1])
	return names
}

// nextSecond waits until the second of the creation of an object is over.
func (w *world) nextSecond(o client.Object) {
	w.t.Helper()
	w.Eventually(func() bool { return time.Now().After(o.GetCreationTimestamp().Add(time.Second)) }).Should(BeTrue())
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
	s := w.named(name)
	w.delete(s)
	w.removed(s)
}

// The oldest singletons of a namespace get the room in Kyverno's webhooks. The others have no policy and report why, until
// an older one is deleted. A restart of the controller changes nothing, and other namespaces are not affected.
func TestNamespaceFull(t *testing.T) {
	for _, per := range []policies.Per{policies.PerSingleton, policies.PerNamespace} {
		t.Run(string(per), func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			first := w.fill(per, w.createLarge)
			late := w.createLarge("late")
			_, stop := w.runManager(per)
			w.allInstalled(first...)
			w.reports("late", "NamespaceFull")
			message := w.named("late").Status.Message
			w.Expect(message).To(ContainSubstring("kubectl get statefulsingleton -n " + w.namespace + " "))
			w.Expect(strings.Contains(message, "set policyPer of the chart to namespace")).To(Equal(per == policies.PerSingleton), message)
			w.nextSecond(late)
			w.createNamed("later") // small, but the older one comes first
			w.reports("later", "NamespaceFull")
			w.Expect(w.injectedNames()).To(Equal(first))
			w.allInstalled(first...)

			other := newLonelyWorld(t)
			other.kyverno(serves)
			other.createSingleton()
			everywhere := w.fresh()
			everywhere.Injection.Per = per
			other.checked(everywhere, singletonName)

			stop()
			created := w.policyUIDs()
			w.run(per)
			w.createNamed("last")
			w.reports("last", "NamespaceFull")
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

// Singletons keep their policies, and the rules in a shared policy, if these exceed the room: after others have grown, or an upgrade
// has made rules longer.
func TestFullNamespaceKeepsPolicies(t *testing.T) {
	options := policies.Options{SidecarImage: "gate"}
	tests := map[policies.Per]func(kept *v1.StatefulSingleton, all []v1.StatefulSingleton) (*unstructured.Unstructured, error){
		policies.PerSingleton: func(kept *v1.StatefulSingleton, _ []v1.StatefulSingleton) (*unstructured.Unstructured, error) {
			return policies.Render(kept, options)
		},
		policies.PerNamespace: func(kept *v1.StatefulSingleton, all []v1.StatefulSingleton) (*unstructured.Unstructured, error) {
			return policies.RenderNamespace(kept.Namespace, all, options)
		},
	}
	for per, render := range tests {
		t.Run(string(per), func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			all := w.fill(per, w.createLarge)
			kept := w.createLarge("kept")
			var list v1.StatefulSingletonList
			w.Expect(c.List(t.Context(), &list, client.InNamespace(w.namespace))).To(Succeed())
			policy, err := render(kept, list.Items)
			w.Expect(err).NotTo(HaveOccurred())
			w.create(policy)
			w.createLarge("late")
			r := w.controllerOf(per, controllerClient)
			all = append(all, "kept")
			w.checked(r, all...)
			w.reconcileOne(r, w.key("late"))
			w.Expect(w.installedReason("late")).To(Equal("NamespaceFull"))
			w.Expect(w.injectedNames()).To(Equal(all))
			w.Expect(w.policyNamed(policy.GetName()).GetUID()).To(Equal(policy.GetUID()))
		})
	}
}

// A singleton that outgrows a full shared policy keeps its earlier rules, and takes the rules of no other singleton. A restart
// of the controller changes nothing. The singleton gets its new rules when there is room.
func TestGrowthInFullNamespace(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	all := w.fill(policies.PerNamespace, w.createLarge)
	grown := all[0]
	hasNewRules := func() bool {
		return strings.Contains(fmt.Sprint(w.policyNamed(policies.NamespaceName(w.namespace)).Object["spec"]), w.named(grown).Spec.Containers[0])
	}
	var r controllers
	for restart := range 2 {
		r = w.controllerOf(policies.PerNamespace, controllerClient)
		if restart == 0 {
			w.checked(r, all...)
			w.grow(grown)
		}
		w.reconcileOne(r, w.key(grown))
		w.Expect(w.installedReason(grown)).To(Equal("NamespaceFull"))
		w.checked(r, all[1:]...)
		w.Expect(w.named(grown).Status.Message).To(ContainSubstring("has an earlier spec in ClusterPolicy " + policies.NamespaceName(w.namespace)))
		w.Expect(w.injectedNames()).To(Equal(all))
		w.Expect(hasNewRules()).To(BeFalse())
	}
	w.createLarge("late")
	w.reconcileOne(r, w.key("late"))
	w.Expect(w.installedReason("late")).To(Equal("NamespaceFull"))

	for _, name := range append([]string{"late"}, all[1:4]...) {
		w.delete(w.named(name))
		w.reconcileOne(r, w.key(name))
	}
	w.checked(r, grown)
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
	s := w.named(name)
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
	w.Expect(w.named("late").Status.Message).To(And(ContainSubstring("tries again within"), ContainSubstring("no etcd")))
}

// If a namespace has no room for all its singletons after a change of policyPer, the old policy of the newest singleton stays,
// and still injects its pods. The old policy is deleted after the singleton has a new one.
func TestSwitchPolicyPerWithoutRoom(t *testing.T) {
	for to, from := range map[policies.Per]policies.Per{policies.PerSingleton: policies.PerNamespace, policies.PerNamespace: policies.PerSingleton} {
		t.Run("to "+string(to), func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			create := map[policies.Per]func(string) *v1.StatefulSingleton{policies.PerSingleton: w.createNamed, policies.PerNamespace: w.createLarge}[to]
			fitting := w.fill(to, create)
			late := create("late")
			all := append(slices.Clone(fitting), "late")
			w.checked(w.controllerOf(from, controllerClient), all...)
			r := w.controllerOf(to, controllerClient)
			shared, own := policies.NamespaceName(w.namespace), policies.Name(client.ObjectKeyFromObject(late))
			full := Equal(map[string][]string{shared: fitting, own: {"late"}})
			roomy := Equal(map[string][]string{shared: all[1:]})
			if to == policies.PerSingleton { // one policy for each but the newest, and the shared policy
				full = And(HaveLen(len(fitting)+1), HaveKeyWithValue(shared, all), Not(HaveKey(own)))
				roomy = And(HaveLen(len(fitting)), HaveKey(own), Not(HaveKey(shared)))
			}
			reconciled := func() map[string][]string {
				for _, name := range all {
					w.reconcileOne(r, w.key(name))
				}
				w.clock.advance(inFlight)
				return w.rules()
			}
			w.Eventually(reconciled).Should(full)
			w.Expect(w.installedReason("late")).To(Equal("NamespaceFull"))
			w.Consistently(reconciled).WithTimeout(time.Second).Should(full)

			w.delete(w.named(fitting[0]))
			w.Eventually(reconciled).Should(roomy)
			w.checked(r, all[1:]...)
		})
	}
}
