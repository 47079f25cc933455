package lock

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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// workers is the number of concurrent reconciles. A reconcile mostly waits for the API server.
	workers = 8
	// overduePeriod is how often to look for Leases whose renewal is overdue. The shortest duration of a fenced Lease is 5 s.
	overduePeriod = 500 * time.Millisecond
)

// SetupWithManager registers the reconciler and its watches. Pods and Leases with the lock's label have a cache of their
// own, because the cache of the manager has those of StatefulSingletons.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	hasLabel, err := labels.NewRequirement(v1.LockLabel, selection.Exists, nil)
	if err != nil {
		return err
	}
	labelled, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultLabelSelector: labels.NewSelector().Add(*hasLabel),
		DefaultTransform:     observe.TrimMetadata,
	})
	if err != nil {
		return fmt.Errorf("set up the cache of pods with a lock: %w", err)
	}
	if err := mgr.Add(labelled); err != nil {
		return err
	}
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &v1.StatefulSetLock{}, observe.StatefulSetNameField, func(o client.Object) []string {
		return []string{o.(*v1.StatefulSetLock).Spec.StatefulSetName}
	})
	if err != nil {
		return fmt.Errorf("index the StatefulSetLocks by StatefulSet: %w", err)
	}
	specOrAnnotations := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	err = ctrl.NewControllerManagedBy(mgr).
		Named("statefulsetlock").
		// The controller's own writes of status need no reconcile.
		For(&v1.StatefulSetLock{}, builder.WithPredicates(specOrAnnotations)).
		Watches(&v1.StatefulSetLock{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(observe.CreatedOrDeleted())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.locksOnNode), builder.WithPredicates(observe.NodeChanges())).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(r.locksOfBudget), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Kind[client.Object](labelled, observe.PodMetadata(), handler.EnqueueRequestsFromMapFunc(lockOf))).
		WatchesRawSource(source.Kind[client.Object](labelled, &coordinationv1.Lease{}, r.leaseEvents())).
		WatchesRawSource(source.Func(r.enqueueOverdue)).
		WatchesRawSource(r.Injection.Changes()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 10*time.Second),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of StatefulSetLocks: %w", err)
	}
	return nil
}

// leaseEvents returns the handler that restarts the silence of a Lease. It enqueues the lock if its Lease was deleted or
// released, or if a fenced pod says that it is the writer.
func (r *Reconciler) leaseEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.silent(e.Object.(*coordinationv1.Lease))
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, after := e.ObjectOld.(*coordinationv1.Lease), e.ObjectNew.(*coordinationv1.Lease)
			r.silent(after)
			released := leases.HolderOf(after) == "" && leases.HolderOf(before) != ""
			if released || before.Annotations[signal.WritingAnnotation] != after.Annotations[signal.WritingAnnotation] {
				enqueueLock(q, after)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.silence.Forget(client.ObjectKeyFromObject(e.Object))
			enqueueLock(q, e.Object)
		},
	}
}

// silent returns Observed.Silent of a Lease that was just read or watched.
func (r *Reconciler) silent(lease *coordinationv1.Lease) time.Duration {
	return r.silence.See(lease, r.Clock.Now())
}

// enqueueOverdue enqueues the locks whose Lease is overdue, until ctx ends.
func (r *Reconciler) enqueueOverdue(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		overdue := sets.New(r.silence.Overdue(r.Clock.Now())...)
		if overdue.Len() == 0 {
			return
		}
		for _, request := range r.locks(ctx, func(lock *v1.StatefulSetLock) bool {
			return overdue.Has(types.NamespacedName{Namespace: lock.Namespace, Name: lock.Spec.LeaseName})
		}) {
			q.Add(request)
		}
	}, overduePeriod)
	return nil
}

// lockOf returns the lock that the label of the object names.
var lockOf = observe.NamedBy(v1.LockLabel)

func enqueueLock(q workqueue.TypedRateLimitingInterface[reconcile.Request], object client.Object) {
	for _, request := range lockOf(context.Background(), object) {
		q.Add(request)
	}
}

// neighbours returns the other locks of the StatefulSet that wait for the lock, because it is older.
func (r *Reconciler) neighbours(ctx context.Context, o client.Object) []reconcile.Request {
	lock := o.(*v1.StatefulSetLock)
	return r.locks(ctx, func(other *v1.StatefulSetLock) bool {
		return tenure.OlderLock(other, []v1.StatefulSetLock{*lock}) != ""
	}, client.InNamespace(lock.Namespace), client.MatchingFields{observe.StatefulSetNameField: lock.Spec.StatefulSetName})
}

// locksOnNode returns the locks whose writer runs on the node.
func (r *Reconciler) locksOnNode(ctx context.Context, node client.Object) []reconcile.Request {
	return r.locks(ctx, func(lock *v1.StatefulSetLock) bool { return lock.Status.WriterNode == node.GetName() })
}

// locksOfBudget returns the locks whose writer the budget may cover.
func (r *Reconciler) locksOfBudget(ctx context.Context, budget client.Object) []reconcile.Request {
	if its := owner.Of(budget, owner.StatefulSetLock); its != nil {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: budget.GetNamespace(), Name: its.Name}}}
	}
	return r.locks(ctx, func(*v1.StatefulSetLock) bool { return true }, client.InNamespace(budget.GetNamespace()))
}

// locks returns the locks in the cache for which the function returns true.
func (r *Reconciler) locks(ctx context.Context, which func(*v1.StatefulSetLock) bool, in ...client.ListOption) []reconcile.Request {
	return observe.Requests(ctx, r.Client, &v1.StatefulSetLockList{}, which, in...)
}
