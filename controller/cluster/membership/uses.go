package membership

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// use is a claim that a member waits for, because another pod can run with the claim.
type use struct {
	claim string
	pod   *corev1.Pod
}

// useOf returns a use of a claim of the member by another pod, or nil. The record lists no such use if another client created the
// pod, or if the record was wrong before.
func (s Snapshot) useOf(m *member) *use {
	for _, c := range m.Claims {
		if p := s.userOf(c.Name, m.UID); p != nil {
			return &use{c.Name, p}
		}
	}
	return nil
}

// userOf returns a pod that can run with the claim, or nil. It ignores the pod with the UID. A pod of another StatefulCluster counts even
// while it waits for its gate, which the manager may be about to remove. So of two such pods with one claim, neither misses the other:
// the manager reads Others after it has created the pod, and before it removes the gate of that pod.
func (s Snapshot) userOf(claim string, except types.UID) *corev1.Pod {
	for i := range s.Pods {
		if p := &s.Pods[i]; p.UID != except && mounts(p, claim) && s.canRun(p) {
			return p
		}
	}
	for i := range s.Others {
		if p := &s.Others[i]; mounts(p, claim) && s.proofOf(p) == "" {
			return p
		}
	}
	return nil
}

func mounts(p *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return claimOf(p, v) == claim })
}

// MountsAny returns true if the pod has one of the claims.
func MountsAny(p *corev1.Pod, claims sets.Set[string]) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return claims.Has(claimOf(p, v)) })
}

// claimOf returns the name of the claim of a volume, or nothing. The claim of an ephemeral volume has the names of the pod and of the
// volume.
func claimOf(p *corev1.Pod, v corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

// canRun returns false if the pod has provably terminated, or waits for the scheduling gate: only the manager removes the gate.
func (s Snapshot) canRun(p *corev1.Pod) bool {
	return !isGated(p) && s.proofOf(p) == "" && !s.hasLetGo(p)
}

// hasLetGo returns true if the record does not list the pod any more, because a person attested its termination. The attestation is
// removed then, but the object can stay until its node is removed.
func (s Snapshot) hasLetGo(p *corev1.Pod) bool {
	isRecorded := func(m v1.ClusterMember) bool { return m.UID == p.UID }
	return s.controls(p) && proof.Going(p) && !isProtected(p) && proof.Attestable(p, s.Nodes[p.Spec.NodeName]) &&
		!slices.ContainsFunc(s.Cluster.Status.Members, isRecorded)
}
