package handoff

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// deletionByPodGC is the reason of the condition DisruptionTarget when the pod garbage collector sets
// phase Failed because the node does not exist (k8s.io/kubernetes/pkg/controller/podgc). The kubelet
// has not reported anything.
const deletionByPodGC = "DeletionByPodGC"

// proofOf returns the proof that the pod's main processes have ended and that none of them can start again.
// Empty: there is no proof.
//
// Every proof but that of the Lease needs a pod that is terminating or has a terminal phase. Otherwise the kubelet can
// restart a process that ended.
func (s Snapshot) proofOf(p *ClassifiedPod) v1.Proof {
	switch {
	case !Going(p.Pod):
		return s.leaseProof(p)
	case s.neverStarted(p):
		return v1.ProofNeverSignalled
	case kubeletReported(p):
		return v1.ProofKubeletReported
	case s.outOfService(p.Pod):
		return v1.ProofNodeOutOfService
	case s.attested(p.Pod):
		return v1.ProofAttested
	}
	return s.leaseProof(p)
}

// proofForMissingHolder returns the proof for a recorded holder whose object does not exist. Only an attestation proves
// the termination: the holder had the finalizer before it was recorded, so somebody removed the finalizer.
func (s Snapshot) proofForMissingHolder() v1.Proof {
	if s.Singleton.Annotations[v1.AttestAnnotation] == string(s.Singleton.Status.ActivePodUID) {
		return v1.ProofAttested
	}
	return ""
}

// neverStarted returns true if a terminating or ended pod has never run a main process and never will. The API
// server binds no terminating pod to a node (pkg/registry/core/pod/storage: assignPod). A late Signal
// fails, because the deletion changed the pod. A late OpenBarrier does not fail: isUnreleased excludes
// pods whose barrier may be opened.
func (s Snapshot) neverStarted(p *ClassifiedPod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp != nil || s.isUnreleased(p)
}

// isUnreleased returns true if the pod is held and nothing that can release it has happened: no signal, and no
// record after which a barrier may be opened.
func (s Snapshot) isUnreleased(p *ClassifiedPod) bool {
	last := s.Singleton.Status.LastTransition
	recorded := p.UID == s.Singleton.Status.ActivePodUID && (last == nil || last.Signalled != nil || chosenBy(p.Pod) != "")
	_, hasSignal := p.Annotations[signal.Annotation]
	unnamed := !s.named(p) && (p.fencing == nil || p.UID != s.Singleton.Status.ActivePodUID || s.neverNamed(p))
	return isHeld(p.Pod, p.held) && !recorded && !hasSignal && !released(p.Pod) && unnamed &&
		!s.chosenElsewhere(p.Pod) && !slices.ContainsFunc(p.held, heldContainer.pastBarrier)
}

// kubeletReported returns true if the kubelet reported a terminal phase and reported every held container as
// terminated or as never created.
//
// Both are needed. The state of a container can be that of a crash before the deletion, after which the kubelet
// restarted the container without a new report yet. The kubelet writes a terminal phase only after all
// containers of the pod have terminated (pkg/kubelet/status: mergePodStatus). The pod garbage
// collector writes a terminal phase without that knowledge. Its condition shows that, unless an eviction
// replaced the condition.
func kubeletReported(p *ClassifiedPod) bool {
	if c := condition(p.Pod, corev1.DisruptionTarget); c != nil && c.Reason == deletionByPodGC {
		return false
	}
	return terminal(p.Pod) && kubeletWrotePhase(p.Pod) && len(p.held) > 0 &&
		!slices.ContainsFunc(p.held, func(h heldContainer) bool { return !h.terminated() && !h.neverCreated() })
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

// outOfService returns true if the pod's node has the taint out-of-service, with which a person states that the
// node is off (https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-out-of-service).
// The taint of a Ready node does not count: somebody forgot to remove it.
func (s Snapshot) outOfService(pod *corev1.Pod) bool {
	node := s.Nodes[pod.Spec.NodeName]
	return node != nil && !NodeReady(node) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// attested returns true if a person attests the termination of the pod and the kubelet cannot report it. The
// kubelet of a Ready node may have restarted a container after the person looked.
func (s Snapshot) attested(pod *corev1.Pod) bool {
	node := s.Nodes[pod.Spec.NodeName]
	return s.Singleton.Annotations[v1.AttestAnnotation] == string(pod.UID) &&
		(node == nil || !NodeReady(node) || terminal(pod))
}

// judgeAttestation returns whether to remove the attestation, and why it is refused, if it is. An accepted
// attestation stays until the pod's object is removed, because it is the only proof until then.
func (d *decision) judgeAttestation() (remove bool, refused string) {
	attested := d.Singleton.Annotations[v1.AttestAnnotation]
	status := &d.Singleton.Status
	i := slices.IndexFunc(d.pods, func(p *ClassifiedPod) bool { return string(p.UID) == attested })
	switch {
	case attested == "" || i < 0 && attested == string(status.ActivePodUID):
		return false, ""
	case i < 0 && status.LastTransition != nil && string(status.LastTransition.FromUID) == attested:
		return true, ""
	case i < 0:
		return true, d.attestationOfNoPodMessage(attested)
	}
	switch pod := d.pods[i]; {
	case pod.Proof != "":
		return pod.Proof != v1.ProofAttested, ""
	case !Going(pod.Pod):
		return true, attestationTooEarlyMessage(pod.Pod)
	default:
		return true, attestationOnReadyNodeMessage(pod.Pod)
	}
}
