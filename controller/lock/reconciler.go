// Package lock reconciles StatefulSetLocks. It reads a Snapshot, calls package tenure to decide, executes the plan and writes
// the status. It does not decide which pod is the writer.
package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/leaseaccess"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/tenure"
)

// conflictDelay is how long to wait before the next decision after a conflict with a write of another client.
const conflictDelay = 20 * time.Millisecond

// Reconciler reconciles StatefulSetLocks.
type Reconciler struct {
	// Client writes, and reads from the cache, which has nodes and PodDisruptionBudgets.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Injection has the condition PolicyInstalled of each lock.
	Injection *injection.Reconciler
	// Recorder emits the events.
	Recorder events.EventRecorder
	// Clock returns the time.
	Clock clock.PassiveClock

	silence leases.Silence
}

// Reconcile observes, decides, executes and reports for one lock.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	switch {
	case ctx.Err() != nil:
		return ctrl.Result{}, nil // the controller stops
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, leaseaccess.ErrOutdated):
		ctrl.LoggerFrom(ctx).V(1).Info("Requeued after a conflict", "conflict", err.Error())
		return ctrl.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	lock := &v1.StatefulSetLock{}
	if err := r.Live.Get(ctx, request.NamespacedName, lock); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !lock.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, lock)
	}
	snapshot, err := r.observer().ObserveLock(ctx, lock)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the state of StatefulSetLock %s: %w", request, err)
	}
	plan := tenure.Decide(snapshot, r.Clock.Now())
	if !plan.Outcome.Refused() {
		if err := r.addFinalizer(ctx, lock); err != nil {
			return ctrl.Result{}, err
		}
	}
	err = r.execute(ctx, snapshot, plan)
	if err == nil {
		err = r.grantAccess(ctx, snapshot, plan)
	}
	if err != nil {
		return ctrl.Result{}, r.reportFailure(ctx, lock, err)
	}
	stored := lock.DeepCopy() // as the last Record wrote it
	lock.Status = plan.Status
	if controllerutil.ContainsFinalizer(lock, v1.PolicyFinalizer) { // otherwise the lock has no policy
		meta.SetStatusCondition(&lock.Status.Conditions, r.Injection.Condition(lock))
	}
	if err := r.writeStatus(ctx, stored, lock); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: plan.Requeue}, r.writeBudget(ctx, lock, plan.Budget)
}

func (r *Reconciler) observer() observe.Observer {
	return observe.Observer{Client: r.Client, Live: r.Live, Silent: r.silent}
}

// reportFailure writes the error of a write into the status, and returns the error. A conflict is temporary.
func (r *Reconciler) reportFailure(ctx context.Context, lock *v1.StatefulSetLock, err error) error {
	if errors.Is(err, leaseaccess.ErrOutdated) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || ctx.Err() != nil {
		return err
	}
	stored := lock.DeepCopy()
	lock.Status.Message = "can't " + strings.Join(strings.Fields(err.Error()), " ")
	for conditionType, status := range map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionAvailable: metav1.ConditionFalse,
		v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionProgressing: metav1.ConditionFalse,
		v1.ConditionStalled: metav1.ConditionTrue, v1.ConditionError: metav1.ConditionTrue,
	} {
		meta.SetStatusCondition(&lock.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: status, Reason: string(tenure.WriteRefused), Message: lock.Status.Message, ObservedGeneration: lock.Generation,
		})
	}
	return errors.Join(err, r.writeStatus(ctx, stored, lock))
}

// addFinalizer adds the finalizer, after which the policy is installed.
func (r *Reconciler) addFinalizer(ctx context.Context, lock *v1.StatefulSetLock) error {
	before := lock.DeepCopy()
	if !controllerutil.AddFinalizer(lock, v1.PolicyFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, lock, patch); err != nil {
		return fmt.Errorf("add the finalizer to StatefulSetLock %s: %w", client.ObjectKeyFromObject(lock), err)
	}
	return nil
}

// writeStatus writes the status if it has changed, and reports the change.
func (r *Reconciler) writeStatus(ctx context.Context, stored, lock *v1.StatefulSetLock) error {
	if equality.Semantic.DeepEqual(stored.Status, lock.Status) {
		return nil
	}
	return r.record(ctx, stored, lock)
}

// record writes the status. The write is a compare-and-swap on the resourceVersion of the lock that was read. It fails if the
// API server would drop a field, which happens with an older CustomResourceDefinition.
func (r *Reconciler) record(ctx context.Context, stored, lock *v1.StatefulSetLock) error {
	status := lock.Status.DeepCopy()
	if err := r.Client.Status().Update(ctx, lock, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return fmt.Errorf("write the status of StatefulSetLock %s: %w", client.ObjectKeyFromObject(lock), err)
	}
	lock.Status = *status // the stored times are rounded
	r.announce(ctx, &stored.Status, lock)
	return nil
}
