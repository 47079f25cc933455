package singleton_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// controllerOfKind returns a controller with the given policyKind and policyPer.
func (w *world) controllerOfKind(kind policies.Kind, per policies.Per, writes client.Client) controllers {
	r := w.controllerOf(per, writes)
	r.Injection.Options.Kind = kind
	return r
}

// enforced returns the policies of the singleton and of its namespace that inject its pods.
func (w *world) enforced() (all []policies.Ref) {
	w.t.Helper()
	webhooksMu.Lock()
	defer webhooksMu.Unlock()
	for _, kind := range policies.Kinds {
		for _, ref := range []policies.Ref{kind.Of(w.singleton()), kind.OfNamespace(w.namespace)} {
			if _, injects := rulesOf(w.t.Context(), ref, w.key(singletonName)); injects {
				all = append(all, ref)
			}
		}
	}
	return all
}

// policyExists returns true if the policy exists.
func (w *world) policyExists(ref policies.Ref) bool {
	w.t.Helper()
	policy := policyMetadata()
	policy.SetGroupVersionKind(ref.Kind.GVK())
	err := c.Get(w.t.Context(), ref.NamespacedName, policy)
	w.Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err == nil
}

// Each change of policyKind and policyPer ends with the new policy alone. A policy injects the singleton's pods at all times.
func TestChangeOfPolicyKind(t *testing.T) {
	const own, shared = policies.PerSingleton, policies.PerNamespace
	type form struct {
		kind policies.Kind
		per  policies.Per
	}
	tests := map[string]struct{ from, to form }{
		"of a singleton":              {form{policies.ClusterPolicy, own}, form{policies.NamespacedMutatingPolicy, own}},
		"of a singleton, back":        {form{policies.NamespacedMutatingPolicy, own}, form{policies.ClusterPolicy, own}},
		"of a namespace":              {form{policies.ClusterPolicy, shared}, form{policies.NamespacedMutatingPolicy, shared}},
		"of a namespace, back":        {form{policies.NamespacedMutatingPolicy, shared}, form{policies.ClusterPolicy, shared}},
		"to a namespace":              {form{policies.ClusterPolicy, own}, form{policies.NamespacedMutatingPolicy, shared}},
		"to a singleton":              {form{policies.ClusterPolicy, shared}, form{policies.NamespacedMutatingPolicy, own}},
		"to a namespace in this kind": {form{policies.NamespacedMutatingPolicy, own}, form{policies.NamespacedMutatingPolicy, shared}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			w.createSingleton()
			before := w.controllerOfKind(test.from.kind, test.from.per, controllerClient)
			w.checked(before, singletonName)
			old := before.Injection.Condition(w.singleton()).Message
			w.Expect(old).To(ContainSubstring(string(test.from.kind)))

			r := w.controllerOfKind(test.to.kind, test.to.per, controllerClient)
			want := test.to.kind.Of(w.singleton())
			if test.to.per == shared {
				want = test.to.kind.OfNamespace(w.namespace)
			}
			w.Eventually(func() []policies.Ref {
				w.reconcile(r)
				w.Expect(w.enforced()).NotTo(BeEmpty())
				w.clock.advance(inFlight)
				return w.enforced()
			}).Should(Equal([]policies.Ref{want}))
			w.Eventually(func() bool {
				w.reconcile(r)
				w.clock.advance(inFlight)
				for _, kind := range policies.Kinds {
					for _, ref := range []policies.Ref{kind.Of(w.singleton()), kind.OfNamespace(w.namespace)} {
						if ref != want && w.policyExists(ref) {
							return false
						}
					}
				}
				return true
			}).Should(BeTrue())
			w.Expect(w.policyExists(want)).To(BeTrue())
			w.Expect(r.Injection.Condition(w.singleton()).Message).To(ContainSubstring(string(test.to.kind) + " " + want.Name))
		})
	}
}

// Kyverno 1.20 rejects changes of ClusterPolicies, and accepts their deletion.
func TestOldPolicyCannotBeChanged(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	s := w.createSingleton()
	old := policies.ClusterPolicy.Of(s)
	w.checked(w.controllerOfKind(policies.ClusterPolicy, policies.PerSingleton, controllerClient), singletonName)

	refused := false
	r := w.controllerOfKind(policies.NamespacedMutatingPolicy, policies.PerSingleton, interceptor.NewClient(controllerClient, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			if policy, ok := o.(interface{ GetKind() string }); ok && policy.GetKind() == string(policies.ClusterPolicy) {
				refused = true
				return apierrors.NewBadRequest("ClusterPolicy is deprecated")
			}
			return c.Apply(ctx, o, options...)
		},
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

	w.Expect(c.Delete(t.Context(), s)).To(Succeed())
	w.Eventually(func() bool {
		w.reconcile(r)
		return apierrors.IsNotFound(c.Get(t.Context(), w.key(singletonName), &v1.StatefulSingleton{}))
	}).Should(BeTrue())
	for _, kind := range policies.Kinds {
		w.Expect(w.policyExists(kind.Of(s))).To(BeFalse())
	}
}
