// Package cluster reconciles StatefulClusters. It reads a Snapshot, calls package membership to decide, executes the plan and
// writes the status. It does not decide which pods exist, and which claims they have.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

const (
	// podsPerPage is the number of pods that one request reads after the end of a StatefulCluster.
	podsPerPage = 16
	// deletionPoll is how often to check what the deletion of a StatefulCluster waits for, for changes that no watch reports.
	deletionPoll = 5 * time.Second
)

const (
	// reasonTooManyPods is the reason of the conditions if the pods, their claims, or the objects that they refer to, are too many or
	// too large. No decision is made.
	reasonTooManyPods = "TooManyPods"
	// tooLargePoll is how often to look whether there are fewer.
	tooLargePoll = 10 * time.Second
)

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

	conflicts apply.Conflicts
}

// Reconcile observes, decides, executes and reports for one StatefulCluster.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	return r.conflicts.Result(ctx, request.NamespacedName, result, err, apply.IsOvertaken(err))
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
	if tooLarge, ok := errors.AsType[*observe.TooLargeError](err); ok {
		stored := cluster.DeepCopy()
		reportStalled(cluster, reasonTooManyPods, tooLarge.Error())
		return ctrl.Result{RequeueAfter: tooLargePoll}, r.writeStatus(ctx, stored, cluster)
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the state of StatefulCluster %s: %w", request, err)
	}
	plan, waits := r.decide(snapshot)
	done, err := r.execute(ctx, snapshot, &plan)
	if err == nil && !waits {
		err = client.IgnoreNotFound(apply.RemoveFinalizer(ctx, r.Client, owner.StatefulCluster.Kind, cluster, v1.MemberFinalizer))
		if err == nil {
			return ctrl.Result{}, nil
		}
	}
	if r.isTemporary(cluster, err) || ctx.Err() != nil {
		return ctrl.Result{}, err
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return ctrl.Result{RequeueAfter: deletionPoll}, nil // the StatefulCluster is deleted next
	}
	stored := cluster.DeepCopy() // as the last Record wrote it
	if !slices.Contains(plan.Steps[done:], membership.Step(membership.Record{})) {
		cluster.Status = plan.Status
	}
	if err != nil {
		cluster.Status.Conditions = stored.DeepCopy().Status.Conditions // a repeated error must not change their times
		reportStalled(cluster, string(membership.WriteRefused), "can't "+apply.ErrorText(err))
	}
	failed := r.writeStatus(ctx, stored, cluster)
	if apierrors.IsConflict(failed) && r.isTemporary(cluster, failed) {
		return ctrl.Result{}, failed // a write can be rejected because the Snapshot is outdated
	}
	if err := errors.Join(failed, err); err != nil { // the first of two errors says whether this is a conflict
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
	protected := map[string]types.UID{}
	err := observe.Pages(ctx, r.Live, &corev1.PodList{}, podsPerPage, func(o client.Object) error {
		if controllerutil.ContainsFinalizer(o, v1.MemberFinalizer) {
			protected[o.GetName()] = o.GetUID()
		}
		return nil
	}, client.InNamespace(key.Namespace), client.MatchingLabels{v1.ClusterLabel: key.Name})
	if err != nil {
		return fmt.Errorf("list the pods of StatefulCluster %s, which does not exist: %w", key, err)
	}
	if cluster, err := r.get(ctx, key); cluster != nil || err != nil {
		return err
	}
	for name, uid := range protected {
		if err := r.unprotect(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name}}, uid); err != nil {
			return err
		}
	}
	return nil
}

// unprotect removes the finalizer from a pod, unless another pod has its name.
func (r *Reconciler) unprotect(ctx context.Context, pod *corev1.Pod, uid types.UID) error {
	err := r.Client.Patch(ctx, pod, apply.StrategicPatch(apply.Object{
		"metadata": apply.Object{"uid": uid, "$deleteFromPrimitiveList/finalizers": []string{v1.MemberFinalizer}},
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

// isTemporary returns true if the error needs no report. A conflict is temporary, unless it happens each time. The removal of an
// object since the Snapshot is temporary too.
func (r *Reconciler) isTemporary(cluster *v1.StatefulCluster, err error) bool {
	return apierrors.IsNotFound(err) || apply.IsOvertaken(err) && r.conflicts.Tolerates(client.ObjectKeyFromObject(cluster))
}

// reportStalled sets the message and the conditions if a person must act.
func reportStalled(cluster *v1.StatefulCluster, reason, message string) {
	cluster.Status.Message = message
	apply.SetConditions(&cluster.Status.Conditions, map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionStalled: metav1.ConditionTrue,
	}, reason, message, cluster.Generation)
}

// writeStatus writes the status if it has changed, and reports the change.
func (r *Reconciler) writeStatus(ctx context.Context, stored, cluster *v1.StatefulCluster) error {
	apply.CutMessages(&cluster.Status.Message, cluster.Status.Conditions)
	if equality.Semantic.DeepEqual(stored.Status, cluster.Status) {
		return nil
	}
	return r.record(ctx, stored, cluster)
}

// record writes the status. It fails if the API server would drop a field, which happens with an older CustomResourceDefinition.
func (r *Reconciler) record(ctx context.Context, stored, cluster *v1.StatefulCluster) error {
	apply.CutMessages(&cluster.Status.Message, cluster.Status.Conditions)
	err := apply.UpdateStatus(ctx, r.Client, owner.StatefulCluster.Kind, cluster, client.FieldValidation(metav1.FieldValidationStrict))
	if err != nil {
		return err
	}
	r.announce(ctx, &stored.Status, cluster)
	return nil
}
