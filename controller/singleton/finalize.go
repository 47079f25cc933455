package singleton

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// stoppingPoll is how often to check whether the last pods have terminated, for changes that no watch reports.
const stoppingPoll = 5 * time.Second

// finalize removes the finalizers of a deleted singleton and of its pods, after its policy was removed and new pods are
// no longer injected. The holder keeps running, and a held pod stays held until it is deleted. finalize waits for
// terminating pods.
func (r *Reconciler) finalize(ctx context.Context, singleton *v1.StatefulSingleton) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(singleton, v1.PolicyFinalizer) {
		return ctrl.Result{}, nil
	}
	result, err := r.finalizePods(ctx, singleton)
	if r.mustReport(ctx, singleton, err) {
		err = errors.Join(err, r.reportDeletionWaits(ctx, singleton, "the StatefulSingleton can't be removed yet: can't "+apply.ErrorText(err)))
	}
	return result, err
}

func (r *Reconciler) finalizePods(ctx context.Context, singleton *v1.StatefulSingleton) (ctrl.Result, error) {
	switch installed := r.Injection.Condition(singleton); installed.Reason {
	case injection.Removed:
	case injection.NotRemoved:
		return ctrl.Result{RequeueAfter: stoppingPoll}, r.reportDeletionWaits(ctx, singleton, "the StatefulSingleton can't be removed yet: can't "+installed.Message)
	default: // a change of the condition enqueues the singleton
		return ctrl.Result{RequeueAfter: stoppingPoll}, nil
	}
	snapshot, err := r.observer().Observe(ctx, singleton)
	if err != nil {
		return ctrl.Result{}, err
	}
	steps, _, message := handoff.Finalize(snapshot, r.Clock.Now())
	if err := r.execute(ctx, snapshot, handoff.Plan{Steps: steps}); apierrors.IsNotFound(err) {
		// A pod was removed since it was read.
		return ctrl.Result{}, conflictOf(singleton, err)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if message != "" {
		return ctrl.Result{RequeueAfter: stoppingPoll}, r.reportDeletionWaits(ctx, singleton, message)
	}
	return ctrl.Result{}, nil
}

// finalizeOrphans removes the finalizer of terminated pods whose singleton no longer exists. A late controller may
// have added the finalizer after the singleton was removed.
func (r *Reconciler) finalizeOrphans(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	gone := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{v1.SingletonLabel: key.Name}}},
	}
	cached, err := r.observer().Labelled(ctx, gone)
	if err != nil || !slices.ContainsFunc(cached, isStuck) {
		return ctrl.Result{}, err
	}
	snapshot, err := r.observer().Observe(ctx, gone)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.execute(ctx, snapshot, handoff.Plan{Steps: handoff.Orphans(snapshot)}); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: stoppingPoll}, nil
}

// isStuck returns true if the pod is terminating and has the finalizer.
func isStuck(pod metav1.PartialObjectMetadata) bool {
	return pod.DeletionTimestamp != nil && isProtected(&pod)
}

// reportDeletionWaits reports once what the deletion waits for.
func (r *Reconciler) reportDeletionWaits(ctx context.Context, singleton *v1.StatefulSingleton, message string) error {
	message = apply.CutText(message)
	if singleton.Status.Message == message {
		return nil
	}
	stored := singleton.DeepCopy()
	singleton.Status.Message = message
	if err := r.writeStatus(ctx, stored, singleton); err != nil {
		return err
	}
	r.emit(ctx, singleton, corev1.EventTypeNormal, "Delete", eventStillStopping, message)
	return nil
}

// RemovePodFinalizer removes the finalizer from a pod, and chosen-by from a pod that is not recorded: no singleton will
// open its barrier. Call it only when no earlier decision of a controller can still be executed.
// It returns an error if the pod does not exist or was written since it was read.
func RemovePodFinalizer(ctx context.Context, c client.Client, singleton *v1.StatefulSingleton, pod *corev1.Pod) error {
	var annotations []string
	if pod.UID != singleton.Status.ActivePodUID && pod.Annotations[v1.ChosenByAnnotation] == string(singleton.UID) {
		annotations = []string{v1.ChosenByAnnotation}
	}
	return apply.RemoveFinalizer(ctx, c, "Pod", pod, v1.HandoffFinalizer, annotations...)
}
