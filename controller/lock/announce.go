package lock

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
)

// Reasons of the events.
const (
	// eventTenureEnding: the tenure of the writer ends. The note has the cause.
	eventTenureEnding = "TenureEnding"
	// eventTenureGranted: another pod becomes the writer. The note has the proof for the last writer.
	eventTenureGranted = "TenureGranted"
	// eventAttestationRefused: why an attestation is refused.
	eventAttestationRefused = "AttestationRefused"
)

// announce reports a change of the status by events and log lines.
func (r *Reconciler) announce(ctx context.Context, before *v1.StatefulSetLockStatus, lock *v1.StatefulSetLock) {
	was, is := before.LastTransition, lock.Status.LastTransition
	if is != nil && is.To == "" && is.From != "" && (was == nil || was.FromUID != is.FromUID || was.To != "") {
		r.emit(ctx, lock, corev1.EventTypeNormal, eventTenureEnding, fmt.Sprintf("the tenure of pod %s as the writer ends (cause %s)", is.From, is.Cause))
	}
	if lock.Status.Epoch > before.Epoch && lock.Status.WriterPod != "" {
		note := fmt.Sprintf("pod %s becomes the writer with epoch %d (cause %s)", lock.Status.WriterPod, lock.Status.Epoch, is.Cause)
		if is.Proof != "" {
			note += fmt.Sprintf(". The tenure of pod %s has ended with proof %s", is.From, is.Proof)
		}
		r.emit(ctx, lock, corev1.EventTypeNormal, eventTenureGranted, note)
	}
	if c := meta.FindStatusCondition(lock.Status.Conditions, v1.ConditionError); c != nil && c.Status == metav1.ConditionTrue && !meta.IsStatusConditionTrue(before.Conditions, v1.ConditionError) {
		r.emit(ctx, lock, corev1.EventTypeWarning, c.Reason, c.Message)
	}
	if c := meta.FindStatusCondition(lock.Status.Conditions, v1.ConditionEvictionBlocked); c != nil && c.Reason == apply.BudgetRefused {
		if was := meta.FindStatusCondition(before.Conditions, v1.ConditionEvictionBlocked); was == nil || was.Reason != c.Reason {
			r.emit(ctx, lock, corev1.EventTypeWarning, c.Reason, c.Message)
		}
	}
}

func (r *Reconciler) emit(ctx context.Context, lock *v1.StatefulSetLock, eventType, reason, note string) {
	ctrl.LoggerFrom(ctx).Info(note, "reason", reason)
	r.Recorder.Eventf(lock, nil, eventType, reason, "Lock", "%s", apply.CutNote(note))
}
