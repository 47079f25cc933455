package handoff

import (
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Snapshot is the input of a decision. Proofs rest on live reads from the API server, because a cache may not
// have the latest report of a kubelet.
type Snapshot struct {
	// Singleton was read before the pods. If its record changes after that read, the compare-and-swap
	// fails.
	Singleton *v1.StatefulSingleton
	// Others are the other singletons of the namespace. They may come from the cache while HolderStays.
	Others []v1.StatefulSingleton
	// Pods are the pods that the selector matches, the pods with the singleton's label, and the recorded
	// holder if it exists. While HolderStays, a pod that only has the label may be missing until
	// the cache has it.
	Pods []corev1.Pod
	// ReplicaSets, Deployments and StatefulSets own some of the pods, by UID. A missing owner counts as
	// one that does not exist.
	ReplicaSets  map[types.UID]*appsv1.ReplicaSet
	Deployments  map[types.UID]*appsv1.Deployment
	StatefulSets map[types.UID]*appsv1.StatefulSet
	// Nodes are the nodes of terminating and ended pods, and of a holder that is not Ready, by name. They are
	// live reads.
	Nodes map[string]*corev1.Node
	// CachedNodes are the nodes of pods that are neither terminating nor ended, and of the last holder while there is none, by name, from the
	// cache. They
	// show drains, and nodes that cannot start a standby: a standby whose node is missing here or is not Ready is
	// not chosen. No proof rests on them.
	CachedNodes map[string]*corev1.Node
	// Claims are the PersistentVolumeClaims of the pods, by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Attached are those of ClaimsElsewhere whose volumes are attached to that node, by name.
	Attached map[string]bool
	// Lease fences pods. It was read after the singleton.
	Lease leases.Observed
	// Budgets are the PodDisruptionBudgets of the namespace, from the cache.
	Budgets []policyv1.PodDisruptionBudget
}

// HolderStays returns true if the recorded holder exists, waits for no signal, and is neither terminating nor ended.
// Then no other pod is released or recorded.
func (s Snapshot) HolderStays() bool {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == s.Singleton.Status.ActivePodUID })
	if i < 0 {
		return false
	}
	s = Snapshot{Singleton: s.Singleton, Pods: s.Pods[i : i+1], Lease: s.Lease} // the Snapshot may not be complete yet
	holder := classify(s)[0]
	return !proof.Going(holder.Pod) && !s.awaitsRelease(holder) && !s.leaseRunsOut(holder)
}

// revisionAnnotation is the annotation with which the Deployment controller numbers its ReplicaSets
// (k8s.io/kubernetes/pkg/controller/deployment/util.RevisionAnnotation).
const revisionAnnotation = "deployment.kubernetes.io/revision"

// replicaSet returns the ReplicaSet that controls the pod, or nil.
func (s Snapshot) replicaSet(pod *corev1.Pod) *appsv1.ReplicaSet {
	return controllerOf(pod, owner.ReplicaSet, s.ReplicaSets)
}

// deployment returns the Deployment that the pod belongs to, or nil.
func (s Snapshot) deployment(pod *corev1.Pod) *appsv1.Deployment {
	rs := s.replicaSet(pod)
	if rs == nil {
		return nil
	}
	return controllerOf(rs, owner.Deployment, s.Deployments)
}

// statefulSet returns the StatefulSet that controls the pod, or nil.
func (s Snapshot) statefulSet(pod *corev1.Pod) *appsv1.StatefulSet {
	return controllerOf(pod, owner.StatefulSet, s.StatefulSets)
}

// controllerOf returns the object of the kind that controls another object, or nil.
func controllerOf[T any, P interface {
	*T
	metav1.Object
}](object metav1.Object, kind schema.GroupKind, all map[types.UID]*T) *T {
	ref := owner.Of(object, kind)
	if ref == nil || all[ref.UID] == nil || !owner.Controls(P(all[ref.UID]), kind, object) {
		return nil
	}
	return all[ref.UID]
}

// revision returns the number of the pod's revision in its Deployment. Revisions of a StatefulSet have no
// numbers: revision returns 1 for the newest. It returns 0 for all other pods.
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

// revisionOf returns the revision of a ReplicaSet or Deployment, or 0.
func revisionOf(o metav1.Object) int64 {
	revision, err := strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// newer returns true if pod has a newer revision of the same Deployment than old.
func (s Snapshot) newer(pod, old *corev1.Pod) bool {
	d := s.deployment(pod)
	return d != nil && s.deployment(old) == d && s.revision(pod) > s.revision(old)
}

// unwanted returns true if the pod's owner was deleted, is being deleted, or is scaled to zero.
func (s Snapshot) unwanted(pod *corev1.Pod) bool {
	if set := s.statefulSet(pod); set != nil {
		return set.DeletionTimestamp != nil || isZero(set.Spec.Replicas)
	}
	rs := s.replicaSet(pod)
	if rs == nil || rs.DeletionTimestamp != nil {
		return owner.Of(pod, owner.ReplicaSet) != nil || owner.Of(pod, owner.StatefulSet) != nil
	}
	if owner.Of(rs, owner.Deployment) == nil {
		return isZero(rs.Spec.Replicas)
	}
	d := s.deployment(pod)
	return d == nil || d.DeletionTimestamp != nil || isZero(d.Spec.Replicas)
}

// outdated returns true if the pod's owner is replacing the pod with a pod of a newer revision.
func (s Snapshot) outdated(pod *corev1.Pod) bool {
	if set := s.statefulSet(pod); set != nil {
		return set.Status.UpdateRevision != pod.Labels[appsv1.StatefulSetRevisionLabel]
	}
	rs := s.replicaSet(pod)
	return rs != nil && s.deployment(pod) != nil && isZero(rs.Spec.Replicas)
}

func isZero(replicas *int32) bool { return replicas != nil && *replicas == 0 }
