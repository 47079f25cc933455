package singleton_test

import (
	"context"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// write is a write request of the controller.
type write struct {
	// verb is "create", "update", "patch", "apply" or "delete", followed by "/" and the subresource, if any.
	verb string
	// object is nil for an apply.
	object client.Object
	// data is the body of a patch.
	data string
}

// of returns true if the write has the verb and is for an object with the name.
func (w write) of(verb, name string) bool {
	return w.verb == verb && w.object != nil && w.object.GetName() == name
}

// meanwhile returns a client for the controller. When the controller first sends a request that which selects, do runs
// before the API server receives the request.
func (w *world) meanwhile(which func(write) bool, do func()) client.Client {
	w.t.Helper()
	happened := false
	w.t.Cleanup(func() {
		if !happened {
			w.t.Error("the controller did not send the request that the test waits for")
		}
	})
	return writing(func(sent write) {
		if !happened && which(sent) {
			happened = true
			do()
		}
	})
}

// writing returns a client that calls before with each write before the API server receives the write.
func writing(before func(write)) client.Client {
	patched := func(verb string, o client.Object, patch client.Patch) error {
		data, err := patch.Data(o)
		before(write{verb, o, string(data)})
		return err
	}
	return interceptor.NewClient(controllerClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			before(write{verb: "create", object: o})
			return c.Create(ctx, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := patched("patch", o, patch); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, options...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			before(write{verb: "apply"})
			return c.Apply(ctx, o, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			before(write{verb: "delete", object: o})
			return c.Delete(ctx, o, options...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, name string, o client.Object, options ...client.SubResourceUpdateOption) error {
			before(write{verb: "update/" + name, object: o})
			return c.SubResource(name).Update(ctx, o, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := patched("patch/"+name, o, patch); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, o, patch, options...)
		},
	})
}

// ofPolicy returns true if the write is for a policy.
func ofPolicy(sent write) bool {
	return sent.verb == "apply" || sent.object != nil && sent.object.GetObjectKind().GroupVersionKind() == policies.ClusterPolicy.GVK()
}

// gone waits until the singleton does not exist.
func (w *world) gone() {
	w.t.Helper()
	w.Eventually(func() error {
		return c.Get(w.t.Context(), w.key(singletonName), &v1.StatefulSingleton{})
	}).Should(MatchError(apierrors.IsNotFound, "not found"))
}

// `removeObject` removes the finalizers and the object of a pod, as a person can do.
func (w *world) removeObject(pod *corev1.Pod) {
	w.t.Helper()
	w.Expect(c.Patch(w.t.Context(), w.pod(pod.Name), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	w.remove(pod)
	w.Expect(w.pod(pod.Name)).To(BeNil())
}

// addFinalizer puts a finalizer of another owner on an object.
func (w *world) addFinalizer(o client.Object) {
	w.t.Helper()
	w.Expect(c.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
	before := o.DeepCopyObject().(client.Object)
	controllerutil.AddFinalizer(o, theirFinalizer)
	w.Expect(c.Patch(w.t.Context(), o, client.MergeFrom(before))).To(Succeed())
	w.t.Cleanup(func() {
		_ = c.Patch(context.Background(), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	})
}

const theirFinalizer = "example.com/theirs"

// A pod's deletion is requested after the controller read the pod and before the controller removes the finalizer. The
// finalizer stays until the kubelet reports the termination. Without the finalizer, a forced deletion could remove the
// object while processes run.
func TestPodTerminatesDuringDeletion(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	pod := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.report(pod, ready)
	w.Expect(c.Delete(t.Context(), w.singleton())).To(Succeed())

	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", "db-1") }, func() { w.ask(pod) })
	w.reconcile(newReconciler(slow, controllerClient, w.clock))

	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.remove(pod)
	w.reconcile(fresh)
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue(), "a forced deletion does not remove the object")
	w.Expect(w.singleton().Status.Message).To(HavePrefix("the StatefulSingleton is removed once pod db-1 has terminated"))

	w.report(pod, ended)
	w.reconcile(fresh)
	w.gone()
	w.Expect(w.pod("db-1")).To(BeNil())
}

// The holder is removed after the controller read it and before the controller removes its finalizer. The singleton
// stays, because only the record names the holder.
func TestHolderRemovedDuringDeletion(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	pod := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.report(pod, ready)
	w.Expect(c.Delete(t.Context(), w.singleton())).To(Succeed())

	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", "db-1") }, func() { w.removeObject(pod) })
	result := w.reconcile(newReconciler(slow, controllerClient, w.clock))
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
	w := newWorld(t)
	journal := w.keepJournal()
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	first := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.report(first, ready)
	w.ask(first)
	w.removeSingleton()
	second := w.warmPod("db-2", withCommand)

	live := &atList{Reader: controllerClient, of: &corev1.PodList{}, do: func() {
		w.createSingleton()
		w.reconcile(fresh)
		w.Expect(w.holder()).To(Equal("db-1"))
		w.report(first, ended)
	}}
	lagging := interceptor.NewClient(controllerClient, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, ok := o.(*v1.StatefulSingleton); ok {
				return apierrors.NewNotFound(schema.GroupResource{}, key.Name) // the cache does not have the new singleton yet
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	result := w.reconcile(newReconciler(lagging, live, w.clock))
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the controller looks again")

	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.reconcile(fresh)
	w.Expect(w.singleton().Status.ActivePodUID).To(Equal(second.UID))
	w.Expect(w.singleton().Status.LastTransition.Proof).To(Equal(v1.ProofKubeletReported))
	w.Expect(w.singleton().Status.Epoch).To(Equal(int64(2)), "an epoch is not given twice")
	w.Expect(journal.wantOneAtATime()).To(Equal(2))
}

// atList runs do before the first list of the kind. The controller lists pods in parallel, and all these lists wait for
// do.
type atList struct {
	client.Reader
	of   client.ObjectList
	do   func()
	once sync.Once
}

func (r *atList) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if fmt.Sprintf("%T", list) == fmt.Sprintf("%T", r.of) {
		r.once.Do(r.do)
	}
	return r.Reader.List(ctx, list, options...)
}

// Another client puts a finalizer on a pod after the controller read it and before the controller removes its own
// finalizer. The other finalizer stays.
func TestFinalizerOfOthersStays(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	pod := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.Expect(c.Delete(t.Context(), w.singleton())).To(Succeed())

	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", "db-1") }, func() { w.addFinalizer(pod) })
	w.reconcile(newReconciler(slow, controllerClient, w.clock))
	w.reconcile(fresh)
	w.gone()
	w.Expect(w.pod("db-1").Finalizers).To(ConsistOf(theirFinalizer))
}

// While a deleted singleton waits for a pod, the status and one event say so. The controller writes both only once.
func TestDeletionReportsOnceWhatItWaitsFor(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	pod := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.report(pod, ready)
	w.ask(pod)
	w.Expect(c.Delete(t.Context(), w.singleton())).To(Succeed())
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

// If the policy of a deleted singleton cannot be deleted, the pods keep their finalizers. Otherwise new pods would be
// held for a singleton that does not exist.
func TestRefusedPolicyDeletion(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.Expect(w.policy()).NotTo(BeNil())
	w.Expect(c.Delete(t.Context(), w.singleton())).To(Succeed())

	refusing := interceptor.NewClient(controllerClient, interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
			return refusal(o)
		},
	})
	result := w.reconcile(newReconciler(refusing, controllerClient, w.clock))
	w.Expect(result.RequeueAfter).To(BeNumerically("<=", 2*time.Second), "it is tried again")
	w.Expect(w.singleton().Status.Message).To(And(
		HavePrefix("the StatefulSingleton can't be removed yet: can't delete the ClusterPolicy of StatefulSingleton "), HaveSuffix(notOnMyWatch)))
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())

	w.reconcile(fresh)
	w.gone()
	w.Expect(w.policy()).To(BeNil())
}

// A removed singleton without stuck pods is not requeued.
func TestNoPodIsStuck(t *testing.T) {
	w := newWorld(t)
	w.warmPod("db-1", withCommand)
	result := w.reconcile(newReconciler(controllerClient, controllerClient, w.clock))
	w.Expect(result.IsZero()).To(BeTrue())
}

// replaced removes a pod and creates another pod with the same name, as a StatefulSet does.
func (w *world) replaced(pod *corev1.Pod, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	w.removeObject(pod)
	next := w.createPod(pod.Name, changes...)
	w.report(next, held)
	return w.pod(pod.Name)
}

// A step has no effect on a new pod with the same name as the pod of the step.
func TestStepsNameOnePod(t *testing.T) {
	tests := map[string]struct {
		// prepare creates a state in which the step is next.
		prepare func(w *world, fresh func()) (pod *corev1.Pod)
		step    func(write) bool
	}{
		"Protect of a running pod": {
			prepare: func(w *world, _ func()) *corev1.Pod {
				pod := w.bare("db-1")
				w.Expect(c.Create(w.t.Context(), pod)).To(Succeed())
				w.report(pod, ready)
				return pod
			},
			step: func(sent write) bool {
				return sent.of("patch", "db-1") && strings.Contains(sent.data, v1.HandoffFinalizer)
			},
		},
		"Protect of an adopted pod": {
			prepare: func(w *world, _ func()) *corev1.Pod {
				pod := w.bare("db-1")
				w.Expect(c.Create(w.t.Context(), pod)).To(Succeed())
				w.report(pod, ready)
				return pod
			},
			step: func(sent write) bool { return sent.of("patch", "db-1") && strings.Contains(sent.data, v1.RoleActive) },
		},
		"Nudge": {
			prepare: func(w *world, fresh func()) *corev1.Pod {
				pod := w.warmPod("db-1", withCommand)
				fresh()
				w.clock.advance(time.Minute)
				return pod
			},
			step: func(sent write) bool {
				return sent.of("patch", "db-1") && strings.Contains(sent.data, v1.NudgeAnnotation)
			},
		},
		"MarkReady": {
			prepare: func(w *world, fresh func()) *corev1.Pod {
				pod := w.warmPod("db-1", withCommand)
				fresh()
				w.report(pod, ready)
				w.report(pod, func(pod *corev1.Pod) {
					pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1.ReadyCondition })
				})
				return pod
			},
			step: func(sent write) bool { return sent.of("patch/status", "db-1") },
		},
		"Unprotect of a terminated holder": {
			prepare: func(w *world, fresh func()) *corev1.Pod {
				pod := w.warmPod("db-1", withCommand)
				fresh()
				w.report(pod, ready)
				w.ask(pod)
				w.report(pod, ended)
				return pod
			},
			step: func(sent write) bool {
				return sent.of("patch", "db-1") && strings.Contains(sent.data, "$deleteFromPrimitiveList")
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.createSingleton()
			fresh := newReconciler(controllerClient, controllerClient, w.clock)
			pod := test.prepare(w, func() { w.reconcile(fresh) })
			var next *corev1.Pod
			slow := w.meanwhile(test.step, func() {
				next = w.replaced(pod, withCommand, func(pod *corev1.Pod) { pod.Finalizers = []string{v1.HandoffFinalizer} })
			})
			_, err := newReconciler(slow, controllerClient, w.clock).Reconcile(t.Context(), w.request())
			w.Expect(err).To(Or(Succeed(), MatchError(apierrors.IsInvalid, "the uid is immutable")))
			w.Expect(w.pod("db-1")).To(Equal(next))
		})
	}
}

// A delayed controller signals a pod for a singleton that was removed by hand. The new singleton is about to unprotect
// this pod. The write of the new singleton fails, and no other pod is released.
func TestReleasedBeforeUnprotect(t *testing.T) {
	w := newWorld(t)
	journal := w.keepJournal()
	w.createSingleton()
	w.reconcile(newReconciler(controllerClient, controllerClient, w.clock)) // adds the finalizer
	d := w.deployment()
	first := w.warmPod("db-1", withCommand, ownedBy(w.replicaSet(d, 1)))
	proceed := w.holdUp(singletonName, ofSignal)
	w.removeSingleton()
	w.createSingleton()
	w.warmPod("db-2", withCommand, ownedBy(w.replicaSet(d, 2)))

	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", first.Name) }, func() {
		_, err := proceed()
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(signalled(w.pod("db-1"))).To(BeTrue())
	})
	w.reconcileHandoff(newReconciler(slow, controllerClient, w.clock))
	w.Expect(signalled(w.pod("db-1"))).To(BeTrue())
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())
	w.reconcile(newReconciler(controllerClient, controllerClient, w.clock))
	w.Expect(w.holder()).To(Equal("db-1"), "the pod runs, and is adopted")
	w.Expect(journal.wantOneAtATime()).To(Equal(1))
}

