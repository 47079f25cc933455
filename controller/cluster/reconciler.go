// Package cluster reconciles StatefulClusters. It reads a Snapshot, calls package membership to decide, executes the plan and
// writes the status. It does not decide which pods exist, and which claims they have.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

const (
	// conflictDelay is how long to wait before the next decision after a conflict with a write of another client.
	conflictDelay = 20 * time.Millisecond
	// deletionPoll is how often to check what the deletion of a StatefulCluster waits for, for changes that no watch reports.
	deletionPoll = 5 * time.Second
)

// reasonWriteRefused is the reason of the conditions if the API server rejects a write. The message has the error.
const reasonWriteRefused = "WriteRefused"

// Reconciler reconciles StatefulClusters.
type Reconciler struct {
	// Client writes, and reads from the cache, which has nodes and StatefulClusters.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Recorder emits the events.
	Recorder events.EventRecorder
	// Metrics counts the replacements.
	Metrics *Metrics
	// Clock returns the time.
	Clock clock.PassiveClock
}

// Reconcile observes, decides, executes and reports for one StatefulCluster.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	switch {
	case ctx.Err() != nil:
		return ctrl.Result{}, nil // the controller stops
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		ctrl.LoggerFrom(ctx).V(1).Info("Requeued after a conflict", "conflict", err.Error())
		return ctrl.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster, err := r.get(ctx, request.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if cluster == nil {
		return ctrl.Result{}, r.releasePods(ctx, request.NamespacedName)
	}
	snapshot, err := observe.Observer{Client: r.Client, Live: r.Live}.ObserveCluster(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the state of StatefulCluster %s: %w", request, err)
	}
	plan, waits := r.decide(snapshot)
	if len(plan.Steps) > 0 {
		if err := r.patchFinalizer(ctx, cluster, controllerutil.AddFinalizer); err != nil {
			return ctrl.Result{}, err
		}
	}
	done, err := r.execute(ctx, snapshot, plan)
	if isTemporary(err) || ctx.Err() != nil {
		return ctrl.Result{}, err
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return ctrl.Result{RequeueAfter: deletionPoll}, nil // the StatefulCluster is deleted next
	}
	if err == nil && !waits {
		return ctrl.Result{}, client.IgnoreNotFound(r.patchFinalizer(ctx, cluster, controllerutil.RemoveFinalizer))
	}
	stored := cluster.DeepCopy() // as the last Record wrote it
	if !slices.Contains(plan.Steps[done:], membership.Step(membership.Record{})) {
		cluster.Status = plan.Status
	}
	if err != nil {
		cluster.Status.Conditions = stored.DeepCopy().Status.Conditions // a repeated error must not change their times
		reportFailure(cluster, err)
	}
	failed := r.writeStatus(ctx, stored, cluster)
	if apierrors.IsConflict(failed) {
		return ctrl.Result{}, failed // a write can be rejected because the Snapshot is outdated
	}
	if err := errors.Join(err, failed); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: plan.Requeue}, nil
}

// get reads a StatefulCluster. It returns nil if the StatefulCluster does not exist, or is being deleted without the finalizer
// of this package.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*v1.StatefulCluster, error) {
	cluster := &v1.StatefulCluster{}
	if err := r.Live.Get(ctx, key, cluster); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if cluster.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(cluster, v1.MemberFinalizer) {
		return nil, nil
	}
	return cluster, nil
}

// releasePods removes the finalizer from pods whose StatefulCluster does not exist. A late write can create a pod after the end of
// the StatefulCluster. The StatefulCluster is read again after the pods, because the pods of a new StatefulCluster keep their
// finalizer.
func (r *Reconciler) releasePods(ctx context.Context, key types.NamespacedName) error {
	var pods corev1.PodList
	if err := r.Live.List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabels{v1.ClusterLabel: key.Name}); err != nil {
		return fmt.Errorf("list the pods of StatefulCluster %s, which does not exist: %w", key, err)
	}
	if cluster, err := r.get(ctx, key); cluster != nil || err != nil {
		return err
	}
	for i := range pods.Items {
		if !controllerutil.ContainsFinalizer(&pods.Items[i], v1.MemberFinalizer) {
			continue
		}
		if err := r.unprotect(ctx, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// unprotect removes the finalizer from a pod, unless another pod has its name.
func (r *Reconciler) unprotect(ctx context.Context, pod *corev1.Pod) error {
	err := r.Client.Patch(ctx, pod, strategicPatch(object{
		"metadata": object{"uid": pod.UID, "$deleteFromPrimitiveList/finalizers": []string{v1.MemberFinalizer}},
	}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of pod %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	return nil
}

// decide returns the plan. waits is false if the StatefulCluster is being deleted, and the deletion waits for nothing.
func (r *Reconciler) decide(s membership.Snapshot) (plan membership.Plan, waits bool) {
	if s.Cluster.DeletionTimestamp.IsZero() {
		return membership.Decide(s, r.Clock.Now()), true
	}
	plan, message := membership.Finalize(s, r.Clock.Now())
	plan.Requeue = min(plan.Requeue, deletionPoll)
	return plan, message != ""
}

// isTemporary returns true if another client wrote an object since the Snapshot. The next decision sees that write.
func isTemporary(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// reportFailure sets the message and the conditions after the API server has rejected a write.
func reportFailure(cluster *v1.StatefulCluster, err error) {
	cluster.Status.Message = "can't " + strings.Join(strings.Fields(err.Error()), " ")
	for conditionType, status := range map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionStalled: metav1.ConditionTrue,
	} {
		meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: status, Reason: reasonWriteRefused, Message: cluster.Status.Message, ObservedGeneration: cluster.Generation,
		})
	}
}

// patchFinalizer adds or removes the finalizer that keeps the record. It fails if the StatefulCluster was written since it was
// read.
func (r *Reconciler) patchFinalizer(ctx context.Context, cluster *v1.StatefulCluster, change func(client.Object, string) bool) error {
	before := cluster.DeepCopy()
	if !change(cluster, v1.MemberFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("change the finalizers of StatefulCluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	return nil
}

// writeStatus writes the status if it has changed, and reports the change.
func (r *Reconciler) writeStatus(ctx context.Context, stored, cluster *v1.StatefulCluster) error {
	if equality.Semantic.DeepEqual(stored.Status, cluster.Status) {
		return nil
	}
	return r.record(ctx, stored, cluster)
}

// record writes the status. The write is a compare-and-swap on the resourceVersion of the StatefulCluster that was read. It fails
// if the API server would drop a field, which happens with an older CustomResourceDefinition.
func (r *Reconciler) record(ctx context.Context, stored, cluster *v1.StatefulCluster) error {
	status := cluster.Status.DeepCopy()
	if err := r.Client.Status().Update(ctx, cluster, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return fmt.Errorf("write the status of StatefulCluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	cluster.Status = *status // the stored times are rounded
	r.announce(ctx, &stored.Status, cluster)
	return nil
}
