package handoff

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// deletionByPodGC is the reason that the pod garbage collector gives where it
// writes phase Failed on a pod whose node is gone
// (k8s.io/kubernetes/pkg/controller/podgc). It has not asked the kubelet.
const deletionByPodGC = "DeletionByPodGC"

// proveDead tells why the pod's main processes have ended and none of them can
// start again; ok is false where nothing proves it.
//
// Every proof of a pod that exists needs the pod to be beyond starting anything:
// deletion asked for, or phase terminal. Without that a process which ended is
// just one that the kubelet is about to restart.
func (s Snapshot) proveDead(pod *corev1.Pod) (proof v1.Proof, ok bool) {
	switch {
	case !Going(pod):
		return "", false
	case s.neverStarted(pod, held(pod, s.Singleton)):
		return v1.ProofNeverSignalled, true
	case kubeletReported(pod, held(pod, s.Singleton)):
		return v1.ProofKubeletReported, true
	case s.outOfService(pod):
		return v1.ProofNodeOutOfService, true
	case s.attested(pod):
		return v1.ProofAttested, true
	}
	return "", false
}

// proveGone tells whether a person vouches for the recorded holder, whose object
// is gone. Nothing else proves its death: it bore the finalizer before it was
// recorded, so that somebody took that off.
func (s Snapshot) proveGone() (proof v1.Proof, ok bool) {
	if s.Singleton.Annotations[v1.AttestAnnotation] == string(s.Singleton.Status.ActivePodUID) {
		return v1.ProofAttested, true
	}
	return "", false
}

// neverStarted tells whether a pod that is going has never run a main process and
// never will. One whose deletion was asked for is bound to no node any more
// (pkg/registry/core/pod/storage: assignPod). A Signal on its way fails, since what made
// it go changed the pod; a barrier that is about to be opened is opened all the same.
func (s Snapshot) neverStarted(pod *corev1.Pod, containers []heldContainer) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil || s.isUnreleased(pod, containers)
}

// isUnreleased tells whether the pod is held, and nothing that may release it has happened:
// no signal, and no record after which a barrier may be opened.
func (s Snapshot) isUnreleased(pod *corev1.Pod, containers []heldContainer) bool {
	last := s.Singleton.Status.LastTransition
	recorded := pod.UID == s.Singleton.Status.ActivePodUID && (last == nil || last.Signalled != nil || chosenBy(pod) != "")
	_, hasSignal := pod.Annotations[signal.Annotation]
	return isHeld(pod, containers) && !recorded && !hasSignal && !released(pod) &&
		!s.chosenElsewhere(pod) && !slices.ContainsFunc(containers, heldContainer.pastBarrier)
}

// kubeletReported tells whether the kubelet ended the pod and reported every held
// container as terminated, or as never created.
//
// Both are needed. A container's state alone may be that of a crash before the
// deletion, after which the kubelet started it again without the report having
// arrived. The kubelet writes a terminal phase only once no container of the pod
// runs (pkg/kubelet/status: mergePodStatus holds the phase back until then). The pod
// garbage collector writes it without knowing; it leaves its mark, but an eviction may
// overwrite that.
func kubeletReported(pod *corev1.Pod, containers []heldContainer) bool {
	if c := condition(pod, corev1.DisruptionTarget); c != nil && c.Reason == deletionByPodGC {
		return false
	}
	return terminal(pod) && kubeletWrotePhase(pod) && len(containers) > 0 &&
		!slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.terminated() && !h.neverCreated() })
}

// kubeletWrotePhase tells whether the last to change the phase was the one who
// reports the containers' states, by the fields that the API server keeps of each writer
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
// A distribution in which kubelet and garbage collector are one program does not
// tell them apart: there the mark has to do.
//
// Only updates of pods/status count. An entry of another kind may own fields that its
// manager never changed: an Apply owns every field that it names, and the API server puts
// the fields of several managers into the entries before-first-apply and ancient-changes.
// That nobody forges an entry of this kind, guard "reports" ensures.
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

// outOfService tells whether a person vouches that the pod's node is off
// (https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-out-of-service).
// A node that answers is not: somebody forgot to take the taint off.
func (s Snapshot) outOfService(pod *corev1.Pod) bool {
	node := s.Nodes[pod.Spec.NodeName]
	return node != nil && !NodeReady(node) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// attested tells whether a person vouches that this very pod has stopped, and the
// kubelet can't be asked. Where it can, its word counts: it may have started the
// pod again since the person looked.
func (s Snapshot) attested(pod *corev1.Pod) bool {
	node := s.Nodes[pod.Spec.NodeName]
	return s.Singleton.Annotations[v1.AttestAnnotation] == string(pod.UID) &&
		(node == nil || !NodeReady(node) || terminal(pod))
}

// judgeAttestation tells what is left of a person's word: whether it is spent, and why it
// was refused. A word that is believed stays until the pod's object is gone, since
// until then it is all that proves the death.
func (s Snapshot) judgeAttestation() (spent bool, refused string) {
	word := s.Singleton.Annotations[v1.AttestAnnotation]
	status := &s.Singleton.Status
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return string(pod.UID) == word })
	switch {
	case word == "" || i < 0 && word == string(status.ActivePodUID):
		return false, ""
	case i < 0 && status.LastTransition != nil && string(status.LastTransition.FromUID) == word:
		return true, ""
	case i < 0:
		return true, fmt.Sprintf("no pod of this StatefulSingleton has the uid %q; the holder is %s", word, s.holderInWords())
	}
	pod := &s.Pods[i]
	proof, dead := s.proveDead(pod)
	switch {
	case dead:
		return proof != v1.ProofAttested, ""
	case !Going(pod):
		return true, fmt.Sprintf("nobody asked for the deletion of pod %s, so that it may start again. Run: kubectl delete -n %s pod %s --wait=false, and attest then",
			pod.Name, pod.Namespace, pod.Name)
	default:
		return true, fmt.Sprintf("node %s of pod %s answers, and its kubelet will report when the pod has ended", pod.Spec.NodeName, pod.Name)
	}
}
