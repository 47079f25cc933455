package singleton_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// controllerOfKind returns a controller with the given policyKind and policyPer.
func (w *world) controllerOfKind(kind policies.Kind, per policies.Per, writes client.Client) controllers {
	r := w.controllerOf(per, writes)
	r.Injection.Options.Kind = kind
	return r
}

// refs returns the policies that the singleton and its namespace can have.
func (w *world) refs() (all []policies.Ref) {
	w.t.Helper()
	for _, kind := range policies.Kinds {
		all = append(all, kind.Of(w.singleton()), kind.OfNamespace(w.namespace))
	}
	return all
}

// enforced returns the policies that inject the singleton's pods.
func (w *world) enforced() []policies.Ref {
	w.t.Helper()
	webhooksMu.Lock()
	defer webhooksMu.Unlock()
	return slices.DeleteFunc(w.refs(), func(ref policies.Ref) bool {
		_, injects := rulesOf(w.t.Context(), ref, w.singleton())
		return !injects
	})
}

// policyExists returns true if the policy exists.
func (w *world) policyExists(ref policies.Ref) bool {
	w.t.Helper()
	policy := policyMetadata()
	policy.SetGroupVersionKind(ref.Kind.GVK())
	policy.Namespace, policy.Name = ref.Namespace, ref.Name
	return w.exists(policy)
}

// Each change of policyKind and policyPer ends with the new policy alone. Whenever the controller writes, new pods are injected and
// not rejected.
func TestChangeOfPolicyKind(t *testing.T) {
	const own, shared = policies.PerSingleton, policies.PerNamespace
	type form struct {
		kind policies.Kind
		per  policies.Per
	}
	for _, test := range []struct{ from, to form }{
		{form{policies.ClusterPolicy, own}, form{policies.ClusterPolicy, shared}},
		{form{policies.ClusterPolicy, shared}, form{policies.ClusterPolicy, own}},
		{form{policies.ClusterPolicy, own}, form{policies.NamespacedMutatingPolicy, own}},
		{form{policies.NamespacedMutatingPolicy, own}, form{policies.ClusterPolicy, own}},
		{form{policies.ClusterPolicy, shared}, form{policies.NamespacedMutatingPolicy, shared}},
		{form{policies.NamespacedMutatingPolicy, shared}, form{policies.ClusterPolicy, shared}},
		{form{policies.ClusterPolicy, own}, form{policies.NamespacedMutatingPolicy, shared}},
		{form{policies.ClusterPolicy, shared}, form{policies.NamespacedMutatingPolicy, own}},
		{form{policies.NamespacedMutatingPolicy, own}, form{policies.NamespacedMutatingPolicy, shared}},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			w := newServed(t)
			before := w.controllerOfKind(test.from.kind, test.from.per, controllerClient)
			w.checked(before, singletonName)
			w.Expect(before.Injection.Condition(w.singleton()).Message).To(ContainSubstring(string(test.from.kind)))

			r := w.controllerOfKind(test.to.kind, test.to.per, writing(func(sent write) error {
				if !ofProbe(sent) {
					w.Expect(w.injectedNow()).To(BeTrue(), "before the %s of %T", sent.verb, sent.object)
				}
				return nil
			}))
			want := test.to.kind.Of(w.singleton())
			if test.to.per == shared {
				want = test.to.kind.OfNamespace(w.namespace)
			}
			w.Eventually(func() []policies.Ref {
				w.reconcile(r)
				w.Expect(w.injectedNow()).To(BeTrue())
				w.clock.advance(inFlight)
				return w.enforced()
			}).Should(Equal([]policies.Ref{want}))
			w.Eventually(func() []policies.Ref {
				w.reconcile(r)
				w.clock.advance(inFlight)
				return slices.DeleteFunc(w.refs(), func(ref policies.Ref) bool { return !w.policyExists(ref) })
			}).Should(Equal([]policies.Ref{want}))
			w.Expect(r.Injection.Condition(w.singleton()).Message).To(ContainSubstring(string(test.to.kind) + " " + want.Name))
		})
	}
}

// A change of policyKind takes no rules from the singletons of a shared policy, also if one of them outgrew the policy. That singleton
// keeps its earlier rules. A policy injects the pods of each singleton at all times, and the old policy is deleted in the end.
func TestGrowthAndChangeOfPolicyKind(t *testing.T) {
	for _, from := range policies.Kinds {
		t.Run("from "+string(from), func(t *testing.T) {
			to := policies.Kinds[(slices.Index(policies.Kinds, from)+1)%len(policies.Kinds)]
			w := newWorld(t)
			w.kyverno(serves)
			all := w.fill(policies.PerNamespace, w.createLarge)
			before := w.controllerOfKind(from, policies.PerNamespace, controllerClient)
			w.checked(before, all[0])
			w.grow(all[0])
			w.reconcileOne(before, w.key(all[0]))
			w.Expect(w.installedReason(all[0])).To(Equal("NamespaceFull"))

			r := w.controllerOfKind(to, policies.PerNamespace, controllerClient)
			w.reconcileOne(r, w.key(all[0]))
			for _, name := range all[1:] {
				w.checked(r, name)
				w.Expect(append(w.injectedBy(from), w.injectedBy(to)...)).To(ContainElements(all))
			}
			w.Eventually(func() bool {
				w.reconcileOne(r, w.key(all[1]))
				w.clock.advance(inFlight)
				w.Expect(append(w.injectedBy(from), w.injectedBy(to)...)).To(ContainElements(all))
				return w.policyExists(from.OfNamespace(w.namespace))
			}).Should(BeFalse())
			w.Expect(w.injectedBy(to)).To(Equal(all))
			w.allInstalled(all[1:]...)
			w.Expect(w.installedReason(all[0])).To(Equal("NamespaceFull"))
			w.Expect(w.named(all[0]).Status.Message).To(ContainSubstring("has an earlier spec in " + to.OfNamespace(w.namespace).String()))
		})
	}
}

