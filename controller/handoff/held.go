package handoff

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// heldContainer is a container of a pod that must not start its main process
// before the signal.
type heldContainer struct {
	name string
	// open: nothing holds it, though the singleton asks for it.
	open bool
	// configMap is what a barrier waits for. Empty: held by the wrapper, or open.
	configMap string
	// gateProbe is whether the kubelet tells the start of the main process by the
	// gate's startup probe.
	gateProbe bool
	// seldomProbed is whether the kubelet takes longer to run the readiness probe again
	// than it takes to look at the pod again.
	seldomProbed bool
	init         bool
	status       *corev1.ContainerStatus
}

// held lists the containers that the law speaks of: those that bear the wrapper
// or the barrier, and those that the spec asks for though they bear neither.
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

// heldOf lists those containers that something holds, and those that are asked to be
// held though nothing does.
func heldOf(containers []corev1.Container, statuses []corev1.ContainerStatus, asked func(name string) bool) (all []heldContainer) {
	for i := range containers {
		c := &containers[i]
		if h, ok := hold(c, statuses); ok {
			all = append(all, h)
		} else if asked(c.Name) {
			all = append(all, heldContainer{name: c.Name, open: true, status: statusOf(statuses, c.Name)})
		}
	}
	return all
}

// named tells whether the singleton asks for a regular container of that name to be held.
func named(container string, singleton *v1.StatefulSingleton) bool {
	return len(singleton.Spec.Containers) == 0 || slices.Contains(singleton.Spec.Containers, container)
}

// isHeld tells whether the pod was injected, by any singleton's policy, and
// nothing of it runs before the signal.
func isHeld(pod *corev1.Pod, containers []heldContainer) bool {
	return pod.Annotations[v1.InjectedAnnotation] != "" && len(containers) > 0 &&
		!slices.ContainsFunc(containers, func(h heldContainer) bool { return h.open })
}

// wrapper is what the policy puts in front of a command. No other subcommand of the gate
// waits for the signal.
var wrapper = []string{signal.GatePath, "wrap", "--"}

// hold reads how a container is held; ok is false where nothing holds it.
func hold(c *corev1.Container, statuses []corev1.ContainerStatus) (h heldContainer, ok bool) {
	h = heldContainer{name: c.Name, status: statusOf(statuses, c.Name)}
	if len(c.Command) > len(wrapper) && slices.Equal(c.Command[:len(wrapper)], wrapper) {
		probe := c.StartupProbe
		h.seldomProbed = probe == nil && c.ReadinessProbe != nil && c.ReadinessProbe.PeriodSeconds > 2
		h.gateProbe = probe != nil && probe.Exec != nil && len(probe.Exec.Command) > 0 && probe.Exec.Command[0] == signal.GatePath
		return h, true
	}
	// The last variable of a name wins, in Kubernetes and here.
	for _, env := range slices.Backward(c.Env) {
		if env.Name == signal.EpochEnv {
			if from := env.ValueFrom; from != nil && from.ConfigMapKeyRef != nil && !ptr.Deref(from.ConfigMapKeyRef.Optional, false) {
				h.configMap = from.ConfigMapKeyRef.Name
				return h, true
			}
			break
		}
	}
	return heldContainer{}, false
}

