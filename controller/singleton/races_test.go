package singleton_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// `removeObject` removes the finalizers and the object of a pod, as a person can do.
func (w *world) removeObject(pod *corev1.Pod) {
	w.t.Helper()
	w.merge(w.pod(pod.Name), `{"metadata":{"finalizers":null}}`)
	w.remove(pod)
	w.Expect(w.pod(pod.Name)).To(BeNil())
}

// A pod's deletion is requested after the controller read the pod and before the controller removes the finalizer. The
// finalizer stays until the kubelet reports the termination. Without the finalizer, a forced deletion could remove the
// object while processes run.
func TestPodTerminatesDuringDeletion(t *testing.T) {
	w, fresh := newSteps(t)
	pod := w.holdBy(fresh, "db-1", withCommand)
	w.warmPod("db-2", withCommand)
	w.delete(w.singleton())

	w.overtake(patchOf("db-1"), func() { w.delete(pod) })

	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.remove(pod)
	w.reconcile(fresh)
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue(), "a forced deletion does not remove the object")
	w.Expect(w.singleton().Status.Message).To(HavePrefix("the StatefulSingleton is removed once pod db-1 has terminated"))

	w.report(pod, ended)
	w.reconcile(fresh)
	w.gone()
	w.Expect(w.pod("db-1")).To(BeNil())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse(), "what is held stays held")
}

// The holder is removed after the controller read it and before the controller removes its finalizer. The singleton
// stays, because only the record names the holder.
func TestHolderRemovedDuringDeletion(t *testing.T) {
	w, fresh := newSteps(t)
	pod := w.holdBy(fresh, "db-1", withCommand)
	w.delete(w.singleton())

	result := w.overtake(patchOf("db-1"), func() { w.removeObject(pod) })
	w.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<", time.Second)), "the controller looks again")

	w.reconcile(fresh)
	w.Expect(w.singleton().Status.Message).To(HavePrefix("the StatefulSingleton is removed once there is a proof that its holder has terminated: pod db-1 was removed"))
	w.annotate(v1.AttestAnnotation, string(pod.UID))
	w.reconcile(fresh)
	w.gone()
}

// A new singleton adopts a pod after the controller found no singleton. The pod then ends. The pod keeps its finalizer
// until the new record names another holder, because only the object proves the termination.
func TestSingletonIsRecreatedBeforeOrphansAreFinalized(t *testing.T) {
	w, fresh := newSteps(t)
	first := w.holdBy(fresh, "db-1", withCommand)
	w.delete(first)
	w.removeSingleton()
	second := w.warmPod("db-2", withCommand)

	meanwhile := sync.OnceFunc(func() { // the controller lists pods in parallel, and all lists wait
		w.createSingleton()
		w.reconcile(fresh)
		w.Expect(w.holder()).To(Equal("db-1"))
		w.report(first, ended)
	})
	live := interceptor.NewClient(controllerClient, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*corev1.PodList); ok {
				meanwhile()
			}
			return c.List(ctx, list, options...)
		},
	})
	lagging := without[*v1.StatefulSingleton]{controllerClient} // the cache does not have the new singleton yet
	result := w.reconcile(newReconciler(lagging, live, w.clock))
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the controller looks again")

	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.reconcile(fresh)
	w.Expect(w.singleton().Status.ActivePodUID).To(Equal(second.UID))
	w.Expect(w.singleton().Status.LastTransition.Proof).To(Equal(v1.ProofKubeletReported))
	w.Expect(w.singleton().Status.Epoch).To(Equal(int64(2)), "an epoch is not given twice")
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
}

// Another client puts a finalizer on a pod after the controller read it and before the controller removes its own
// finalizer. The other finalizer stays.
func TestFinalizerOfOthersStays(t *testing.T) {
	w, fresh := newSteps(t)
	pod := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.delete(w.singleton())

	w.overtake(patchOf("db-1"), func() {
		w.merge(pod, `{"metadata":{"finalizers":["`+v1.HandoffFinalizer+`","example.com/theirs"]}}`)
	})
	w.reconcile(fresh)
	w.gone()
	w.Expect(w.pod("db-1").Finalizers).To(ConsistOf("example.com/theirs"))
}

