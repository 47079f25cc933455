package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// workers is the number of concurrent reconciles. A reconcile mostly waits for the API server.
const workers = 8

// labelledKinds are the kinds of the objects that have the label of their StatefulCluster.
var labelledKinds = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Pod"),
	corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	appsv1.SchemeGroupVersion.WithKind("ControllerRevision"),
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(kind)
	return m
}

// CacheOptions restricts the cache to what the watches need: the conditions and nodes of StatefulClusters, the metadata of objects
// with their label, and the fields of nodes for drains and for lost nodes. No object has long annotations.
func CacheOptions() cache.Options {
	hasLabel, err := labels.NewRequirement(v1.ClusterLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	options := cache.Options{
		DefaultTransform: observe.TrimMetadata,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:        {Transform: observe.TrimNode},
			&v1.StatefulCluster{}: {Transform: trimCluster},
		},
	}
	for _, kind := range labelledKinds {
		options.ByObject[metadataOf(kind)] = cache.ByObject{Label: labels.NewSelector().Add(*hasLabel)}
	}
	return options
}

// trimCluster removes the fields of a StatefulCluster that neither watches nor metrics need.
func trimCluster(o any) (any, error) {
	if cluster, ok := o.(*v1.StatefulCluster); ok {
		cluster.Spec, cluster.Status.Released = v1.StatefulClusterSpec{}, nil
		for i, m := range cluster.Status.Members {
			cluster.Status.Members[i] = v1.ClusterMember{Node: m.Node, State: m.State}
		}
	}
	return observe.TrimMetadata(o)
}

// SetupWithManager registers the reconciler and its watches. No watch is for EndpointSlices: Plan.Requeue is short while a pod
// waits for its removal from them.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	changes := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	controllers := ctrl.NewControllerManagedBy(mgr).
		Named("statefulcluster").
		// The controller's own writes of status need no reconcile.
		For(&v1.StatefulCluster{}, builder.WithPredicates(changes)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.clustersOnNode), builder.WithPredicates(observe.NodeChanges())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 10*time.Second),
		})
	for _, kind := range labelledKinds {
		controllers = controllers.WatchesMetadata(metadataOf(kind), handler.EnqueueRequestsFromMapFunc(observe.NamedBy(v1.ClusterLabel)))
	}
	if err := controllers.Complete(r); err != nil {
		return fmt.Errorf("set up the controller of StatefulClusters: %w", err)
	}
	return nil
}

// clustersOnNode returns the StatefulClusters with a pod on the node.
func (r *Reconciler) clustersOnNode(ctx context.Context, node client.Object) []reconcile.Request {
	return observe.Requests(ctx, r.Client, &v1.StatefulClusterList{}, func(cluster *v1.StatefulCluster) bool {
		return slices.ContainsFunc(cluster.Status.Members, func(m v1.ClusterMember) bool { return m.Node == node.GetName() })
	})
}
