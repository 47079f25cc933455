package singleton

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// announce tells of a change of status: by events, log lines, and the metrics of
// a handoff that was completed.
func (r *Reconciler) announce(ctx context.Context, before, after *v1.StatefulSingleton) {
	r.announceInjection(ctx, before, after)
	r.announceProof(ctx, before, after)
	r.announceHandoff(ctx, before, after)
	r.announceDrain(ctx, before, after)
	if t := after.Status.LastTransition; t != nil && t.Ready != nil &&
		(before.Status.LastTransition == nil || before.Status.LastTransition.Ready == nil) {
		r.Metrics.completed(t)
		ctrl.LoggerFrom(ctx).Info("Handoff completed", "from", t.From, "to", t.To, "cause", t.Cause, "proof", t.Proof, "gapMilliseconds", t.GapMilliseconds)
	}
}

func (r *Reconciler) announceHandoff(ctx context.Context, before, after *v1.StatefulSingleton) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionReady)
	is := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionReady)
	if is == nil || was != nil && was.Reason == is.Reason && before.Status.Phase == after.Status.Phase {
		return
	}
	if installed := meta.FindStatusCondition(after.Status.Conditions, v1.ConditionPolicyInstalled); installed != nil && installed.Reason == is.Reason {
		return // told already
	}
	kind := corev1.EventTypeNormal
	if after.Status.Phase == v1.PhaseFailed {
		kind = corev1.EventTypeWarning
	}
	r.tell(ctx, after, kind, "Handoff", is.Reason, after.Status.Message)
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
		if was != nil && drained != nil && is.Reason != handoff.StandbyWaits {
			kind = corev1.EventTypeWarning // what was waited for does not come
		}
		r.tell(ctx, after, kind, "Guard", is.Reason, is.Message)
	}
	if word := after.Status.Handover; word != nil && word.Refused != "" && (before.Status.Handover == nil || *before.Status.Handover != *word) {
		r.tell(ctx, after, corev1.EventTypeWarning, "Handover", "HandoverRefused", word.Refused)
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
	status := &singleton.Status
	ctrl.LoggerFrom(ctx).Info(message, "reason", reason, "phase", status.Phase, "activePod", status.ActivePod, "epoch", status.Epoch)
}
