package singleton

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
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
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

const (
	// eventRefused is the reason of the event that reports another object with the name of the Role or the RoleBinding.
	eventRefused = "LeaseAccessRefused"
	// accessWorkers is the number of concurrent reconciles.
	accessWorkers = 4
	// firstRetry and lastRetry are the delays after the first and after many failures of a singleton.
	firstRetry, lastRetry = 100 * time.Millisecond, time.Minute
)

// LeaseAccess lets the fenced pods of a singleton renew the Lease: it writes a Role and a RoleBinding of their ServiceAccounts. A
// fenced pod needs access only after the Lease names the pod. Without access, the pod starts no main process.
type LeaseAccess struct {
	// Client writes, and reads from the cache, which has only the metadata of pods, Roles and RoleBindings.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Recorder emits the events.
	Recorder events.EventRecorder
}

// Reconcile writes or deletes the Role and the RoleBinding. A singleton that is being deleted needs no changes, because
// it releases no pod. The garbage collector could delete each new object at once.
func (r *LeaseAccess) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	singleton := &v1.StatefulSingleton{}
	if err := r.Client.Get(ctx, request.NamespacedName, singleton); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !singleton.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if unused, err := r.unused(ctx, singleton); unused || err != nil {
		return ctrl.Result{}, err
	}
	accounts, err := r.serviceAccounts(ctx, singleton)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the pods of StatefulSingleton %s: %w", request, err)
	}
	if singleton.Spec.Fencing == v1.FencingLease || len(accounts) > 0 {
		err = leases.Grant(ctx, r.Client, r.Live, leases.OfSingleton(singleton), accounts)
	} else {
		err = leases.Revoke(ctx, r.Client, r.Live, leases.OfSingleton(singleton))
	}
	return r.result(ctx, singleton, err)
}

// unused returns true if, in the cache, the singleton has no fencing, no fenced pod, no Role and no RoleBinding.
// Therefore a singleton without fencing costs no reads from the API server.
func (r *LeaseAccess) unused(ctx context.Context, singleton *v1.StatefulSingleton) (bool, error) {
	if singleton.Spec.Fencing == v1.FencingLease {
		return false, nil
	}
	pods, err := r.observer().Labelled(ctx, singleton)
	if err != nil || slices.ContainsFunc(pods, func(pod metav1.PartialObjectMetadata) bool { return isFenced(&pod) }) {
		return false, err
	}
	for _, object := range WatchedAccess() {
		if err := r.Client.Get(ctx, leases.OfSingleton(singleton).Key(), object); !apierrors.IsNotFound(err) {
			return false, err
		}
	}
	return true, nil
}

// serviceAccounts returns the names of the ServiceAccounts of the fenced pods, in order. A pod needs access until its
// object is removed, also while the pod is terminating.
func (r *LeaseAccess) serviceAccounts(ctx context.Context, singleton *v1.StatefulSingleton) ([]string, error) {
	pods, err := r.observer().LabelledLive(ctx, singleton)
	names := sets.New[string]()
	for i := range pods {
		if isFenced(&pods[i]) {
			names.Insert(cmp.Or(pods[i].Spec.ServiceAccountName, "default"))
		}
	}
	return sets.List(names), err
}

// result reports the error of a reconcile. A conflict and an object that the garbage collector will delete are
// temporary: the queue retries without a stack trace in the log.
func (r *LeaseAccess) result(ctx context.Context, singleton *v1.StatefulSingleton, err error) (ctrl.Result, error) {
	foreign, isForeign := errors.AsType[*leases.ForeignError](err)
	switch {
	case isForeign:
		r.Recorder.Eventf(singleton, nil, corev1.EventTypeWarning, eventRefused, "GrantAccess", "%s", apply.CutNote(foreign.Error()))
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ctrl.Result{}, nil
	case errors.Is(err, leases.ErrOutdated) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err):
		ctrl.LoggerFrom(ctx).V(1).Info("The access to the Lease is not up to date yet. Trying again", "error", err)
		return ctrl.Result{Requeue: true}, nil //nolint:staticcheck // with the rate limit, and without a stack trace
	}
	return ctrl.Result{}, err
}

func (r *LeaseAccess) observer() observe.Observer {
	return observe.Observer{Client: r.Client, Live: r.Live}
}

// isFenced returns true if a policy has prepared the pod for fencing by a Lease.
func isFenced(pod client.Object) bool {
	return pod.GetAnnotations()[v1.FencingAnnotation] == string(v1.FencingLease)
}

// SetupWithManager registers the reconciler and its watches. The watches of Roles and RoleBindings restore an object that
// somebody deletes or changes.
func (r *LeaseAccess) SetupWithManager(mgr ctrl.Manager) error {
	toSingleton := handler.EnqueueRequestsFromMapFunc(observe.NamedBy(v1.SingletonLabel))
	b := ctrl.NewControllerManagedBy(mgr).
		Named("leaseaccess").
		For(&v1.StatefulSingleton{}, builder.WithPredicates(specChanges())).
		WatchesMetadata(observe.PodMetadata(), toSingleton, builder.WithPredicates(fencedPods())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: accessWorkers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		})
	for _, object := range WatchedAccess() {
		b = b.WatchesMetadata(object, toSingleton)
	}
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("set up the controller of the access to Leases: %w", err)
	}
	return nil
}

// WatchedAccess returns empty metadata of a Role and a RoleBinding. The cache needs only objects with the singleton's label.
func WatchedAccess() []client.Object {
	var all []client.Object
	for _, kind := range []string{"Role", "RoleBinding"} {
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
