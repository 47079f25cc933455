package singleton_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// stuck runs a reconcile, and checks that a write is rejected and that the status says so.
func (w *world) stuck(r controllers, wantPhase v1.Phase, wantMessage string) v1.StatefulSingletonStatus {
	w.t.Helper()
	_, err := r.Reconcile(w.t.Context(), w.request())
	w.Expect(err).To(MatchError(apierrors.IsForbidden, "forbidden"), "it is tried again")
	status := w.singleton().Status
	w.Expect(status.Phase).To(Equal(wantPhase))
	w.Expect(status.Message).To(And(ContainSubstring(wantMessage), HaveSuffix(notOnMyWatch)))
	return status
}

// A handoff stops at a rejected write, however long it takes. The status says why, and the record matches the completed
// writes. The handoff continues after the write is allowed.
func TestRefusedRelease(t *testing.T) {
	tests := map[string]struct {
		refused     func(write) bool
		wantMessage string
		wantHolder  string
	}{
		"the finalizer": {ofPod, "; can't patch pod ", "db-1"},
		"the barrier":   {isOf[*corev1.ConfigMap], "; can't create ConfigMap ", "db-2"},
		"the signal":    {ofSignal, "; can't patch the status of pod ", "db-2"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newSteps(t)
			w.handoffDue()
			refusing := w.refusing(test.refused)

			status := w.stuck(refusing, v1.PhaseTransitioning, "pod db-2 is released with epoch 2"+test.wantMessage)
			w.Expect(status.ActivePod).To(Equal(test.wantHolder))
			w.Expect(status.LastTransition.To).To(Equal(test.wantHolder))
			w.Expect(status.Epoch == 2).To(Equal(test.wantHolder == "db-2"), "epoch is %d", status.Epoch)
			w.clock.advance(301 * time.Second)
			w.stuck(refusing, v1.PhaseFailed, "the handoff takes longer than maxTransitionTime (5m0s): pod db-2 is released with epoch 2"+test.wantMessage)
			w.Expect(signalled(w.pod("db-2"))).To(BeFalse())

			w.reconcile(w.fresh())
			w.Expect(w.holder()).To(Equal("db-2"))
			w.Expect(signalled(w.pod("db-2"))).To(BeTrue())
			w.Expect(w.singleton().Status.Message).NotTo(ContainSubstring(notOnMyWatch))
			w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
		})
	}
}

// If the ReplicaSet of the old pod cannot be scaled down, the old pod continues to run. The handoff then exceeds
// maxTransitionTime.
func TestRefusedRetire(t *testing.T) {
	w, _ := newSteps(t)
	d := w.deployment()
	old := w.replicaSet(d, 1)
	refusing := w.refusing(func(sent write) bool { return sent.verb == "patch/scale" })
	w.holdBy(refusing, "db-1", withCommand, ownedBy(old))
	w.reconcile(refusing)
	w.warmPod("db-2", withCommand, ownedBy(w.replicaSet(d, 2)))
	w.reconcile(refusing)
	w.clock.advance(time.Minute)

	const wantMessage = "pod db-2 is warm; next, the ReplicaSet of pod db-1 is scaled to zero; can't scale ReplicaSet "
	status := w.stuck(refusing, v1.PhaseTransitioning, wantMessage)
	w.Expect(status.ActivePod).To(Equal("db-1"))
	w.Expect(w.reason(v1.ConditionReady)()).To(Equal("Retiring"))
	w.clock.advance(301 * time.Second)
	w.stuck(refusing, v1.PhaseFailed, wantMessage)

	w.reconcile(w.fresh())
	retired := &appsv1.ReplicaSet{}
	w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(old), retired)).To(Succeed())
	w.Expect(*retired.Spec.Replicas).To(BeZero())
}

// If the finalizers of the pods cannot be removed, the status of the deleted singleton says so.
func TestRefusedDeletion(t *testing.T) {
	w, fresh := newSteps(t)
	w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.delete(w.singleton())

	phase := w.singleton().Status.Phase
	status := w.stuck(w.refusing(ofPod), phase, "the StatefulSingleton can't be removed yet: can't remove finalizer apps.statefulsingleton.com/handoff from pod db-1: patch pod ")
	w.Expect(status.ActivePod).To(Equal("db-1"))

	w.reconcile(fresh)
	w.gone()
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeFalse())
}

// A conflict is retried at once, because another writer was faster. Repeated conflicts are errors, and are reported.
func TestRepeatedConflicts(t *testing.T) {
	w, _ := newSteps(t)
	w.handoffDue()
	denies := true
	r := w.controllersWith(writing(func(sent write) error {
		if denies && ofPod(sent) { // a webhook can answer 409 too
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, sent.object.GetName(), errors.New(notOnMyWatch))
		}
		return nil
	}))
	before := w.singleton().Status.Message
	for i := range 8 {
		w.Expect(w.reconcileHandoff(r).RequeueAfter).To(Equal(10*time.Millisecond<<i), "delay after conflict %d in a row", i+1)
		w.Expect(w.singleton().Status.Message).To(Equal(before), "other writers cause a few conflicts")
	}
	_, err := r.Reconciler.Reconcile(t.Context(), w.request())
	w.Expect(err).To(MatchError(apierrors.IsConflict, "conflict"), "the queue waits longer and longer after an error, and the log has it")
	w.Expect(w.singleton().Status.Message).To(And(ContainSubstring("; can't patch pod "), ContainSubstring(notOnMyWatch), ContainSubstring("kubectl get ")))
	w.Expect(w.singleton().Status.Phase).To(Equal(v1.PhaseTransitioning))

	denies = false
	w.reconcile(r)
	w.Expect(w.holder()).To(Equal("db-2"))
	w.Expect(w.singleton().Status.Message).NotTo(ContainSubstring(notOnMyWatch))
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
}

// If the policy of a deleted singleton cannot be deleted, the pods keep their finalizers. Otherwise new pods would be
// held for a singleton that does not exist.
func TestRefusedPolicyDeletion(t *testing.T) {
	w, fresh := newSteps(t)
	w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.Expect(w.policy()).NotTo(BeNil())
	w.delete(w.singleton())

	result := w.reconcile(w.refusing(func(sent write) bool { return sent.verb == "delete" }))
	w.Expect(result.RequeueAfter).To(BeNumerically("<=", 2*time.Second), "it is tried again")
	w.Expect(w.singleton().Status.Message).To(And(
		HavePrefix("the StatefulSingleton can't be removed yet: can't delete the ClusterPolicy of StatefulSingleton "), HaveSuffix(notOnMyWatch)))
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())

	w.reconcile(fresh)
	w.gone()
	w.Expect(w.policy()).To(BeNil())
}
