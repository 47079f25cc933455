package handoff

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

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
	case !going(pod):
		return "", false
	case neverStarted(pod, held(pod, s.Singleton)):
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

// proveGone tells why the recorded holder, whose object is gone, is dead. A pod
// that was signalled bears the finalizer, which only proof takes off: gone
// without proof means that somebody else took it off, and proves nothing.
func (s Snapshot) proveGone() (proof v1.Proof, ok bool) {
	status := &s.Singleton.Status
	last := status.LastTransition
	if last != nil && last.To == status.ActivePod && last.Signalled == nil {
		return v1.ProofNeverSignalled, true
	}
	if s.Singleton.Annotations[v1.AttestAnnotation] == string(status.ActivePodUID) {
		return v1.ProofAttested, true
	}
	return "", false
}

// neverStarted tells whether a pod that is being deleted has never run a main
// process and never will. The API server binds no such pod to a node
// (pkg/registry/core/pod/storage: assignPod) and takes no new finalizer on it, so
// that a signal, which brings one, fails.
func neverStarted(pod *corev1.Pod, containers []heldContainer) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	_, hasSignal := pod.Annotations[signal.Annotation]
	return pod.Spec.NodeName == "" ||
		isHeld(pod, containers) && !hasSignal && !slices.Contains(pod.Finalizers, v1.HandoffFinalizer)
}

// kubeletReported tells whether the kubelet ended the pod and reported every held
// container as terminated, or, behind an init container that failed, as never
// created.
//
// Both are needed. A container's state alone may be that of a crash before the
// deletion, after which the kubelet started it again without the report having
// arrived. The kubelet writes a terminal phase only once no container of the pod
// runs (pkg/kubelet/status: mergePodStatus holds the phase back until then); the
// pod garbage collector writes it without knowing, and leaves its mark.
func kubeletReported(pod *corev1.Pod, containers []heldContainer) bool {
	if !terminal(pod) {
		return false
	}
	if c := condition(pod, corev1.DisruptionTarget); c != nil && c.Reason == deletionByPodGC {
		return false
	}
	return slices.ContainsFunc(containers, heldContainer.terminated) &&
		!slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.terminated() && !h.neverCreated() })
}

// outOfService tells whether a person vouches that the pod's node is off
// (https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-out-of-service).
// A node that answers is not: somebody forgot to take the taint off.
func (s Snapshot) outOfService(pod *corev1.Pod) bool {
	node := s.Nodes[pod.Spec.NodeName]
	return node != nil && !nodeReady(node) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// attested tells whether a person vouches that this very pod has stopped, and the
// kubelet can't be asked. Where it can, its word counts: it may have started the
// pod again since the person looked.
func (s Snapshot) attested(pod *corev1.Pod) bool {
	node := s.Nodes[pod.Spec.NodeName]
	return s.Singleton.Annotations[v1.AttestAnnotation] == string(pod.UID) &&
		(node == nil || !nodeReady(node) || terminal(pod))
}
