package handoff

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// FencedBy returns the settings of the pod's sidecar. The problem says why the pod is not fenced by the Lease of the
// singleton, and is empty if it is fenced. The field spec.fencing does not matter, because it applies only to new pods.
func FencedBy(pod *corev1.Pod, singleton *v1.StatefulSingleton) (settings signal.LeaseSettings, problem string) {
	if problem := NotFenceable(pod, singleton); problem != "" {
		return signal.LeaseSettings{}, problem
	}
	containers := held(pod, singleton)
	if !isHeld(pod, containers) {
		return signal.LeaseSettings{}, "no policy injected the pod"
	}
	if pod.Annotations[v1.FencingAnnotation] != string(v1.FencingLease) {
		return signal.LeaseSettings{}, "the pod was injected before fencing was turned on"
	}
	for _, h := range containers {
		if !h.supervised {
			return signal.LeaseSettings{}, fmt.Sprintf("%s of container %s is not the name of the container", signal.ContainerEnv, h.name)
		}
	}
	var names []string
	for _, h := range containers {
		names = append(names, h.name)
	}
	return leases.SettingsOf(pod, signal.LeaseName(singleton.Name), names)
}

// NotFenceable returns why a policy cannot prepare the pod for fencing, or nothing if it can.
func NotFenceable(pod *corev1.Pod, singleton *v1.StatefulSingleton) string {
	if problem := leases.NotFenceable(pod); problem != "" {
		return problem
	}
	for _, h := range held(pod, singleton) {
		if h.unheld {
			return fmt.Sprintf("nothing holds container %s", h.name)
		}
		if h.configMap != "" {
			return fmt.Sprintf("container %s %s", h.name, notWrappable(pod, h.name))
		}
	}
	return ""
}

// notWrappable returns why a container has a barrier instead of the wrapper.
func notWrappable(pod *corev1.Pod, container string) string {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	switch c := all[slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == container })]; {
	case len(c.Command) == 0:
		return "needs a command"
	case c.StartupProbe != nil:
		return "has a startupProbe"
	case c.Lifecycle != nil && c.Lifecycle.PostStart != nil:
		return "has a postStart hook"
	}
	return "is held by a barrier"
}
