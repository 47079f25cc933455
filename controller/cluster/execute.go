package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// execution executes one plan.
type execution struct {
	*Reconciler
	membership.Snapshot
	plan *membership.Plan
	// missing are the claims that the API server rejected. unresized are the pods whose resources it rejected.
	missing   map[string]bool
	unresized map[types.UID]bool
	// ungrown are the claims whose larger requests the API server rejected, and whyUngrown is the first error.
	ungrown    []membership.GrowClaim
	whyUngrown error
}

// maxReported is the number of rejected writes that one error reports.
const maxReported = 3

// execute adds the finalizer before the first step, executes the steps of the plan in their order, and returns the number of the step
// that it could not pass. A rejected write of one object does not stop the writes of others: for example, a quota or a webhook can
// reject one pod.
func (r *Reconciler) execute(ctx context.Context, s membership.Snapshot, plan *membership.Plan) (done int, err error) {
	if len(plan.Steps) > 0 {
		if err := apply.AddFinalizer(ctx, r.Client, owner.StatefulCluster.Kind, s.Cluster, v1.MemberFinalizer); err != nil {
			return 0, err
		}
	}
	e := &execution{Reconciler: r, Snapshot: s, plan: plan, missing: map[string]bool{}, unresized: map[types.UID]bool{}}
	var rejections error
	rejected := 0
	for i, step := range plan.Steps {
		if e.skips(step) {
			continue
		}
		err := e.step(ctx, step)
		if err == nil {
			ctrl.LoggerFrom(ctx).V(1).Info("Executed step", "step", fmt.Sprintf("%T", step), "outcome", plan.Outcome)
			continue
		}
		_, isRecord := step.(membership.Record)
		_, isRevision := step.(membership.CreateRevision)
		if !isRejection(err) || isRecord || isRevision { // all later steps need these
			return i, err
		}
		if claim, ok := step.(membership.CreateClaim); ok {
			e.missing[claim.Name] = true
		}
		if rejected++; rejected == 1 {
			rejections = err
		} else if rejected <= maxReported {
			rejections = fmt.Errorf("%w; can't %w", rejections, err)
		}
	}
	e.reportUngrown()
	return len(plan.Steps), rejections
}

// skips returns true if an earlier step makes this one pointless: the pod would wait for its claim, or be unready for nothing.
func (e *execution) skips(step membership.Step) bool {
	if pod, ok := step.(membership.CreatePod); ok {
		return slices.ContainsFunc(pod.Claims, func(c v1.MemberClaim) bool { return e.missing[c.Name] })
	}
	serving, ok := step.(membership.SetServing)
	return ok && e.unresized[serving.Pod.UID]
}

// isRejection returns true if the API server rejected this write, and can accept other writes of the plan.
func isRejection(err error) bool {
	var of apierrors.APIStatus
	return errors.As(err, &of) && of.Status().Code <= http.StatusInternalServerError && !apply.IsOvertaken(err) && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err)
}

func (e *execution) step(ctx context.Context, step membership.Step) error {
	switch step := step.(type) {
	case membership.Record:
		return e.recordMembers(ctx)
	case membership.CreateRevision:
		return e.create(ctx, e.newRevision(step))
	case membership.RenumberRevision:
		return e.patch(ctx, e.revision(step.Name), apply.Object{"revision": step.Number})
	case membership.DeleteRevision:
		return e.delete(ctx, e.revision(step.Name), client.Preconditions{ResourceVersion: &step.Version})
	case membership.CreateClaim:
		claim, err := e.newClaim(step)
		if err != nil {
			return err
		}
		return e.create(ctx, claim)
	case membership.GrowClaim:
		return e.growClaim(ctx, step)
	case membership.DeleteClaim:
		return e.delete(ctx, e.claim(step.Claim), client.Preconditions{UID: &step.Claim.UID})
	case membership.CreatePod:
		pod, err := e.newPod(step)
		if err != nil {
			return err
		}
		// Without strict validation, the API server would ignore fields of the template that it does not know.
		return e.create(ctx, pod, client.FieldValidation(metav1.FieldValidationStrict))
	case membership.SetServing:
		return e.setServing(ctx, step)
	case membership.Resize:
		return e.resize(ctx, step)
	case membership.PatchImages:
		return e.patchImages(ctx, step)
	case membership.Protect:
		return e.patch(ctx, e.pod(step.Pod), apply.Object{"metadata": apply.Object{"uid": step.Pod.UID, "finalizers": []string{v1.MemberFinalizer}}})
	case membership.Ungate:
		return e.patch(ctx, e.pod(step.Pod), apply.Object{
			"metadata": apply.Object{"uid": step.Pod.UID},
			"spec":     apply.Object{"schedulingGates": []apply.Object{{"$patch": "delete", "name": v1.MemberGate}}},
		})
	case membership.Delete:
		return e.delete(ctx, e.pod(step.Pod), client.Preconditions{UID: &step.Pod.UID})
	case membership.Unprotect:
		return e.unprotect(ctx, e.pod(step.Pod), step.Pod.UID)
	case membership.TakeAttestation:
		return e.takeAttestation(ctx, step)
	}
	panic(fmt.Sprintf("no such step: %T", step))
}

