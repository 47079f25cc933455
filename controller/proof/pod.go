// Package proof says what the API server's objects prove about the processes of a pod. A process that has ended can be
// started again, so a proof needs more than a terminated container.
package proof

import corev1 "k8s.io/api/core/v1"

// Condition returns the condition of the pod, or nil.
func Condition(pod *corev1.Pod, conditionType corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == conditionType {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// IsTrue returns true if the pod has the condition with status True.
func IsTrue(pod *corev1.Pod, conditionType corev1.PodConditionType) bool {
	c := Condition(pod, conditionType)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Terminal returns true if the pod has a terminal phase.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Going returns true if the pod is terminating or has a terminal phase.
func Going(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || Terminal(pod) }

// StatusOf returns the status of the container with the name, or nil.
func StatusOf(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// Containers returns the states of all init containers and regular containers.
func Containers(pod *corev1.Pod) []*corev1.ContainerStatus {
	var all []*corev1.ContainerStatus
	for _, c := range pod.Spec.InitContainers {
		all = append(all, StatusOf(pod.Status.InitContainerStatuses, c.Name))
	}
	for _, c := range pod.Spec.Containers {
		all = append(all, StatusOf(pod.Status.ContainerStatuses, c.Name))
	}
	return all
}
