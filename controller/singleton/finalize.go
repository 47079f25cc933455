package singleton

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// finalize lets go of everything once the singleton is deleted: its policy, so
// that new pods come un-injected, and the finalizers of its pods. The holder goes
// on running; what is held stays held until it is deleted.
func (r *Reconciler) finalize(ctx context.Context, singleton *v1.StatefulSingleton) error {
	if !controllerutil.ContainsFinalizer(singleton, v1.PolicyFinalizer) {
		return nil
	}
	if err := r.Injector.Remove(ctx, singleton); err != nil {
		return err
	}
	var pods corev1.PodList
	err := r.Live.List(ctx, &pods, client.InNamespace(singleton.Namespace), client.MatchingLabels{v1.SingletonLabel: singleton.Name})
	if err != nil {
		return fmt.Errorf("list the pods of StatefulSingleton %s: %w", client.ObjectKeyFromObject(singleton), err)
	}
	for i := range pods.Items {
		if err := ReleaseFinalizer(ctx, r.Client, &pods.Items[i], v1.HandoffFinalizer); err != nil {
			return err
		}
	}
	return ReleaseFinalizer(ctx, r.Client, singleton, v1.PolicyFinalizer)
}

// ReleaseFinalizer takes one finalizer off an object. One that is gone, or does
// not bear it, is left as it is.
func ReleaseFinalizer(ctx context.Context, c client.Client, o client.Object, finalizer string) error {
	before := o.DeepCopyObject().(client.Object)
	if !controllerutil.RemoveFinalizer(o, finalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, o, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("take finalizer %s off %T %s: %w", finalizer, o, client.ObjectKeyFromObject(o), err)
	}
	return nil
}
