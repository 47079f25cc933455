package tenure

import (
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

const (
	// minRequeue is the shortest delay of the next decision.
	minRequeue = time.Millisecond
	// settledPoll is how often to decide again while there is a writer.
	settledPoll = 5 * time.Minute
	// minRenewal is the shortest time between two renewals by the controller, because each is a decision with all its reads.
	minRenewal = 2 * time.Second
	// transitionPoll is how often to decide again otherwise. No watch reports a pod or a Lease without the label of the lock.
	transitionPoll = 5 * time.Second
	// servingPoll is how often to read the EndpointSlices, and servingPatience how long to wait for them. The controller does
	// not wait longer, because EndpointSlices are no proof that clients have closed their connections.
	servingPoll, servingPatience = 100 * time.Millisecond, 5 * time.Second
	// startPatience is the time that a fenced writer has to start and to become Ready, in addition to
	// spec.failoverDelaySeconds. Its main process may start again in the new role.
	startPatience = time.Minute
	// retryDelay is the time until a pod gets a tenure after a pod could not become the writer.
	retryDelay = 5 * time.Second
	// distrust is how long a pod that was a failed writer is not chosen if another pod can be. It may still appear Ready. It is longer
	// than the default of --node-monitor-grace-period of kube-controller-manager, which is 50 s.
	distrust = time.Minute
)

// Reasons of condition Fenced. Otherwise, the reason is the value of spec.fencing.
const (
	// notProven: spec.fencing was None when the writer changed last.
	notProven = "NotProven"
	// notFenced: spec.fencing is Lease, and the writer is a pod that no Lease fences.
	notFenced = "NotFenced"
)

// Reasons of condition EvictionBlocked.
const (
	budgetInPlace = "BudgetInPlace"
	// noOtherPod: no other pod can become the writer, except on a drained node.
	noOtherPod = "NoOtherPod"
	// otherBudget: another PodDisruptionBudget covers the writer, or has the name of the lock's own.
	otherBudget = "OtherBudget"
)

// failoverDelay returns how long the writer can be unready.
func failoverDelay(lock *v1.StatefulSetLock) time.Duration {
	return time.Duration(lock.Spec.FailoverDelaySeconds) * time.Second
}

// leaseDuration returns spec.leaseDurationSeconds.
func leaseDuration(lock *v1.StatefulSetLock) time.Duration {
	return time.Duration(lock.Spec.LeaseDurationSeconds) * time.Second
}

// renewalPeriod returns after how long the controller renews the Lease of an unfenced writer.
func renewalPeriod(lock *v1.StatefulSetLock) time.Duration {
	return max(leaseDuration(lock)/2, minRenewal)
}

// BudgetName returns the name of the PodDisruptionBudget of a lock, in the same namespace.
func BudgetName(lock *v1.StatefulSetLock) string { return "statefulsetlock-" + lock.Name }

// report sets the rest of the status from the outcome.
func (d *decision) report() {
	outcome := d.plan.Outcome
	if outcome != WriterReady && outcome != WriterNotReady {
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
	d.reportEvictions()
}

// reportFencing sets condition Fenced, which is True if the tenure of a writer provably ends before the next one begins.
func (d *decision) reportFencing() {
	w, fencing := find(d.pods, d.status.WriterPodUID), d.Lock.Spec.Fencing
	last := d.status.LastTransition
	switch {
	case fencing == v1.LockFencingNone:
		d.setCondition(v1.ConditionFenced, false, string(fencing), noneMessage)
	case last != nil && last.From != "" && last.To != "" && last.Proof == "":
		d.setCondition(v1.ConditionFenced, false, notProven, fmt.Sprintf("pod %s, the writer before, lost only its label, because spec.fencing was None. It can still write", last.From))
	case fencing == v1.LockFencingTermination:
		d.setCondition(v1.ConditionFenced, true, string(fencing), terminationMessage)
	case w != nil && !w.fenced:
		d.setCondition(v1.ConditionFenced, false, notFenced, d.notFencedMessage(w))
	default:
		d.setCondition(v1.ConditionFenced, true, string(fencing), d.leaseMessage())
	}
}

func (d *decision) setCondition(conditionType string, value bool, reason, message string) {
	status := metav1.ConditionFalse
	if value {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message, ObservedGeneration: d.Lock.Generation,
		LastTransitionTime: metav1.NewTime(d.now),
	})
}

// Budget returns the lock's own PodDisruptionBudget, or nil.
func (s Snapshot) Budget() *policyv1.PodDisruptionBudget {
	return owner.Budget(s.Budgets, s.Lock, owner.StatefulSetLock, BudgetName(s.Lock))
}

// reportEvictions decides whether a PodDisruptionBudget must block evictions of the writer until another pod is the writer, and
// reports that. A pod with two budgets cannot be evicted at all, and without another pod that can become the writer a drain
// would wait for ever.
func (d *decision) reportEvictions() {
	w := find(d.pods, d.status.WriterPodUID)
	if w == nil || d.needsPerson {
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionEvictionBlocked)
		return
	}
	next := d.candidate(w)
	other := owner.OtherBudget(d.Budgets, d.Lock, owner.StatefulSetLock, BudgetName(d.Lock), w.Pod)
	switch {
	case next == nil || next.drained != "":
		d.setCondition(v1.ConditionEvictionBlocked, false, noOtherPod, noOtherPodMessage(w))
	case other != nil:
		d.setCondition(v1.ConditionEvictionBlocked, false, otherBudget, otherBudgetMessage(other))
	default:
		d.plan.Budget = true
		d.setCondition(v1.ConditionEvictionBlocked, true, budgetInPlace, evictionsBlockedMessage(w))
	}
}
