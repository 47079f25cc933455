// Package lock reconciles StatefulSetLocks. It reads a Snapshot, calls package tenure to decide, executes the plan and writes
// the status. It does not decide which pod is the writer.
package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

const (
	// reasonTooManyPods is the reason of the conditions if the pods of the lock, or the objects that they refer to, are too many or
	// too large. No decision is made.
	reasonTooManyPods = "TooManyPods"
	// tooLargePoll is how often to look whether there are fewer.
	tooLargePoll = 10 * time.Second
	// stoppingPoll is how often to check what the deletion of a lock waits for, for changes that no watch reports.
	stoppingPoll = 5 * time.Second
	// refusedPoll is how often to try to create a PodDisruptionBudget that the API server rejects.
	refusedPoll = 10 * time.Second
)

// Reasons of the events.
const (
	// eventTenureEnding: the tenure of the writer ends. The note has the cause.
	eventTenureEnding = "TenureEnding"
	// eventTenureGranted: another pod becomes the writer. The note has the proof for the last writer.
	eventTenureGranted = "TenureGranted"
	// eventAttestationRefused: why an attestation is refused.
	eventAttestationRefused = "AttestationRefused"
)

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

	silence   leases.Silence
	conflicts apply.Conflicts
}

// Reconcile observes, decides, executes and reports for one lock.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	return r.conflicts.Result(ctx, request.NamespacedName, result, err, isOvertaken(err))
}

