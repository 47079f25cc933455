package injection

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// workers is the number of concurrent reconciles, and limits the number of concurrent dry-runs: for each of them, the
// API server evaluates the webhooks of all policies.
const workers = 8

// SetupWithManager registers the reconciler and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named(r.Kind.Controller).
		For(r.Kind.New(), builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, finalizerAdded(), variantChanged()))).
		Watches(r.Kind.New(), handler.EnqueueRequestsFromMapFunc(r.waitingBeside), builder.WithPredicates(isDeletion)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			UsePriorityQueue:        new(true),
			LogConstructor:          LogConstructor(mgr.GetLogger(), r.Kind.LogKey),
		})
	if r.APIServer != nil {
		b.WatchesRawSource(source.Channel(r.APIServer.changes(), handler.EnqueueRequestsFromMapFunc(r.fenced)))
	}
	c, err := b.Build(r)
	if err != nil {
		return fmt.Errorf("set up the controller of the policies: %w", err)
	}
	r.Watch = func() (Watched, error) { return r.watchPolicies(mgr, c) }
	return nil
}

// LogConstructor returns a function that adds the object of a request to the log, with the key.
func LogConstructor(log logr.Logger, key string) func(*reconcile.Request) logr.Logger {
	return func(request *reconcile.Request) logr.Logger {
		if request == nil {
			return log
		}
		return log.WithValues(key, request.String())
	}
}

// finalizerAdded passes updates that add the finalizer to an object.
func finalizerAdded() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return controllerutil.ContainsFinalizer(e.ObjectNew, v1.PolicyFinalizer) && !controllerutil.ContainsFinalizer(e.ObjectOld, v1.PolicyFinalizer)
	}}
}

// variantChanged passes updates after which the policy needs other rules, for example because of the volumes in the status.
func variantChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return policies.Variant(e.ObjectNew.(policies.Subject)) != policies.Variant(e.ObjectOld.(policies.Subject))
	}}
}

// watchPolicies enqueues the objects whose policies are changed or deleted. The policies have a cache of their own,
// which starts once the API server serves them. Kyverno may be installed after the controller, and a manager does
// not start if its cache has a kind that is not served.
func (r *Reconciler) watchPolicies(mgr ctrl.Manager, c controller.Controller) (Watched, error) {
	served, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:           mgr.GetHTTPClient(),
		Scheme:               mgr.GetScheme(),
		Mapper:               mgr.GetRESTMapper(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{v1.ManagedByLabel: v1.ManagedBy}),
		DefaultTransform:     observe.TrimMetadata,
		// A read of a kind that is not watched must not start a watch.
		ReaderFailOnMissingInformer: true,
		DefaultWatchErrorHandler:    ignoreUnserved,
	})
	if err != nil {
		return Watched{}, err
	}
	synced, kinds, err := r.startInformers(served)
	if err != nil {
		return Watched{}, err
	}
	// After GetInformer, because a manager cannot remove a cache whose kind is not served.
	if err := mgr.Add(served); err != nil {
		return Watched{}, err
	}
	for _, kind := range kinds {
		err := c.Watch(source.Kind[client.Object](served, policyMetadata(policies.Ref{Kind: kind}),
			handler.EnqueueRequestsFromMapFunc(r.objectsOfPolicy), predicate.GenerationChangedPredicate{}))
		if err != nil {
			return Watched{}, err
		}
	}
	return Watched{served, synced}, nil
}

// ignoreUnserved does not log that the API server no longer serves a watched kind. Kyverno 1.21 drops the definition of
// ClusterPolicies. The watch retries, and continues if the definition returns.
func ignoreUnserved(ctx context.Context, reflector *toolscache.Reflector, err error) {
	if !apierrors.IsNotFound(err) {
		toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
	}
}

// startInformers starts an informer for each kind of policies that the API server serves, and returns these kinds. Kyverno
// serves each kind only in some versions, so only the kind of the options is required.
func (r *Reconciler) startInformers(served cache.Cache) (synced func() bool, kinds []policies.Kind, err error) {
	var all []cache.Informer
	for _, kind := range policies.Kinds {
		informer, err := served.GetInformer(context.Background(), policyMetadata(policies.Ref{Kind: kind}), cache.BlockUntilSynced(false))
		if meta.IsNoMatchError(err) && kind.GVK() != r.Options.Kind.GVK() {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		all, kinds = append(all, informer), append(kinds, kind)
	}
	return func() bool { return !slices.ContainsFunc(all, func(i cache.Informer) bool { return !i.HasSynced() }) }, kinds, nil
}

// objectsOfPolicy returns the objects whose pods a policy injects.
func (r *Reconciler) objectsOfPolicy(ctx context.Context, policy client.Object) []reconcile.Request {
	annotations := policy.GetAnnotations()
	if namespace := annotations[policies.NamespaceAnnotation]; namespace != "" {
		return observe.Requests(ctx, r.Client, r.Kind.NewList(), func(client.Object) bool { return true }, client.InNamespace(namespace))
	}
	namespace, name, ok := strings.Cut(annotations[r.Kind.Annotation], "/")
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

// fenced returns the objects whose policies say which API server fenced pods use.
func (r *Reconciler) fenced(ctx context.Context, _ client.Object) []reconcile.Request {
	return observe.Requests(ctx, r.Client, r.Kind.NewList(), policies.Fences)
}