// recordMembers writes the status of the plan.
func (e *execution) recordMembers(ctx context.Context) error {
	stored := e.Cluster.DeepCopy()
	e.Cluster.Status = *e.plan.Status.DeepCopy()
	err := e.record(ctx, stored, e.Cluster)
	if err != nil {
		e.Cluster.Status = stored.Status // a report of the error must not record the members
	}
	return err
}

// growClaim raises the request of a claim. A rejection is no error, because no pod needs the new size to run.
func (e *execution) growClaim(ctx context.Context, step membership.GrowClaim) error {
	err := e.Client.Patch(ctx, e.claim(step.Claim), apply.StrategicPatch(apply.Object{
		"metadata": apply.Object{"uid": step.Claim.UID},
		"spec":     apply.Object{"resources": apply.Object{"requests": apply.Object{corev1.ResourceStorage.String(): step.Storage}}},
	}))
	if !isRejection(err) {
		return e.failed("patch", e.claim(step.Claim), err)
	}
	if e.ungrown = append(e.ungrown, step); len(e.ungrown) == 1 {
		e.whyUngrown = err
	}
	return nil
}

// reportUngrown adds condition ExpansionRefused to the status of the plan if the API server rejected a larger request. The next
// decision removes the condition after all claims have the size.
func (e *execution) reportUngrown() {
	if len(e.ungrown) == 0 {
		return
	}
	message := e.ExpansionMessage(e.ungrown, e.whyUngrown)
	e.plan.Status.Message += "; " + message
	meta.SetStatusCondition(&e.plan.Status.Conditions, metav1.Condition{
		Type: v1.ConditionExpansionRefused, Status: metav1.ConditionTrue, Reason: "Refused", Message: message, ObservedGeneration: e.Cluster.Generation,
	})
}

// setServing writes the readiness gate of a pod.
func (e *execution) setServing(ctx context.Context, step membership.SetServing) error {
	condition := apply.Object{
		"type": v1.MemberServing, "status": corev1.ConditionFalse, "reason": "Updating", "message": "containers of the pod are being updated",
		"lastTransitionTime": metav1.NewTime(e.Clock.Now()),
	}
	if step.Serving {
		condition["status"], condition["reason"], condition["message"] = corev1.ConditionTrue, "Serving", "the pod can serve"
	}
	pod := e.pod(step.Pod)
	return e.failed("patch the status of", pod, e.Client.Status().Patch(ctx, pod, apply.StrategicPatch(apply.Object{
		"metadata": apply.Object{"uid": step.Pod.UID, "resourceVersion": step.Version},
		"status":   apply.Object{"conditions": []apply.Object{condition}},
	})))
}

