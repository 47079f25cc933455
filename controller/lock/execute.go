package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// execution executes one plan.
type execution struct {
	*Reconciler
	lock *v1.StatefulSetLock
	plan tenure.Plan
	// lease is the Lease of the Snapshot. Nil: it does not exist.
	lease *coordinationv1.Lease
	// written has the resourceVersions of pods after the last write of this execution, by UID.
	written map[types.UID]string
}

// execute executes the steps of the plan in their order, and stops at the first that fails.
func (r *Reconciler) execute(ctx context.Context, s tenure.Snapshot, plan tenure.Plan) error {
	e := &execution{r, s.Lock, plan, s.Lease.Object, map[types.UID]string{}}
	for _, step := range plan.Steps {
		if err := e.step(ctx, step); err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).V(1).Info("Executed step", "step", fmt.Sprintf("%T", step), "outcome", plan.Outcome)
	}
	return nil
}

func (e *execution) step(ctx context.Context, step tenure.Step) error {
	switch step := step.(type) {
	case tenure.Record:
		stored := e.lock.DeepCopy()
		e.lock.Status = *e.plan.Status.DeepCopy()
		err := e.record(ctx, stored, e.lock)
		if err != nil {
			e.lock.Status = stored.Status // a report of the error must not record the writer
		}
		return err
	case tenure.Confirm:
		return e.confirm(ctx)
	case tenure.LabelWriter:
		return e.patchPod(ctx, step.Pod, apply.Object{"labels": e.role(v1.StsRoleWriter), "annotations": epoch(v1.TenureAnnotation, step.Epoch)})
	case tenure.MarkTenure:
		return e.patchPod(ctx, step.Pod, apply.Object{"annotations": epoch(v1.TenureAnnotation, step.Epoch)})
	case tenure.LabelReader:
		return e.patchPod(ctx, step.Pod, apply.Object{"labels": e.role(v1.StsRoleReader), "annotations": epoch(v1.TenureEndedAnnotation, step.Ends)})
	case tenure.Protect:
		return e.patchPod(ctx, step.Pod, apply.Object{"finalizers": finalizers})
	case tenure.Unprotect:
		return client.IgnoreNotFound(e.patchPod(ctx, step.Pod, apply.Object{removeFinalizers: finalizers}))
	case tenure.Forget:
		metadata := apply.Object{
			"labels": apply.Object{v1.StsRoleLabel: nil, v1.LockLabel: nil}, "annotations": epoch(v1.TenureEndedAnnotation, step.Ends),
		}
		if step.Unprotect {
			metadata[removeFinalizers] = finalizers
		}
		return client.IgnoreNotFound(e.patchPod(ctx, step.Pod, metadata))
	case tenure.TakeAttestation:
		return e.takeAttestation(ctx, step)
	case tenure.Delete:
		return e.deletePod(ctx, step.Pod)
	case tenure.CreateLease:
		return e.createLease(ctx, step)
	case tenure.WriteLease:
		return e.writeLease(ctx, step)
	}
	panic(fmt.Sprintf("no such step: %T", step))
}

// confirm returns a conflict if the lock was written since the Snapshot, except by this execution.
func (e *execution) confirm(ctx context.Context) error {
	is := &v1.StatefulSetLock{}
	err := e.Live.Get(ctx, client.ObjectKeyFromObject(e.lock), is)
	if err != nil {
		return fmt.Errorf("read StatefulSetLock %s again: %w", client.ObjectKeyFromObject(e.lock), err)
	}
	if is.ResourceVersion != e.lock.ResourceVersion {
		return apierrors.NewConflict(v1.GroupVersion.WithResource("statefulsetlocks").GroupResource(), e.lock.Name, errors.New("it was written since it was read"))
	}
	return nil
}

// finalizers are what a Protect adds, and what the key removeFinalizers of a patch removes.
var finalizers = []string{v1.HandoffFinalizer}

const removeFinalizers = "$deleteFromPrimitiveList/finalizers"

// role returns the labels of a pod with the role.
func (e *execution) role(role string) apply.Object {
	return apply.Object{v1.StsRoleLabel: role, v1.LockLabel: e.lock.Name}
}

