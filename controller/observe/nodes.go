package observe

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

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
