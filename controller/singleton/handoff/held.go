package handoff

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// heldContainer is a container that must not start its main process before the signal. See unheld for the exception.
type heldContainer struct {
	name string
	// named: the singleton asks for the container to be held.
	named bool
	// unheld: the singleton names the container, but nothing holds it.
	unheld bool
	// configMap is the ConfigMap of the barrier. Empty: the wrapper holds the container, or nothing does.
	configMap string
	// gateProbe: the gate's startup probe makes the kubelet report when the main process starts.
	gateProbe bool
	// seldomProbed: the period of the readiness probe is longer than the kubelet takes to reconcile the
	// pod again.
	seldomProbed bool
	// probed: the kubelet asks the status sidecar for the readiness. The sidecar answers only after the release.
	probed bool
	// supervised: the gate of the container starts the main process only while the pod holds the Lease.
	supervised bool
	init       bool
	status     *corev1.ContainerStatus
}

// held returns the containers that the guarantee covers: containers with the wrapper or a barrier, and
// containers that the singleton names although they have neither.
func held(pod *corev1.Pod, singleton *v1.StatefulSingleton) []heldContainer {
	all := heldOf(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, func(name string) bool {
		return name != v1.SidecarName && (singleton.Spec.HoldInitContainers || slices.Contains(singleton.Spec.Containers, name))
	})
	for i := range all {
		all[i].init = true
	}
	return append(all, heldOf(pod.Spec.Containers, pod.Status.ContainerStatuses, func(name string) bool {
		return named(name, singleton)
	})...)
}

// heldOf is held for a list of containers.
func heldOf(containers []corev1.Container, statuses []corev1.ContainerStatus, asked func(name string) bool) (all []heldContainer) {
	for i := range containers {
		c := &containers[i]
		if h, ok := hold(c, statuses); ok {
			h.named = asked(c.Name)
			all = append(all, h)
		} else if asked(c.Name) {
			all = append(all, heldContainer{name: c.Name, named: true, unheld: true, status: proof.StatusOf(statuses, c.Name)})
		}
	}
	return all
}

// named returns true if the singleton names the regular container, or names none.
func named(container string, singleton *v1.StatefulSingleton) bool {
	return len(singleton.Spec.Containers) == 0 || slices.Contains(singleton.Spec.Containers, container)
}

// isHeld returns true if a policy injected the pod, and all its containers that the guarantee covers are held.
func isHeld(pod *corev1.Pod, containers []heldContainer) bool {
	return pod.Annotations[v1.InjectedAnnotation] != "" && len(containers) > 0 &&
		!slices.ContainsFunc(containers, func(h heldContainer) bool { return h.unheld })
}

// hold returns how a container is held; ok is false if nothing holds it.
func hold(c *corev1.Container, statuses []corev1.ContainerStatus) (h heldContainer, ok bool) {
	h = heldContainer{name: c.Name, status: proof.StatusOf(statuses, c.Name)}
	if leases.IsWrapped(c) {
		probe := c.StartupProbe
		h.probed = asksSidecar(c)
		h.supervised = leases.IsSupervised(c)
		h.seldomProbed = probe == nil && !h.probed && c.ReadinessProbe != nil && c.ReadinessProbe.PeriodSeconds > 2
		h.gateProbe = probe != nil && probe.Exec != nil && len(probe.Exec.Command) > 0 && probe.Exec.Command[0] == signal.GatePath
		return h, true
	}
	if from := leases.Variable(c, signal.EpochEnv).ValueFrom; from != nil && from.ConfigMapKeyRef != nil && !ptr.Deref(from.ConfigMapKeyRef.Optional, false) {
		h.configMap = from.ConfigMapKeyRef.Name
		return h, true
	}
	return heldContainer{}, false
}

// asksSidecar returns true if the kubelet asks the status sidecar of the pod for the readiness of the container. With a
// host, which pods on the host network have, another pod could answer.
func asksSidecar(c *corev1.Container) bool {
	return c.ReadinessProbe != nil && c.ReadinessProbe.HTTPGet != nil &&
		c.ReadinessProbe.HTTPGet.Path == signal.ProbePathPrefix+c.Name && c.ReadinessProbe.HTTPGet.Port.IntValue() == signal.ProbePort &&
		c.ReadinessProbe.HTTPGet.Host == "" && c.ReadinessProbe.HTTPGet.Scheme != corev1.URISchemeHTTPS
}

