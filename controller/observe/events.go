package observe

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
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

// Requests returns requests for the objects in the cache that match the options, and for which the function returns true. The list is
// empty, and has the type of the objects.
func Requests[T client.Object](ctx context.Context, c client.Reader, list client.ObjectList, which func(T) bool, in ...client.ListOption) (requests []reconcile.Request) {
	if err := c.List(ctx, list, in...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list objects after an event. The periodic reconcile handles the change", "list", fmt.Sprintf("%T", list))
		return nil
	}
	_ = eachObject(list, func(o client.Object) error {
		if which(o.(T)) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
		}
		return nil
	})
	return requests
}

// CreatedOrDeleted passes the creation and the removal of an object. It drops the initial list, which enqueues all objects anyway.
func CreatedOrDeleted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return !e.IsInInitialList },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
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