// resize changes the resources of a pod. It deletes the pod if the pod can never have them.
func (e *execution) resize(ctx context.Context, step membership.Resize) error {
	var containers []apply.Object
	for _, name := range slices.Sorted(maps.Keys(step.Resources)) {
		containers = append(containers, apply.Object{"name": name, "resources": step.Resources[name]})
	}
	pod := e.pod(step.Pod)
	var options []client.SubResourcePatchOption
	if step.DryRun {
		options = append(options, client.DryRunAll)
	}
	err := e.Client.SubResource("resize").Patch(ctx, pod, apply.StrategicPatch(apply.Object{
		"metadata": apply.Object{"uid": step.Pod.UID, "resourceVersion": step.Version},
		"spec":     apply.Object{"containers": containers},
	}), options...)
	e.unresized[step.Pod.UID] = err != nil
	switch {
	case needsNewPod(err):
		ctrl.LoggerFrom(ctx).Info("Replacing a pod, because its resources cannot change", "pod", pod.Name, "why", err.Error())
		return e.delete(ctx, pod, client.Preconditions{UID: &step.Pod.UID})
	case isRejection(err):
		return fmt.Errorf("%w. Pod %s keeps its resources. Change what rejects the new ones, or replace the pod: kubectl delete pod -n %s %[2]s",
			e.failed("resize", pod, err), pod.Name, pod.Namespace)
	}
	return e.failed("resize", pod, err)
}

// needsNewPod returns true if the API server rejects new resources that the pod can never have. The cause names a field, for example
// because the QoS class would change, or is one of the admission plugin PodResizeValidator. A quota, RBAC and policies also reject
// resources, with the same HTTP status, but not because of the pod.
func needsNewPod(err error) bool {
	var of apierrors.APIStatus
	if !errors.As(err, &of) || of.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(of.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return apierrors.IsInvalid(err) && cause.Field != "" || cause.Type == "NodeCapacity" || cause.Type == "UnsupportedPlatform"
	})
}

// patchImages changes the images of a pod, and its revision.
func (e *execution) patchImages(ctx context.Context, step membership.PatchImages) error {
	before, err := json.Marshal(step.Before)
	if err != nil {
		return err
	}
	containers := []apply.Object{}
	for _, name := range slices.Sorted(maps.Keys(step.Images)) {
		containers = append(containers, apply.Object{"name": name, "image": step.Images[name]})
	}
	return e.patch(ctx, e.pod(step.Pod), apply.Object{
		"metadata": apply.Object{
			"uid": step.Pod.UID, "resourceVersion": step.Version,
			"labels":      apply.Object{appsv1.StatefulSetRevisionLabel: step.Revision},
			"annotations": apply.Object{v1.MemberImagesAnnotation: string(before)},
		},
		"spec": apply.Object{"containers": containers},
	})
}

// takeAttestation removes the attestation from the StatefulCluster, if it is still the same.
func (e *execution) takeAttestation(ctx context.Context, step membership.TakeAttestation) error {
	if err := apply.RemoveAttestation(ctx, e.Client, owner.StatefulCluster.Kind, e.Cluster); err != nil {
		return err
	}
	if step.Refused != "" {
		e.emit(ctx, e.Cluster, corev1.EventTypeWarning, eventAttestationRefused, step.Refused)
	}
	return nil
}

func (e *execution) named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: e.Cluster.Namespace, Name: name}
}

func (e *execution) pod(ref membership.Ref) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: e.named(ref.Name)}
}

func (e *execution) revision(name string) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{ObjectMeta: e.named(name)}
}

func (e *execution) claim(ref membership.Ref) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: e.named(ref.Name)}
}

func (e *execution) create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return e.failed("create", o, e.Client.Create(ctx, o, options...))
}

func (e *execution) patch(ctx context.Context, o client.Object, body apply.Object) error {
	return e.failed("patch", o, e.Client.Patch(ctx, o, apply.StrategicPatch(body)))
}

func (e *execution) delete(ctx context.Context, o client.Object, is client.Preconditions) error {
	return e.failed("delete", o, client.IgnoreNotFound(e.Client.Delete(ctx, o, is)))
}

// failed returns an error that says what failed, or nil.
func (e *execution) failed(verb string, o client.Object, err error) error {
	if err == nil {
		return nil
	}
	kind, _ := e.Client.GroupVersionKindFor(o) // the scheme has all kinds
	return fmt.Errorf("%s %s %s: %w", verb, kind.Kind, client.ObjectKeyFromObject(o), err)
}
