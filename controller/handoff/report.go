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
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// followStart writes down what the kubelet reported of the new holder's start.
func (d *decision) followStart(containers []heldContainer, given signal.Signal) {
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
	ready := IsTrue(d.holder.Pod, corev1.PodReady)
	if t.Terminated != nil && t.GapMilliseconds == nil && (ready || startReported(containers) && mainStarted(containers)) {
		t.GapMilliseconds = new(d.now.Sub(t.Terminated.Time).Milliseconds())
	}
	if t.Ready == nil && ready {
		t.Ready = &now
	}
}

// cause is what began the handoff from a holder that is dead.
func (d *decision) cause() v1.Cause {
	if d.holder == nil {
		return v1.CauseDeletion
	}
	pod := d.holder.Pod
	disrupted := IsTrue(pod, corev1.DisruptionTarget)
	switch replaced := d.replaced(); {
	case replaced != "":
		return replaced
	case disrupted:
		return v1.CauseEviction
	case pod.DeletionTimestamp == nil && d.completesJob(pod) && len(d.standbys) == 0:
		return v1.CauseScaleDown
	case pod.DeletionTimestamp == nil:
		return v1.CauseCompletion
	case d.unwanted(pod):
		return v1.CauseScaleDown
	case d.outdated(pod):
		return v1.CauseRollout
	}
	return v1.CauseDeletion
}

// completesJob tells whether the pod has done the work of a Job, which creates no other pod
// for it. A Job that wants several completions creates the next one at once.
func (d *decision) completesJob(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job" && pod.Status.Phase == corev1.PodSucceeded
}

// Settled tells whether no handoff is under way.
func (o Outcome) Settled() bool {
	return o == NoPods || o == HolderReady || o == HolderNotReady || o == AwaitingHandover
}

// report turns the outcome into the rest of the status.
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
	if d.again > 0 {
		d.plan.Requeue = min(d.plan.Requeue, d.again)
	}
	if outcome == HolderEnded {
		d.plan.Requeue = time.Millisecond // the record just moved: decide on the rest at once
	}
	if d.usual > 0 {
		d.plan.Requeue, d.plan.Untold = min(d.plan.Requeue, d.usual), d.untold()
	}
	d.status.Phase, d.status.Message = phase, strings.Join(append([]string{message}, d.advice...), ". ")
	d.status.ActiveBarrier = d.activeBarrier()
	d.status.ActiveNode = d.activeNode()
	d.status.ObservedGeneration = d.Singleton.Generation
	d.status.StandbyPods = nil
	for _, s := range d.standbys {
		d.status.StandbyPods = append(d.status.StandbyPods, s.Name)
	}
	serves := outcome == AwaitingHandover && IsTrue(d.holder.Pod, corev1.PodReady)
	d.setCondition(v1.ConditionReady, outcome == HolderReady || outcome == NoPods || serves)
	d.setCondition(v1.ConditionReconciling, phase == v1.PhaseTransitioning)
	d.setCondition(v1.ConditionStalled, phase == v1.PhaseFailed)
}

// activeBarrier is the ConfigMap that the holder's barriers read. The policy gives
// those of one pod the same.
func (d *decision) activeBarrier() string {
	if d.status.ActivePodUID == "" {
		return ""
	}
	active := d.active()
	if active == nil {
		return d.status.ActiveBarrier
	}
	for _, h := range active.held {
		if h.configMap != "" {
			return h.configMap
		}
	}
	return ""
}

// activeNode is the holder's.
func (d *decision) activeNode() string {
	if d.status.ActivePodUID == "" {
		return ""
	}
	active := d.active()
	if active == nil {
		return d.status.ActiveNode
	}
	return active.Spec.NodeName
}

// active is the pod that the status to be written names as the holder, nil if its object is
// gone.
func (d *decision) active() *ClassifiedPod {
	i := slices.IndexFunc(d.pods, func(p *ClassifiedPod) bool { return p.UID == d.status.ActivePodUID })
	if i < 0 {
		return nil
	}
	return d.pods[i]
}

func (d *decision) setCondition(kind string, value bool) {
	status := metav1.ConditionFalse
	if value {
		status = metav1.ConditionTrue
	}
	d.setConditionTo(kind, status, string(d.plan.Outcome), d.status.Message)
}

func (d *decision) setConditionTo(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: d.Singleton.Generation, LastTransitionTime: metav1.NewTime(d.now),
	})
}
