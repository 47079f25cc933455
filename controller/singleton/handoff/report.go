package handoff

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// serving reports a holder that is not about to be replaced.
func (d *decision) serving(containers []injected.Container) {
	t, next := d.status.LastTransition, d.successor()
	starts := t != nil && t.To == d.holder.Name && t.Ready == nil
	problem := nodeProblem(d.Nodes, d.holder.Pod)
	switch {
	case next == nil && d.holderReady():
		d.found(HolderReady, "pod %s is the holder with epoch %d%s%s", d.holder.Name, d.status.Epoch, d.spareNote(), d.foreignHelp())
	case starts && problem != "":
		d.found(Starting, "pod %s is the holder with epoch %d and has not been Ready yet, and its node %s %s"+
			": the pod may start there, so no other pod is released%s", d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, problem, d.spareNote())
		d.advice = append(d.advice, d.lostNodeHelp(d.holder.Pod))
	case starts:
		d.found(Starting, "pod %s is the holder and has not been Ready yet: %s", d.holder.Name, whyNotStarted(d.holder, containers))
	case problem != "":
		d.found(HolderNotReady, "pod %s is the holder, and its node %s %s: the pod may still run there, so no other pod is released%s",
			d.holder.Name, d.holder.Spec.NodeName, problem, d.spareNote())
		d.advice = append(d.advice, d.lostNodeHelp(d.holder.Pod))
	case next != nil:
		d.found(AwaitingHandover, "pod %s is warm and has a newer revision than pod %s, and their StatefulSet continues only after pod %[1]s is Ready. "+
			"To have it take over, run: kubectl delete -n %[3]s pod %[2]s", next.Name, d.holder.Name, d.Singleton.Namespace)
	default:
		d.found(HolderNotReady, "pod %s is the holder and is not Ready: %s", d.holder.Name, notReady(d.holder.Pod))
	}
}

// followStart records in the transition what the kubelet reports about the start of the new holder.
func (d *decision) followStart(containers []injected.Container, given signal.Signal) {
	t := d.status.LastTransition
	if t == nil || t.To != d.holder.Name {
		return
	}
	now := metav1.NewMicroTime(d.now)
	if t.Signalled == nil {
		t.Signalled = &now
		if !given.Time.IsZero() {
			t.Signalled = new(metav1.NewMicroTime(given.Time))
		}
	}
	ready, started := d.holderReady(), startReported(containers) && mainStarted(containers)
	if canQueue(d.holder) {
		started = !d.startUnreported()
	}
	if t.Terminated != nil && t.GapMilliseconds == nil && (ready || started) {
		t.GapMilliseconds = new(d.now.Sub(t.Terminated.Time).Milliseconds())
	}
	if t.Ready == nil && ready {
		t.Ready = &now
	}
}

// cause returns what began the handoff from a terminated holder.
func (d *decision) cause() v1.Cause {
	if d.holder == nil {
		return v1.CauseDeletion
	}
	pod := d.holder.Pod
	disrupted := proof.IsTrue(pod, corev1.DisruptionTarget)
	replaced := d.replaced()
	switch {
	case replaced != "":
		return replaced
	case pod.DeletionTimestamp == nil && d.holder.Proof == v1.ProofLeaseExpired:
		return v1.CauseExpiry
	case disrupted:
		return v1.CauseEviction
	case pod.DeletionTimestamp == nil && d.completesJob(pod) && len(d.standbys) == 0:
		return v1.CauseScaleDown
	case pod.DeletionTimestamp == nil && proof.Terminal(pod):
		return v1.CauseCompletion
	case d.unwanted(pod):
		return v1.CauseScaleDown
	case d.outdated(pod):
		return v1.CauseRollout
	}
	return v1.CauseDeletion
}

// completesJob returns true if the pod has succeeded and belongs to a Job. The Job creates no other pod for it. A
// Job with several completions creates the next pod at once.
func (d *decision) completesJob(pod *corev1.Pod) bool {
	return owner.Of(pod, owner.Job) != nil && pod.Status.Phase == corev1.PodSucceeded
}

// Settled returns true if no handoff is in progress.
func (o Outcome) Settled() bool {
	return o == NoPods || o == HolderReady || o == HolderNotReady || o == AwaitingHandover || o == Paused
}

