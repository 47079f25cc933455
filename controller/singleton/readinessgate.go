package singleton

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

const (
	// gateWorkers is the number of concurrent reconciles.
	gateWorkers = 4
	// firstGateRetry and lastGateRetry are the delays after the first and after many failures of a pod. The first failure is
	// often a conflict with the scheduler or the kubelet, which also write a new pod.
	firstGateRetry, lastGateRetry = 20 * time.Millisecond, 10 * time.Second
)

// ReadinessGates opens the readiness gates of new held pods whose probes fail until their release.
//
// The kubelet reads the condition of a readiness gate only together with a change of its own (pkg/kubelet/status:
// updateStatusInternal). A pod whose gate opens after its containers have started becomes Ready up to one second late.
// A readiness gate releases no pod.
type ReadinessGates struct {
	Client client.Client
	// Live reads from the API server. The cache has only the metadata of pods.
	Live  client.Reader
	Clock clock.PassiveClock
}

// SetupWithManager registers the reconciler for new pods.
func (r *ReadinessGates) SetupWithManager(mgr ctrl.Manager) error {
	created := predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return mayBeClosed(e.Object) },
		// A pod can be replaced by another of its name between two events.
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() && mayBeClosed(e.ObjectNew)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("readinessgate").
		For(observe.PodMetadata(), builder.OnlyMetadata, builder.WithPredicates(created)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: gateWorkers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstGateRetry, lastGateRetry),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of the readiness gates: %w", err)
	}
	return nil
}

// mayBeClosed returns false if the metadata shows that Reconcile would do nothing. This saves the reads of released pods
// when the controller starts.
func mayBeClosed(pod client.Object) bool {
	_, injected := pod.GetAnnotations()[v1.InjectedAnnotation]
	_, hasSignal := pod.GetAnnotations()[signal.Annotation]
	return injected && !hasSignal && pod.GetLabels()[v1.RoleLabel] != v1.RoleActive && pod.GetDeletionTimestamp() == nil
}

// Reconcile opens the gate of the pod, unless the pod was released or can become Ready before its release.
func (r *ReadinessGates) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := r.Live.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if proof.IsTrue(pod, v1.ReadyCondition) || !handoff.UnreadyUntilReleased(pod) {
		return ctrl.Result{}, nil
	}
	err := r.open(ctx, pod)
	switch {
	case apierrors.IsForbidden(err):
		// For example a pod in an exempt namespace that only looks like an injected one.
		return ctrl.Result{}, reconcile.TerminalError(err)
	case apierrors.IsConflict(err):
		ctrl.LoggerFrom(ctx).V(1).Info("The pod was written since it was read. Trying again", "error", err)
		return ctrl.Result{Requeue: true}, nil //nolint:staticcheck // with the rate limit, and without a stack trace
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// open sets the condition of the gate to True. The patch fails with a conflict if the pod was written since the read.
// Otherwise it could replace the reason of a released pod.
func (r *ReadinessGates) open(ctx context.Context, pod *corev1.Pod) error {
	patch := conditionsPatch(apply.Object{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}, r.Clock.Now(), corev1.PodCondition{
		Type: v1.ReadyCondition, Status: corev1.ConditionTrue, Reason: v1.ReadyReasonStandby, Message: "the probes of the pod fail until it is released",
	})
	if err := r.Client.Status().Patch(ctx, pod, patch); err != nil {
		return fmt.Errorf("open the readiness gate of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
