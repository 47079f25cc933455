// Package leaseaccess lets the fenced pods of StatefulSingletons and StatefulSetLocks renew their Lease. For each owner it
// writes a Role for the Lease, and a RoleBinding of the ServiceAccounts of the fenced pods. Both are garbage-collected with
// the owner. The Reconciler is for singletons. The controller of the locks calls Grant.
//
// A fenced pod needs access only after the Lease names the pod. Without access, the pod starts no main process.
package leaseaccess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// eventRefused is the reason of the event that reports another object with the name of the Role or the RoleBinding.
const eventRefused = "LeaseAccessRefused"

// Reconciler writes the Role and the RoleBinding of one singleton.
type Reconciler struct {
	// Client writes, and reads from the cache, which has only the metadata of pods, Roles and RoleBindings.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Recorder emits the events.
	Recorder events.EventRecorder
}

// Reconcile writes or deletes the Role and the RoleBinding. A singleton that is being deleted needs no changes, because
// it releases no pod. The garbage collector could delete each new object at once.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
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
	a := access{r.Client, r.Live, OfSingleton(singleton)}
	if singleton.Spec.Fencing == v1.FencingLease || len(accounts) > 0 {
		err = a.grant(ctx, accounts)
	} else {
		err = a.revoke(ctx)
	}
	return r.result(ctx, singleton, err)
}

// unused returns true if, in the cache, the singleton has no fencing, no fenced pod, no Role and no RoleBinding.
// Therefore a singleton without fencing costs no reads from the API server.
func (r *Reconciler) unused(ctx context.Context, singleton *v1.StatefulSingleton) (bool, error) {
	if singleton.Spec.Fencing == v1.FencingLease {
		return false, nil
	}
	pods, err := r.observer().Labelled(ctx, singleton)
	if err != nil || slices.ContainsFunc(pods, func(pod metav1.PartialObjectMetadata) bool { return isFenced(&pod) }) {
		return false, err
	}
	for _, object := range Watched() {
		if err := r.Client.Get(ctx, OfSingleton(singleton).key(), object); !apierrors.IsNotFound(err) {
			return false, err
		}
	}
	return true, nil
}

// serviceAccounts returns the names of the ServiceAccounts of the fenced pods, in order. A pod needs access until its
// object is removed, also while the pod is terminating.
func (r *Reconciler) serviceAccounts(ctx context.Context, singleton *v1.StatefulSingleton) ([]string, error) {
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
func (r *Reconciler) result(ctx context.Context, singleton *v1.StatefulSingleton, err error) (ctrl.Result, error) {
	foreign, isForeign := errors.AsType[*foreignError](err)
	switch {
	case isForeign:
		r.Recorder.Eventf(singleton, nil, corev1.EventTypeWarning, eventRefused, "GrantAccess", "%s", apply.CutNote(foreign.Error()))
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ctrl.Result{}, nil
	case errors.Is(err, ErrOutdated) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err):
		ctrl.LoggerFrom(ctx).V(1).Info("The access to the Lease is not up to date yet. Trying again", "error", err)
		return ctrl.Result{Requeue: true}, nil //nolint:staticcheck // with the rate limit, and without a stack trace
	}
	return ctrl.Result{}, err
}

func (r *Reconciler) observer() observe.Observer {
	return observe.Observer{Client: r.Client, Live: r.Live}
}

// isFenced returns true if a policy has prepared the pod for fencing by a Lease.
func isFenced(pod client.Object) bool {
	return pod.GetAnnotations()[v1.FencingAnnotation] == string(v1.FencingLease)
}
