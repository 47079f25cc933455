// Package injected reads what the policies have made of a pod: which containers are held, and by which Lease the pod is
// fenced.
package injected

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Container is a container that must not start its main process before the signal. See Unheld for the exception.
type Container struct {
	*corev1.Container
	// Named: the singleton asks for the container to be held, by its name or as one of a kind.
	Named bool
	// Unheld: the singleton asks for the container to be held, but nothing holds it.
	Unheld bool
	// ConfigMap is the ConfigMap of the barrier. Empty: the wrapper holds the container, or nothing does.
	ConfigMap string
	// Init: the container is an init container.
	Init bool
	// Status is what the kubelet reports. Nil: the kubelet has not reported the container.
	Status *corev1.ContainerStatus
}

// Containers returns the containers that the guarantee covers, init containers first: containers with the wrapper or a
// barrier, and containers that the singleton names although they have neither.
func Containers(pod *corev1.Pod, singleton *v1.StatefulSingleton) []Container {
	all := containersOf(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, func(name string) bool {
		return name != v1.SidecarName && (singleton.Spec.HoldInitContainers || slices.Contains(singleton.Spec.Containers, name))
	})
	for i := range all {
		all[i].Init = true
	}
	return append(all, containersOf(pod.Spec.Containers, pod.Status.ContainerStatuses, func(name string) bool {
		return len(singleton.Spec.Containers) == 0 || slices.Contains(singleton.Spec.Containers, name)
	})...)
}

// containersOf is Containers for a list of containers.
func containersOf(containers []corev1.Container, statuses []corev1.ContainerStatus, named func(name string) bool) (all []Container) {
	for i := range containers {
		c := &containers[i]
		configMap, held := hold(c)
		if held || named(c.Name) {
			all = append(all, Container{
				Container: c, Named: named(c.Name), Unheld: !held, ConfigMap: configMap, Status: proof.StatusOf(statuses, c.Name),
			})
		}
	}
	return all
}

// hold returns whether the wrapper or a barrier holds the container, and the ConfigMap of the barrier.
func hold(c *corev1.Container) (configMap string, held bool) {
	if IsWrapped(c) {
		return "", true
	}
	if from := Variable(c, signal.EpochEnv).ValueFrom; from != nil && from.ConfigMapKeyRef != nil && !ptr.Deref(from.ConfigMapKeyRef.Optional, false) {
		return from.ConfigMapKeyRef.Name, true
	}
	return "", false
}

// IsHeld returns true if a policy injected the pod, and all its containers that the guarantee covers are held.
func IsHeld(pod *corev1.Pod, containers []Container) bool {
	return pod.Annotations[v1.InjectedAnnotation] != "" && len(containers) > 0 &&
		!slices.ContainsFunc(containers, func(h Container) bool { return h.Unheld })
}

// IsWrapped returns true if the gate starts the main process of the container.
func IsWrapped(c *corev1.Container) bool {
	return len(c.Command) > len(signal.Wrapper) && slices.Equal(c.Command[:len(signal.Wrapper)], signal.Wrapper)
}
