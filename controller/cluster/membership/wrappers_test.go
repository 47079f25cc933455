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

// ClusterWrapper builds a StatefulCluster.
type ClusterWrapper struct{ v1.StatefulCluster }

// MakeCluster returns StatefulCluster coder with a volume data of 1Gi, and without a record.
func MakeCluster(replicas int32) *ClusterWrapper {
	return &ClusterWrapper{v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "coder", UID: "cluster", Annotations: map[string]string{}},
		Spec: v1.StatefulClusterSpec{
			Replicas: &replicas, Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "coder"}},
			Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"coder"}]}}`)},
			VolumeClaimTemplates: []v1.ClaimTemplate{{Metadata: v1.ClaimMetadata{Name: "data"}, Spec: v1.ClaimSpec{
				Resources: v1.ClaimResources{Requests: v1.ClaimSize{Storage: new(resource.MustParse("1Gi"))}},
			}}},
		},
	}}
}

// Member adds a member to the record.
func (c *ClusterWrapper) Member(name string, state v1.MemberState, uid types.UID, claim string) *ClusterWrapper {
	m := v1.ClusterMember{Name: name, State: state, UID: uid, Revision: membership.RevisionName(&c.StatefulCluster)}
	if claim != "" {
		m.Claims = []v1.MemberClaim{{Volume: "data", Name: claim}}
	}
	c.Status.Members = append(c.Status.Members, m)
	return c
}

// Next sets the counter.
func (c *ClusterWrapper) Next(n int64) *ClusterWrapper { c.Status.Next = n; return c }

// With changes the spec.
func (c *ClusterWrapper) With(change func(*v1.StatefulClusterSpec)) *ClusterWrapper {
	change(&c.Spec)
	return c
}

// PodWrapper builds a pod.
type PodWrapper struct{ corev1.Pod }

// MakePod returns a pod of StatefulCluster coder that waits for the scheduling gate.
func MakePod(name string) *PodWrapper {
	cluster := MakeCluster(0)
	return &PodWrapper{corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, UID: types.UID(name), Annotations: map[string]string{}, Finalizers: []string{v1.MemberFinalizer},
			Labels:          map[string]string{v1.ClusterLabel: "coder", appsv1.StatefulSetRevisionLabel: membership.RevisionName(&cluster.StatefulCluster)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&cluster.StatefulCluster, v1.GroupVersion.WithKind("StatefulCluster"))},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "coder"}}, SchedulingGates: []corev1.PodSchedulingGate{{Name: v1.MemberGate}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}}
}

// Obj returns the pod.
func (p *PodWrapper) Obj() *corev1.Pod { return &p.Pod }

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
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
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

// makeClaim returns a bound claim of StatefulCluster coder.
func makeClaim(name string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, UID: types.UID(name), Labels: map[string]string{v1.ClusterLabel: "coder"}},
		Spec:       corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
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