// epoch returns the annotation with the epoch, or none for 0. It never returns nil, which would remove all annotations.
func epoch(annotation string, epoch int64) apply.Object {
	if epoch == 0 {
		return apply.Object{}
	}
	return apply.Object{annotation: strconv.FormatInt(epoch, 10)}
}

// patchPod merges metadata into a pod. The API server rejects the patch if the pod has another UID or another version.
func (e *execution) patchPod(ctx context.Context, ref tenure.PodRef, metadata apply.Object) error {
	metadata["uid"], metadata["resourceVersion"] = ref.UID, cmp.Or(e.written[ref.UID], ref.Version)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.lock.Namespace, Name: ref.Name}}
	if err := e.Client.Patch(ctx, pod, apply.StrategicPatch(apply.Object{"metadata": metadata})); err != nil {
		return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	e.written[ref.UID] = pod.ResourceVersion
	return nil
}

func (e *execution) deletePod(ctx context.Context, ref tenure.PodRef) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.lock.Namespace, Name: ref.Name}}
	if err := e.Client.Delete(ctx, pod, client.Preconditions{UID: &ref.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s/%s, whose tenure as the writer ends: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// takeAttestation removes the attestation from the lock, if it is still the same.
func (e *execution) takeAttestation(ctx context.Context, step tenure.TakeAttestation) error {
	if err := apply.RemoveAttestation(ctx, e.Client, owner.StatefulSetLock.Kind, e.lock); err != nil {
		return err
	}
	if step.Refused != "" {
		e.emit(ctx, e.lock, corev1.EventTypeWarning, eventAttestationRefused, step.Refused)
	}
	return nil
}

// createLease creates the Lease without a holder. The time of a renewal says that the Lease is held.
func (e *execution) createLease(ctx context.Context, step tenure.CreateLease) error {
	lease := leases.OfLock(e.lock).NewLease(e.lock.Spec.LeaseDurationSeconds)
	if step.Held > 0 {
		lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = new(metav1.NewMicroTime(e.Clock.Now())), new(int32(step.Held.Seconds()))
	}
	if err := e.Client.Create(ctx, lease); err != nil {
		return fmt.Errorf("create Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

// writeLease writes holder, epoch and annotations of the Lease, and renews the Lease of an unfenced writer.
func (e *execution) writeLease(ctx context.Context, step tenure.WriteLease) error {
	now := metav1.NewMicroTime(e.Clock.Now())
	spec := apply.Object{"holderIdentity": step.Holder, "leaseTransitions": step.Epoch}
	if step.Epoch != int64(ptr.Deref(e.lease.Spec.LeaseTransitions, 0)) {
		spec["acquireTime"] = now
	}
	if step.Renew {
		spec["renewTime"] = now
	}
	if step.Duration > 0 {
		spec["leaseDurationSeconds"] = int(step.Duration.Seconds())
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.lease.Namespace, Name: e.lease.Name}}
	err := e.Client.Patch(ctx, lease, apply.MergePatch(apply.Object{
		"metadata": apply.Object{
			"uid": e.lease.UID, "resourceVersion": e.lease.ResourceVersion,
			"annotations": apply.Object{
				signal.WriterAnnotation: step.Writer, signal.ExpiredAnnotation: apply.OrNull(step.Expired), signal.RevokedAnnotation: apply.OrNull(step.Revoked),
			},
		},
		"spec": spec,
	}))
	if err != nil {
		return fmt.Errorf("patch Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

// grantAccess lets the fenced pods of the lock renew the Lease. It does nothing in a reconcile with other writes, because
// another reconcile follows, and the next writer must not wait for the two reads.
func (r *Reconciler) grantAccess(ctx context.Context, s tenure.Snapshot, plan tenure.Plan) error {
	accounts := sets.New[string]()
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Annotations[v1.FencingAnnotation] == string(v1.FencingLease) {
			accounts.Insert(cmp.Or(p.Spec.ServiceAccountName, "default"))
		}
	}
	if accounts.Len() == 0 || plan.Outcome.Refused() || len(plan.Steps) > 0 {
		return nil
	}
	err := leases.Grant(ctx, r.Client, r.Live, leases.OfLock(s.Lock), sets.List(accounts))
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
