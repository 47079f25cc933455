package tenure

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// fencedBy returns the duration of the Lease in the pod's sidecar. The problem says why the pod is not fenced by the Lease of
// the lock. It is empty if the pod is fenced. The field spec.fencing does not matter, because it applies only to new pods.
func fencedBy(p *corev1.Pod, lock *v1.StatefulSetLock) (duration time.Duration, problem string) {
	if problem := injected.NotFenceable(p); problem != "" {
		return 0, problem
	}
	var names []string
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		switch {
		case len(c.Command) == 0:
			return 0, fmt.Sprintf("container %s needs a command", c.Name)
		case !injected.IsSupervised(c) || p.Annotations[v1.FencingAnnotation] != string(v1.FencingLease):
			return 0, "the pod was created before spec.fencing was Lease"
		}
		names = append(names, c.Name)
	}
	settings, problem := injected.SettingsOf(p, lock.Spec.LeaseName, names)
	if problem == "" && !settings.Lock {
		problem = fmt.Sprintf("container %s does not know that the pod has a StatefulSetLock", v1.SidecarName)
	}
	return settings.Duration, problem
}

// endsBy returns what ends the tenure of a pod. An unfenced writer can exist with spec.fencing Lease if the field was changed
// during its tenure.
func (d *decision) endsBy(p *pod) v1.LockFencing {
	switch {
	case p.fenced:
		return v1.LockFencingLease
	case d.Lock.Spec.Fencing == v1.LockFencingNone:
		return v1.LockFencingNone
	}
	return v1.LockFencingTermination
}

// recordedEndsBy returns what ends the tenure of the recorded writer, also if its object does not exist. Then the Lease shows
// whether the pod was fenced. A fenced pod is no writer before the Lease has named it.
func (d *decision) recordedEndsBy() v1.LockFencing {
	is, spec := d.inLease(), d.Lock.Spec.Fencing
	named := is.writer.UID == d.status.WriterPodUID && is.writer.Name != ""
	switch {
	case d.writer != nil:
		return d.endsBy(d.writer)
	case named && is.fenced, !named && spec == v1.LockFencingLease:
		return v1.LockFencingLease
	case spec == v1.LockFencingNone:
		return v1.LockFencingNone
	}
	return v1.LockFencingTermination
}

// proofOf returns the proof that the tenure of the writer has ended. Empty: there is no proof.
func (d *decision) proofOf(p *pod) v1.Proof {
	if proven := d.leaseProof(); proven != "" && p.UID == d.status.WriterPodUID {
		return proven
	}
	node := d.Nodes[p.Spec.NodeName]
	switch {
	case !proof.Going(p.Pod):
		return ""
	case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
		return v1.ProofNeverSignalled
	case proof.KubeletReported(p.Pod, proof.Containers(p.Pod)...):
		return v1.ProofKubeletReported
	case proof.OutOfService(node):
		return v1.ProofNodeOutOfService
	case d.attested(p.UID) && proof.Attestable(p.Pod, node):
		return v1.ProofAttested
	}
	return ""
}

// proofOfRemoved returns the proof for a recorded writer whose object does not exist. An unfenced writer had the finalizer, so
// the missing object proves nothing.
func (d *decision) proofOfRemoved() v1.Proof {
	if d.attested(d.status.WriterPodUID) {
		return v1.ProofAttested
	}
	return d.leaseProof()
}

func (d *decision) attested(uid types.UID) bool {
	return uid != "" && d.Lock.Annotations[v1.AttestAnnotation] == string(uid)
}
