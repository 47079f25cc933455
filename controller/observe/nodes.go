package observe

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// TrimNode is the transform of nodes in a cache. It keeps the fields of a node that show a drain, and whether the node is Ready.
func TrimNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil // a tombstone of a deleted object
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return kept, nil
}

// NodeChanges passes events that can begin or end a drain, or change whether a node can start pods. It drops the
// initial list, because the first reconcile of each object reads the nodes.
func NodeChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			return before.Spec.Unschedulable != after.Spec.Unschedulable || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
				proof.NodeReady(before) != proof.NodeReady(after)
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
