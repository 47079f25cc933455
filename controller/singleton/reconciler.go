// Package singleton reconciles StatefulSingletons. It reads a Snapshot, calls package handoff to decide, executes the
// plan and writes the status. It does not decide who may run.
package singleton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// tooManyPoll is how often to check whether fewer pods match. No watch reports the pods that only the
// selector matches.
const tooManyPoll = 10 * time.Second

// reasonTooManyPods is the reason of Ready, Reconciling and Stalled if the pods are too
// many, or too large, to be read.
const reasonTooManyPods = "TooManyPods"

// Reconciler reconciles StatefulSingletons.
type Reconciler struct {
	// Client writes, and reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Injection has the condition PolicyInstalled of each singleton.
	Injection *injection.Reconciler
	// Recorder emits the events.
	Recorder events.EventRecorder
	// Metrics counts the handoffs.
	Metrics *Metrics
	// Clock returns the time.
	Clock clock.PassiveClock

	podNodes  podNodes
	silence   leases.Silence
	releases  releases
	conflicts apply.Conflicts
}

func (r *Reconciler) observer() observe.Observer {
	return observe.Observer{Client: r.Client, Live: r.Live, Silent: r.silent}
}

// Reconcile observes, decides, executes and reports for one singleton.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request.NamespacedName)
	return r.conflicts.Result(ctx, request.NamespacedName, result, err, apierrors.IsConflict(err))
}

func (r *Reconciler) reconcile(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	if snapshot, released := r.afterRelease(ctx, key); released {
		return r.decide(ctx, snapshot)
	}
	singleton := &v1.StatefulSingleton{}
	if err := r.Live.Get(ctx, key, singleton); apierrors.IsNotFound(err) {
		r.podNodes.forget(key)
		r.silence.Forget(types.NamespacedName{Namespace: key.Namespace, Name: signal.LeaseName(key.Name)})
		return r.finalizeOrphans(ctx, key)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !singleton.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, singleton)
	}
	if err := apply.AddFinalizer(ctx, r.Client, owner.StatefulSingleton.Kind, singleton, v1.PolicyFinalizer); err != nil {
		return ctrl.Result{}, err
	}
	snapshot, err := r.observer().Observe(ctx, singleton)
	if tooMany, ok := errors.AsType[*observe.TooLargeError](err); ok {
		return r.reportTooManyPods(ctx, singleton, tooMany)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.podNodes.note(key, snapshot)
	return r.decide(ctx, snapshot)
}

// decide decides from the Snapshot, executes the plan and writes the status.
func (r *Reconciler) decide(ctx context.Context, snapshot handoff.Snapshot) (ctrl.Result, error) {
	singleton := snapshot.Singleton
	plan := handoff.Decide(snapshot, r.Clock.Now())
	if err := r.execute(ctx, snapshot, plan); err != nil {
		return ctrl.Result{}, errors.Join(err, r.reportFailedPlan(ctx, singleton, plan, err))
	}
	stored := singleton.DeepCopy()
	singleton.Status = plan.Status
	installed := r.Injection.Condition(singleton)
	setInjectionStatus(&singleton.Status, installed)
	own, found := apply.BudgetOfSingleton(singleton, handoff.BudgetName(singleton)), snapshot.Budget()
	budgetErr := apply.CreateBudget(ctx, r.Client, own, found, plan.Budget)
	if r.mustReport(ctx, singleton, budgetErr) {
		apply.ReportRefusedBudget(stored.Status.Conditions, &singleton.Status.Conditions, own, "holder", budgetErr, singleton.Generation)
	}
	if err := r.writeStatus(ctx, stored, singleton); err != nil {
		return ctrl.Result{}, err
	}
	if err := errors.Join(budgetErr, apply.DeleteBudget(ctx, r.Client, own, found, plan.Budget)); err != nil {
		return ctrl.Result{}, err
	}
	if plan.Outcome == handoff.HolderStopping {
		r.releases.await(snapshot)
	}
	result := ctrl.Result{RequeueAfter: plan.Requeue, Priority: new(0)}
	if plan.Outcome.Settled() && installed.Status == metav1.ConditionTrue {
		result.Priority = new(handler.LowPriority) // the next check is less urgent than any event
	}
	return result, nil
}

