package observe

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// NamedBy returns a function that enqueues the object that the label names. Any user can write a label without a value, which names
// no object: the API server rejects requests with an empty name, so a reconcile would fail for ever.
func NamedBy(label string) handler.MapFunc {
	return func(_ context.Context, object client.Object) []reconcile.Request {
		name := object.GetLabels()[label]
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
	}
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
