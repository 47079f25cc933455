package handoff

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// proofOf returns the proof that the pod's main processes have ended and that none of them can start again.
// Empty: there is no proof.
//
// Every proof but that of the Lease needs a pod that is terminating or has a terminal phase. Otherwise the kubelet can
// restart a process that ended.
func (s Snapshot) proofOf(p *ClassifiedPod) v1.Proof {
	switch {
	case !proof.Going(p.Pod):
		return s.leaseProof(p)
	case s.neverStarted(p):
		return v1.ProofNeverSignalled
	case proof.KubeletReported(p.Pod, states(p.held)...):
		return v1.ProofKubeletReported
	case proof.OutOfService(s.Nodes[p.Spec.NodeName]):
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
	return injected.IsHeld(p.Pod, p.held) && !recorded && !hasSignal && !released(p.Pod) && unnamed &&
		!s.chosenElsewhere(p.Pod) && !slices.ContainsFunc(p.held, pastBarrier)
}

// states returns what the kubelet reports about the containers.
func states(containers []injected.Container) (all []*corev1.ContainerStatus) {
	for _, h := range containers {
		all = append(all, h.Status)
	}
	return all
}

// attested returns true if a person attests the termination of the pod and the kubelet cannot report it.
func (s Snapshot) attested(pod *corev1.Pod) bool {
	return s.Singleton.Annotations[v1.AttestAnnotation] == string(pod.UID) && proof.Attestable(pod, s.Nodes[pod.Spec.NodeName])
}

// judgeAttestation returns whether to remove the attestation, and why it is refused, if it is. An accepted
// attestation stays until the pod's object is removed, because it is the only proof until then.
func (d *decision) judgeAttestation() (remove bool, refused string) {
	attested := d.Singleton.Annotations[v1.AttestAnnotation]
	status := &d.Singleton.Status
	pod := find(d.pods, func(p *ClassifiedPod) bool { return string(p.UID) == attested })
	switch {
	case attested == "" || pod == nil && attested == string(status.ActivePodUID):
		return false, ""
	case pod == nil && status.LastTransition != nil && string(status.LastTransition.FromUID) == attested:
		return true, ""
	case pod == nil:
		return true, d.unknownAttested(attested)
	case pod.Proof != "":
		return pod.Proof != v1.ProofAttested, ""
	case !proof.Going(pod.Pod):
		return true, notTerminating(pod.Pod)
	}
	return true, reportedByKubelet(pod.Pod)
}
