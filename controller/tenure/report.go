package tenure

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/drain"
)

const (
	// minRequeue is the shortest delay of the next decision.
	minRequeue = time.Millisecond
	// settledPoll is how often to decide again while nothing changes.
	settledPoll = 5 * time.Minute
	// transitionPoll is how often to decide again while the writer changes, for changes that no watch reports.
	transitionPoll = 5 * time.Second
	// servingPoll is how often to read the EndpointSlices, and servingPatience how long to wait for them. They are no proof:
	// a client that has an old address is the reason to fence the writer.
	servingPoll, servingPatience = 100 * time.Millisecond, 5 * time.Second
	// lostNodePatience is the time after which a lost node no longer appears Ready. It is longer than the default of
	// --node-monitor-grace-period of kube-controller-manager, which is 50 s.
	lostNodePatience = time.Minute
)

// Reasons of condition Fenced.
const (
	fencedByLease       = "Lease"
	fencedByTermination = "Termination"
	notFencedNone       = "None"
	notFencedPod        = "PodNotFenced"
)

// failoverDelay returns how long the writer can be unready.
func failoverDelay(lock *v1.StatefulSetLock) time.Duration {
	return time.Duration(lock.Spec.FailoverDelaySeconds) * time.Second
}

// BudgetName returns the name of the PodDisruptionBudget of a lock, in the same namespace.
func BudgetName(lock *v1.StatefulSetLock) string { return "statefulsetlock-" + lock.Name }

// report sets the rest of the status from the outcome.
func (d *decision) report() {
	outcome := d.plan.Outcome
	if !outcome.Settled() {
		d.requeueIn(transitionPoll)
	}
	d.status.Message = d.message
	d.status.ObservedGeneration = d.Lock.Generation
	available := outcome == WriterReady
	for _, c := range []string{v1.ConditionAvailable, v1.ConditionReady} {
		d.setCondition(c, available, string(outcome), d.message)
	}
	for _, c := range []string{v1.ConditionProgressing, v1.ConditionReconciling} {
		d.setCondition(c, !outcome.Settled() && !d.needsPerson, string(outcome), d.message)
	}
	for _, c := range []string{v1.ConditionError, v1.ConditionStalled} {
		d.setCondition(c, d.needsPerson, string(outcome), d.message)
	}
	d.reportFencing()
	d.plan.Budget = d.blocksEvictions()
}

// reportFencing says whether something ends the tenure of the writer before another pod becomes the writer.
func (d *decision) reportFencing() {
	w := find(d.pods, d.status.WriterPodUID)
	switch {
	case d.Lock.Spec.Fencing == v1.LockFencingNone:
		d.setCondition(v1.ConditionFenced, false, notFencedNone, noneMessage())
	case w == nil:
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionFenced)
	case d.Lock.Spec.Fencing == v1.LockFencingTermination:
		d.setCondition(v1.ConditionFenced, true, fencedByTermination, terminationMessage())
	case w.fenced:
		d.setCondition(v1.ConditionFenced, true, fencedByLease, d.leaseMessage())
	default:
		d.setCondition(v1.ConditionFenced, false, notFencedPod, d.notFencedMessage(w))
	}
}

func (d *decision) setCondition(conditionType string, value bool, reason, message string) {
	status := metav1.ConditionFalse
	if value {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message, ObservedGeneration: d.Lock.Generation,
	})
}

// blocksEvictions returns true if a PodDisruptionBudget must block evictions of the writer until another pod is the writer.
// A pod with two budgets cannot be evicted at all, and without another pod that can become the writer a drain would wait
// for ever.
func (d *decision) blocksEvictions() bool {
	w := find(d.pods, d.status.WriterPodUID)
	if w == nil || d.needsPerson {
		return false
	}
	other := d.candidate(w)
	return other != nil && other.drained == "" && drain.OtherBudget(d.Budgets, d.Lock, BudgetName(d.Lock), w.Pod) == nil
}
