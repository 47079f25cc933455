package tenure_test

import (
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testpod"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// makeNode returns the node with the number, from 0.
func makeNode(number int, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", number+1)}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
	}}
}

// PodWrapper builds a pod.
type PodWrapper struct{ corev1.Pod }

// MakePod returns a pod with one container that runs, and with the labels of a reader.
func MakePod(name string) *PodWrapper {
	return &PodWrapper{corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, UID: types.UID(name), ResourceVersion: "1", Annotations: map[string]string{},
			Labels: map[string]string{v1.StsRoleLabel: v1.StsRoleReader, v1.LockLabel: "db-lock"},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "db"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "db", ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}}
}

// Obj returns the pod.
func (p *PodWrapper) Obj() *corev1.Pod { return &p.Pod }

// UID sets the UID.
func (p *PodWrapper) UID(uid types.UID) *PodWrapper { p.Pod.UID = uid; return p }

// Node binds the pod to a node.
func (p *PodWrapper) Node(name string) *PodWrapper { p.Spec.NodeName = name; return p }

// ControlledBy makes the StatefulSet the controller of the pod.
func (p *PodWrapper) ControlledBy(set *appsv1.StatefulSet) *PodWrapper {
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	return p
}

// Ready sets the condition Ready.
func (p *PodWrapper) Ready(ready bool) *PodWrapper {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status})
	return p
}

// Role sets the label of the role.
func (p *PodWrapper) Role(role string) *PodWrapper { p.Labels[v1.StsRoleLabel] = role; return p }

// Fenced prepares the pod for fencing by Lease db-lease, which its sidecar renews within 15 s.
func (p *PodWrapper) Fenced() *PodWrapper {
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Command = append(slices.Clone(signal.Wrapper), "db")
	}
	p.Spec.InitContainers = []corev1.Container{{Name: v1.SidecarName}}
	testpod.Fence(&p.Pod, "db-lease", corev1.EnvVar{Name: signal.LockEnv, Value: "db-lock"})
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1.SidecarName, ContainerID: "containerd://0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p
}

// Tenure sets the epochs of the last tenure that began, and of the last that ended. 0: none.
func (p *PodWrapper) Tenure(began, ended int64) *PodWrapper {
	for annotation, epoch := range map[string]int64{v1.TenureAnnotation: began, v1.TenureEndedAnnotation: ended} {
		if epoch > 0 {
			p.Annotations[annotation] = strconv.FormatInt(epoch, 10)
		}
	}
	return p
}

// Revision sets the revision of the StatefulSet from which the pod was created.
func (p *PodWrapper) Revision(name string) *PodWrapper {
	p.Labels[appsv1.StatefulSetRevisionLabel] = name
	return p
}

// Protected adds the finalizer.
func (p *PodWrapper) Protected() *PodWrapper {
	p.Finalizers = append(p.Finalizers, v1.HandoffFinalizer)
	return p
}

// Terminating sets the time of the deletion.
func (p *PodWrapper) Terminating() *PodWrapper {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(epochStart)), new(int64(30))
	return p
}

// Terminated makes the kubelet report that all processes have ended.
func (p *PodWrapper) Terminated() *PodWrapper {
	p.Status.Phase = corev1.PodFailed
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://1"}}
	p.Status.ContainerStatuses[0].State = terminated
	for i := range p.Status.InitContainerStatuses {
		p.Status.InitContainerStatuses[i].State = terminated
	}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{},"f:containerStatuses":{},"f:initContainerStatuses":{}}}`),
	}}
	return p
}
