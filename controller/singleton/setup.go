package singleton

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// workers is the number of concurrent reconciles. A reconcile mostly waits for the API server.
const workers = 32

// nodeIndex is the index of singletons by the node of the holder.
const nodeIndex = "status.activeNode"

// CacheOptions restricts the cache to what the watches need. It has the Leases with the singleton's label, and the
// metadata of such pods, Roles and RoleBindings, therefore memory grows with the number of singletons. Of nodes and
// PodDisruptionBudgets it has only the fields for drains and for nodes that do not answer. No object has long annotations.
func CacheOptions() cache.Options {
	hasLabel, err := labels.NewRequirement(v1.SingletonLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	options := cache.Options{
		DefaultTransform: observe.TrimMetadata,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:                  {Transform: observe.TrimNode},
			&policyv1.PodDisruptionBudget{}: {Transform: trimBudget},
		},
	}
	for _, object := range append(WatchedAccess(), observe.PodMetadata(), &coordinationv1.Lease{}) {
		options.ByObject[object] = cache.ByObject{Label: labels.NewSelector().Add(*hasLabel)}
	}
	return options
}

// longestSelector is the size in bytes of the longest selector of a budget in the cache. Users choose this size.
const longestSelector = 16 << 10

// trimBudget keeps the owner and the spec of a budget. A budget whose selector is too long counts as a budget that
// covers no pod. At worst, evictions of a pod that it covers fail.
func trimBudget(o any) (any, error) {
	if budget, ok := o.(*policyv1.PodDisruptionBudget); ok {
		budget.ManagedFields, budget.Annotations, budget.Labels, budget.Status = nil, nil, nil, policyv1.PodDisruptionBudgetStatus{}
		if selector := budget.Spec.Selector; selector != nil && selector.Size() > longestSelector {
			budget.Spec.Selector = nil
		}
	}
	return o, nil
}

// SetupWithManager registers the reconciler and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	specOrAnnotations := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.StatefulSingleton{}, nodeIndex, func(o client.Object) []string {
		return []string{o.(*v1.StatefulSingleton).Status.ActiveNode}
	})
	if err != nil {
		return fmt.Errorf("index the StatefulSingletons by node: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("statefulsingleton").
		// The controller's own writes of status need no reconcile.
		For(&v1.StatefulSingleton{}, builder.WithPredicates(specOrAnnotations)).
		Watches(&v1.StatefulSingleton{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(observe.CreatedOrDeleted())).
		WatchesMetadata(observe.PodMetadata(), r.podEvents()).
		Watches(&coordinationv1.Lease{}, r.leaseEvents()).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.singletonsOnNode), builder.WithPredicates(observe.NodeChanges())).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(r.singletonsOfBudget), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Injection.Changes()).
		WatchesRawSource(source.Func(r.enqueueOverdue)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			UsePriorityQueue:        new(true),
			LogConstructor:          injection.LogConstructor(mgr.GetLogger(), injection.Singletons.LogKey),
			// The default maximum of 1000 s is too long: a handoff would wait that long after an outage of
			// the API server.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 10*time.Second),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	return nil
}

// neighbours returns the other singletons of the namespace that may select pods of the singleton.
func (r *Reconciler) neighbours(ctx context.Context, o client.Object) []reconcile.Request {
	singleton := o.(*v1.StatefulSingleton)
	return r.singletons(ctx, func(other *v1.StatefulSingleton) bool {
		return other.Name != singleton.Name && mayOverlap(&singleton.Spec.Selector, &other.Spec.Selector)
	}, client.InNamespace(singleton.Namespace))
}

// mayOverlap returns false if no pod can match both selectors, because they need different values of one label.
func mayOverlap(a, b *v1.LabelSelector) bool {
	for key, value := range a.MatchLabels {
		if other, ok := b.MatchLabels[key]; ok && other != value {
			return false
		}
	}
	return true
}

func anySingleton(*v1.StatefulSingleton) bool { return true }

// singletons returns the singletons in the cache that match the option, and for which the function returns true.
func (r *Reconciler) singletons(ctx context.Context, which func(*v1.StatefulSingleton) bool, in client.ListOption) []reconcile.Request {
	return observe.Requests(ctx, r.Client, &v1.StatefulSingletonList{}, which, in)
}

// singletonsOnNode returns the singletons with a holder or standby on the node.
func (r *Reconciler) singletonsOnNode(ctx context.Context, node client.Object) []reconcile.Request {
	requests := r.singletons(ctx, anySingleton, client.MatchingFields{nodeIndex: node.GetName()})
	for _, key := range r.podNodes.on(node.GetName()) {
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests // the handler removes duplicates
}

// singletonsOfBudget returns the singletons whose holder the budget may cover.
func (r *Reconciler) singletonsOfBudget(ctx context.Context, budget client.Object) []reconcile.Request {
	if its := owner.Of(budget, owner.StatefulSingleton); its != nil {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: budget.GetNamespace(), Name: its.Name}}}
	}
	return r.singletons(ctx, anySingleton, client.InNamespace(budget.GetNamespace()))
}
