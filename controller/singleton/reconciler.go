// Package singleton reconciles StatefulSingletons: it observes the world live,
// has package handoff decide, executes the plan and reports. It decides nothing
// about who may run.
package singleton

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

const (
	// conflictDelay is how long to wait before a decision that somebody else's write
	// overtook is made anew. It doubles with each conflict in a row.
	conflictDelay = 10 * time.Millisecond
	// conflictsInARow is the number of conflicts in a row from which on a conflict is an
	// error like any other: other writers cause a few, an admission webhook that answers
	// 409 causes one each time. The delays until then add up to 2.5 s.
	conflictsInARow = 8
	// tooManyPoll is how often to look again whether fewer pods match. No watch reports
	// the pods that only the selector picks.
	tooManyPoll = 10 * time.Second
)

// reasonTooManyPods is the reason of Ready, Reconciling and Stalled if the pods are too
// many, or too large, to be read.
const reasonTooManyPods = "TooManyPods"

// Reconciler brings each StatefulSingleton to where its pods allow.
type Reconciler struct {
	// Client writes, and reads what may lag.
	Client client.Client
	// Live reads from the API server what a decision rests on.
	Live client.Reader
	// Injector installs and checks the injection.
	Injector *Injector
	// Recorder emits the events.
	Recorder events.EventRecorder
	// Metrics counts the handoffs.
	Metrics *Metrics
	// Clock tells the time.
	Clock clock.PassiveClock

	places    places
	conflicts conflicts
}

// conflicts counts the conflicts in a row of each singleton.
type conflicts struct {
	mu    sync.Mutex
	inRow map[types.NamespacedName]int
}

// count returns how many reconciles in a row ended in a conflict.
func (c *conflicts) count(key types.NamespacedName) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inRow[key]
}

// ended counts one more, or begins anew after a reconcile that ended otherwise.
func (c *conflicts) ended(key types.NamespacedName, inConflict bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !inConflict {
		delete(c.inRow, key)
		return
	}
	if c.inRow == nil {
		c.inRow = map[types.NamespacedName]int{}
	}
	c.inRow[key]++
}

func (r *Reconciler) observer() observe.Observer {
	return observe.Observer{Client: r.Client, Live: r.Live}
}

// Reconcile observes, decides, executes and reports, for one singleton.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	before := r.conflicts.count(request.NamespacedName)
	result, err := r.reconcile(ctx, request.NamespacedName)
	r.conflicts.ended(request.NamespacedName, apierrors.IsConflict(err))
	switch {
	case ctx.Err() != nil:
		return ctrl.Result{}, nil // told to stop: nothing went wrong
	case apierrors.IsConflict(err) && before < conflictsInARow:
		ctrl.LoggerFrom(ctx).V(1).Info("Overtaken by another write, deciding anew", "conflict", err.Error())
		return ctrl.Result{RequeueAfter: conflictDelay << before}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	singleton := &v1.StatefulSingleton{}
	if err := r.Live.Get(ctx, key, singleton); apierrors.IsNotFound(err) {
		r.places.forget(key)
		return r.finalizeOrphans(ctx, key)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !singleton.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, singleton)
	}
	if err := r.addFinalizer(ctx, singleton); err != nil {
		return ctrl.Result{}, err
	}
	snapshot, err := r.observer().Observe(ctx, singleton)
	if tooMany, ok := errors.AsType[*observe.TooManyPodsError](err); ok {
		return r.tellTooMany(ctx, singleton, tooMany)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.places.note(key, snapshot)
	plan := handoff.Decide(snapshot, r.Clock.Now())
	if err := r.execute(ctx, singleton, plan); err != nil {
		return ctrl.Result{}, errors.Join(err, r.tellStuck(ctx, singleton, plan, err))
	}
	stored := singleton.DeepCopy()
	if !plan.StatusCanWait {
		singleton.Status = plan.Status
	}
	handingOver := !plan.Outcome.Settled()
	installed := r.Injector.Ensure(ctx, singleton, handingOver)
	report(&singleton.Status, installed.condition)
	unguarded := r.createBudget(ctx, singleton, snapshot.Budget(), plan.Budget)
	if r.mayLast(ctx, singleton, unguarded) {
		reportUnguarded(stored, singleton, unguarded)
	}
	if err := r.writeStatus(ctx, stored, singleton); err != nil {
		return ctrl.Result{}, err
	}
	if err := errors.Join(unguarded, r.deleteBudget(ctx, singleton, snapshot.Budget(), plan.Budget)); err != nil {
		return ctrl.Result{}, err
	}
	result := ctrl.Result{RequeueAfter: min(plan.Requeue, installed.recheck), Priority: new(0)}
	if !handingOver && installed.condition.Status == metav1.ConditionTrue {
		result.Priority = new(handler.LowPriority) // another look can wait behind what happens
	}
	return result, nil
}