// While a deleted singleton waits for a pod, the status and one event say so. The controller writes both only once.
func TestDeletionReportsOnceWhatItWaitsFor(t *testing.T) {
	w, fresh := newSteps(t)
	pod := w.holdBy(fresh, "db-1", withCommand)
	w.delete(pod)
	w.delete(w.singleton())
	recorder := events.NewFakeRecorder(100)
	fresh.Recorder = recorder

	result := w.reconcile(fresh)
	w.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", 5*time.Second)), "a taint of the node is no event of the pod")
	reported := w.singleton()
	w.Expect(reported.Status.Message).To(HavePrefix("the StatefulSingleton is removed once pod db-1 has terminated"))
	w.reconcile(fresh)
	w.Expect(w.singleton().ResourceVersion).To(Equal(reported.ResourceVersion))
	wantEvent := Receive(HavePrefix("Normal StillStopping the StatefulSingleton is removed once pod db-1 has terminated"))
	w.Expect(recorder.Events).To(wantEvent)
	w.Expect(recorder.Events).NotTo(wantEvent)
}

// A removed singleton without stuck pods is not requeued.
func TestNoPodIsStuck(t *testing.T) {
	w := newWorld(t)
	w.warmPod("db-1", withCommand)
	result := w.reconcile(w.fresh())
	w.Expect(result.IsZero()).To(BeTrue())
}

// A step has no effect on a new pod with the same name as the pod of the step.
func TestStepsNameOnePod(t *testing.T) {
	tests := map[string]struct {
		// prepare creates a state in which the step is next.
		prepare func(w *world, fresh controllers) (pod *corev1.Pod)
		// verb and data are of the request of the step.
		verb, data string
	}{
		"Protect of a running pod":  {func(w *world, _ controllers) *corev1.Pod { return w.legacy("db-1") }, "patch", v1.HandoffFinalizer},
		"Protect of an adopted pod": {func(w *world, _ controllers) *corev1.Pod { return w.legacy("db-1") }, "patch", v1.RoleActive},
		"Nudge": {func(w *world, fresh controllers) *corev1.Pod {
			pod := w.warmPod("db-1", withCommand)
			w.reconcile(fresh)
			w.clock.advance(time.Minute)
			return pod
		}, "patch", v1.NudgeAnnotation + `":"1"`},
		"MarkReady": {func(w *world, fresh controllers) *corev1.Pod {
			pod := w.holdBy(fresh, "db-1", withCommand)
			w.report(pod, func(pod *corev1.Pod) {
				pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1.ReadyCondition })
			})
			return pod
		}, "patch/status", ""},
		"Unprotect of a terminated holder": {func(w *world, fresh controllers) *corev1.Pod {
			pod := w.holdBy(fresh, "db-1", withCommand)
			w.end(pod)
			return pod
		}, "patch", "$deleteFromPrimitiveList"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, fresh := newSteps(t)
			pod := test.prepare(w, fresh)
			var next *corev1.Pod
			step := func(sent write) bool { return sent.of(test.verb, "db-1") && strings.Contains(sent.data, test.data) }
			slow := w.meanwhile(step, func() { // as a StatefulSet does
				w.removeObject(pod)
				w.warmPod("db-1", withCommand, func(pod *corev1.Pod) { pod.Finalizers = []string{v1.HandoffFinalizer} })
				next = w.pod("db-1")
			})
			_, err := w.controllersWith(slow).Reconcile(t.Context(), w.request())
			w.Expect(err).To(Or(Succeed(), MatchError(apierrors.IsInvalid, "the uid is immutable")))
			w.Expect(w.pod("db-1")).To(Equal(next))
		})
	}
}