// injectedBy returns the singletons whose pods the shared policy of the kind injects.
func (w *world) injectedBy(kind policies.Kind) (names []string) {
	w.t.Helper()
	webhooksMu.Lock()
	defer webhooksMu.Unlock()
	var list v1.StatefulSingletonList
	w.Expect(c.List(w.t.Context(), &list, client.InNamespace(w.namespace))).To(Succeed())
	for i := range list.Items {
		if _, injects := rulesOf(w.t.Context(), kind.OfNamespace(w.namespace), &list.Items[i]); injects {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// Kyverno 1.20 rejects changes of ClusterPolicies, and accepts their deletion.
func TestOldPolicyCannotBeChanged(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	s := w.createSingleton()
	old := policies.ClusterPolicy.Of(s)
	w.checked(w.controllerOfKind(policies.ClusterPolicy, policies.PerSingleton, controllerClient), singletonName)

	refused := false
	r := w.controllerOfKind(policies.NamespacedMutatingPolicy, policies.PerSingleton, writing(func(sent write) error {
		if sent.verb == "apply" && ofPolicy(sent) {
			refused = true
			return apierrors.NewBadRequest("ClusterPolicy is deprecated")
		}
		return nil
	}))
	w.Eventually(func() bool { w.reconcile(r); return w.policyExists(old) }).Should(BeFalse())
	w.Expect(refused).To(BeTrue())
	w.Expect(w.enforced()).To(Equal([]policies.Ref{policies.NamespacedMutatingPolicy.Of(s)}))
}

// A deleted singleton leaves no policy of either kind, also in the middle of a change of policyKind.
func TestDeletionInTheMiddleOfAChangeOfPolicyKind(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	s := w.createSingleton()
	w.checked(w.controllerOfKind(policies.ClusterPolicy, policies.PerSingleton, controllerClient), singletonName)
	r := w.controllerOfKind(policies.NamespacedMutatingPolicy, policies.PerSingleton, controllerClient)
	w.checked(r, singletonName)
	w.Expect(w.policyExists(policies.ClusterPolicy.Of(s))).To(BeTrue())
	w.Expect(w.policyExists(policies.NamespacedMutatingPolicy.Of(s))).To(BeTrue())

	w.delete(s)
	w.reconcile(r)
	w.gone()
	for _, kind := range policies.Kinds {
		w.Expect(w.policyExists(kind.Of(s))).To(BeFalse())
	}
}

// Kyverno 1.21 drops the definition of ClusterPolicies while the controller runs. The controller logs no errors about it,
// works, and its watch continues after the definition returns. The test cannot run in parallel, because it removes the definition for
// all tests.
func TestOldKindIsDropped(t *testing.T) {
	w := newLonelyWorld(t)
	w.kyverno(serves)
	var unserved atomic.Int32
	w.kind, w.wrap = policies.NamespacedMutatingPolicy, countAnswers(http.StatusNotFound, "/clusterpolicies", &unserved)
	w.startManager()
	s := w.createSingleton()
	w.installed("Injected")

	errors := handledErrors(t)
	definition := kyvernoCRDs
	definition.Paths = slices.DeleteFunc(slices.Clone(kyvernoCRDs.Paths), func(path string) bool { return !strings.HasSuffix(path, "_clusterpolicies.yaml") })
	w.Expect(definition.Paths).To(HaveLen(1))
	install := func() {
		_, err := envtest.InstallCRDs(config, definition)
		w.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(install)
	w.uninstallCRDs(definition)
	w.Eventually(unserved.Load).Should(BeNumerically(">=", 2))
	w.createNamed("queue")
	w.allInstalled("queue")
	w.deleteNamed("queue")
	w.Expect(w.reason(v1.ConditionPolicyInstalled)()).To(Equal("Injected"))
	w.Expect(errors()).To(BeEmpty())

	install()
	old, err := policies.Render(s, policies.Options{Kind: policies.ClusterPolicy, SidecarImage: "gate"})
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(func() error { return c.Create(t.Context(), old.DeepCopy()) }).Should(Succeed())
	w.Eventually(w.enforced).Should(Equal([]policies.Ref{policies.NamespacedMutatingPolicy.Of(s)}))
}

// countAnswers returns a wrapper that counts the answers with a code to requests whose path ends with the suffix.
func countAnswers(code int, suffix string, count *atomic.Int32) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil && response.StatusCode == code && strings.HasSuffix(request.URL.Path, suffix) {
				count.Add(1)
			}
			return response, err
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// handledErrors returns a function that returns the errors that client-go has logged since.
func handledErrors(t *testing.T) func() []error {
	var mu sync.Mutex
	var all []error
	before := utilruntime.ErrorHandlers
	t.Cleanup(func() { utilruntime.ErrorHandlers = before })
	utilruntime.ErrorHandlers = append(slices.Clone(before), func(_ context.Context, err error, _ string, _ ...any) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, err)
	})
	return func() []error {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}
