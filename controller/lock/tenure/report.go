package tenure

import (
	"fmt"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
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
		d.setCondition(v1.ConditionFenced, false, string(fencing), "not safe: spec.fencing is None, so the old writer can still write through open "+
			"connections after a failover. Use Termination or Lease if two writers do harm")
	case last != nil && last.From != "" && last.To != "" && last.Proof == "":
		d.setCondition(v1.ConditionFenced, false, notProven, fmt.Sprintf(
			"pod %s, the writer before, lost only its label, because spec.fencing was None. It can still write", last.From))
	case fencing == v1.LockFencingTermination:
		d.setCondition(v1.ConditionFenced, true, string(fencing), "another pod becomes the writer after the pod of the writer has provably terminated")
	case w != nil && !w.fenced:
		d.setCondition(v1.ConditionFenced, false, notFenced, fmt.Sprintf(
			"pod %s is the writer also without Lease %s: %s. To create the pods again, run: kubectl rollout restart -n %s statefulset %s",
			w.Name, d.Lock.Spec.LeaseName, w.notFenced, d.Lock.Namespace, d.Lock.Spec.StatefulSetName))
	default:
		d.setCondition(v1.ConditionFenced, true, string(fencing), fmt.Sprintf("a pod is the writer only while it renews Lease %s", d.Lock.Spec.LeaseName))
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
		d.setCondition(v1.ConditionEvictionBlocked, false, noOtherPod, fmt.Sprintf(
			"an eviction stops the writer, pod %s, at once, because no other pod can become the writer on a node that is not drained", w.Name))
	case other != nil:
		d.setCondition(v1.ConditionEvictionBlocked, false, otherBudget, fmt.Sprintf("PodDisruptionBudget %s exists, and the controller creates none "+
			"beside it, because a pod that two budgets cover cannot be evicted. If the controller is to create one, delete it: kubectl delete pdb -n %s %[1]s",
			other.Name, other.Namespace))
	default:
		d.plan.Budget = true
		d.setCondition(v1.ConditionEvictionBlocked, true, budgetInPlace,
			fmt.Sprintf("evictions of the writer, pod %s, are blocked until another pod is the writer", w.Name))
	}
}

const grantedMessage = "pod %s becomes the writer with epoch %d"

// noReadyPodMessage says why no pod can become the writer. It names only some of the pods, because the length of a condition
// is limited.
func (d *decision) noReadyPodMessage() string {
	const most = 5
	var why []string
	for _, p := range d.pods {
		if p.member {
			why = append(why, fmt.Sprintf("pod %s can't become the writer: %s", p.Name, d.cannotWrite(p)))
		}
	}
	switch {
	case len(why) == 0:
		return fmt.Sprintf("StatefulSet %s has no pods", d.Lock.Spec.StatefulSetName)
	case len(why) > most:
		why = append(why[:most], fmt.Sprintf("nor can %d other pods", len(why)-most))
	}
	return strings.Join(why, "; ")
}

// stoppingMessage says what the termination of the writer waits for, and what a person can do.
func (d *decision) stoppingMessage(w *pod) string {
	node, attest := d.Nodes[w.Spec.NodeName], d.attestMessage(w.UID)
	switch {
	case w.DeletionTimestamp == nil:
		return fmt.Sprintf("deleting pod %s, because its tenure ends when the pod has terminated", w.Name)
	case node == nil:
		return fmt.Sprintf("pod %s is terminating, and its node %s does not exist. To let another pod become the writer, %s", w.Name, w.Spec.NodeName, attest)
	case !proof.NodeReady(node):
		return fmt.Sprintf("pod %s is terminating, and its node %s does not report. If the node is off, run: kubectl taint node %[2]s "+
			"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute. If the node is on, %[3]s", w.Name, w.Spec.NodeName, attest)
	case proof.Terminal(w.Pod):
		return fmt.Sprintf("pod %s has phase %s, and the kubelet has not reported that its containers have terminated. If this does not change, %s",
			w.Name, w.Status.Phase, attest)
	}
	return fmt.Sprintf("pod %s is terminating. Another pod becomes the writer after the kubelet has reported the termination", w.Name)
}

// lostMessage says how another pod can become the writer although the object of the last one does not exist.
func (d *decision) lostMessage() string {
	return fmt.Sprintf("pod %s, the last writer, does not exist, and nothing proves that its processes have ended. To let another pod become the writer, %s",
		d.status.WriterPod, d.attestMessage(d.status.WriterPodUID))
}

// attestMessage says how a person attests the termination of a pod.
func (d *decision) attestMessage(uid types.UID) string {
	return fmt.Sprintf("make sure that the processes of the pod have ended, then run: kubectl annotate -n %s ssl %s %s=%s --overwrite",
		d.Lock.Namespace, d.Lock.Name, v1.AttestAnnotation, uid)
}
