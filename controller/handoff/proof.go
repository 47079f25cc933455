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
// start again. Empty: nothing proves it.
//
// Every proof of a pod that exists needs the pod to be beyond starting anything:
// deletion asked for, or phase terminal. Without that a process which ended is
// just one that the kubelet is about to restart.
func (s Snapshot) proveDead(p *ClassifiedPod) v1.Proof {
	switch {
	case !Going(p.Pod):
		return ""
	case s.neverStarted(p):
		return v1.ProofNeverSignalled
	case kubeletReported(p):
		return v1.ProofKubeletReported
	case s.outOfService(p.Pod):
		return v1.ProofNodeOutOfService
	case s.attested(p.Pod):
		return v1.ProofAttested
	}
	return ""
}

// proveGone tells whether a person attests that the recorded holder has ended, whose object
// is gone. Nothing else proves its death: it bore the finalizer before it was
// recorded, so that somebody took that off.
func (s Snapshot) proveGone() v1.Proof {
	if s.Singleton.Annotations[v1.AttestAnnotation] == string(s.Singleton.Status.ActivePodUID) {
		return v1.ProofAttested
	}
	return ""
}

// neverStarted tells whether a pod that is going has never run a main process and
// never will. One whose deletion was asked for is bound to no node any more
// (pkg/registry/core/pod/storage: assignPod). A Signal on its way fails, since what made
// it go changed the pod; a barrier that is about to be opened is opened all the same.
func (s Snapshot) neverStarted(p *ClassifiedPod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp != nil || s.isUnreleased(p)
}

// isUnreleased tells whether the pod is held, and nothing that may release it has happened:
// no signal, and no record after which a barrier may be opened.
func (s Snapshot) isUnreleased(p *ClassifiedPod) bool {
	last := s.Singleton.Status.LastTransition
	recorded := p.UID == s.Singleton.Status.ActivePodUID && (last == nil || last.Signalled != nil || chosenBy(p.Pod) != "")
	_, hasSignal := p.Annotations[signal.Annotation]
	return isHeld(p.Pod, p.held) && !recorded && !hasSignal && !released(p.Pod) &&
		!s.chosenElsewhere(p.Pod) && !slices.ContainsFunc(p.held, heldContainer.pastBarrier)
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
func kubeletReported(p *ClassifiedPod) bool {
	if c := condition(p.Pod, corev1.DisruptionTarget); c != nil && c.Reason == deletionByPodGC {
		return false
	}
	return terminal(p.Pod) && kubeletWrotePhase(p.Pod) && len(p.held) > 0 &&
		!slices.ContainsFunc(p.held, func(h heldContainer) bool { return !h.terminated() && !h.neverCreated() })
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
func (d *decision) judgeAttestation() (spent bool, refused string) {
	word := d.Singleton.Annotations[v1.AttestAnnotation]
	status := &d.Singleton.Status
	i := slices.IndexFunc(d.pods, func(p *ClassifiedPod) bool { return string(p.UID) == word })
	switch {
	case word == "" || i < 0 && word == string(status.ActivePodUID):
		return false, ""
	case i < 0 && status.LastTransition != nil && string(status.LastTransition.FromUID) == word:
		return true, ""
	case i < 0:
		return true, fmt.Sprintf("no pod of this StatefulSingleton has the uid %q; the holder is %s", word, d.holderInWords())
	}
	switch pod := d.pods[i]; {
	case pod.Proof != "":
		return pod.Proof != v1.ProofAttested, ""
	case !Going(pod.Pod):
		return true, fmt.Sprintf("nobody asked for the deletion of pod %s, so that it may start again. Run: kubectl delete -n %s pod %s --wait=false, and attest then",
			pod.Name, pod.Namespace, pod.Name)
	default:
		return true, fmt.Sprintf("node %s of pod %s answers, and its kubelet will report when the pod has ended", pod.Spec.NodeName, pod.Name)
	}
}
