package membership

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// proofOf returns the proof that the pod has terminated. Empty: there is no proof. The API server binds no terminating pod to a
// node.
func (s Snapshot) proofOf(p *corev1.Pod) v1.Proof {
	node := s.Nodes[p.Spec.NodeName]
	switch {
	case !proof.Going(p):
		return ""
	case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
		return v1.ProofNeverSignalled
	case proof.KubeletReported(p, proof.Containers(p)...):
		return v1.ProofKubeletReported
	case proof.OutOfService(node):
		return v1.ProofNodeOutOfService
	case s.attested(p.UID) && proof.Attestable(p, node):
		return v1.ProofAttested
	}
	return ""
}

func (s Snapshot) attested(uid types.UID) bool {
	return uid != "" && s.Cluster.Annotations[v1.AttestAnnotation] == string(uid)
}