// atBarrier returns true if the container waits for the ConfigMap of its barrier, and not for another
// missing ConfigMap. The message is the kubelet's (pkg/kubelet/kuberuntime: the unchanged API error).
func (h heldContainer) atBarrier() bool {
	return h.configMap != "" && h.status != nil && h.status.State.Waiting != nil &&
		h.status.State.Waiting.Reason == "CreateContainerConfigError" &&
		strings.Contains(h.status.State.Waiting.Message, fmt.Sprintf("configmap %q not found", h.configMap))
}

// UnreadyUntilReleased returns true for an injected pod that was not released and whose readiness probes fail until its
// release.
func UnreadyUntilReleased(pod *corev1.Pod) bool {
	regular := heldOf(pod.Spec.Containers, nil, func(string) bool { return false })
	return pod.Annotations[v1.InjectedAnnotation] != "" && !proof.Going(pod) && !released(pod) &&
		len(regular) > 0 && !slices.ContainsFunc(regular, func(h heldContainer) bool { return !h.probed })
}

// waitsForSignal returns true if only the signal is missing for the container to run its main process.
func (h heldContainer) waitsForSignal() bool {
	if h.configMap != "" {
		return h.atBarrier()
	}
	return h.status != nil && h.status.State.Running != nil
}

// lost returns true if the kubelet reports the container as terminated, but could not locate the container or
// its previous instance. The processes may still run.
func (h heldContainer) lost() bool {
	return h.status != nil && h.status.State.Terminated != nil && !proof.Terminated(h.status)
}

// cleaningUp returns true if the kubelet could not locate the container and has not yet removed the pod's cgroup.
func (h heldContainer) cleaningUp() bool {
	return h.status != nil && h.status.State.Waiting != nil && proof.IsUnknown(h.status.LastTerminationState)
}

// pastBarrier returns true if the kubelet has created a container behind a barrier: the barrier is open,
// even if nothing on the pod says so.
func (h heldContainer) pastBarrier() bool {
	return h.configMap != "" && h.status != nil &&
		(h.status.State.Running != nil || h.status.State.Terminated != nil || h.status.ContainerID != "" || h.status.LastTerminationState.Terminated != nil)
}

// started returns true if the kubelet reports that a container of a signalled pod has started its main
// process. Without the gate's startup probe, it returns true as soon as the wrapper runs: see startReported.
func (h heldContainer) started() bool {
	if h.status == nil || h.status.State.Running == nil {
		return false
	}
	return !h.gateProbe || (h.status.Started != nil && *h.status.Started)
}

// startReported returns true if the kubelet reports the start of every main process, and not only that it
// is ready.
func startReported(containers []heldContainer) bool {
	return !slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.init && h.configMap == "" && !h.gateProbe })
}

// mainStarted returns true if the main process of every held regular container was started.
func mainStarted(containers []heldContainer) bool {
	return !slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.init && !h.started() })
}

// Holding is what keeps a container from starting its main process before the signal.
type Holding string

const (
	// ByWrapper: the gate is in front of the container's command.
	ByWrapper Holding = "Wrapper"
	// ByBarrier: the container needs a ConfigMap that does not exist yet.
	ByBarrier Holding = "Barrier"
	// ByNothing: the singleton names the container, but nothing holds it.
	ByNothing Holding = "Nothing"
)

// Hold is a container that must not start its main process before the signal.
type Hold struct {
	Container string
	// Named: the singleton asks for the container to be held, by its name or as one of a kind.
	Named bool
	// Init: the container is an init container.
	Init bool
	By   Holding
	// ConfigMap is the ConfigMap of the barrier. Empty: the container has no barrier.
	ConfigMap string
}

// Holds returns the containers of the pod that the guarantee covers, init containers first.
func Holds(pod *corev1.Pod, singleton *v1.StatefulSingleton) []Hold {
	var all []Hold
	for _, h := range held(pod, singleton) {
		hold := Hold{Container: h.name, Named: h.named, Init: h.init, By: ByWrapper, ConfigMap: h.configMap}
		switch {
		case h.unheld:
			hold.By = ByNothing
		case h.configMap != "":
			hold.By = ByBarrier
		}
		all = append(all, hold)
	}
	return all
}
