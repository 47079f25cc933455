package tenure

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Snapshot is the input of a decision. Pods, the StatefulSet, the Lease and the nodes of terminating pods are live reads. Other
// nodes come from the cache.
type Snapshot struct {
	// Lock was read before the other objects. If its record changes after that read, the compare-and-swap fails.
	Lock *v1.StatefulSetLock
	// Others are the other locks of the StatefulSet. They come from the cache if one of them is older.
	Others []v1.StatefulSetLock
	// StatefulSet is nil if it does not exist.
	StatefulSet *appsv1.StatefulSet
	// Pods are the pods of the StatefulSet, the pods with the lock's label, and the recorded writer if it exists.
	Pods []corev1.Pod
	// Nodes are the nodes of the pods, by name.
	Nodes map[string]*corev1.Node
	// Lease is the Lease with the name in the spec.
	Lease leases.Observed
	// Serving is true if an EndpointSlice of a Service for writers lists the recorded writer as serving.
	Serving bool
	// Budgets are the PodDisruptionBudgets of the namespace.
	Budgets []policyv1.PodDisruptionBudget
}

// pod is a pod of a Snapshot.
type pod struct {
	*corev1.Pod
	// member is true if the StatefulSet controls the pod.
	member  bool
	ordinal int
	// labelled is true if the pod has the label of a writer.
	labelled bool
	// began is the epoch of the pod's last tenure, which a fenced pod has before its label. ended is the last epoch that ended or was about to end.
	began, ended int64
	// fenced is true if the pod is a writer only while it holds the Lease of the lock. notFenced says why it is not.
	fenced    bool
	notFenced string
	// prepared is true if the main processes of the pod follow some Lease.
	prepared bool
	// duration is how long a fenced pod can be the writer after a renewal.
	duration time.Duration
	// drained says why the node is being drained. Empty: it is not.
	drained string
	// outdated is true if a rollout will replace the pod.
	outdated bool
}

// classify returns the pods of the Snapshot, sorted by ordinal and then by name.
func classify(s Snapshot) []*pod {
	all := make([]*pod, len(s.Pods))
	for i := range s.Pods {
		is := &s.Pods[i]
		p := &pod{
			Pod: is, ordinal: ordinalOf(is), labelled: is.Labels[v1.StsRoleLabel] == v1.StsRoleWriter,
			began: epochIn(is, v1.TenureAnnotation), ended: epochIn(is, v1.TenureEndedAnnotation),
			drained: proof.Drained(is, s.Nodes[is.Spec.NodeName]),
		}
		p.member = s.StatefulSet != nil && owner.Controls(s.StatefulSet, owner.StatefulSet, is)
		p.outdated = p.member && outdated(s.StatefulSet, p)
		p.prepared = is.Annotations[v1.FencingAnnotation] == string(v1.FencingLease)
		p.duration, p.notFenced = fencedBy(is, s.Lock)
		p.fenced = p.notFenced == ""
		all[i] = p
	}
	slices.SortFunc(all, func(a, b *pod) int { return cmp.Or(cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(a.Name, b.Name)) })
	return all
}

// InOrder returns the pods of the Snapshot in the order of their ordinals.
func InOrder(s Snapshot) []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range classify(s) {
		all = append(all, p.Pod)
	}
	return all
}

// ordinalOf returns the ordinal of a pod of a StatefulSet, or a number above all ordinals.
func ordinalOf(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Name[strings.LastIndex(p.Name, "-")+1:])
	if err != nil {
		return math.MaxInt
	}
	return n
}

// epochIn returns the epoch in an annotation, or 0. A Lease has no room for larger epochs than that of an int32.
func epochIn(object metav1.Object, annotation string) int64 {
	n, err := strconv.ParseInt(object.GetAnnotations()[annotation], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// outdated returns true if a rollout of the StatefulSet will replace the pod by itself.
func outdated(set *appsv1.StatefulSet, p *pod) bool {
	strategy := set.Spec.UpdateStrategy
	if strategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return false
	}
	if r := strategy.RollingUpdate; r != nil && p.ordinal < int(ptr.Deref(r.Partition, 0)) {
		return false
	}
	return set.Status.UpdateRevision != p.Labels[appsv1.StatefulSetRevisionLabel]
}

func (p *pod) ready() bool {
	return !proof.Going(p.Pod) && proof.IsTrue(p.Pod, corev1.PodReady)
}

// followsOtherLease returns true if the main processes of the pod never become writers for this lock.
func (p *pod) followsOtherLease() bool { return p.prepared && !p.fenced }

func (p *pod) protected() bool { return slices.Contains(p.Finalizers, v1.HandoffFinalizer) }

// find returns the pod with the UID, or nil.
func find(all []*pod, uid types.UID) *pod {
	i := slices.IndexFunc(all, func(p *pod) bool { return p.UID == uid })
	if i < 0 {
		return nil
	}
	return all[i]
}

// Ending returns true if the label of the recorded writer was removed, because its tenure ends.
func Ending(s Snapshot) bool {
	for i := range s.Pods {
		if p := &s.Pods[i]; p.UID == s.Lock.Status.WriterPodUID {
			return p.Labels[v1.StsRoleLabel] != v1.StsRoleWriter && epochIn(p, v1.TenureEndedAnnotation) >= s.Lock.Status.Epoch
		}
	}
	return false
}
