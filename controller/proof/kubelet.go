package proof

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deletionByPodGC is the reason of the condition DisruptionTarget when the pod garbage collector sets
// phase Failed because the node does not exist (k8s.io/kubernetes/pkg/controller/podgc). The kubelet
// has not reported anything.
const deletionByPodGC = "DeletionByPodGC"

// KubeletReported returns true if the kubelet reported a terminal phase, and reported every container as terminated or as
// never created. The states are those of the containers that matter. It returns false without a state.
//
// Both are needed. The state of a container can be that of a crash before the deletion, after which the kubelet
// restarted the container without a new report yet. The kubelet writes a terminal phase only after all
// containers of the pod have terminated (pkg/kubelet/status: mergePodStatus). The pod garbage
// collector writes a terminal phase without that knowledge. Its condition shows that, unless an eviction
// replaced the condition.
func KubeletReported(pod *corev1.Pod, states ...*corev1.ContainerStatus) bool {
	if c := Condition(pod, corev1.DisruptionTarget); c != nil && c.Reason == deletionByPodGC {
		return false
	}
	return Terminal(pod) && kubeletWrotePhase(pod) && len(states) > 0 &&
		!slices.ContainsFunc(states, func(s *corev1.ContainerStatus) bool { return !Terminated(s) && !NeverCreated(s) })
}

// kubeletWrotePhase returns true if the field manager that last changed the phase also reports the container
// states (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management). In a
// distribution that runs the kubelet and the garbage collector in one program, both have the same field
// manager. There, only the condition of the garbage collector tells them apart.
//
// Only updates of pods/status count. Other entries can own fields that their manager never changed. An Apply
// owns every field that it names. The API server merges the fields of several managers into the
// entries before-first-apply and ancient-changes. The guard "reports" prevents forged entries.
func kubeletWrotePhase(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(writer metav1.ManagedFieldsEntry) bool {
		var fields struct {
			Status struct {
				Phase          json.RawMessage `json:"f:phase"`
				Containers     json.RawMessage `json:"f:containerStatuses"`
				InitContainers json.RawMessage `json:"f:initContainerStatuses"`
			} `json:"f:status"`
		}
		if writer.Operation != metav1.ManagedFieldsOperationUpdate || writer.Subresource != "status" {
			return false
		}
		if writer.FieldsV1 == nil || json.Unmarshal(writer.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		status := &fields.Status
		return status.Phase != nil && (status.Containers != nil || status.InitContainers != nil)
	})
}

// statusUnknown is the reason with which the kubelet reports a container as terminated that the container
// runtime does not know, with exit code 137 (k8s.io/kubernetes/pkg/kubelet/container:
// ContainerReasonStatusUnknown). The kubelet has not seen an exit. If the runtime was replaced or lost its
// state, the processes may still run.
const statusUnknown = "ContainerStatusUnknown"

// cleanedUp returns true if the kubelet reports a container that it could not locate, after it killed all
// processes in the pod's cgroup and removed the cgroup. Only the last report of a pod has a terminated state
// with this reason and without a container ID. pkg/kubelet: SyncTerminatedPod removes the cgroup,
// and then calls pkg/kubelet/status: TerminatePod, which writes the state. If the runtime knows the
// container but not its state, the report has the container ID (pkg/kubelet: convertToAPIContainerStatuses).
//
// Most evicted pods end in this state. The kubelet removes the containers of an evicted pod as soon as they exit,
// often before it has read their exit codes (pkg/kubelet: cleanUpContainersInPod).
func cleanedUp(s *corev1.ContainerStatus) bool {
	return s != nil && IsUnknown(s.State) && s.ContainerID == ""
}

// IsUnknown returns true if the kubelet reports a container as terminated whose exit it has not seen.
func IsUnknown(state corev1.ContainerState) bool {
	return state.Terminated != nil && state.Terminated.Reason == statusUnknown
}

// Terminated returns true if the kubelet reports the exit of the container and of its previous instance, if there is
// one. It also returns true if cleanedUp does.
func Terminated(s *corev1.ContainerStatus) bool {
	return cleanedUp(s) || s != nil && s.State.Terminated != nil &&
		!IsUnknown(s.State) && !IsUnknown(s.LastTerminationState)
}

// NeverCreated returns true if the kubelet reports that it has never created the container.
func NeverCreated(s *corev1.ContainerStatus) bool {
	return s != nil && s.State.Waiting != nil &&
		s.ContainerID == "" && s.LastTerminationState.Terminated == nil
}
