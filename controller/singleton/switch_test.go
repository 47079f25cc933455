package singleton_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// inFlight is longer than the time for which the API server waits for the webhook of a policy.
const inFlight = (policies.WebhookTimeoutSeconds + 1) * time.Second

// controllerOf returns a controller with the given policyPer. Its watch knows every policy.
func (w *world) controllerOf(per policies.Per, writes client.Client) controllers {
	r := w.controllersWith(writes)
	r.Injection.Per, r.Injection.Budget = per, w.room
	r.Injection.Watch = func() (injection.Watched, error) {
		return injection.Watched{Reader: controllerClient, HasSynced: func() bool { return true }}, nil
	}
	return r
}

// newChecked returns a world with a singleton whose policy was checked, and the controllers.
func newChecked(t *testing.T) (*world, controllers) {
	t.Helper()
	w := newServed(t)
	r := w.controllerOf(policies.PerSingleton, controllerClient)
	w.checked(r, singletonName)
	return w, r
}

// checked reconciles singletons until a check of their policy succeeds.
func (w *world) checked(r controllers, names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.Eventually(func() bool { w.reconcileOne(r, w.key(name)); return w.isInstalled(name) }).Should(BeTrue())
	}
}

// picksPods returns true if the policy exists and is not disabled.
func (w *world) picksPods(policy string) bool {
	w.t.Helper()
	found := w.policyNamed(policy)
	return found != nil && !strings.Contains(fmt.Sprint(found.Object["spec"]), "expression:false")
}

// disabled reconciles until the policy is disabled.
func (w *world) disabled(r controllers, policy string) {
	w.t.Helper()
	w.Eventually(func() bool { w.reconcile(r); return w.picksPods(policy) }).Should(BeFalse())
	w.Expect(w.policyNamed(policy)).NotTo(BeNil())
}

// The old policy is deleted only after new pods bypass it and earlier requests have ended. Kyverno rejects pods if it
// does not find their policy.
func TestOldPolicyStaysUntilItIsBypassed(t *testing.T) {
	w := newServed(t)
	old := policies.Name(w.key(singletonName))
	w.checked(w.controllerOf(policies.PerSingleton, controllerClient), singletonName)
	lags := true // dry-runs pass through the old policy, as with a replica of Kyverno that does not know the disabled policy
	r := w.controllerOf(policies.PerNamespace, writing(func(sent write) error {
		if ofProbe(sent) && lags {
			pod := sent.object.(*corev1.Pod)
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "policy.statefulsingleton.com/"+old, "true")
		}
		return nil
	}))
	w.kyverno(`"singleton"`) // Kyverno does not serve the new policy yet
	for range 3 {
		w.reconcile(r)
		w.Expect(w.picksPods(old)).To(BeTrue(), "no check of the new policy has succeeded")
		w.clock.advance(inFlight)
	}
	w.kyverno(serves)
	w.checked(r, singletonName)
	w.disabled(r, old)

	for range 3 {
		w.reconcile(r)
		w.clock.advance(inFlight)
	}
	w.Expect(w.policyNamed(old)).NotTo(BeNil(), "pods still go through it")
	lags = false
	for range 3 {
		w.reconcile(r)
	}
	w.Expect(w.policyNamed(old)).NotTo(BeNil(), "a request may still go through it")
	w.clock.advance(inFlight)
	w.reconcile(r)
	w.Expect(w.policyNamed(old)).To(BeNil())
	w.Expect(w.rules()).To(Equal(map[string][]string{policies.NamespaceName(w.namespace): {singletonName}}))
}

// A controller with the other policyPer writes its policy just before this controller disables the policy. The rules of
// a singleton without another policy stay in force.
func TestOldPolicyIsWrittenBeforeItIsDisabled(t *testing.T) {
	w := newServed(t)
	shared := policies.NamespaceName(w.namespace)
	other := w.controllerOf(policies.PerNamespace, controllerClient)
	w.checked(other, singletonName)

	late := false
	r := w.controllerOf(policies.PerSingleton, w.meanwhile(func(sent write) bool { return sent.verb == "apply" }, func() {
		w.createNamed("late")
		other.Injection.Watch = nil
		w.reconcileOne(other, w.key("late"))
		late = true
	}))
	w.checked(r, singletonName)
	w.Eventually(func() bool { w.reconcile(r); return late }).Should(BeTrue())
	w.Expect(w.picksPods(shared)).To(BeTrue())
	w.Expect(w.rules()[shared]).To(Equal([]string{singletonName, "late"}))
}

// A controller with the other policyPer writes its policy just before this controller deletes the policy. The policy
// stays, because pods pass through it again.
func TestOldPolicyIsWrittenBeforeItIsDeleted(t *testing.T) {
	w := newServed(t)
	old := policies.Name(w.key(singletonName))
	other := w.fresh() // it removes no old policy, because it has no watch
	w.checked(other, singletonName)

	written := false
	r := w.controllerOf(policies.PerNamespace, w.meanwhile(func(sent write) bool { return sent.of("delete", old) }, func() {
		w.clock.advance(time.Hour) // the other controller checks its policy again
		w.reconcile(other)
		w.Expect(w.picksPods(old)).To(BeTrue())
		written = true
	}))
	w.checked(r, singletonName)
	w.Eventually(func() bool { w.reconcile(r); w.clock.advance(inFlight); return written }).Should(BeTrue())
	w.Expect(w.picksPods(old)).To(BeTrue())
	w.disabled(r, old)
	w.Eventually(func() *unstructured.Unstructured {
		w.reconcile(r)
		w.clock.advance(inFlight)
		return w.policyNamed(old)
	}).Should(BeNil())
}