// tellTooMany writes to the status that nothing is decided, and leaves the record as it is.
func (r *Reconciler) tellTooMany(ctx context.Context, singleton *v1.StatefulSingleton, tooMany *observe.TooManyPodsError) (ctrl.Result, error) {
	stored := singleton.DeepCopy()
	status := &singleton.Status
	if !handingOver(status) {
		status.TransitionTimestamp = new(metav1.NewMicroTime(r.Clock.Now()))
	}
	status.Phase, status.Message, status.ObservedGeneration = v1.PhaseFailed, tooMany.Error(), singleton.Generation
	for kind, value := range map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionStalled: metav1.ConditionTrue,
	} {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: reasonTooManyPods, Message: status.Message, ObservedGeneration: singleton.Generation,
		})
	}
	installed := r.Injector.Ensure(ctx, singleton, true)
	report(status, installed.condition)
	return ctrl.Result{RequeueAfter: min(tooManyPoll, installed.recheck)}, r.writeStatus(ctx, stored, singleton)
}

// tellStuck has the status say what keeps the plan from being executed: else the log
// alone would. It tells of the plan, and leaves the record as it was written last.
func (r *Reconciler) tellStuck(ctx context.Context, singleton *v1.StatefulSingleton, plan handoff.Plan, err error) error {
	if !r.mayLast(ctx, singleton, err) {
		return nil
	}
	stored := singleton.DeepCopy()
	status, decided := &singleton.Status, &plan.Status
	status.Phase, status.TransitionTimestamp = decided.Phase, decided.TransitionTimestamp
	status.StandbyPods, status.ObservedGeneration = decided.StandbyPods, decided.ObservedGeneration
	status.Message = fmt.Sprintf("%s; can't %s", decided.Message, oneLine(err.Error()))
	for _, c := range decided.Conditions {
		if c.Message == decided.Message {
			c.Message = status.Message
		}
		if c.Type == v1.ConditionReady && plan.Outcome == handoff.NoPods {
			c.Status = metav1.ConditionFalse // nobody has looked whether the first pod would be held
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return r.writeStatus(ctx, stored, singleton)
}

// mayLast tells whether what failed may fail for ever, so that somebody has to be told:
// another write that came first does not, unless it does each time, nor does what is gone
// since it was read.
func (r *Reconciler) mayLast(ctx context.Context, singleton *v1.StatefulSingleton, err error) bool {
	overtaken := apierrors.IsConflict(err) && r.conflicts.count(client.ObjectKeyFromObject(singleton)) < conflictsInARow
	return err != nil && ctx.Err() == nil && !overtaken && !apierrors.IsNotFound(err)
}

func (r *Reconciler) addFinalizer(ctx context.Context, singleton *v1.StatefulSingleton) error {
	before := singleton.DeepCopy()
	if !controllerutil.AddFinalizer(singleton, v1.PolicyFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, singleton, patch); err != nil {
		return fmt.Errorf("put the finalizer on StatefulSingleton %s: %w", client.ObjectKeyFromObject(singleton), err)
	}
	return nil
}

// report adds the state of the injection to a status that the plan has written.
func report(status *v1.StatefulSingletonStatus, installed metav1.Condition) {
	meta.SetStatusCondition(&status.Conditions, installed)
	ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	if installed.Status == metav1.ConditionTrue || ready == nil || ready.Reason != string(handoff.NoPods) {
		return
	}
	// Whoever waits for Ready before creating the first pod wants it held.
	status.Message = installed.Message
	for _, c := range []metav1.Condition{
		{Type: v1.ConditionReady, Status: metav1.ConditionFalse},
		{Type: v1.ConditionReconciling, Status: metav1.ConditionTrue},
	} {
		c.Reason, c.Message, c.ObservedGeneration = installed.Reason, installed.Message, installed.ObservedGeneration
		meta.SetStatusCondition(&status.Conditions, c)
	}
}

// writeStatus writes the status if it is not what is stored, as a compare-and-swap
// on the resourceVersion that the singleton was read with, and tells of the change.
func (r *Reconciler) writeStatus(ctx context.Context, stored, singleton *v1.StatefulSingleton) error {
	if equality.Semantic.DeepEqual(stored.Status, singleton.Status) {
		return nil
	}
	return r.record(ctx, stored, singleton)
}

// record is writeStatus that also writes what is stored already: the
// compare-and-swap is what counts.
func (r *Reconciler) record(ctx context.Context, stored, singleton *v1.StatefulSingleton, options ...client.SubResourceUpdateOption) error {
	status := singleton.Status.DeepCopy()
	if err := r.Client.Status().Update(ctx, singleton, options...); err != nil {
		return fmt.Errorf("write the status of StatefulSingleton %s: %w", client.ObjectKeyFromObject(singleton), err)
	}
	singleton.Status = *status // as decided, not as rounded on the way
	r.announce(ctx, stored, singleton)
	return nil
}
