package singleton

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// stoppingPoll is how often to look again whether the last pods have ended, for
// what no watch reports.
const stoppingPoll = 5 * time.Second

// finalize lets go of everything once the singleton is deleted: its policy, so
// that new pods come un-injected, and the finalizers of its pods. The holder goes
// on running; what is held stays held until it is deleted. A pod that was asked to
// stop is waited for.
func (r *Reconciler) finalize(ctx context.Context, singleton *v1.StatefulSingleton) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(singleton, v1.PolicyFinalizer) {
		return ctrl.Result{}, nil
	}
	result, err := r.finalizePods(ctx, singleton)
	if r.mayLast(ctx, singleton, err) {
		err = errors.Join(err, r.tellStopping(ctx, singleton, "the StatefulSingleton can't go yet: can't "+oneLine(err.Error())))
	}
	return result, err
}

func (r *Reconciler) finalizePods(ctx context.Context, singleton *v1.StatefulSingleton) (ctrl.Result, error) {
	if err := r.Injector.Remove(ctx, singleton); err != nil {
		return ctrl.Result{}, err
	}
	snapshot, err := r.observer().Observe(ctx, singleton)
	if err != nil {
		return ctrl.Result{}, err
	}
	steps, message := handoff.Finalize(snapshot, r.Clock.Now())
	if err := r.execute(ctx, singleton, handoff.Plan{Steps: steps}); apierrors.IsNotFound(err) {
		return ctrl.Result{RequeueAfter: conflictDelay}, nil // one that is gone since it was read
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if message != "" {
		return ctrl.Result{RequeueAfter: stoppingPoll}, r.tellStopping(ctx, singleton, message)
	}
	return ctrl.Result{}, nil
}

// finalizeOrphans lets go of the dead pods of a singleton that is gone: a controller that
// decided before may have put the finalizer on after.
func (r *Reconciler) finalizeOrphans(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	gone := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{v1.SingletonLabel: key.Name}}},
	}
	cached, err := r.observer().Labelled(ctx, gone)
	if err != nil || !slices.ContainsFunc(cached, isStuck) {
		return ctrl.Result{}, err
	}
	snapshot, err := r.observer().Observe(ctx, gone)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.execute(ctx, gone, handoff.Plan{Steps: handoff.Orphans(snapshot)}); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: stoppingPoll}, nil
}

// isStuck tells whether the pod would be gone but for finalizers.
func isStuck(pod metav1.PartialObjectMetadata) bool {
	return pod.DeletionTimestamp != nil && isProtected(&pod)
}

// tellStopping says, once, what the deletion waits for.
func (r *Reconciler) tellStopping(ctx context.Context, singleton *v1.StatefulSingleton, message string) error {
	if singleton.Status.Message == message {
		return nil
	}
	stored := singleton.DeepCopy()
	singleton.Status.Message = message
	if err := r.writeStatus(ctx, stored, singleton); err != nil {
		return err
	}
	r.tell(ctx, singleton, corev1.EventTypeNormal, "Delete", eventStillStopping, message)
	return nil
}

// ReleasePod lets go of a pod, as the singleton's controller does once nothing of what it
// decided before can come through any more: what is not recorded now never will be, and
// then nobody opens its barrier. One that is gone, or was written since it was read, is an error.
func ReleasePod(ctx context.Context, c client.Client, singleton *v1.StatefulSingleton, pod *corev1.Pod) error {
	var annotations []string
	if pod.UID != singleton.Status.ActivePodUID && pod.Annotations[v1.ChosenByAnnotation] == string(singleton.UID) {
		annotations = []string{v1.ChosenByAnnotation}
	}
	return ReleaseFinalizer(ctx, c, pod, v1.HandoffFinalizer, annotations...)
}

// ReleaseFinalizer takes one finalizer off an object, and annotations along with it. One
// that bears none of them is left as it is; one that is gone, or was written since it was
// read, is an error.
func ReleaseFinalizer(ctx context.Context, c client.Client, o client.Object, finalizer string, annotations ...string) error {
	before := o.DeepCopyObject().(client.Object)
	changed := controllerutil.RemoveFinalizer(o, finalizer)
	for _, annotation := range annotations {
		_, has := o.GetAnnotations()[annotation]
		delete(o.GetAnnotations(), annotation)
		changed = changed || has
	}
	if !changed {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, o, patch); err != nil {
		return fmt.Errorf("take finalizer %s off %T %s: %w", finalizer, o, client.ObjectKeyFromObject(o), err)
	}
	return nil
}