func statusOf(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// atBarrier tells whether the container waits for exactly its own ConfigMap, and
// not for another one that the user forgot. The words are the kubelet's
// (pkg/kubelet/kuberuntime: the API error of the ConfigMap as it is).
func (h heldContainer) atBarrier() bool {
	return h.configMap != "" && h.status != nil && h.status.State.Waiting != nil &&
		h.status.State.Waiting.Reason == "CreateContainerConfigError" &&
		strings.Contains(h.status.State.Waiting.Message, fmt.Sprintf("configmap %q not found", h.configMap))
}

// waitsForSignal tells whether nothing but the signal keeps the container from
// running its main process.
func (h heldContainer) waitsForSignal() bool {
	if h.configMap != "" {
		return h.atBarrier()
	}
	return h.status != nil && h.status.State.Running != nil
}

// statusUnknown is the reason with which the kubelet reports the end of a container that
// the container runtime does not know, with exit code 137 (k8s.io/kubernetes/pkg/kubelet/container:
// ContainerReasonStatusUnknown). It has seen no exit. Under a runtime that was swapped, or
// that lost its state, the processes may run on.
const statusUnknown = "ContainerStatusUnknown"

// cleanedUp tells whether the kubelet reports a container that it could not locate after it
// killed all processes in the pod's cgroup and removed the cgroup. Only the last report of a
// pod has a terminated state of that reason without a container ID: pkg/kubelet: SyncTerminatedPod
// removes the cgroup and then has pkg/kubelet/status: TerminatePod write that state. Where the
// runtime knows the container but not its state, the report has its ID
// (pkg/kubelet: convertToAPIContainerStatuses).
//
// It is the usual end of an evicted pod, whose containers the kubelet removes as soon as they
// exit, often before it has read their exit codes (pkg/kubelet: cleanUpContainersInPod).
func (h heldContainer) cleanedUp() bool {
	return h.status != nil && isUnknown(h.status.State) && h.status.ContainerID == ""
}

func isUnknown(state corev1.ContainerState) bool {
	return state.Terminated != nil && state.Terminated.Reason == statusUnknown
}

// terminated tells whether the kubelet reports that the container, and the one before it,
// has ended.
func (h heldContainer) terminated() bool {
	return h.cleanedUp() || h.status != nil && h.status.State.Terminated != nil &&
		!isUnknown(h.status.State) && !isUnknown(h.status.LastTerminationState)
}

// lost tells whether the kubelet's last report leaves open whether the container has ended,
// since the kubelet could not locate it or the one before it.
func (h heldContainer) lost() bool {
	return h.status != nil && h.status.State.Terminated != nil && !h.terminated()
}

// cleaningUp tells whether the kubelet could not locate the container and has not yet
// cleaned up after the pod. It writes such a state before it removes the pod's cgroup.
func (h heldContainer) cleaningUp() bool {
	return h.status != nil && h.status.State.Waiting != nil && isUnknown(h.status.LastTerminationState)
}

// neverCreated tells whether the kubelet reports that it has not created the
// container, and never did before.
func (h heldContainer) neverCreated() bool {
	return h.status != nil && h.status.State.Waiting != nil &&
		h.status.ContainerID == "" && h.status.LastTerminationState.Terminated == nil
}

// pastBarrier tells whether the kubelet reports that it has created the container
// though a barrier holds it: somebody opened that, whatever the pod bears.
func (h heldContainer) pastBarrier() bool {
	return h.configMap != "" && h.status != nil &&
		(h.status.State.Running != nil || h.status.State.Terminated != nil || h.status.ContainerID != "" || h.status.LastTerminationState.Terminated != nil)
}

// started tells whether the kubelet's reports show that the main process of a
// container of a signalled pod was started. A wrapper without the gate's startup
// probe has a readiness probe instead, by which the pod becomes Ready.
func (h heldContainer) started() bool {
	if h.status == nil || h.status.State.Running == nil {
		return false
	}
	return !h.gateProbe || (h.status.Started != nil && *h.status.Started)
}

// startReported tells whether the kubelet tells of every main process when it
// starts, and not only when it is ready.
func startReported(containers []heldContainer) bool {
	return !slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.init && h.configMap == "" && !h.gateProbe })
}

// mainStarted tells whether every held regular container's main process was started.
func mainStarted(containers []heldContainer) bool {
	return !slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.init && !h.started() })
}

// Holding is what keeps a container from starting its main process before the signal.
type Holding string

const (
	// ByWrapper: the gate stands in front of its command.
	ByWrapper Holding = "Wrapper"
	// ByBarrier: it needs a ConfigMap that does not exist yet.
	ByBarrier Holding = "Barrier"
	// ByNothing: the singleton asks for it to be held, and nothing holds it.
	ByNothing Holding = "Nothing"
)

// Hold is a container that must not start its main process before the signal.
type Hold struct {
	Container string
	// Init is whether it is an init container.
	Init bool
	By   Holding
	// ConfigMap is what a barrier waits for.
	ConfigMap string
}

// Holds lists the containers of the pod that the law speaks of, init containers first.
func Holds(pod *corev1.Pod, singleton *v1.StatefulSingleton) []Hold {
	var all []Hold
	for _, h := range held(pod, singleton) {
		hold := Hold{Container: h.name, Init: h.init, By: ByWrapper, ConfigMap: h.configMap}
		switch {
		case h.open:
			hold.By = ByNothing
		case h.configMap != "":
			hold.By = ByBarrier
		}
		all = append(all, hold)
	}
	return all
}