// reportTooManyPods reports that no decision is made, and keeps the record.
func (r *Reconciler) reportTooManyPods(ctx context.Context, singleton *v1.StatefulSingleton, tooMany *observe.TooLargeError) (ctrl.Result, error) {
	stored := singleton.DeepCopy()
	status := &singleton.Status
	if !inHandoff(status) {
		status.TransitionTimestamp = new(metav1.NewMicroTime(r.Clock.Now()))
	}
	status.Phase, status.Message, status.ObservedGeneration = v1.PhaseFailed, tooMany.Error(), singleton.Generation
	apply.SetConditions(&status.Conditions, map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionStalled: metav1.ConditionTrue,
	}, reasonTooManyPods, status.Message, singleton.Generation)
	setInjectionStatus(status, r.Injection.Condition(singleton))
	return ctrl.Result{RequeueAfter: tooManyPoll}, r.writeStatus(ctx, stored, singleton)
}

// reportFailedPlan reports the plan and the error that keeps it from being executed. It keeps the record as it was
// written last.
func (r *Reconciler) reportFailedPlan(ctx context.Context, singleton *v1.StatefulSingleton, plan handoff.Plan, err error) error {
	if !r.mustReport(ctx, singleton, err) {
		return nil
	}
	stored := singleton.DeepCopy()
	status, decided := &singleton.Status, &plan.Status
	status.Phase, status.TransitionTimestamp = decided.Phase, decided.TransitionTimestamp
	status.StandbyPods, status.ObservedGeneration = decided.StandbyPods, decided.ObservedGeneration
	status.Message = fmt.Sprintf("%s; can't %s", decided.Message, apply.ErrorText(err))
	for _, c := range decided.Conditions {
		if c.Message == decided.Message {
			c.Message = status.Message
		}
		if c.Type == v1.ConditionReady && plan.Outcome == handoff.NoPods {
			c.Status = metav1.ConditionFalse // the injection was not checked
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return r.writeStatus(ctx, stored, singleton)
}

// mustReport returns true if the status must report the error.
func (r *Reconciler) mustReport(ctx context.Context, singleton *v1.StatefulSingleton, err error) bool {
	return r.conflicts.MustReport(ctx, singleton, err, apierrors.IsConflict(err))
}

// setInjectionStatus adds condition PolicyInstalled to the status, and its effect on Ready and Reconciling.
func setInjectionStatus(status *v1.StatefulSingletonStatus, installed metav1.Condition) {
	meta.SetStatusCondition(&status.Conditions, installed)
	ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	if installed.Status == metav1.ConditionTrue || ready == nil || ready.Reason != string(handoff.NoPods) {
		return
	}
	// Users who wait for Ready before they create the first pod expect that the pod is held.
	status.Message = installed.Message
	apply.SetConditions(&status.Conditions, map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionReconciling: metav1.ConditionTrue,
	}, installed.Reason, installed.Message, installed.ObservedGeneration)
}

// writeStatus writes the status if it has changed, and reports the change.
func (r *Reconciler) writeStatus(ctx context.Context, stored, singleton *v1.StatefulSingleton) error {
	fit(&singleton.Status)
	if equality.Semantic.DeepEqual(stored.Status, singleton.Status) {
		return nil
	}
	return r.record(ctx, stored, singleton)
}

// fit cuts the messages of a status that the API server would reject.
func fit(status *v1.StatefulSingletonStatus) {
	apply.CutMessages(&status.Message, status.Conditions)
	if status.Handover != nil {
		status.Handover.Refused = apply.CutText(status.Handover.Refused)
	}
}

// record writes the status even if it has not changed, for the compare-and-swap.
func (r *Reconciler) record(ctx context.Context, stored, singleton *v1.StatefulSingleton, options ...client.SubResourceUpdateOption) error {
	fit(&singleton.Status)
	if err := apply.UpdateStatus(ctx, r.Client, owner.StatefulSingleton.Kind, singleton, options...); err != nil {
		return err
	}
	r.announce(ctx, stored, singleton)
	return nil
}
