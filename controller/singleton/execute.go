package singleton

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// execution executes one plan.
type execution struct {
	*Reconciler
	singleton *v1.StatefulSingleton
	plan      handoff.Plan
	// lease is the Lease after the last write. Nil: the Lease does not exist.
	lease *coordinationv1.Lease
	// written has the resourceVersions of pods and of the Lease after the last write of this execution, by UID.
	written map[types.UID]handoff.Version
}

// execute executes the steps of the plan in their order, and stops at the first that fails. Afterwards the status
// of the singleton is what the last Record wrote, or else what was read.
func (r *Reconciler) execute(ctx context.Context, snapshot handoff.Snapshot, plan handoff.Plan) error {
	e := &execution{r, snapshot.Singleton, plan, snapshot.Lease.Object, map[types.UID]handoff.Version{}}
	for _, step := range plan.Steps {
		if err := e.step(ctx, step); err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).V(1).Info("Executed step", "step", fmt.Sprintf("%T", step), "outcome", plan.Outcome)
	}
	return nil
}

func (e *execution) step(ctx context.Context, step handoff.Step) error {
	switch step := step.(type) {
	case handoff.Record:
		return e.recordStrictly(ctx)
	case handoff.Protect:
		labels := apply.Object{v1.SingletonLabel: e.singleton.Name}
		if step.Holder {
			labels[v1.RoleLabel] = v1.RoleActive
		}
		metadata := apply.Object{"finalizers": []string{v1.HandoffFinalizer}, "labels": labels}
		if step.ChosenBy != "" {
			metadata["annotations"] = apply.Object{v1.ChosenByAnnotation: step.ChosenBy}
		}
		return e.patchPod(ctx, step.Pod, step.Version, metadata)
	case handoff.OpenBarrier:
		return e.openBarrier(ctx, step)
	case handoff.Signal:
		return e.signal(ctx, step)
	case handoff.WriteLease:
		return e.writeLease(ctx, step)
	case handoff.Demote:
		return client.IgnoreNotFound(e.setConditions(ctx, step.Pod, step.Version, unreleased(), standsBy, notReady))
	case handoff.Nudge:
		return e.patchPod(ctx, step.Pod, "", apply.Object{
			"annotations": apply.Object{v1.NudgeAnnotation: strconv.FormatInt(step.Epoch, 10)},
		})
	case handoff.Unprotect:
		return client.IgnoreNotFound(e.patchPod(ctx, step.Pod, step.Version, unreleased()))
	case handoff.Retire:
		return e.retire(ctx, step)
	case handoff.Roll:
		return e.roll(ctx, step)
	case handoff.MarkReady:
		return e.setConditions(ctx, step.Pod, "", apply.Object{}, holds)
	case handoff.TakeAttestation:
		return e.takeAttestation(ctx, step)
	case handoff.RemoveFinalizer:
		return e.removeFinalizer(ctx, step)
	case handoff.ConfirmGone:
		return e.confirmGone(ctx)
	case handoff.Finish:
		return e.finish(ctx, step)
	default:
		panic(fmt.Sprintf("no such step: %T", step))
	}
}

// recordStrictly writes the status of the plan. It fails if the API server would drop a field, which happens with an
// older CustomResourceDefinition: the next read would miss that field.
func (e *execution) recordStrictly(ctx context.Context) error {
	stored := e.singleton.DeepCopy()
	e.singleton.Status = *e.plan.Status.DeepCopy()
	err := e.record(ctx, stored, e.singleton, client.FieldValidation(metav1.FieldValidationStrict))
	if err != nil {
		e.singleton.Status = stored.Status
	}
	if apierrors.IsBadRequest(err) {
		return fmt.Errorf("%w. The CustomResourceDefinition is older than the controller. Apply the CustomResourceDefinition of the chart, or set crds.install", err)
	}
	return err
}

