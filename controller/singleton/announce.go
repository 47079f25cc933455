package singleton

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// Reasons of the events that are not the reason or the type of a condition, nor a proof.
const (
	// eventHandoffStarted: a handoff is in progress. The note names its pods, and its cause once the record
	// has the cause.
	eventHandoffStarted = "HandoffStarted"
	// eventHandoffCompleted: the new holder is Ready. The note has the durations of the handoff.
	eventHandoffCompleted = "HandoffCompleted"
	// eventRolled: the holder's Deployment was rolled to create another pod.
	eventRolled = "Rolled"
	// eventRollRefused: the holder's Deployment could not be rolled.
	eventRollRefused = "RollRefused"
	// eventHandoverRefused: a requested handoff cannot be followed.
	eventHandoverRefused = "HandoverRefused"
	// eventAttestationRefused: an attestation is refused.
	eventAttestationRefused = "AttestationRefused"
	// eventStillStopping: the deletion of the singleton waits for a pod or for its policy.
	eventStillStopping = "StillStopping"
)

// announce reports a change of the status by events, log lines and the metrics of completed handoffs.
func (r *Reconciler) announce(ctx context.Context, before, after *v1.StatefulSingleton) {
	r.announceInjection(ctx, before, after)
	r.announceProof(ctx, before, after)
	r.announceDrain(ctx, before, after)
	r.announceQueue(ctx, before, after)
	if completes(&before.Status, &after.Status) {
		r.Metrics.completed(after.Status.LastTransition)
		r.emit(ctx, after, corev1.EventTypeNormal, "Handoff", eventHandoffCompleted, ending(&after.Status))
	}
	r.announceHandoff(ctx, before, after)
}

// announceHandoff reports the start of a handoff and its steps.
func (r *Reconciler) announceHandoff(ctx context.Context, before, after *v1.StatefulSingleton) {
	was, is := &before.Status, &after.Status
	reason, failed := string(outcomeOf(is)), is.Phase == v1.PhaseFailed
	expected := isExpected(was, is) && (!failed || was.Phase == v1.PhaseFailed)
	if begins(was, is) {
		note := beginning(was, is)
		if expected {
			note += ": " + is.Message
		}
		r.emit(ctx, after, corev1.EventTypeNormal, "Handoff", eventHandoffStarted, note)
	}
	installed := meta.FindStatusCondition(is.Conditions, v1.ConditionPolicyInstalled)
	switch {
	case outcomeOf(was) == outcomeOf(is) && was.Phase == is.Phase:
	case installed != nil && installed.Reason == reason: // announceInjection reports it
	case expected:
		r.log(ctx, after, reason, is.Message)
	case failed || outcomeOf(is) == handoff.HolderNotReady:
		r.emit(ctx, after, corev1.EventTypeWarning, "Handoff", reason, is.Message)
	default:
		r.emit(ctx, after, corev1.EventTypeNormal, "Handoff", reason, is.Message)
	}
}

// isExpected returns true if every handoff has the outcome, or another event reports it.
func isExpected(before, after *v1.StatefulSingletonStatus) bool {
	switch outcomeOf(after) {
	case handoff.Released, handoff.Adopted, handoff.HolderEnded, handoff.AwaitingPod, handoff.Rolling:
		return true
	case handoff.HolderReady:
		return completes(before, after)
	case handoff.Starting: // the gap is known, so the application has started
		was, is := before.LastTransition, after.LastTransition
		return is != nil && is.GapMilliseconds != nil && (was == nil || was.GapMilliseconds == nil)
	case handoff.NoPods, handoff.WarmingUp, handoff.HolderNotReady, handoff.AwaitingHandover, handoff.Paused, handoff.StandbyNotWarm, handoff.Retiring,
		handoff.RetiringCold, handoff.HolderStopping, handoff.HolderLost, handoff.SeveralRun, handoff.Overlapping, handoff.LeaseTaken, handoff.LeaseHeld:
	}
	return false
}

// begins returns true if a handoff began.
func begins(before, after *v1.StatefulSingletonStatus) bool {
	was, is := before.LastTransition, after.LastTransition
	outcome := outcomeOf(after)
	switch {
	case !inHandoff(after):
		return false
	case outcome == handoff.SeveralRun || outcome == handoff.Overlapping || outcome == handoff.HolderLost || outcome == reasonTooManyPods:
		return false // no handoff can begin
	case !inHandoff(before) || completes(before, after):
		return true
	}
	// The last handoff ended before its holder was Ready.
	return was != nil && is != nil && was.To != "" && was.Ready == nil && was.To != is.To
}

// completes returns true if the holder of the last transition became Ready.
func completes(before, after *v1.StatefulSingletonStatus) bool {
	was, is := before.LastTransition, after.LastTransition
	return is != nil && is.Ready != nil && (was == nil || was.Ready == nil)
}

func inHandoff(status *v1.StatefulSingletonStatus) bool {
	return status.Phase == v1.PhaseTransitioning || status.Phase == v1.PhaseFailed
}

func outcomeOf(status *v1.StatefulSingletonStatus) handoff.Outcome {
	ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	if ready == nil {
		return ""
	}
	return handoff.Outcome(ready.Reason)
}

