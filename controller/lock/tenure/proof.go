package tenure

import (
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

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
