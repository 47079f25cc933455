package singleton

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// writeLease creates the Lease without a holder, or writes holder, epoch and annotations. It never writes renewTime, which
// only the holder may write.
func (e *execution) writeLease(ctx context.Context, step handoff.WriteLease) error {
	version := step.Version
	if e.lease != nil {
		version = cmp.Or(e.written[e.lease.UID], version)
	}
	if version == "" {
		return e.createLease(ctx)
	}
	if !owner.Controls(e.singleton, owner.StatefulSingleton, e.lease) {
		return fmt.Errorf("write Lease %s: StatefulSingleton %s with uid %s does not control the Lease. If no pod holds the Lease, delete the Lease, and the controller creates another one: kubectl delete lease -n %s %s",
			client.ObjectKeyFromObject(e.lease), e.singleton.Name, e.singleton.UID, e.lease.Namespace, e.lease.Name)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.lease.Namespace, Name: e.lease.Name}}
	err := e.Client.Patch(ctx, lease, apply.StrategicPatch(apply.Object{
		"metadata": apply.Object{
			"uid": e.lease.UID, "resourceVersion": version,
			"annotations": apply.Object{
				signal.RetireAnnotation: apply.OrNull(step.Retire), signal.ExpiredAnnotation: apply.OrNull(step.Expired),
				signal.NextAnnotation: apply.OrNull(step.Next), signal.DelayAnnotation: apply.OrNull(delayOf(step)),
			},
		},
		"spec": e.leaseSpec(step),
	}))
	if apierrors.IsNotFound(err) {
		err = leaseConflict(lease.Name, "it was deleted since it was read")
	}
	return e.wroteLease(lease, "patch", err)
}

// delayOf returns the value of the annotation with the delay. Empty: the annotation does not exist.
func delayOf(step handoff.WriteLease) string {
	if step.Delay == 0 {
		return ""
	}
	return strconv.FormatInt(step.Delay.Milliseconds(), 10)
}

// leaseSpec returns the fields of the spec that the step changes. If the holder stays, the Lease keeps its duration,
// because the holder runs for the duration of its last renewal.
func (e *execution) leaseSpec(step handoff.WriteLease) apply.Object {
	holder := ""
	if step.Holder != (handoff.PodRef{}) {
		holder = signal.HolderIdentity(step.Holder.Name, string(step.Holder.UID))
	}
	spec := apply.Object{"holderIdentity": holder, "leaseTransitions": step.Epoch}
	if holder != "" && (holder != leases.HolderOf(e.lease) || step.Epoch != int64(ptr.Deref(e.lease.Spec.LeaseTransitions, 0))) {
		spec["acquireTime"] = metav1.NewMicroTime(e.Clock.Now())
		if step.Duration > 0 {
			spec["leaseDurationSeconds"] = int64(step.Duration.Seconds())
		}
	}
	return spec
}

// createLease creates the Lease without a holder. A pod can hold only a Lease that the controller has read.
func (e *execution) createLease(ctx context.Context) error {
	lease := leases.OfSingleton(e.singleton).NewLease(signal.LeaseSeconds(e.singleton.Spec.LeaseDurationSeconds))
	err := e.Client.Create(ctx, lease)
	if apierrors.IsAlreadyExists(err) {
		err = leaseConflict(lease.Name, "it was created since the snapshot")
	}
	return e.wroteLease(lease, "create", err)
}

// wroteLease records the Lease after a write, or returns the error of the write.
func (e *execution) wroteLease(lease *coordinationv1.Lease, verb string, err error) error {
	if err != nil {
		return fmt.Errorf("%s Lease %s/%s, which fences the pods: %w", verb, e.singleton.Namespace, lease.Name, err)
	}
	e.lease, e.written[lease.UID] = lease, handoff.Version(lease.ResourceVersion)
	return nil
}

// leaseConflict returns a conflict, after which the controller decides again from a new snapshot.
func leaseConflict(name, why string) error {
	return apierrors.NewConflict(coordinationv1.Resource("leases"), name, errors.New(why))
}