// beginning returns the note of a handoff that began: its pods and its cause, as far as they are known.
func beginning(before, after *v1.StatefulSingletonStatus) string {
	from, to, cause := after.ActivePod, "", ""
	if len(after.StandbyPods) > 0 {
		to = after.StandbyPods[0]
	}
	if t := after.LastTransition; t != nil && t.Ready == nil && !equality.Semantic.DeepEqual(before.LastTransition, t) {
		from, to, cause = t.From, t.To, string(t.Cause)
	}
	note := "handoff"
	for _, field := range []struct{ name, value string }{{" from pod ", from}, {" to pod ", to}, {", cause ", cause}} {
		if field.value != "" {
			note += field.name + field.value
		}
	}
	return note
}

// ending returns the note of a completed handoff.
func ending(after *v1.StatefulSingletonStatus) string {
	t := after.LastTransition
	note := fmt.Sprintf("pod %s is the holder with epoch %d: cause %s", t.To, after.Epoch, t.Cause)
	if t.From != "" {
		note += fmt.Sprintf(", from pod %s, proof %s", t.From, t.Proof)
	}
	if t.GapMilliseconds != nil {
		note += fmt.Sprintf(", gap %s", time.Duration(*t.GapMilliseconds)*time.Millisecond)
	}
	if t.Started != nil {
		note += fmt.Sprintf(", duration %s", t.Ready.Sub(t.Started.Time).Round(100*time.Millisecond))
	}
	return note
}

// announceProof reports a proof of termination that rests on a statement of a person, or on clocks.
func (r *Reconciler) announceProof(ctx context.Context, before, after *v1.StatefulSingleton) {
	was, is := before.Status.LastTransition, after.Status.LastTransition
	if is == nil || was != nil && was.Terminated.Equal(is.Terminated) {
		return
	}
	var why string
	switch is.Proof {
	case v1.ProofAttested:
		why = "a person attested it"
	case v1.ProofNodeOutOfService:
		why = fmt.Sprintf("its node does not answer and has the taint %s, with which a person states that the node is off", corev1.TaintNodeOutOfService)
	case v1.ProofLeaseExpired:
		why = fmt.Sprintf("it did not renew Lease %s for the duration of the Lease, before which a pod stops its main processes", signal.LeaseName(after.Name))
	case v1.ProofKubeletReported, v1.ProofNeverSignalled, v1.ProofLeaseReleased: // the kubelet or the pod reported it
	}
	if why != "" {
		r.emit(ctx, after, corev1.EventTypeWarning, "Prove", string(is.Proof), fmt.Sprintf("pod %s counts as terminated: %s", is.From, why))
	}
}

// announceDrain reports a drain of the holder's node, why evictions are not blocked, and a requested handoff that
// cannot be followed.
func (r *Reconciler) announceDrain(ctx context.Context, before, after *v1.StatefulSingleton) {
	drained := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionDraining)
	if drained != nil && meta.FindStatusCondition(before.Status.Conditions, v1.ConditionDraining) == nil {
		r.emit(ctx, after, corev1.EventTypeNormal, "Drain", v1.ConditionDraining, drained.Message)
	}
	was := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionEvictionBlocked)
	is := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionEvictionBlocked)
	if is != nil && is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason) {
		eventType := corev1.EventTypeNormal
		if was != nil && drained != nil && is.Reason != handoff.StandbyWaits || is.Reason == apply.BudgetRefused {
			eventType = corev1.EventTypeWarning
		}
		r.emit(ctx, after, eventType, "BlockEvictions", is.Reason, is.Message)
	}
	if asked := after.Status.Handover; asked != nil && asked.Refused != "" && (before.Status.Handover == nil || *before.Status.Handover != *asked) {
		r.emit(ctx, after, corev1.EventTypeWarning, "Handover", eventHandoverRefused, asked.Refused)
	}
}

// announceQueue reports why the connections of clients are not queued.
func (r *Reconciler) announceQueue(ctx context.Context, before, after *v1.StatefulSingleton) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionConnectionsQueued)
	is := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionConnectionsQueued)
	if is != nil && is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason) {
		r.emit(ctx, after, corev1.EventTypeWarning, "QueueConnections", is.Reason, is.Message)
	}
}

func (r *Reconciler) announceInjection(ctx context.Context, before, after *v1.StatefulSingleton) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionPolicyInstalled)
	is := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionPolicyInstalled)
	if is == nil || was != nil && was.Reason == is.Reason {
		return
	}
	eventType := corev1.EventTypeNormal
	if is.Status == metav1.ConditionFalse && is.Reason != injection.ReasonInstalling {
		eventType = corev1.EventTypeWarning
	}
	r.emit(ctx, after, eventType, "Inject", is.Reason, is.Message)
}

// emit writes an event and a log line.
func (r *Reconciler) emit(ctx context.Context, singleton *v1.StatefulSingleton, eventType, action, reason, message string) {
	r.Recorder.Eventf(singleton, nil, eventType, reason, action, "%s", apply.CutNote(message))
	r.log(ctx, singleton, reason, message)
}

// log writes a log line without an event.
func (r *Reconciler) log(ctx context.Context, singleton *v1.StatefulSingleton, reason, message string) {
	status := &singleton.Status
	ctrl.LoggerFrom(ctx).Info(message, "reason", reason, "phase", status.Phase, "activePod", status.ActivePod, "epoch", status.Epoch)
}