// patchPod merges metadata into a pod. The API server rejects the patch if the pod has another UID or another
// version.
func (e *execution) patchPod(ctx context.Context, ref handoff.PodRef, version handoff.Version, metadata apply.Object) error {
	pod := e.addPreconditions(ref, version, metadata)
	if err := e.Client.Patch(ctx, pod, apply.StrategicPatch(apply.Object{"metadata": metadata})); err != nil {
		return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	e.written[ref.UID] = handoff.Version(pod.ResourceVersion)
	return nil
}

// addPreconditions adds the UID to the metadata of a patch, and the version if the step has one. It returns the pod to patch.
func (e *execution) addPreconditions(ref handoff.PodRef, version handoff.Version, metadata apply.Object) *corev1.Pod {
	metadata["uid"] = ref.UID
	if version != "" {
		metadata["resourceVersion"] = cmp.Or(e.written[ref.UID], version)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.singleton.Namespace, Name: ref.Name}}
}

// openBarrier creates the ConfigMap that the pod's barrier waits for. The pod owns the ConfigMap, which is
// garbage-collected with the pod.
func (e *execution) openBarrier(ctx context.Context, step handoff.OpenBarrier) error {
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.singleton.Namespace,
			Name:      step.ConfigMap,
			Labels:    map[string]string{v1.SingletonLabel: e.singleton.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: step.Pod.Name, UID: step.Pod.UID,
			}},
		},
		Immutable: new(true),
		Data:      map[string]string{signal.EpochKey: strconv.FormatInt(step.Epoch, 10)},
	}
	if err := e.Client.Create(ctx, configMap); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ConfigMap %s/%s, which pod %s waits for: %w", configMap.Namespace, step.ConfigMap, step.Pod.Name, err)
	}
	return nil
}

// retire scales a ReplicaSet to zero. The ReplicaSet would recreate a deleted pod; the Deployment controller does
// not undo the scale.
func (e *execution) retire(ctx context.Context, step handoff.Retire) error {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: e.singleton.Namespace, Name: step.ReplicaSet}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
	err := e.Client.SubResource("scale").Patch(ctx, rs, patch, client.WithSubResourceBody(&autoscalingv1.Scale{}))
	if err != nil {
		return fmt.Errorf("scale ReplicaSet %s/%s to zero: %w", rs.Namespace, rs.Name, err)
	}
	return nil
}

// roll changes the Deployment's pod template as `kubectl rollout restart` does. If the API server rejects that, roll
// only reports it: the status must still be written, because it has the time at which a drain began.
func (e *execution) roll(ctx context.Context, step handoff.Roll) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: e.singleton.Namespace, Name: step.Deployment}}
	err := e.Client.Patch(ctx, deployment, apply.StrategicPatch(apply.Object{
		"metadata": apply.Object{"uid": step.UID, "resourceVersion": step.Version},
		"spec": apply.Object{"template": apply.Object{"metadata": apply.Object{"annotations": apply.Object{
			v1.ReplacesAnnotation: step.Replaces.UID,
		}}}},
	}))
	switch {
	case err == nil:
		e.emit(ctx, e.singleton, corev1.EventTypeNormal, "Roll", eventRolled,
			fmt.Sprintf("Deployment %s is rolled to create the pod that takes over from pod %s", step.Deployment, step.Replaces.Name))
	case apierrors.IsConflict(err):
		return fmt.Errorf("roll Deployment %s/%s: %w", deployment.Namespace, step.Deployment, err)
	default:
		e.emit(ctx, e.singleton, corev1.EventTypeWarning, "Roll", eventRollRefused,
			fmt.Sprintf("Deployment %s can't be rolled, and pod %s is not replaced: %s", step.Deployment, step.Replaces.Name, apply.OneLine(err.Error())))
	}
	return nil
}

// signal writes metadata and status of the pod in one request to the status subresource, which accepts metadata
// too (pkg/registry/core/pod: podStatusStrategy). The kubelet sees both at the same time.
func (e *execution) signal(ctx context.Context, step handoff.Signal) error {
	step.Signal.Time = e.Clock.Now().UTC()
	return e.setConditions(ctx, step.Pod, step.Version, apply.Object{
		"labels":      apply.Object{v1.RoleLabel: v1.RoleActive},
		"annotations": apply.Object{signal.Annotation: step.Signal.String()},
	}, holds)
}

// unreleased is the metadata of a patch that removes finalizer, role and signal from a pod.
func unreleased() apply.Object {
	return apply.Object{
		"$deleteFromPrimitiveList/finalizers": []string{v1.HandoffFinalizer},
		"labels":                              apply.Object{v1.RoleLabel: nil},
		"annotations":                         apply.Object{signal.Annotation: nil},
	}
}

