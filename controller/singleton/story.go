package singleton

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// Reasons of the events that are not the reason or the type of a condition, nor a proof.
const (
	// eventHandoffStarted: a handoff is under way. The note names its pods, and its cause
	// once the record has it.
	eventHandoffStarted = "HandoffStarted"
	// eventHandoffCompleted: the new holder is Ready. The note has what the handoff took.
	eventHandoffCompleted = "HandoffCompleted"
	// eventRolled: the holder's Deployment was rolled, so that another pod comes.
	eventRolled = "Rolled"
	// eventRollRefused: the holder's Deployment could not be rolled.
	eventRollRefused = "RollRefused"
	// eventHandoverRefused: a person's word that the holder be replaced is not followed.
	eventHandoverRefused = "HandoverRefused"
	// eventAttestationRefused: a person's word that a pod has ended is not believed.
	eventAttestationRefused = "AttestationRefused"
	// eventStillStopping: the deletion of the singleton waits for a pod.
	eventStillStopping = "StillStopping"
)

// announce tells of a change of status: by events, log lines, and the metrics of
// a handoff that was completed.
func (r *Reconciler) announce(ctx context.Context, before, after *v1.StatefulSingleton) {
	r.announceInjection(ctx, before, after)
	r.announceProof(ctx, before, after)
	r.announceDrain(ctx, before, after)
	if completes(&before.Status, &after.Status) {
		r.Metrics.completed(after.Status.LastTransition)
		r.tell(ctx, after, corev1.EventTypeNormal, "Handoff", eventHandoffCompleted, ending(&after.Status))
	}
	r.announceHandoff(ctx, before, after)
}

// announceHandoff tells that a handoff began, and then of it only what takes longer than
// it usually does, or needs a person. Where no new holder comes of it, the outcome that
// follows is its end.
func (r *Reconciler) announceHandoff(ctx context.Context, before, after *v1.StatefulSingleton) {
	was, is := &before.Status, &after.Status
	reason, failed := string(outcomeOf(is)), is.Phase == v1.PhaseFailed
	expected := usual(was, is) && (!failed || was.Phase == v1.PhaseFailed)
	if begins(was, is) {
		note := beginning(was, is)
		if expected {
			note += ": " + is.Message
		}
		r.tell(ctx, after, corev1.EventTypeNormal, "Handoff", eventHandoffStarted, note)
	}
	installed := meta.FindStatusCondition(is.Conditions, v1.ConditionPolicyInstalled)
	switch {
	case outcomeOf(was) == outcomeOf(is) && was.Phase == is.Phase:
	case installed != nil && installed.Reason == reason: // told already
	case expected:
		r.log(ctx, after, reason, is.Message)
	case failed || outcomeOf(is) == handoff.HolderNotReady:
		r.tell(ctx, after, corev1.EventTypeWarning, "Handoff", reason, is.Message)
	default:
		r.tell(ctx, after, corev1.EventTypeNormal, "Handoff", reason, is.Message)
	}
}

// usual tells whether the outcome is a step that handoffs take anyway, or one that another
// event tells of.
func usual(before, after *v1.StatefulSingletonStatus) bool {
	switch outcomeOf(after) {
	case handoff.Released, handoff.Adopted, handoff.HolderEnded, handoff.AwaitingPod, handoff.Rolling:
		return true
	case handoff.HolderReady:
		return completes(before, after)
	case handoff.Starting: // written early, for the gap
		was, is := before.LastTransition, after.LastTransition
		return is != nil && is.GapMilliseconds != nil && (was == nil || was.GapMilliseconds == nil)
	case handoff.NoPods, handoff.WarmingUp, handoff.HolderNotReady, handoff.AwaitingHandover, handoff.StandbyNotWarm, handoff.Retiring,
		handoff.RetiringCold, handoff.HolderStopping, handoff.HolderLost, handoff.SeveralRun, handoff.Overlapping: // news
	}
	return false
}

// begins tells whether a handoff began.
func begins(before, after *v1.StatefulSingletonStatus) bool {
	was, is := before.LastTransition, after.LastTransition
	switch outcome := outcomeOf(after); {
	case !handingOver(after):
		return false
	case outcome == handoff.SeveralRun || outcome == handoff.Overlapping || outcome == handoff.HolderLost || outcome == reasonTooManyPods:
		return false // no handoff can
	case !handingOver(before) || completes(before, after):
		return true
	}
	// The last one ended without its holder having been Ready.
	return was != nil && is != nil && was.To != "" && was.Ready == nil && was.To != is.To
}

// completes tells whether the last transition's holder is Ready, and was not before.
func completes(before, after *v1.StatefulSingletonStatus) bool {
	was, is := before.LastTransition, after.LastTransition
	return is != nil && is.Ready != nil && (was == nil || was.Ready == nil)
}

func handingOver(status *v1.StatefulSingletonStatus) bool {
	return status.Phase == v1.PhaseTransitioning || status.Phase == v1.PhaseFailed
}

func outcomeOf(status *v1.StatefulSingletonStatus) handoff.Outcome {
	ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	if ready == nil {
		return ""
	}
	return handoff.Outcome(ready.Reason)
}