// The policy of the namespace stays enabled until the same controller has checked each singleton's own policy. Until
// then, no other policy injects the pods of the other singletons.
func TestSharedPolicyStaysUntilAllAreChecked(t *testing.T) {
	w := newServed(t)
	w.createNamed("queue")
	shared := policies.NamespaceName(w.namespace)
	before := w.controllerOf(policies.PerNamespace, controllerClient)
	w.checked(before, singletonName, "queue")
	stays := func(r controllers, why string) {
		t.Helper()
		for range 3 {
			w.reconcile(r)
			w.Expect(w.picksPods(shared)).To(BeTrue(), why)
			w.clock.advance(inFlight)
		}
	}

	r := w.controllerOf(policies.PerSingleton, controllerClient)
	w.checked(r, singletonName)
	stays(r, "queue has no policy of its own")
	w.checked(r, "queue")

	// The watch of the next controller is not synced, therefore queue keeps the condition in its status.
	synced := false
	next := w.controllerOf(policies.PerSingleton, controllerClient)
	next.Injection.Watch = func() (injection.Watched, error) {
		return injection.Watched{Reader: controllerClient, HasSynced: func() bool { return synced }}, nil
	}
	w.reconcileOne(next, w.key("queue"))
	w.Expect(w.installedReason("queue")).To(Equal("Injected"))
	synced = true
	w.checked(next, singletonName)
	stays(next, "another controller checked queue's own policy")

	w.checked(next, "queue")
	w.disabled(next, shared)
}

// If a policy was changed or deleted and is written again, it must be checked again. Kyverno may not serve the policy
// yet.
func TestRestoredPolicyIsCheckedAgain(t *testing.T) {
	w, r := newChecked(t)
	w.kyvernoStops()
	w.delete(w.policy())
	w.clock.advance(time.Second)
	w.reconcile(r)
	w.Expect(w.policy()).NotTo(BeNil())
	w.Expect(w.reason(v1.ConditionPolicyInstalled)()).To(Equal("Installing"))
	w.kyverno(serves)
	w.checked(r, singletonName)
}

// Two controllers with different values of policyPer run at the same time, for example after a network partition. After
// one controller stops, the policies of the other controller remain and inject pods.
func TestTwoControllersOfTwoPolicyPer(t *testing.T) {
	w := newServed(t)
	one, other := w.controllerOf(policies.PerSingleton, controllerClient), w.controllerOf(policies.PerNamespace, controllerClient)
	for range 5 {
		w.reconcile(one)
		w.reconcile(other)
		w.clock.advance(inFlight)
	}
	want := map[string][]string{policies.NamespaceName(w.namespace): {singletonName}}
	w.Eventually(func() map[string][]string {
		w.reconcile(other)
		w.clock.advance(inFlight)
		return w.rules()
	}).Should(Equal(want))
	w.checked(other, singletonName)
	w.Expect(w.picksPods(policies.NamespaceName(w.namespace))).To(BeTrue())
}

// With policyPer singleton, the deletion of a singleton creates no policy for the namespace.
func TestDeletionMakesNoOtherPolicy(t *testing.T) {
	w, r := newChecked(t)
	w.createNamed("queue")
	w.checked(r, "queue")
	w.delete(w.singleton())
	w.reconcile(r)
	w.gone()
	w.Expect(w.rules()).To(Equal(map[string][]string{policies.Name(w.key("queue")): {"queue"}}))
}

// A singleton that is removed by hand and created again has the same generation as before. Its policy is still written again, and the
// condition of the removed singleton does not count.
func TestSingletonMadeAnew(t *testing.T) {
	w, r := newChecked(t)
	w.removeSingleton()
	w.createSingleton(func(s *v1.StatefulSingleton) { s.Spec.Selector.MatchLabels["app"] = "another-db" })
	w.reconcileHandoff(r)
	w.installed("Installing")
	w.reconcile(r)
	w.Expect(fmt.Sprint(w.policy().Object["spec"])).To(ContainSubstring("another-db"))
	w.checked(r, singletonName)
}

// A singleton without the finalizer has no policy, because nothing would delete the policy.
func TestPolicyWaitsForTheFinalizer(t *testing.T) {
	w := newServed(t)
	r := w.controllerOf(policies.PerSingleton, controllerClient)
	for _, hasFinalizer := range []bool{false, true} {
		_, err := r.Injection.Reconcile(t.Context(), w.request())
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(w.policy() != nil).To(Equal(hasFinalizer))
		w.reconcileHandoff(r)
	}
}

// If a policy cannot be written, the status reports the error of the API server. The policy is written after the API
// server accepts it.
func TestRefusedPolicy(t *testing.T) {
	w := newServed(t)
	result := w.reconcile(w.refusing(ofPolicy))
	w.Expect(result.RequeueAfter).To(BeNumerically("<=", 2*time.Second))
	w.Expect(w.installed("PolicyRefused").Message).To(And(
		HavePrefix("ClusterPolicy "+policies.Name(w.key(singletonName))+" cannot be written, and is tried again within 1m0s: "), ContainSubstring(notOnMyWatch)))
	w.Expect(meta.IsStatusConditionFalse(w.singleton().Status.Conditions, v1.ConditionReady)).To(BeTrue())
	w.checked(w.fresh(), singletonName)
}

// After a restart, the controller still reports an injection that does not work.
func TestRestartKeepsWhatIsAmiss(t *testing.T) {
	w := newWorld(t)
	w.kyverno(isDown)
	w.createSingleton()
	r := w.fresh()
	w.reconcile(r)
	w.clock.advance(time.Minute)
	w.reconcile(r)
	w.installed("NotInjected")
	w.reconcile(w.fresh())
	w.installed("NotInjected")
}
