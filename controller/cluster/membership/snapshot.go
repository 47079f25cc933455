package membership

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Snapshot is the input of a decision. All objects are live reads, except for nodes without terminating pods.
type Snapshot struct {
	// Cluster was read before the other objects. If its record changes after that read, the compare-and-swap fails.
	Cluster *v1.StatefulCluster
	// Pods are the pods that the StatefulCluster controls, and the pods with the names of members.
	Pods []corev1.Pod
	// Others are the pods of other StatefulClusters with a claim of the record, because claims of two StatefulClusters can have the
	// same name. They were read after Pods. They are missing if GivesClaims returns false.
	Others []corev1.Pod
	// Claims are the claims with the label of the StatefulCluster, and those of NeededClaims.
	Claims []corev1.PersistentVolumeClaim
	// Nodes are the nodes of the pods, by name.
	Nodes map[string]*corev1.Node
	// Serving are the pods that an EndpointSlice lists as serving, by UID.
	Serving sets.Set[types.UID]
	// Revisions are the ControllerRevisions that the StatefulCluster controls. The data of each is a template.
	Revisions []appsv1.ControllerRevision
}

// member is a member of the record, with what the Snapshot says about its pod.
type member struct {
	v1.ClusterMember
	// pod is the pod with the recorded UID. The pod of a Pending member is a pod of the StatefulCluster with its name. It is nil
	// if it does not exist.
	pod *corev1.Pod
	// proven is the proof that the pod has terminated. Empty: there is no proof.
	proven v1.Proof
	// going is true if the pod is terminating or has ended, or if the object of a recorded pod does not exist.
	going bool
	// lost is true if the member is going, and the kubelet does not report.
	lost bool
	// ready is true if the pod is Ready.
	ready bool
	// drained is true if the node is being drained.
	drained bool
	// cost is the pod-deletion-cost.
	cost int32
}

// classify returns the member with its pod.
func (s Snapshot) classify(recorded v1.ClusterMember) *member {
	m := &member{ClusterMember: recorded, pod: s.podOf(recorded)}
	if m.pod == nil {
		if s.attested(m.UID) { // otherwise there is no proof: the pod had the finalizer, so the missing object proves nothing
			m.proven = v1.ProofAttested
		}
		m.going = m.UID != ""
		m.lost = m.going && m.proven == ""
		return m
	}
	p, node := m.pod, s.Nodes[m.pod.Spec.NodeName]
	m.Node, m.proven, m.going = p.Spec.NodeName, s.proofOf(p), proof.Going(p)
	m.lost = m.going && m.proven == "" && m.Node != "" && (node == nil || !proof.NodeReady(node))
	m.ready = !m.going && proof.IsTrue(p, corev1.PodReady)
	m.drained = proof.Drained(p, node) != ""
	if cost, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32); err == nil {
		m.cost = int32(cost)
	}
	return m
}

// unschedulable returns the condition with which the scheduler reports that it finds no node for the pod, or nil.
func (m *member) unschedulable() *corev1.PodCondition {
	if m.pod == nil || m.going || m.Node != "" {
		return nil
	}
	if c := proof.Condition(m.pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
		return c
	}
	return nil
}

// podOf returns the pod of the member, or nil.
func (s Snapshot) podOf(m v1.ClusterMember) *corev1.Pod {
	for i := range s.Pods {
		p := &s.Pods[i]
		if m.UID != "" && p.UID == m.UID || m.UID == "" && p.Name == m.Name && s.controls(p) {
			return p
		}
	}
	return nil
}

// controls returns true if the StatefulCluster controls the pod.
func (s Snapshot) controls(p *corev1.Pod) bool {
	return owner.Controls(s.Cluster, owner.StatefulCluster, p)
}

// claim returns the claim with the name, or nil.
func (s Snapshot) claim(name string) *corev1.PersistentVolumeClaim {
	for i := range s.Claims {
		if s.Claims[i].Name == name {
			return &s.Claims[i]
		}
	}
	return nil
}

// Revision returns the ControllerRevision with the name, or nil.
func (s Snapshot) Revision(name string) *appsv1.ControllerRevision {
	for i := range s.Revisions {
		if s.Revisions[i].Name == name {
			return &s.Revisions[i]
		}
	}
	return nil
}

// NeededClaims returns the names of the claims that the record and the pods of the Snapshot name, whether they exist or not. Another
// client can have created such a claim, or removed its label.
func NeededClaims(s Snapshot) sets.Set[string] {
	names := sets.New[string]()
	for _, m := range s.Cluster.Status.Members {
		for _, c := range m.Claims {
			names.Insert(c.Name)
		}
	}
	for _, released := range s.Cluster.Status.Released {
		names.Insert(released.Name)
	}
	for i := range s.Pods {
		for _, volume := range s.Pods[i].Spec.Volumes {
			if source := volume.PersistentVolumeClaim; source != nil {
				names.Insert(source.ClaimName)
			}
		}
	}
	return names
}

// GivesClaims returns true if the manager may soon let a pod run with a claim of the record, or delete such a claim.
func GivesClaims(s Snapshot) bool {
	return len(toDelete(s.Cluster.Status.Released)) > 0 || slices.ContainsFunc(s.Cluster.Status.Members, func(m v1.ClusterMember) bool {
		p := s.podOf(m)
		return m.State != v1.MemberActive || p == nil || isGated(p) || proof.Going(p)
	})
}

func (s Snapshot) isOurs(c *corev1.PersistentVolumeClaim) bool {
	return c.Labels[v1.ClusterLabel] == s.Cluster.Name
}

// taken returns true if another client has a pod or a claim with a name that the Pending member needs.
func (s Snapshot) taken(m *member) bool {
	return m.State == v1.MemberPending && m.pod == nil &&
		(slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool { return p.Name == m.Name }) || slices.ContainsFunc(m.Claims, s.isForeign))
}

func (s Snapshot) isForeign(c v1.MemberClaim) bool {
	is := s.claim(c.Name)
	return is != nil && !s.isOurs(is)
}

func (s Snapshot) replicas() int { return int(ptr.Deref(s.Cluster.Spec.Replicas, 1)) }

// maxLost returns how many members can be Lost.
func (s Snapshot) maxLost() int {
	return int(ptr.Deref(s.Cluster.Spec.Replacement.MaxLost, int32(max(0, (s.replicas()-1)/2))))
}

func (s Snapshot) ordered() bool {
	return s.Cluster.Spec.PodManagementPolicy == v1.ClusterOrderedReady
}

func (s Snapshot) podName(ordinal int64) string { return fmt.Sprintf("%s-%d", s.Cluster.Name, ordinal) }

// ordinal returns the number after the prefix, or -1 if the name does not consist of both.
func ordinal(name, prefix string) int64 {
	number, found := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil || n < 0 {
		return -1
	}
	return n
}

// ordinalOf returns the number in the name of a pod of the StatefulCluster, or -1.
func (s Snapshot) ordinalOf(pod string) int64 { return ordinal(pod, s.Cluster.Name+"-") }
