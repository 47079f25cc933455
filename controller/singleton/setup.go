package singleton

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// workers is how many singletons are reconciled at once: each waits for the API server
// nearly all the time.
const workers = 32

// nodeIndex finds the singletons whose holder is on a node.
const nodeIndex = "status.activeNode"

// CacheOptions restricts the cache to what the watches need. Of pods that is the
// metadata, and only of those that bear the singleton's label, so that memory grows
// with the singletons. Of nodes and PodDisruptionBudgets, which are few, it is what
// tells of drains, and of nodes that do not answer.
func CacheOptions() cache.Options {
	hasLabel, err := labels.NewRequirement(v1.SingletonLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			observe.PodMetadata():           {Label: labels.NewSelector().Add(*hasLabel), Transform: onlyShort},
			&v1.StatefulSingleton{}:         {Transform: onlyShort},
			&corev1.Node{}:                  {Transform: onlyDrains},
			&policyv1.PodDisruptionBudget{}: {Transform: onlySpec},
		},
	}
}

// longestAnnotation is the size in bytes of the longest annotation in the cache, and
// longestSelector that of the longest selector of a budget: users choose how long these
// are, and how many objects have them.
const (
	longestAnnotation = 256
	longestSelector   = 16 << 10
)

// onlyShort keeps of an object all but long annotations. Of those of this project it keeps
// the beginning, which tells that the annotation is there.
func onlyShort(o any) (any, error) {
	object, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone of a deleted object
	}
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	for key, value := range annotations {
		switch own := strings.HasPrefix(key, v1.GroupVersion.Group+"/"); {
		case len(value) <= longestAnnotation:
		case own:
			annotations[key] = strings.Clone(value[:longestAnnotation])
		default:
			delete(annotations, key)
		}
	}
	return o, nil
}

// onlyDrains keeps of a node what tells whether it is drained, and whether it answers.
func onlyDrains(o any) (any, error) {
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

// onlySpec keeps of a budget whose it is and which pods it covers. A budget whose selector
// is too long to be kept counts as one that covers none: then drains may be refused, and
// nothing else.
func onlySpec(o any) (any, error) {
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
	turns := make(chan event.GenericEvent, 1024)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("statefulsingleton").
		// The controller's own writes of status need no second look.
		For(&v1.StatefulSingleton{}, builder.WithPredicates(specOrAnnotations)).
		Watches(&v1.StatefulSingleton{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(comesOrGoes())).
		WatchesMetadata(observe.PodMetadata(), r.podEvents()).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.singletonsOnNode), builder.WithPredicates(nodeChanges())).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(r.singletonsOfBudget), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(turns, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			UsePriorityQueue:        new(true),
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
	r.Injector.Wake = func(key types.NamespacedName) {
		singleton := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		select {
		case turns <- event.GenericEvent{Object: singleton}:
		default: // it looks by itself
		}
	}
	r.Injector.Watch = func() (Watched, error) { return r.watchPolicies(mgr, c) }
	return nil
}

// watchPolicies has the singletons reconciled whose policies are changed or
// deleted. Kyverno may be installed after the controller, and a manager whose
// cache knows of a kind that is not served does not start: so the policies have a
// cache of their own, once they are served.
func (r *Reconciler) watchPolicies(mgr ctrl.Manager, c controller.Controller) (Watched, error) {
	served, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:           mgr.GetHTTPClient(),
		Scheme:               mgr.GetScheme(),
		Mapper:               mgr.GetRESTMapper(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{policies.ManagedByLabel: policies.ManagedBy}),
		DefaultTransform:     cache.TransformStripManagedFields(),
	})
	if err != nil {
		return Watched{}, err
	}
	if err := mgr.Add(served); err != nil {
		return Watched{}, err
	}
	informer, err := served.GetInformer(context.Background(), policyMetadata(""), cache.BlockUntilSynced(false))
	if err != nil {
		return Watched{}, err
	}
	return Watched{served, informer.HasSynced}, c.Watch(source.Kind[client.Object](served, policyMetadata(""),
		handler.EnqueueRequestsFromMapFunc(r.singletonsOfPolicy), predicate.GenerationChangedPredicate{}))
}

// neighbours names the other singletons of the namespace: one that comes or goes
// may overlap with them.
func (r *Reconciler) neighbours(ctx context.Context, singleton client.Object) []reconcile.Request {
	return slices.DeleteFunc(r.singletons(ctx, client.InNamespace(singleton.GetNamespace())), func(request reconcile.Request) bool {
		return request.Name == singleton.GetName()
	})
}

// singletons names some of those in the cache.
func (r *Reconciler) singletons(ctx context.Context, which client.ListOption) []reconcile.Request {
	var list v1.StatefulSingletonList
	if err := r.Client.List(ctx, &list, which); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List StatefulSingletons that something changed for; they notice at their next turn")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// nodeChanges passes events that may begin or end a drain, or change whether a node can start
// pods. It drops the initial list: the first reconcile of each singleton reads the nodes.
func nodeChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			return before.Spec.Unschedulable != after.Spec.Unschedulable || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
				handoff.NodeReady(before) != handoff.NodeReady(after)
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// singletonsOnNode names those whose holder or standby is on the node.
func (r *Reconciler) singletonsOnNode(ctx context.Context, node client.Object) []reconcile.Request {
	requests := r.singletons(ctx, client.MatchingFields{nodeIndex: node.GetName()})
	for _, key := range r.places.on(node.GetName()) {
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests // the handler enqueues each once
}

// singletonsOfBudget names those whose holder the budget may cover.
func (r *Reconciler) singletonsOfBudget(ctx context.Context, budget client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOf(budget); owner != nil && owner.Kind == "StatefulSingleton" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: budget.GetNamespace(), Name: owner.Name}}}
	}
	return r.singletons(ctx, client.InNamespace(budget.GetNamespace()))
}

func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// singletonsOfPolicy names those that a policy injects.
func (r *Reconciler) singletonsOfPolicy(ctx context.Context, policy client.Object) []reconcile.Request {
	annotations := policy.GetAnnotations()
	if namespace := annotations[policies.NamespaceAnnotation]; namespace != "" {
		return r.singletons(ctx, client.InNamespace(namespace))
	}
	namespace, name, ok := strings.Cut(annotations[policies.SingletonAnnotation], "/")
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}