// holds and standsBy are the conditions of the readiness gate of a holder, and of a pod that is not.
// notReady removes the pod from Services at once. Its kubelet would do that too, but may be unreachable. The node
// controller does it only after --node-monitor-grace-period.
var (
	holds = corev1.PodCondition{
		Type: v1.ReadyCondition, Status: corev1.ConditionTrue, Reason: v1.ReadyReasonHolds, Message: "the pod is the holder",
	}
	standsBy = corev1.PodCondition{
		Type: v1.ReadyCondition, Status: corev1.ConditionFalse, Reason: v1.ReadyReasonStandby, Message: "the pod is not the holder",
	}
	notReady = corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: readinessGatesNotReady, Message: standsBy.Message,
	}
)

// readinessGatesNotReady is the reason that the kubelet gives (pkg/kubelet/status/generate.go).
const readinessGatesNotReady = "ReadinessGatesNotReady"

// setConditions sets conditions of a pod, and merges the metadata.
func (e *execution) setConditions(ctx context.Context, ref handoff.PodRef, version handoff.Version, metadata apply.Object, conditions ...corev1.PodCondition) error {
	pod := e.addPreconditions(ref, version, metadata)
	if err := e.Client.Status().Patch(ctx, pod, conditionsPatch(metadata, e.Clock.Now(), conditions...)); err != nil {
		return fmt.Errorf("patch the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	e.written[ref.UID] = handoff.Version(pod.ResourceVersion)
	return nil
}

// conditionsPatch returns a patch that sets conditions of a pod, and merges the metadata.
func conditionsPatch(metadata apply.Object, now time.Time, conditions ...corev1.PodCondition) client.Patch {
	var set []apply.Object
	for _, c := range conditions {
		set = append(set, apply.Object{
			"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastTransitionTime": metav1.NewTime(now),
		})
	}
	return apply.StrategicPatch(apply.Object{"metadata": metadata, "status": apply.Object{"conditions": set}})
}

// takeAttestation removes the attestation. An event says why an attestation is refused.
func (e *execution) takeAttestation(ctx context.Context, step handoff.TakeAttestation) error {
	s := e.singleton
	if err := apply.RemoveAttestation(ctx, e.Client, owner.StatefulSingleton.Kind, s); err != nil {
		return err
	}
	if step.Refused != "" {
		e.emit(ctx, s, corev1.EventTypeWarning, "Attest", eventAttestationRefused,
			fmt.Sprintf("annotation %s=%s is refused: %s", v1.AttestAnnotation, step.UID, step.Refused))
	}
	return nil
}

// removeFinalizer removes the finalizer from a pod. It fails if the pod does not exist or has changed since the read.
func (e *execution) removeFinalizer(ctx context.Context, step handoff.RemoveFinalizer) error {
	metadata := apply.Object{"$deleteFromPrimitiveList/finalizers": []string{v1.HandoffFinalizer}}
	if step.Unchoose {
		metadata["annotations"] = apply.Object{v1.ChosenByAnnotation: nil}
	}
	if err := e.patchPod(ctx, step.Pod, step.Version, metadata); err != nil {
		return fmt.Errorf("remove finalizer %s from pod %s: %w", v1.HandoffFinalizer, step.Pod.Name, err)
	}
	return nil
}

// confirmGone returns a conflict if the singleton exists.
func (e *execution) confirmGone(ctx context.Context) error {
	key := client.ObjectKeyFromObject(e.singleton)
	err := e.Live.Get(ctx, key, &v1.StatefulSingleton{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("check that StatefulSingleton %s does not exist: %w", key, err)
	}
	return conflictOf(e.singleton, errors.New("it was created again"))
}

// conflictOf returns a conflict, after which the controller decides again from a new snapshot.
func conflictOf(singleton *v1.StatefulSingleton, err error) error {
	return apierrors.NewConflict(v1.GroupVersion.WithResource("statefulsingletons").GroupResource(), singleton.Name, err)
}

// finish removes the finalizer from the singleton. A singleton that does not exist is no error.
func (e *execution) finish(ctx context.Context, step handoff.Finish) error {
	e.singleton.ResourceVersion = string(step.Version)
	return client.IgnoreNotFound(apply.RemoveFinalizer(ctx, e.Client, owner.StatefulSingleton.Kind, e.singleton, v1.PolicyFinalizer))
}