// The deletion of a standby is requested after the controller read it. The standby does not become the holder.
func TestStandbyTerminatesBeforeItIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	_, second := w.handoffDue()
	// A terminating pod that already has the finalizer accepts the patch.
	w.Expect(c.Patch(t.Context(), second, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+v1.HandoffFinalizer+`"]}}`)))).To(Succeed())

	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", "db-2") }, func() { w.ask(second) })
	w.reconcile(newReconciler(slow, controllerClient, w.clock))
	w.Expect(w.holder()).To(Equal("db-1"))
	w.reconcile(fresh)
	w.Expect(w.holder()).To(BeEmpty())
	w.Expect(w.singleton().Status.Epoch).To(Equal(int64(1)), "no epoch is given to a pod that stops")
}

// If the object of a terminated holder is removed before the controller removes its finalizer, the handoff continues
// without an error.
func TestTerminatedHolderIsRemovedBeforeUnprotect(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	first, _ := w.handoffDue()
	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", "db-1") }, func() { w.removeObject(first) })
	w.reconcile(newReconciler(slow, controllerClient, w.clock))
	w.Expect(w.holder()).To(Equal("db-2"))
	w.Expect(w.reason(v1.ConditionReady)()).To(Equal(string(handoff.Released)), "the status is written after the last step")
}

