package leaseaccess

import (
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

const (
	// workers is the number of concurrent reconciles.
	workers = 4
	// firstRetry and lastRetry are the delays after the first and after many failures of a singleton.
	firstRetry, lastRetry = 100 * time.Millisecond, time.Minute
)

// SetupWithManager registers the reconciler and its watches. The watches of Roles and RoleBindings restore an object that
// somebody deletes or changes.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	toSingleton := handler.EnqueueRequestsFromMapFunc(singletonOf)
	b := ctrl.NewControllerManagedBy(mgr).
		Named("leaseaccess").
		For(&v1.StatefulSingleton{}, builder.WithPredicates(specChanges())).
		WatchesMetadata(observe.PodMetadata(), toSingleton, builder.WithPredicates(fencedPods())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		})
	for _, object := range Watched() {
		b = b.WatchesMetadata(object, toSingleton)
	}
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("set up the controller of the access to Leases: %w", err)
	}
	return nil
}

// Watched returns empty metadata of a Role and a RoleBinding. The cache needs only objects with the singleton's label.
func Watched() []client.Object {
	var all []client.Object
	for _, kind := range []string{roleKind, bindingKind} {
		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(kind))
		all = append(all, m)
	}
	return all
}

// specChanges drops writes of the status. A singleton can be replaced by another of its name between two events.
func specChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration()
	}}
}

// fencedPods passes events that can change which fenced pods a singleton has. The ServiceAccount of a pod is immutable.
func fencedPods() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return isFenced(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return isFenced(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld, e.ObjectNew
			return isFenced(before) != isFenced(after) ||
				isFenced(after) && (before.GetUID() != after.GetUID() || before.GetLabels()[v1.SingletonLabel] != after.GetLabels()[v1.SingletonLabel])
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// singletonOf returns the singleton that the label of a pod, Role or RoleBinding names.
var singletonOf = observe.NamedBy(v1.SingletonLabel)
