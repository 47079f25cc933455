package membership

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/drain"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Snapshot is the input of a decision. All objects are live reads, except for nodes without terminating pods.
type Snapshot struct {
	// Cluster was read before the other objects. If its record changes after that read, the compare-and-swap fails.
	Cluster *v1.StatefulCluster
	// Pods are the pods that the StatefulCluster controls, and the pods with the names of members.
	Pods []corev1.Pod
	// Claims are the claims of the namespace.
	Claims []corev1.PersistentVolumeClaim
	// Nodes are the nodes of the pods, by name.
	Nodes map[string]*corev1.Node
	// Serving are the pods that an EndpointSlice lists as serving, by UID.
	Serving map[types.UID]bool
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
	// ready is true if the pod is Ready, and readySince is when it became Ready.
	ready      bool
	readySince time.Time
	// drained is true if the node is being drained.
	drained bool
	// cost is the pod-deletion-cost.
	cost int32
}

// counts returns true if the member counts for spec.replicas.
func (m *member) counts() bool {
	return m.State == v1.MemberPending || m.State == v1.MemberActive
}

// classify returns the member with its pod.
func (s Snapshot) classify(recorded v1.ClusterMember) *member {
	m := &member{ClusterMember: recorded, pod: s.podOf(recorded)}
	if m.pod == nil {
		m.going = m.UID != ""
		m.lost = m.going
		m.proven = s.proofOfRemoved(m.UID)
		return m
	}
	p, node := m.pod, s.Nodes[m.pod.Spec.NodeName]
	m.Node, m.proven, m.going = p.Spec.NodeName, s.proofOf(p), proof.Going(p)
	m.lost = m.going && m.proven == "" && m.Node != "" && (node == nil || !proof.NodeReady(node))
	if c := proof.Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue && !m.going {
		m.ready, m.readySince = true, c.LastTransitionTime.Time
	}
	m.drained = drain.Of(p, node) != ""
	if cost, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32); err == nil {
		m.cost = int32(cost)
	}
	return m
}

// podOf returns the pod of the member, or nil.
func (s Snapshot) podOf(m v1.ClusterMember) *corev1.Pod {
	for i := range s.Pods {
		p := &s.Pods[i]
		if m.UID != "" && p.UID == m.UID || m.UID == "" && p.Name == m.Name && metav1.IsControlledBy(p, s.Cluster) {
			return p
		}
	}
	return nil
}

// claim returns the claim with the name, or nil.
func (s Snapshot) claim(name string) *corev1.PersistentVolumeClaim {
	i := slices.IndexFunc(s.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Claims[i]
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

// replicas returns spec.replicas.
func (s Snapshot) replicas() int {
	if s.Cluster.Spec.Replicas == nil {
		return 1
	}
	return int(*s.Cluster.Spec.Replicas)
}

// maxLost returns how many members can be Lost.
func (s Snapshot) maxLost() int {
	if most := s.Cluster.Spec.Replacement.MaxLost; most != nil {
		return int(*most)
	}
	return max(0, (s.replicas()-1)/2)
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