// isOvertaken returns true if another client wrote an object since it was read. An object of a deleted lock of the same name is
// garbage-collected soon.
func isOvertaken(err error) bool {
	return apply.IsOvertaken(err) || errors.Is(err, leases.ErrOutdated)
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
	if tooLarge, ok := errors.AsType[*observe.TooLargeError](err); ok {
		return ctrl.Result{RequeueAfter: tooLargePoll}, r.reportStalled(ctx, lock, reasonTooManyPods, tooLarge.Error())
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the state of StatefulSetLock %s: %w", request, err)
	}
	plan := tenure.Decide(snapshot, r.Clock.Now())
	if !plan.Outcome.Refused() {
		if err := apply.AddFinalizer(ctx, r.Client, owner.StatefulSetLock.Kind, lock, v1.PolicyFinalizer); err != nil {
			return ctrl.Result{}, r.reportFailure(ctx, lock, err)
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
	own, found := apply.BudgetOfLock(lock, tenure.BudgetName(lock)), snapshot.Budget()
	budgetErr := apply.CreateBudget(ctx, r.Client, own, found, plan.Budget)
	if budgetErr != nil && ctx.Err() == nil {
		apply.ReportRefusedBudget(stored.Status.Conditions, &lock.Status.Conditions, own, "writer", budgetErr, lock.Generation)
		plan.Requeue = min(plan.Requeue, refusedPoll) // and not an error, because a writer without a fence is renewed in time
	}
	if err := r.writeStatus(ctx, stored, lock); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: plan.Requeue}, apply.DeleteBudget(ctx, r.Client, own, found, plan.Budget)
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

func (r *Reconciler) observer() observe.Observer {
	return observe.Observer{Client: r.Client, Live: r.Live, Silent: r.silent}
}

// reportFailure writes the error of a write into the status, and returns the error.
func (r *Reconciler) reportFailure(ctx context.Context, lock *v1.StatefulSetLock, err error) error {
	if !r.mustReport(ctx, lock, err) {
		return err
	}
	return errors.Join(err, r.reportStalled(ctx, lock, string(tenure.WriteRefused), "can't "+apply.ErrorText(err)))
}

// mustReport returns true if the status must report the error.
func (r *Reconciler) mustReport(ctx context.Context, lock *v1.StatefulSetLock, err error) bool {
	return r.conflicts.MustReport(ctx, lock, err, isOvertaken(err))
}

// reportStalled reports that a person must act, and keeps the record.
func (r *Reconciler) reportStalled(ctx context.Context, lock *v1.StatefulSetLock, reason, message string) error {
	stored := lock.DeepCopy()
	lock.Status.Message = message
	apply.SetConditions(&lock.Status.Conditions, map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionAvailable: metav1.ConditionFalse,
		v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionProgressing: metav1.ConditionFalse,
		v1.ConditionStalled: metav1.ConditionTrue, v1.ConditionError: metav1.ConditionTrue,
	}, reason, message, lock.Generation)
	return r.writeStatus(ctx, stored, lock)
}

// reportDeletionWaits reports what the deletion waits for.
func (r *Reconciler) reportDeletionWaits(ctx context.Context, lock *v1.StatefulSetLock, message string) error {
	stored := lock.DeepCopy()
	lock.Status.Message = message
	return r.writeStatus(ctx, stored, lock)
}

// writeStatus writes the status if it has changed, and reports the change.
func (r *Reconciler) writeStatus(ctx context.Context, stored, lock *v1.StatefulSetLock) error {
	apply.CutMessages(&lock.Status.Message, lock.Status.Conditions)
	if equality.Semantic.DeepEqual(stored.Status, lock.Status) {
		return nil
	}
	return r.record(ctx, stored, lock)
}

// record writes the status. It fails if the API server would drop a field, which happens with an older CustomResourceDefinition.
func (r *Reconciler) record(ctx context.Context, stored, lock *v1.StatefulSetLock) error {
	apply.CutMessages(&lock.Status.Message, lock.Status.Conditions)
	err := apply.UpdateStatus(ctx, r.Client, owner.StatefulSetLock.Kind, lock, client.FieldValidation(metav1.FieldValidationStrict))
	if err != nil {
		return err
	}
	r.announce(ctx, &stored.Status, lock)
	return nil
}

// announce reports a change of the status by events and log lines.
func (r *Reconciler) announce(ctx context.Context, before *v1.StatefulSetLockStatus, lock *v1.StatefulSetLock) {
	was, is := before.LastTransition, lock.Status.LastTransition
	if is != nil && is.To == "" && is.From != "" && (was == nil || was.FromUID != is.FromUID || was.To != "") {
		r.emit(ctx, lock, corev1.EventTypeNormal, eventTenureEnding, fmt.Sprintf("the tenure of pod %s as the writer ends (cause %s)", is.From, is.Cause))
	}
	if lock.Status.Epoch > before.Epoch && lock.Status.WriterPod != "" {
		note := fmt.Sprintf("pod %s becomes the writer with epoch %d (cause %s)", lock.Status.WriterPod, lock.Status.Epoch, is.Cause)
		if is.Proof != "" {
			note += fmt.Sprintf(". The tenure of pod %s has ended with proof %s", is.From, is.Proof)
		}
		r.emit(ctx, lock, corev1.EventTypeNormal, eventTenureGranted, note)
	}
	if c := meta.FindStatusCondition(lock.Status.Conditions, v1.ConditionError); c != nil && c.Status == metav1.ConditionTrue && !meta.IsStatusConditionTrue(before.Conditions, v1.ConditionError) {
		r.emit(ctx, lock, corev1.EventTypeWarning, c.Reason, c.Message)
	}
	if c := meta.FindStatusCondition(lock.Status.Conditions, v1.ConditionEvictionBlocked); c != nil && c.Reason == apply.BudgetRefused {
		if was := meta.FindStatusCondition(before.Conditions, v1.ConditionEvictionBlocked); was == nil || was.Reason != c.Reason {
			r.emit(ctx, lock, corev1.EventTypeWarning, c.Reason, c.Message)
		}
	}
}

func (r *Reconciler) emit(ctx context.Context, lock *v1.StatefulSetLock, eventType, reason, note string) {
	ctrl.LoggerFrom(ctx).Info(note, "reason", reason)
	r.Recorder.Eventf(lock, nil, eventType, reason, "Lock", "%s", apply.CutNote(note))
}
