package lock

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/tenure"
)

// stoppingPoll is how often to check whether the policy of a deleted lock is removed.
const stoppingPoll = 5 * time.Second

// reportDeletionWaits reports what the deletion waits for.
func (r *Reconciler) reportDeletionWaits(ctx context.Context, lock *v1.StatefulSetLock, message string) error {
	stored := lock.DeepCopy()
	lock.Status.Message = message
	return r.writeStatus(ctx, stored, lock)
}

// finalize removes everything that the lock added to its pods, and then the finalizer of the lock. Its Lease and its
// PodDisruptionBudget are garbage-collected. The pods keep running.
func (r *Reconciler) finalize(ctx context.Context, lock *v1.StatefulSetLock) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(lock, v1.PolicyFinalizer) {
		return ctrl.Result{}, nil
	}
	switch installed := r.Injection.Condition(lock); installed.Reason {
	case injection.Removed:
	case injection.NotRemoved:
		return ctrl.Result{RequeueAfter: stoppingPoll}, r.reportDeletionWaits(ctx, lock, "the StatefulSetLock can't be removed yet: can't "+installed.Message)
	default: // a change of the condition enqueues the lock
		return ctrl.Result{RequeueAfter: stoppingPoll}, nil
	}
	snapshot, err := r.observe(ctx, lock)
	if err != nil {
		return ctrl.Result{}, err
	}
	e := &execution{Reconciler: r, lock: lock, written: map[types.UID]tenure.Version{}}
	for i := range snapshot.Pods {
		p := &snapshot.Pods[i]
		if p.Labels[v1.LockLabel] != lock.Name {
			continue
		}
		// The annotations stay: the next lock of the StatefulSet learns from them which pod was the writer.
		metadata := object{"labels": object{v1.StsRoleLabel: nil, v1.LockLabel: nil}}
		if p.Labels[v1.SingletonLabel] == "" {
			metadata["$deleteFromPrimitiveList/finalizers"] = []string{v1.HandoffFinalizer}
		}
		err := e.patchPod(ctx, tenure.PodRef{Name: p.Name, UID: p.UID}, tenure.Version(p.ResourceVersion), metadata)
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
	}
	before := lock.DeepCopy()
	controllerutil.RemoveFinalizer(lock, v1.PolicyFinalizer)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, lock, patch); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer from StatefulSetLock %s: %w", client.ObjectKeyFromObject(lock), err)
	}
	return ctrl.Result{}, nil
}