// A delayed controller signals a pod for a singleton that was removed by hand. The new singleton is about to unprotect
// this pod. The write of the new singleton fails, and no other pod is released.
func TestReleasedBeforeUnprotect(t *testing.T) {
	w, _ := newSteps(t)
	w.reconcile(w.fresh()) // adds the finalizer
	d := w.deployment()
	first := w.warmPod("db-1", withCommand, ownedBy(w.replicaSet(d, 1)))
	proceed := w.holdUp(singletonName, ofSignal)
	w.removeSingleton()
	w.createSingleton()
	w.warmPod("db-2", withCommand, ownedBy(w.replicaSet(d, 2)))

	slow := w.meanwhile(patchOf(first.Name), func() {
		_, err := proceed()
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(signalled(w.pod("db-1"))).To(BeTrue())
	})
	w.reconcileHandoff(w.controllersWith(slow))
	w.Expect(signalled(w.pod("db-1"))).To(BeTrue())
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())
	w.reconcile(w.fresh())
	w.Expect(w.holder()).To(Equal("db-1"), "the pod runs, and is adopted")
	w.Expect(w.journal.wantOneAtATime()).To(Equal(1))
}

// The deletion of a standby is requested after the controller read it. The standby does not become the holder.
func TestStandbyTerminatesBeforeItIsRecorded(t *testing.T) {
	w, fresh := newSteps(t)
	_, second := w.handoffDue()
	// A terminating pod that already has the finalizer accepts the patch.
	w.merge(second, `{"metadata":{"finalizers":["`+v1.HandoffFinalizer+`"]}}`)

	w.overtake(patchOf("db-2"), func() { w.delete(second) })
	w.Expect(w.holder()).To(Equal("db-1"))
	w.reconcile(fresh)
	w.Expect(w.holder()).To(BeEmpty())
	w.Expect(w.singleton().Status.Epoch).To(Equal(int64(1)), "no epoch is given to a pod that stops")
}

// If the object of a terminated holder is removed before the controller removes its finalizer, the handoff continues
// without an error.
func TestTerminatedHolderIsRemovedBeforeUnprotect(t *testing.T) {
	w, _ := newSteps(t)
	first, _ := w.handoffDue()
	w.overtake(patchOf("db-1"), func() { w.removeObject(first) })
	w.Expect(w.holder()).To(Equal("db-2"))
	w.Expect(w.reason(v1.ConditionReady)()).To(Equal(string(handoff.Released)), "the status is written after the last step")
}

// A person changes the Deployment after the controller read it. The controller does not roll the Deployment, because
// the change creates a new pod.
func TestDeploymentChangesBeforeItIsRolled(t *testing.T) {
	w, fresh := newSteps(t)
	d, node := w.deployment(), w.node()
	w.holdBy(fresh, "db-1", ownedBy(w.replicaSet(d, 1)), withCommand, onNode(node))
	w.reconcile(fresh)
	w.cordon(node, true)

	result := w.overtake(isOf[*appsv1.Deployment], func() {
		w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(d), d)).To(Succeed())
		d.Spec.Template.Spec.Containers[0].Image = "db:2"
		w.Expect(c.Update(t.Context(), d)).To(Succeed())
	})
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the controller decides again")
	w.Expect(w.replaces(d)()).To(BeEmpty())
	w.Expect(d.Generation).To(Equal(int64(2)))
}

// A person attests another pod while the controller removes an attestation. The new attestation stays.
func TestNewAttestationMeanwhile(t *testing.T) {
	w, fresh := newSteps(t)
	pod := w.holdBy(fresh, "db-1", withCommand)
	w.annotate(v1.AttestAnnotation, string(pod.UID)) // refused, because the pod is not terminating

	w.overtake(patchOf(singletonName), func() {
		w.annotate(v1.AttestAnnotation, "another")
	})
	w.Expect(w.singleton().Annotations).To(HaveKeyWithValue(v1.AttestAnnotation, "another"))
}

// The ConfigMap of a barrier contains the epoch for the application. The ConfigMap is immutable.
func TestBarrierCannotBeChanged(t *testing.T) {
	w, _ := newSteps(t)
	pod := w.warmPod("db-1")
	w.reconcile(w.fresh())
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: barrierOf(pod)}}
	err := c.Patch(t.Context(), configMap, client.RawPatch(types.MergePatchType, []byte(`{"data":{"epoch":"7"}}`)))
	w.Expect(err).To(MatchError(apierrors.IsInvalid, "invalid"))
}
