package handoff

import (
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Snapshot is everything a decision rests on. What proofs rest on is read live from
// the API server: a cache may lag behind the kubelet that just started a process.
type Snapshot struct {
	// Singleton as read before the pods, so that a record which moved since then
	// fails the compare-and-swap.
	Singleton *v1.StatefulSingleton
	// Others are the other singletons of the namespace. They may come from a cache while
	// the holder stays.
	Others []v1.StatefulSingleton
	// Pods are those that the selector picks, those that bear the singleton's
	// label, and the recorded holder if it exists. While the holder stays, one that only
	// bears the label may be missing as long as no cache has it.
	Pods []corev1.Pod
	// ReplicaSets, Deployments and StatefulSets own some of the pods, by uid. One that is missing
	// counts as not existing.
	ReplicaSets  map[types.UID]*appsv1.ReplicaSet
	Deployments  map[types.UID]*appsv1.Deployment
	StatefulSets map[types.UID]*appsv1.StatefulSet
	// Nodes are those of the pods that are going, and of a holder that is not Ready,
	// by name.
	Nodes map[string]*corev1.Node
	// CachedNodes are those of the pods that are not going, by name, as a cache has
	// them. They tell of drains, and of standbys that can't start: one whose node is missing
	// here, or is not Ready, is not chosen. No proof rests on them.
	CachedNodes map[string]*corev1.Node
	// Claims are those that the pods mount, by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Budgets are the PodDisruptionBudgets of the namespace, as a cache has them.
	Budgets []policyv1.PodDisruptionBudget
}

// HolderStays tells whether the recorded holder is there, was released, and nobody asked
// it to stop. Then no pod is released or recorded, whatever else there is.
func (s Snapshot) HolderStays() bool {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == s.Singleton.Status.ActivePodUID })
	return i >= 0 && !Going(&s.Pods[i]) && !awaitsSignal(&s.Pods[i], held(&s.Pods[i], s.Singleton))
}

// revisionAnnotation is what the Deployment controller numbers its ReplicaSets
// with (k8s.io/kubernetes/pkg/controller/deployment/util.RevisionAnnotation).
const revisionAnnotation = "deployment.kubernetes.io/revision"

// replicaSet is the ReplicaSet that controls the pod, nil if none does.
func (s Snapshot) replicaSet(pod *corev1.Pod) *appsv1.ReplicaSet {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "ReplicaSet" {
		return nil
	}
	return s.ReplicaSets[owner.UID]
}

// deployment is the Deployment that the pod belongs to, nil if it belongs to none.
func (s Snapshot) deployment(pod *corev1.Pod) *appsv1.Deployment {
	rs := s.replicaSet(pod)
	if rs == nil {
		return nil
	}
	owner := metav1.GetControllerOf(rs)
	if owner == nil || owner.Kind != "Deployment" {
		return nil
	}
	return s.Deployments[owner.UID]
}

// statefulSet is the StatefulSet that controls the pod, nil if none does.
func (s Snapshot) statefulSet(pod *corev1.Pod) *appsv1.StatefulSet {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil
	}
	return s.StatefulSets[owner.UID]
}

// revision is the number of the pod's revision in its Deployment. A StatefulSet numbers
// none: 1 for its newest. 0 for any other.
func (s Snapshot) revision(pod *corev1.Pod) int64 {
	if s.statefulSet(pod) != nil && !s.outdated(pod) {
		return 1
	}
	rs := s.replicaSet(pod)
	if rs == nil {
		return 0
	}
	return revisionOf(rs)
}

// revisionOf is the revision that a ReplicaSet has, or a Deployment has come to; 0 if
// it has none.
func revisionOf(o metav1.Object) int64 {
	revision, err := strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// newer tells whether pod is of a newer revision of the same Deployment than old.
func (s Snapshot) newer(pod, old *corev1.Pod) bool {
	d := s.deployment(pod)
	return d != nil && s.deployment(old) == d && s.revision(pod) > s.revision(old)
}

// unwanted tells whether the pod's owner wants no pod any more: it is gone, being
// deleted, or scaled to zero.
func (s Snapshot) unwanted(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	if set := s.StatefulSets[owner.UID]; set != nil {
		return set.DeletionTimestamp != nil || isZero(set.Spec.Replicas)
	}
	rs := s.replicaSet(pod)
	if rs == nil || rs.DeletionTimestamp != nil {
		return owner.Kind == "ReplicaSet" || owner.Kind == "StatefulSet"
	}
	if owner := metav1.GetControllerOf(rs); owner == nil || owner.Kind != "Deployment" {
		return isZero(rs.Spec.Replicas)
	}
	d := s.deployment(pod)
	return d == nil || d.DeletionTimestamp != nil || isZero(d.Spec.Replicas)
}

// outdated tells whether the pod's owner replaces it by one of a newer revision.
func (s Snapshot) outdated(pod *corev1.Pod) bool {
	if set := s.statefulSet(pod); set != nil {
		return set.Status.UpdateRevision != pod.Labels[appsv1.StatefulSetRevisionLabel]
	}
	rs := s.replicaSet(pod)
	return rs != nil && s.deployment(pod) != nil && isZero(rs.Spec.Replicas)
}

func isZero(replicas *int32) bool { return replicas != nil && *replicas == 0 }