// report sets the rest of the status from the outcome.
func (d *decision) report() {
	outcome := d.plan.Outcome
	d.plan.Requeue = settledPoll
	phase, message := v1.PhaseRunning, d.message
	if outcome == NoPods {
		phase = ""
	}
	if !outcome.Settled() {
		d.status.TransitionTimestamp = d.begun()
		phase, d.plan.Requeue = v1.PhaseTransitioning, transitionPoll
		patience := time.Duration(d.Singleton.Spec.MaxTransitionTime) * time.Second
		spent := d.now.Sub(d.status.TransitionTimestamp.Time)
		switch {
		case d.needsPerson:
			phase = v1.PhaseFailed
		case spent >= patience:
			phase = v1.PhaseFailed
			message = fmt.Sprintf("the handoff takes longer than maxTransitionTime (%s): %s", patience, message)
		default:
			d.plan.Requeue = min(transitionPoll, patience-spent)
		}
	}
	if d.drained != "" && !d.drainTimedOut() {
		d.plan.Requeue = min(d.plan.Requeue, d.drainDeadline().Sub(d.now))
	}
	if d.requeueAfter > 0 {
		d.plan.Requeue = min(d.plan.Requeue, d.requeueAfter)
	}
	if outcome == HolderEnded || outcome == LeaseTaken {
		d.plan.Requeue = time.Millisecond // the record or the Lease just moved, so decide again at once
	}
	d.status.Phase, d.status.Message = phase, strings.Join(append([]string{message}, d.advice...), ". ")
	d.reportActive()
	d.status.ObservedGeneration = d.Singleton.Generation
	d.status.StandbyPods = nil
	for _, s := range d.standbys {
		d.status.StandbyPods = append(d.status.StandbyPods, s.Name)
	}
	serves := (outcome == AwaitingHandover || outcome == Paused) && d.holderReady()
	d.reportFencing()
	reason, text := string(outcome), d.status.Message
	d.setCondition(v1.ConditionReady, outcome == HolderReady || outcome == NoPods || serves, reason, text)
	d.setCondition(v1.ConditionReconciling, phase == v1.PhaseTransitioning, reason, text)
	d.setCondition(v1.ConditionStalled, phase == v1.PhaseFailed, reason, text)
}

// reportPaused reports whether handoffs are paused.
func (d *decision) reportPaused() {
	if !d.Singleton.Spec.Paused {
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionPaused)
		return
	}
	d.setCondition(v1.ConditionPaused, true, specPaused, fmt.Sprintf("spec.paused is true, so no rollout, drain or request begins a handoff. "+
		"To resume, run: kubectl stfs resume -n %s %s", d.Singleton.Namespace, d.Singleton.Name))
}

// specPaused is the reason of condition Paused.
const specPaused = "SpecPaused"

// remember adds the transition to the history, unless it is still the last one or has no new holder.
func (d *decision) remember(last *v1.Transition) {
	if last == nil || last == d.status.LastTransition || last.To == "" {
		return
	}
	d.status.History = slices.Insert(d.status.History, 0, last.Past())
	d.status.History = d.status.History[:min(len(d.status.History), v1.MaxHistory)]
}

// reportActive reports the node of the holder, and the ConfigMap of its barriers. The policy gives all barriers of a pod
// the same ConfigMap. Both stay as they are if the object of the holder does not exist.
func (d *decision) reportActive() {
	active := d.active()
	if active == nil && d.status.ActivePodUID != "" {
		return
	}
	d.status.ActiveBarrier, d.status.ActiveNode = "", ""
	if active == nil {
		return
	}
	d.status.ActiveNode = active.Spec.NodeName
	if i := slices.IndexFunc(active.held, func(h injected.Container) bool { return h.ConfigMap != "" }); i >= 0 {
		d.status.ActiveBarrier = active.held[i].ConfigMap
	}
}

// active returns the pod that the new status names as the holder, or nil if its object does not exist.
func (d *decision) active() *ClassifiedPod {
	return find(d.pods, func(p *ClassifiedPod) bool { return p.UID == d.status.ActivePodUID })
}

// setCondition sets a condition to True or False.
func (d *decision) setCondition(conditionType string, value bool, reason, message string) {
	status := metav1.ConditionFalse
	if value {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message,
		ObservedGeneration: d.Singleton.Generation, LastTransitionTime: metav1.NewTime(d.now),
	})
}
