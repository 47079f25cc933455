package handoff

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// IsTrue tells whether the pod has a condition of that kind, and it is True.
func IsTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	c := condition(pod, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Going tells whether the pod was asked to stop or has ended.
func Going(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || terminal(pod) }

// awaitsSignal tells whether the pod has to be signalled before it runs, and was not.
func awaitsSignal(pod *corev1.Pod, containers []heldContainer) bool {
	_, hasSignal := signalled(pod)
	return !hasSignal && slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.open })
}

// askedToStop is when the pod's deletion was asked for, in whole seconds; the zero time if
// nobody did.
func askedToStop(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// released tells whether the pod bears anything that the controller writes with
// its signal, or after it: whoever takes the signal off by hand does not take back
// the start.
func released(pod *corev1.Pod) bool {
	_, hasSignal := signalled(pod)
	return hasSignal || pod.Labels[v1.RoleLabel] == v1.RoleActive || IsTrue(pod, v1.ReadyCondition)
}

// protected tells whether the pod's object stays until the controller lets it go.
func protected(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, v1.HandoffFinalizer) }

// chosenBy is the singleton, by uid, that may open the pod's barrier. Empty: none may.
func chosenBy(pod *corev1.Pod) types.UID { return types.UID(pod.Annotations[v1.ChosenByAnnotation]) }

// chosenElsewhere tells whether another singleton may have recorded the pod and open its
// barrier: one that is gone, or one that picks the pod, too. Of this singleton's own
// choices nothing is open but what the record names: it leaves a pod only once that is
// proven dead.
func (s Snapshot) chosenElsewhere(pod *corev1.Pod) bool {
	by := chosenBy(pod)
	return by != "" && by != s.Singleton.UID
}

// signalled tells whether the pod bears a signal of its own. One that can't be
// read, or is of another pod, releases nothing: the gate reads by the same rule.
func signalled(pod *corev1.Pod) (signal.Signal, bool) {
	text, ok := pod.Annotations[signal.Annotation]
	if !ok {
		return signal.Signal{}, false
	}
	s, err := signal.Parse([]byte(text))
	return s, err == nil && s.UID == string(pod.UID)
}
