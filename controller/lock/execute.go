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
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
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
	written map[types.UID]tenure.Version
}

// execute executes the steps of the plan in their order, and stops at the first that fails.
func (r *Reconciler) execute(ctx context.Context, s tenure.Snapshot, plan tenure.Plan) error {
	e := &execution{r, s.Lock, plan, s.Lease.Object, map[types.UID]tenure.Version{}}
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
		return e.patchPod(ctx, step.Pod, step.Version, apply.Object{
			"labels":      apply.Object{v1.StsRoleLabel: v1.StsRoleWriter, v1.LockLabel: e.lock.Name},
			"annotations": apply.Object{v1.TenureAnnotation: strconv.FormatInt(step.Epoch, 10)},
		})
	case tenure.MarkTenure:
		return e.patchPod(ctx, step.Pod, step.Version, apply.Object{"annotations": apply.Object{v1.TenureAnnotation: strconv.FormatInt(step.Epoch, 10)}})
	case tenure.LabelReader:
		metadata := apply.Object{"labels": apply.Object{v1.StsRoleLabel: v1.StsRoleReader, v1.LockLabel: e.lock.Name}}
		if step.Ends > 0 {
			metadata["annotations"] = apply.Object{v1.TenureEndedAnnotation: strconv.FormatInt(step.Ends, 10)}
		}
		return e.patchPod(ctx, step.Pod, step.Version, metadata)
	case tenure.Protect:
		return e.patchPod(ctx, step.Pod, step.Version, apply.Object{"finalizers": []string{v1.HandoffFinalizer}})
	case tenure.Unprotect:
		return client.IgnoreNotFound(e.patchPod(ctx, step.Pod, step.Version, apply.Object{"$deleteFromPrimitiveList/finalizers": []string{v1.HandoffFinalizer}}))
	case tenure.Forget:
		metadata := apply.Object{"labels": apply.Object{v1.StsRoleLabel: nil, v1.LockLabel: nil}}
		if step.Ends > 0 {
			metadata["annotations"] = apply.Object{v1.TenureEndedAnnotation: strconv.FormatInt(step.Ends, 10)}
		}
		if step.Unprotect {
			metadata["$deleteFromPrimitiveList/finalizers"] = []string{v1.HandoffFinalizer}
		}
		return client.IgnoreNotFound(e.patchPod(ctx, step.Pod, step.Version, metadata))
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

// patchPod merges metadata into a pod. The API server rejects the patch if the pod has another UID or another version.
func (e *execution) patchPod(ctx context.Context, ref tenure.PodRef, version tenure.Version, metadata apply.Object) error {
	metadata["uid"], metadata["resourceVersion"] = ref.UID, cmp.Or(e.written[ref.UID], version)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.lock.Namespace, Name: ref.Name}}
	if err := e.Client.Patch(ctx, pod, apply.StrategicPatch(apply.Object{"metadata": metadata})); err != nil {
		return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	e.written[ref.UID] = tenure.Version(pod.ResourceVersion)
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
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.lock.Namespace, Name: e.lock.Spec.LeaseName,
			Labels: map[string]string{v1.LockLabel: e.lock.Name}, OwnerReferences: controlledBy(e.lock),
		},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0)), LeaseDurationSeconds: new(e.lock.Spec.LeaseDurationSeconds)},
	}
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
			"uid": e.lease.UID, "resourceVersion": step.Version,
			"annotations": apply.Object{
				signal.WriterAnnotation: step.Writer, signal.ExpiredAnnotation: orNull(string(step.Expired)), signal.RevokedAnnotation: orNull(epochText(step.Revoked)),
			},
		},
		"spec": spec,
	}))
	if err != nil {
		return fmt.Errorf("patch Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

// orNull returns null for an empty text, which removes a field in a merge patch.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// epochText returns the epoch as text, or nothing for 0.
func epochText(epoch int64) string {
	if epoch == 0 {
		return ""
	}
	return strconv.FormatInt(epoch, 10)
}

// controlledBy returns the owner references of an object that is garbage-collected with the lock.
func controlledBy(lock *v1.StatefulSetLock) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: "StatefulSetLock", Name: lock.Name, UID: lock.UID, Controller: new(true),
	}}
}
