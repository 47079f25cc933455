// Package clusterpolicy reports whether the policy of a StatefulCluster is installed, and keeps the StatefulCluster until
// its policy is deleted. Package injection installs the policy. The manager of StatefulClusters creates the pods and writes the
// rest of the status.
//
// The manager writes the status by compare-and-swap. This package writes only condition PolicyInstalled, by server-side apply.
// So neither overwrites what the other wrote. After a conflict, the manager decides again.
package clusterpolicy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
)

const (
	// conflictDelay is how long to wait after a conflict with a write of another client.
	conflictDelay = 20 * time.Millisecond
	// fieldOwner owns condition PolicyInstalled.
	fieldOwner = client.FieldOwner("statefulsingleton")
)

// Reconciler reports the policies of StatefulClusters.
type Reconciler struct {
	// Client writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Injection has the condition PolicyInstalled of each StatefulCluster.
	Injection *injection.Reconciler
}

// SetupWithManager registers the reconciler and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("clusterpolicy").
		For(&v1.StatefulCluster{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(r.enqueueChanges)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of the policies of StatefulClusters: %w", err)
	}
	return nil
}

// enqueueChanges enqueues the StatefulClusters whose condition PolicyInstalled changes.
func (r *Reconciler) enqueueChanges(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Injection.OnChange(func(key types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: key}) })
	return nil
}

// Reconcile keeps the finalizer while the policy exists, and reports whether the policy is installed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := &v1.StatefulCluster{}
	if err := r.Live.Get(ctx, request.NamespacedName, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	do := r.install
	if cluster.DeletionTimestamp != nil {
		do = r.finalize
	}
	switch err := do(ctx, cluster); {
	case ctx.Err() != nil:
		return ctrl.Result{}, nil // the controller stops
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictDelay}, nil
	default:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
}

// install adds the finalizer, after which the policy is installed, and reports the condition.
func (r *Reconciler) install(ctx context.Context, cluster *v1.StatefulCluster) error {
	if err := r.patchFinalizer(ctx, cluster, controllerutil.AddFinalizer); err != nil {
		return err
	}
	return r.report(ctx, cluster)
}

// report writes condition PolicyInstalled if it has changed.
func (r *Reconciler) report(ctx context.Context, cluster *v1.StatefulCluster) error {
	conditions := slices.Clone(cluster.Status.Conditions)
	meta.SetStatusCondition(&conditions, r.Injection.Condition(cluster))
	if equality.Semantic.DeepEqual(conditions, cluster.Status.Conditions) {
		return nil
	}
	return r.apply(ctx, cluster, meta.FindStatusCondition(conditions, v1.ConditionPolicyInstalled))
}

// apply writes the condition and no other field. It fails if the StatefulCluster was recreated.
func (r *Reconciler) apply(ctx context.Context, cluster *v1.StatefulCluster, condition *metav1.Condition) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(condition)
	if err != nil {
		return fmt.Errorf("encode condition %s: %w", condition.Type, err)
	}
	applied := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{fields}}}}
	applied.SetGroupVersionKind(v1.GroupVersion.WithKind("StatefulCluster"))
	applied.SetNamespace(cluster.Namespace)
	applied.SetName(cluster.Name)
	applied.SetUID(cluster.UID)
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), fieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("write condition %s of StatefulCluster %s: %w", condition.Type, client.ObjectKeyFromObject(cluster), err)
	}
	return nil
}

// finalize removes the finalizer after the policy is deleted. A change of the condition causes another reconcile.
func (r *Reconciler) finalize(ctx context.Context, cluster *v1.StatefulCluster) error {
	switch installed := r.Injection.Condition(cluster); installed.Reason {
	case injection.Removed:
		return r.patchFinalizer(ctx, cluster, controllerutil.RemoveFinalizer)
	case injection.NotRemoved:
		return r.report(ctx, cluster)
	}
	return nil
}

// patchFinalizer adds or removes the finalizer.
func (r *Reconciler) patchFinalizer(ctx context.Context, cluster *v1.StatefulCluster, change func(client.Object, string) bool) error {
	before := cluster.DeepCopy()
	if !change(cluster, v1.PolicyFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("write finalizer %s of StatefulCluster %s: %w", v1.PolicyFinalizer, client.ObjectKeyFromObject(cluster), err)
	}
	return nil
}