// A person changes the Deployment after the controller read it. The controller does not roll the Deployment, because
// the change creates a new pod.
func TestDeploymentChangesBeforeItIsRolled(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	d, node := w.deployment(), w.node()
	pod := w.warmPod("db-1", ownedBy(w.replicaSet(d, 1)), withCommand, onNode(node))
	w.reconcile(fresh)
	w.report(pod, ready)
	w.reconcile(fresh)
	w.cordon(node, true)

	slow := w.meanwhile(func(sent write) bool { _, ok := sent.object.(*appsv1.Deployment); return ok }, func() {
		w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(d), d)).To(Succeed())
		d.Spec.Template.Spec.Containers[0].Image = "db:2"
		w.Expect(c.Update(t.Context(), d)).To(Succeed())
	})
	result := w.reconcile(newReconciler(slow, controllerClient, w.clock))
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the controller decides again")
	w.Expect(w.replaces(d)()).To(BeEmpty())
	w.Expect(d.Generation).To(Equal(int64(2)))
}

// A person attests another pod while the controller removes an attestation. The new attestation stays.
func TestNewAttestationMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	pod := w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.report(pod, ready)
	w.annotate(v1.AttestAnnotation, string(pod.UID)) // refused, because the pod is not terminating

	slow := w.meanwhile(func(sent write) bool { return sent.of("patch", singletonName) }, func() {
		w.annotate(v1.AttestAnnotation, "another")
	})
	w.reconcile(newReconciler(slow, controllerClient, w.clock))
	w.Expect(w.singleton().Annotations).To(HaveKeyWithValue(v1.AttestAnnotation, "another"))
}

// The ConfigMap of a barrier contains the epoch for the application. The ConfigMap is immutable.
func TestBarrierCannotBeChanged(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	pod := w.warmPod("db-1")
	w.reconcile(newReconciler(controllerClient, controllerClient, w.clock))
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: barrierOf(pod)}}
	err := c.Patch(t.Context(), configMap, client.RawPatch(types.MergePatchType, []byte(`{"data":{"epoch":"7"}}`)))
	w.Expect(err).To(MatchError(apierrors.IsInvalid, "invalid"))
}
