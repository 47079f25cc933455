package membership_test

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// now is the time of the decisions.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// makeCluster returns StatefulCluster coder with a volume data of 1Gi, and without a record.
func makeCluster(replicas int32) *v1.StatefulCluster {
	return &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "coder", UID: "cluster", Annotations: map[string]string{}},
		Spec: v1.StatefulClusterSpec{
			Replicas: &replicas, Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "coder"}},
			Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"coder"}]}}`)},
			VolumeClaimTemplates: []v1.ClaimTemplate{{Metadata: v1.ClaimMetadata{Name: "data"}, Spec: v1.ClaimSpec{
				Resources: v1.ClaimResources{Requests: v1.ClaimSize{Storage: new(resource.MustParse("1Gi"))}},
			}}},
		},
	}
}

// latest is the name of the revision of the template.
var latest = membership.RevisionName(makeCluster(0))

// SnapshotWrapper builds a Snapshot of StatefulCluster coder.
type SnapshotWrapper struct{ membership.Snapshot }

// MakeSnapshot returns a Snapshot without pods and without a record. The revision of the template exists.
func MakeSnapshot(replicas int32) *SnapshotWrapper {
	s := &SnapshotWrapper{membership.Snapshot{Cluster: makeCluster(replicas), Nodes: map[string]*corev1.Node{}}}
	return s.Revision(latest, 5)
}

// Revision adds a ControllerRevision.
func (s *SnapshotWrapper) Revision(name string, number int64) *SnapshotWrapper {
	s.Revisions = append(s.Revisions, appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Revision: number})
	return s
}

// Member adds a member to the record.
func (s *SnapshotWrapper) Member(name string, state v1.MemberState, uid types.UID, revision, claim string) *SnapshotWrapper {
	m := v1.ClusterMember{Name: name, State: state, UID: uid, Revision: revision}
	if claim != "" {
		m.Claims = []v1.MemberClaim{{Volume: "data", Name: claim}}
	}
	s.Cluster.Status.Members = append(s.Cluster.Status.Members, m)
	return s
}

// Pending adds a Pending member, and moves the counter past its number.
func (s *SnapshotWrapper) Pending(name, claim string) *SnapshotWrapper {
	s.Cluster.Status.Next = max(s.Cluster.Status.Next, int64(number(name))+1)
	return s.Member(name, v1.MemberPending, "", latest, claim)
}

// Recorded adds Active members for the pods, with one claim each. A pod without a node is on a Ready node of its own.
func (s *SnapshotWrapper) Recorded(pods ...*PodWrapper) *SnapshotWrapper {
	for _, p := range pods {
		s.Cluster.Status.Next = max(s.Cluster.Status.Next, int64(number(p.Name))+1)
		s.Member(p.Name, v1.MemberActive, p.Pod.UID, p.Labels[appsv1.StatefulSetRevisionLabel], "data-"+p.Name).Claim("data-" + p.Name)
		if p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 {
			p.Node("node-" + p.Name)
		}
		s.Pod(p)
	}
	return s
}

// Pod adds a pod that the record does not list. Its node is Ready if it was not added before.
func (s *SnapshotWrapper) Pod(p *PodWrapper) *SnapshotWrapper {
	if node := p.Spec.NodeName; node != "" && s.Nodes[node] == nil {
		s.Nodes[node] = makeNode(node, true, false)
	}
	s.Pods = append(s.Pods, p.Pod)
	return s
}

// Claim adds a bound claim.
func (s *SnapshotWrapper) Claim(name string) *SnapshotWrapper {
	s.Claims = append(s.Claims, corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, UID: types.UID(name), Labels: map[string]string{v1.ClusterLabel: "coder"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	})
	return s
}

// Released adds a released claim that the controller deletes.
func (s *SnapshotWrapper) Released(claim string) *SnapshotWrapper {
	s.Cluster.Status.Released = append(s.Cluster.Status.Released, v1.ReleasedClaim{Name: claim, Policy: v1.ClaimDelete})
	return s
}

// Lose makes nodes unready.
func (s *SnapshotWrapper) Lose(nodes ...string) *SnapshotWrapper {
	for _, name := range nodes {
		s.Nodes[name] = makeNode(name, false, false)
	}
	return s
}

// With changes the Snapshot.
func (s *SnapshotWrapper) With(change func(*membership.Snapshot)) *SnapshotWrapper {
	change(&s.Snapshot)
	return s
}

// Spec changes the spec.
func (s *SnapshotWrapper) Spec(change func(*v1.StatefulClusterSpec)) *SnapshotWrapper {
	change(&s.Cluster.Spec)
	return s
}

// ready returns a Ready pod of the latest revision, and unready one that is not Ready.
func ready(name string) *PodWrapper { return unready(name).Ready() }

func unready(name string) *PodWrapper { return MakePod(name).Ungated() }

// old returns a Ready pod of an old revision.
func old(name string) *PodWrapper { return ready(name).Revision("coder-old") }

// terminating returns a pod whose deletion has begun, and ended one that has provably terminated, on node a.
func terminating(name string) *PodWrapper { return ready(name).Terminating() }

func ended(name string) *PodWrapper { return terminating(name).Node("a").Terminated() }

// PodWrapper builds a pod.
type PodWrapper struct{ corev1.Pod }

// MakePod returns a pod of StatefulCluster coder that waits for the scheduling gate.
func MakePod(name string) *PodWrapper {
	return &PodWrapper{corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, UID: types.UID(name), Annotations: map[string]string{}, Finalizers: []string{v1.MemberFinalizer},
			Labels:          map[string]string{v1.ClusterLabel: "coder", appsv1.StatefulSetRevisionLabel: latest},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(makeCluster(0), v1.GroupVersion.WithKind("StatefulCluster"))},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "coder"}}, SchedulingGates: []corev1.PodSchedulingGate{{Name: v1.MemberGate}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}}
}

// UID sets the UID.
func (p *PodWrapper) UID(uid types.UID) *PodWrapper { p.Pod.UID = uid; return p }

// Ungated removes the scheduling gate.
func (p *PodWrapper) Ungated() *PodWrapper { p.Spec.SchedulingGates = nil; return p }

// Node binds the pod to a node, where its container runs.
func (p *PodWrapper) Node(name string) *PodWrapper {
	p.Ungated()
	p.Spec.NodeName, p.Status.Phase = name, corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "coder", ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p
}

// Ready makes the pod Ready one hour ago.
func (p *PodWrapper) Ready() *PodWrapper {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))})
	return p
}

// Reported says how long ago the last condition changed by the clock of its writer, and how long ago the API server received the
// status.
func (p *PodWrapper) Reported(changed, received time.Duration) *PodWrapper {
	p.Status.Conditions[len(p.Status.Conditions)-1].LastTransitionTime = metav1.NewTime(now.Add(-changed))
	p.ManagedFields = []metav1.ManagedFieldsEntry{
		{Subresource: "status", Time: new(metav1.NewTime(now.Add(-received - time.Hour)))},
		{Subresource: "status", Time: new(metav1.NewTime(now.Add(-received)))},
		{Time: new(metav1.NewTime(now))},
	}
	return p
}

// Claim adds the volume data with the claim.
func (p *PodWrapper) Claim(name string) *PodWrapper { return p.Volume("data", name) }

// Volume adds a volume with a claim.
func (p *PodWrapper) Volume(name, claim string) *PodWrapper {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
	return p
}

// Revision sets the revision.
func (p *PodWrapper) Revision(name string) *PodWrapper {
	p.Labels[appsv1.StatefulSetRevisionLabel] = name
	return p
}

// Cost sets the pod-deletion-cost.
func (p *PodWrapper) Cost(cost string) *PodWrapper {
	p.Annotations[corev1.PodDeletionCost] = cost
	return p
}

// Terminating sets the time of the deletion.
func (p *PodWrapper) Terminating() *PodWrapper {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(now)), new(int64(30))
	return p
}

// Terminated makes the kubelet report that all processes have ended.
func (p *PodWrapper) Terminated() *PodWrapper {
	p.Status.Phase = corev1.PodFailed
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "coder", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://1"}}}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{},"f:containerStatuses":{}}}`),
	}}
	return p
}

// Unlocated changes the report of the kubelet: it could not locate the container.
func (p *PodWrapper) Unlocated() *PodWrapper {
	p.Status.ContainerStatuses[0].ContainerID = "containerd://1"
	p.Status.ContainerStatuses[0].State.Terminated.Reason = "ContainerStatusUnknown"
	return p
}

func makeNode(name string, ready, off bool) *corev1.Node {
	status := corev1.ConditionUnknown
	if ready {
		status = corev1.ConditionTrue
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
	if off {
		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	}
	return node
}
