package handoff

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// UnreadyUntilReleased returns true for an injected pod that was not released, and whose probes fail until its release or until it
// accepts connections in advance.
func UnreadyUntilReleased(pod *corev1.Pod) bool {
	regular := slices.DeleteFunc(injected.Containers(pod, &v1.StatefulSingleton{}), func(h injected.Container) bool { return h.Init || h.Unheld })
	return pod.Annotations[v1.InjectedAnnotation] != "" && !proof.Going(pod) && !released(pod) &&
		len(regular) > 0 && !slices.ContainsFunc(regular, func(h injected.Container) bool { return !asksSidecar(h) && !(queues(pod) && hasGateProbe(h)) })
}

// queues returns true if the policy prepared the pod to accept connections before its main processes run. Each container then has
// the gate's startup probe, without which it is not ready.
func queues(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == v1.SidecarName && injected.Variable(&c, signal.QueueEnv).Value != ""
	})
}

// asksSidecar returns true if the gate starts the container, and the kubelet asks the status sidecar of the pod for its
// readiness. The sidecar answers only after the release. With a host, which pods on the host network have, another pod
// could answer.
func asksSidecar(h injected.Container) bool {
	return injected.IsWrapped(h.Container) && h.ReadinessProbe != nil && h.ReadinessProbe.HTTPGet != nil &&
		h.ReadinessProbe.HTTPGet.Path == signal.ProbePathPrefix+h.Name && h.ReadinessProbe.HTTPGet.Port.IntValue() == signal.ProbePort &&
		h.ReadinessProbe.HTTPGet.Host == "" && h.ReadinessProbe.HTTPGet.Scheme != corev1.URISchemeHTTPS
}

// hasGateProbe returns true if the gate's startup probe makes the kubelet report when the main process starts.
func hasGateProbe(h injected.Container) bool {
	probe := h.StartupProbe
	return injected.IsWrapped(h.Container) && probe != nil && probe.Exec != nil && len(probe.Exec.Command) > 0 && probe.Exec.Command[0] == signal.GatePath
}

// seldomProbed returns true if the period of the readiness probe is longer than the kubelet takes to reconcile the pod
// again.
func seldomProbed(h injected.Container) bool {
	return injected.IsWrapped(h.Container) && h.StartupProbe == nil && !asksSidecar(h) && h.ReadinessProbe != nil && h.ReadinessProbe.PeriodSeconds > 2
}

// atBarrier returns true if the container waits for the ConfigMap of its barrier, and not for another
// missing ConfigMap. The message is the kubelet's (pkg/kubelet/kuberuntime: the unchanged API error).
func atBarrier(h injected.Container) bool {
	return h.ConfigMap != "" && h.Status != nil && h.Status.State.Waiting != nil &&
		h.Status.State.Waiting.Reason == "CreateContainerConfigError" &&
		strings.Contains(h.Status.State.Waiting.Message, fmt.Sprintf("configmap %q not found", h.ConfigMap))
}

// waitsForSignal returns true if only the signal is missing for the container to run its main process.
func waitsForSignal(h injected.Container) bool {
	if h.ConfigMap != "" {
		return atBarrier(h)
	}
	return h.Status != nil && h.Status.State.Running != nil
}

// lost returns true if the kubelet reports the container as terminated, but could not locate the container or
// its previous instance. The processes may still run.
func lost(h injected.Container) bool {
	return h.Status != nil && h.Status.State.Terminated != nil && !proof.Terminated(h.Status)
}

// cleaningUp returns true if the kubelet could not locate the container and has not yet removed the pod's cgroup.
func cleaningUp(h injected.Container) bool {
	return h.Status != nil && h.Status.State.Waiting != nil && proof.IsUnknown(h.Status.LastTerminationState)
}

// pastBarrier returns true if the kubelet has created a container behind a barrier: the barrier is open,
// even if nothing on the pod says so.
func pastBarrier(h injected.Container) bool {
	return h.ConfigMap != "" && h.Status != nil &&
		(h.Status.State.Running != nil || h.Status.State.Terminated != nil || h.Status.ContainerID != "" || h.Status.LastTerminationState.Terminated != nil)
}

// started returns true if the kubelet reports that a container of a signalled pod has started its main
// process. Without the gate's startup probe, it returns true as soon as the wrapper runs: see startReported.
func started(h injected.Container) bool {
	if h.Status == nil || h.Status.State.Running == nil {
		return false
	}
	return !hasGateProbe(h) || (h.Status.Started != nil && *h.Status.Started)
}

// startReported returns true if the kubelet reports the start of every main process, and not only that it
// is ready.
func startReported(containers []injected.Container) bool {
	return !slices.ContainsFunc(containers, func(h injected.Container) bool { return !h.Init && h.ConfigMap == "" && !hasGateProbe(h) })
}

// mainStarted returns true if the main process of every held regular container was started.
func mainStarted(containers []injected.Container) bool {
	return !slices.ContainsFunc(containers, func(h injected.Container) bool { return !h.Init && !started(h) })
}
