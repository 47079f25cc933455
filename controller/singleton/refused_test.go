package singleton_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// notOnMyWatch is the message of the API server for a rejected write.
const notOnMyWatch = "not on my watch"

// refusingClient returns a client that rejects the selected writes. subResource is empty for a write of the object
// itself.
func refusingClient(refused func(o client.Object, subResource string) bool) client.Client {
	refuse := func(o client.Object, subResource string) error {
		if !refused(o, subResource) {
			return nil
		}
		return refusal(o)
	}
	return interceptor.NewClient(controllerClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := refuse(o, ""); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := refuse(o, ""); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := refuse(o, name); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, o, patch, options...)
		},
	})
}

// refusal returns the error of the API server for a write without permission.
func refusal(o client.Object) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprintf("%T", o)}, o.GetName(), errors.New(notOnMyWatch))
}

func refusesPods(o client.Object, subResource string) bool {
	_, ok := o.(*corev1.Pod)
	return ok && subResource == ""
}

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
		refused     func(o client.Object, subResource string) bool
		wantMessage string
		wantHolder  string
	}{
		"the finalizer": {refusesPods, "; can't patch pod ", "db-1"},
		"the barrier":   {func(o client.Object, _ string) bool { _, ok := o.(*corev1.ConfigMap); return ok }, "; can't create ConfigMap ", "db-2"},
		"the signal":    {func(_ client.Object, subResource string) bool { return subResource == "status" }, "; can't patch the status of pod ", "db-2"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			journal := w.keepJournal()
			w.createSingleton()
			w.handoffDue()
			refusing := newReconciler(refusingClient(test.refused), controllerClient, w.clock)

			status := w.stuck(refusing, v1.PhaseTransitioning, "pod db-2 is released with epoch 2"+test.wantMessage)
			w.Expect(status.ActivePod).To(Equal(test.wantHolder))
			w.Expect(status.LastTransition.To).To(Equal(test.wantHolder))
			w.Expect(status.Epoch == 2).To(Equal(test.wantHolder == "db-2"), "epoch is %d", status.Epoch)
			w.clock.advance(301 * time.Second)
			w.stuck(refusing, v1.PhaseFailed, "the handoff takes longer than maxTransitionTime (5m0s): pod db-2 is released with epoch 2"+test.wantMessage)
			w.Expect(signalled(w.pod("db-2"))).To(BeFalse())

			w.reconcile(newReconciler(controllerClient, controllerClient, w.clock))
			w.Expect(w.holder()).To(Equal("db-2"))
			w.Expect(signalled(w.pod("db-2"))).To(BeTrue())
			w.Expect(w.singleton().Status.Message).NotTo(ContainSubstring(notOnMyWatch))
			w.Expect(journal.wantOneAtATime()).To(Equal(2))
		})
	}
}

// If the ReplicaSet of the old pod cannot be scaled down, the old pod continues to run. The handoff then exceeds
// maxTransitionTime.
func TestRefusedRetire(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	d := w.deployment()
	old := w.replicaSet(d, 1)
	refusing := newReconciler(refusingClient(func(_ client.Object, subResource string) bool { return subResource == "scale" }), controllerClient, w.clock)
	first := w.warmPod("db-1", withCommand, ownedBy(old))
	w.reconcile(refusing)
	w.report(first, ready)
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

	w.reconcile(newReconciler(controllerClient, controllerClient, w.clock))
	retired := &appsv1.ReplicaSet{}
	w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(old), retired)).To(Succeed())
	w.Expect(*retired.Spec.Replicas).To(BeZero())
}

// If the finalizers of the pods cannot be removed, the status of the deleted singleton says so.
func TestRefusedDeletion(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	fresh := newReconciler(controllerClient, controllerClient, w.clock)
	w.warmPod("db-1", withCommand)
	w.reconcile(fresh)
	w.Expect(c.Delete(t.Context(), w.singleton())).To(Succeed())

	refusing := newReconciler(refusingClient(refusesPods), controllerClient, w.clock)
	phase := w.singleton().Status.Phase
	status := w.stuck(refusing, phase, "the StatefulSingleton can't be removed yet: can't remove finalizer apps.statefulsingleton.com/handoff from pod db-1: patch pod ")
	w.Expect(status.ActivePod).To(Equal("db-1"))

	w.reconcile(fresh)
	w.Expect(c.Get(t.Context(), w.key(singletonName), &v1.StatefulSingleton{})).To(MatchError(apierrors.IsNotFound, "not found"))
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeFalse())
}
