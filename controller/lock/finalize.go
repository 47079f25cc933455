package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// stoppingPoll is how often to check what the deletion of a lock waits for, for changes that no watch reports.
const stoppingPoll = 5 * time.Second

// reportDeletionWaits reports what the deletion waits for.
func (r *Reconciler) reportDeletionWaits(ctx context.Context, lock *v1.StatefulSetLock, message string) error {
	stored := lock.DeepCopy()
	lock.Status.Message = message
	return r.writeStatus(ctx, stored, lock)
}

// finalize removes the labels and finalizers that the lock added to its pods, and then the finalizer of the lock. Its Lease
// and its PodDisruptionBudget are garbage-collected. The pods keep running. finalize waits for a terminating writer.
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
	snapshot, err := r.observer().ObserveLock(ctx, lock)
	if tooLarge, ok := errors.AsType[*observe.TooLargeError](err); ok {
		return ctrl.Result{RequeueAfter: tooLargePoll}, r.reportDeletionWaits(ctx, lock, tooLarge.Error())
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the state of StatefulSetLock %s: %w", client.ObjectKeyFromObject(lock), err)
	}
	plan, message := tenure.Finalize(snapshot)
	err = r.execute(ctx, snapshot, plan)
	if err == nil && message != "" {
		return ctrl.Result{RequeueAfter: stoppingPoll}, r.reportDeletionWaits(ctx, lock, message)
	}
	if err == nil {
		err = client.IgnoreNotFound(apply.RemoveFinalizer(ctx, r.Client, owner.StatefulSetLock.Kind, lock, v1.PolicyFinalizer))
	}
	if r.mustReport(ctx, lock, err) {
		err = errors.Join(err, r.reportDeletionWaits(ctx, lock, "the StatefulSetLock can't be removed yet: can't "+apply.ErrorText(err)))
	}
	return ctrl.Result{}, err
}
