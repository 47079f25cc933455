package singleton

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// CacheOptions restricts the cache to what the watches need: of pods the metadata,
// and only of those that bear the singleton's label, so that memory grows with the
// singletons and not with the cluster.
func CacheOptions() cache.Options {
	hasLabel, err := labels.NewRequirement(v1.SingletonLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			podMetadata(): {Label: labels.NewSelector().Add(*hasLabel)},
		},
	}
}

func podMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return m
}

// SetupWithManager registers the reconciler and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	specOrAnnotations := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("statefulsingleton").
		// The controller's own writes of status need no second look.
		For(&v1.StatefulSingleton{}, builder.WithPredicates(specOrAnnotations)).
		Watches(&v1.StatefulSingleton{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(comesOrGoes())).
		WatchesMetadata(podMetadata(), handler.EnqueueRequestsFromMapFunc(singletonOfPod)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 16,
			LogConstructor: func(request *reconcile.Request) logr.Logger {
				if request == nil {
					return mgr.GetLogger()
				}
				return mgr.GetLogger().WithValues("singleton", request.String())
			},
			// Not the default of 1000 s at most: a handoff must not wait so long
			// after the API server comes back.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 10*time.Second),
		}).
		Build(r)
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	r.Injector.Watch = func() error { return watchPolicies(mgr, c) }
	return nil
}

// watchPolicies has the singletons reconciled whose policies are changed or
// deleted. Kyverno may be installed after the controller, and a manager whose
// cache knows of a kind that is not served does not start: so the policies have a
// cache of their own, once they are served.
func watchPolicies(mgr ctrl.Manager, c controller.Controller) error {
	served, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:           mgr.GetHTTPClient(),
		Scheme:               mgr.GetScheme(),
		Mapper:               mgr.GetRESTMapper(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{policies.ManagedByLabel: policies.ManagedBy}),
		DefaultTransform:     cache.TransformStripManagedFields(),
	})
	if err != nil {
		return err
	}
	if err := mgr.Add(served); err != nil {
		return err
	}
	return c.Watch(source.Kind[client.Object](served, policyMetadata(""),
		handler.EnqueueRequestsFromMapFunc(singletonOfPolicy), predicate.GenerationChangedPredicate{}))
}

// singletonOfPod names the singleton that a pod belongs to.
func singletonOfPod(_ context.Context, pod client.Object) []reconcile.Request {
	name := pod.GetLabels()[v1.SingletonLabel]
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
}

// neighbours names the other singletons of the namespace: one that comes or goes
// may overlap with them.
func (r *Reconciler) neighbours(ctx context.Context, singleton client.Object) []reconcile.Request {
	var list v1.StatefulSingletonList
	if err := r.Client.List(ctx, &list, client.InNamespace(singleton.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the neighbours of a StatefulSingleton; they look for overlaps at their next turn", "namespace", singleton.GetNamespace())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if list.Items[i].Name != singleton.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// singletonOfPolicy names the singleton that a policy injects.
func singletonOfPolicy(_ context.Context, policy client.Object) []reconcile.Request {
	namespace, name, ok := strings.Cut(policy.GetAnnotations()[policies.SingletonAnnotation], "/")
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}