// beginning says from which pod to which a handoff goes, and for which cause: before it is
// recorded, as far as is known.
func beginning(before, after *v1.StatefulSingletonStatus) string {
	from, to, cause := after.ActivePod, "", ""
	if len(after.StandbyPods) > 0 {
		to = after.StandbyPods[0]
	}
	if t := after.LastTransition; t != nil && t.Ready == nil && !equality.Semantic.DeepEqual(before.LastTransition, t) {
		from, to, cause = t.From, t.To, string(t.Cause)
	}
	note := "handoff"
	for _, part := range []struct{ name, value string }{{" from pod ", from}, {" to pod ", to}, {", cause ", cause}} {
		if part.value != "" {
			note += part.name + part.value
		}
	}
	return note
}

// ending says what the last handoff came to.
func ending(after *v1.StatefulSingletonStatus) string {
	t := after.LastTransition
	note := fmt.Sprintf("pod %s holds with epoch %d: cause %s", t.To, after.Epoch, t.Cause)
	if t.From != "" {
		note += fmt.Sprintf(", from pod %s, proof %s", t.From, t.Proof)
	}
	if t.GapMilliseconds != nil {
		note += fmt.Sprintf(", gap %s", time.Duration(*t.GapMilliseconds)*time.Millisecond)
	}
	if t.Started != nil {
		note += fmt.Sprintf(", %s in all", t.Ready.Sub(t.Started.Time).Round(100*time.Millisecond))
	}
	return note
}

// announceProof tells that a pod counts as dead because a person said so.
func (r *Reconciler) announceProof(ctx context.Context, before, after *v1.StatefulSingleton) {
	was, is := before.Status.LastTransition, after.Status.LastTransition
	if is == nil || was != nil && was.Terminated.Equal(is.Terminated) {
		return
	}
	switch is.Proof {
	case v1.ProofAttested:
		r.tell(ctx, after, corev1.EventTypeWarning, "Prove", string(is.Proof),
			fmt.Sprintf("pod %s counts as dead: a person attested that it has stopped for good", is.From))
	case v1.ProofNodeOutOfService:
		r.tell(ctx, after, corev1.EventTypeWarning, "Prove", string(is.Proof),
			fmt.Sprintf("pod %s counts as dead: its node does not answer and bears the taint %s, by which a person vouches that it is off", is.From, corev1.TaintNodeOutOfService))
	case v1.ProofKubeletReported, v1.ProofNeverSignalled: // nobody has to be believed
	}
}

// announceDrain tells of a drain of the holder's node, of why evictions don't wait,
// and of a person's word that is not followed.
func (r *Reconciler) announceDrain(ctx context.Context, before, after *v1.StatefulSingleton) {
	drained := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionDraining)
	if drained != nil && meta.FindStatusCondition(before.Status.Conditions, v1.ConditionDraining) == nil {
		r.tell(ctx, after, corev1.EventTypeNormal, "Drain", v1.ConditionDraining, drained.Message)
	}
	was := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionGuarded)
	is := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionGuarded)
	if is != nil && is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason) {
		kind := corev1.EventTypeNormal
		if was != nil && drained != nil && is.Reason != handoff.StandbyWaits || is.Reason == reasonBudgetRefused {
			kind = corev1.EventTypeWarning // what was waited for does not come
		}
		r.tell(ctx, after, kind, "Guard", is.Reason, is.Message)
	}
	if word := after.Status.Handover; word != nil && word.Refused != "" && (before.Status.Handover == nil || *before.Status.Handover != *word) {
		r.tell(ctx, after, corev1.EventTypeWarning, "Handover", eventHandoverRefused, word.Refused)
	}
}

func (r *Reconciler) announceInjection(ctx context.Context, before, after *v1.StatefulSingleton) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionPolicyInstalled)
	is := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionPolicyInstalled)
	if is == nil || was != nil && was.Reason == is.Reason {
		return
	}
	kind := corev1.EventTypeNormal
	if is.Status == metav1.ConditionFalse && is.Reason != reasonInstalling {
		kind = corev1.EventTypeWarning
	}
	r.tell(ctx, after, kind, "Inject", is.Reason, is.Message)
}

// tell writes an event and a log line.
func (r *Reconciler) tell(ctx context.Context, singleton *v1.StatefulSingleton, kind, action, reason, message string) {
	// The API server refuses an event with a longer note.
	const maxNote = 1024
	note := message
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len("…")], "") + "…"
	}
	r.Recorder.Eventf(singleton, nil, kind, reason, action, "%s", note)
	r.log(ctx, singleton, reason, message)
}

// log writes the log line alone, of what is no news to whoever reads the events.
func (r *Reconciler) log(ctx context.Context, singleton *v1.StatefulSingleton, reason, message string) {
	status := &singleton.Status
	ctrl.LoggerFrom(ctx).Info(message, "reason", reason, "phase", status.Phase, "activePod", status.ActivePod, "epoch", status.Epoch)
}
