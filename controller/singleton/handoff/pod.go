package handoff

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// awaitsSignal returns true if the pod has held containers and was not signalled.
func awaitsSignal(pod *corev1.Pod, containers []injected.Container) bool {
	_, hasSignal := signalled(pod)
	return !hasSignal && slices.ContainsFunc(containers, func(h injected.Container) bool { return !h.Unheld })
}

// askedToStop returns when the deletion of the pod was requested, in whole seconds; the zero time if the
// pod is not terminating.
func askedToStop(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// released returns true if the pod has any mark that the controller writes with the signal or after it. A
// person who removes the signal does not stop the processes.
func released(pod *corev1.Pod) bool {
	_, hasSignal := signalled(pod)
	gate := proof.Condition(pod, v1.ReadyCondition)
	return hasSignal || pod.Labels[v1.RoleLabel] == v1.RoleActive ||
		gate != nil && gate.Status == corev1.ConditionTrue && gate.Reason != v1.ReadyReasonStandby
}

// protected returns true if the pod has the finalizer: its object stays until the controller removes it.
func protected(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, v1.HandoffFinalizer) }

// chosenBy returns the UID of the singleton that may open the pod's barrier. Empty: there is none.
func chosenBy(pod *corev1.Pod) types.UID { return types.UID(pod.Annotations[v1.ChosenByAnnotation]) }

// chosenElsewhere returns true if another singleton may have recorded the pod and may open its barrier: a
// singleton that was deleted, or one that also selects the pod. A pod that this singleton chose needs
// no such check, because the record names the pod until there is a proof of termination.
func (s Snapshot) chosenElsewhere(pod *corev1.Pod) bool {
	by := chosenBy(pod)
	return by != "" && by != s.Singleton.UID
}

// signalled returns the signal of the pod. The gate and this function ignore a signal that cannot be
// parsed, or that is for another pod.
func signalled(pod *corev1.Pod) (signal.Signal, bool) {
	text, ok := pod.Annotations[signal.Annotation]
	if !ok {
		return signal.Signal{}, false
	}
	s, err := signal.Parse([]byte(text))
	return s, err == nil && s.UID == string(pod.UID)
}
