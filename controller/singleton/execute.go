package singleton

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// nudgeAnnotation makes the kubelet look at a pod at once.
const nudgeAnnotation = "apps.statefulsingleton.com/barrier-opened"

// execute writes the steps of the plan in their order, up to the first that fails.
func (r *Reconciler) execute(ctx context.Context, singleton *v1.StatefulSingleton, plan handoff.Plan) error {
	for _, step := range plan.Steps {
		if err := r.step(ctx, singleton, plan, step); err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).V(1).Info("Wrote", "step", fmt.Sprintf("%T", step), "outcome", plan.Outcome)
	}
	return nil
}

func (r *Reconciler) step(ctx context.Context, singleton *v1.StatefulSingleton, plan handoff.Plan, step handoff.Step) error {
	namespace := singleton.Namespace
	switch step := step.(type) {
	case handoff.Record:
		stored := singleton.DeepCopy()
		singleton.Status = *plan.Status.DeepCopy()
		return r.record(ctx, stored, singleton)
	case handoff.Protect:
		labels := object{v1.SingletonLabel: singleton.Name}
		if step.Holder {
			labels[v1.RoleLabel] = v1.RoleActive
		}
		return r.patchPod(ctx, namespace, step.Pod, object{
			"finalizers": []string{v1.HandoffFinalizer},
			"labels":     labels,
		})
	case handoff.Signal:
		step.Signal.Time = r.Clock.Now().UTC()
		return r.patchPod(ctx, namespace, step.Pod, object{
			"finalizers":  []string{v1.HandoffFinalizer},
			"labels":      object{v1.RoleLabel: v1.RoleActive},
			"annotations": object{signal.Annotation: step.Signal.String()},
		})
	case handoff.OpenBarrier:
		return r.openBarrier(ctx, singleton, step)
	case handoff.Nudge:
		return r.patchPod(ctx, namespace, step.Pod, object{
			"annotations": object{nudgeAnnotation: strconv.FormatInt(step.Epoch, 10)},
		})
	case handoff.LetGo:
		return client.IgnoreNotFound(r.patchPod(ctx, namespace, step.Pod, object{
			"$deleteFromPrimitiveList/finalizers": []string{v1.HandoffFinalizer},
			"labels":                              object{v1.RoleLabel: nil},
			"annotations":                         object{signal.Annotation: nil},
		}))
	case handoff.Retire:
		return r.retire(ctx, namespace, step)
	case handoff.MarkReady:
		return r.markReady(ctx, namespace, step)
	default:
		panic(fmt.Sprintf("no such step: %T", step))
	}
}

// object is a piece of a patch.
type object map[string]any

// patchPod merges metadata into the very pod that is meant: the API server
// refuses a patch that names another uid.
func (r *Reconciler) patchPod(ctx context.Context, namespace string, ref handoff.PodRef, metadata object) error {
	metadata["uid"] = ref.UID
	if err := r.Client.Patch(ctx, podOf(namespace, ref), mergePatch(object{"metadata": metadata})); err != nil {
		return fmt.Errorf("patch pod %s/%s: %w", namespace, ref.Name, err)
	}
	return nil
}

func podOf(namespace string, ref handoff.PodRef) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ref.Name}}
}

// mergePatch is a strategic merge patch: it adds to finalizers and conditions
// instead of replacing them.
func mergePatch(o object) client.Patch {
	data, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("encode patch: %v", err)) // strings and maps only
	}
	return client.RawPatch(types.StrategicMergePatchType, data)
}

// openBarrier creates the ConfigMap that the pod's barrier waits for. It belongs
// to the pod and goes with it.
func (r *Reconciler) openBarrier(ctx context.Context, singleton *v1.StatefulSingleton, step handoff.OpenBarrier) error {
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: singleton.Namespace,
			Name:      step.ConfigMap,
			Labels:    map[string]string{v1.SingletonLabel: singleton.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: step.Pod.Name, UID: step.Pod.UID,
			}},
		},
		Data: map[string]string{signal.EpochKey: strconv.FormatInt(step.Epoch, 10)},
	}
	if err := r.Client.Create(ctx, configMap); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ConfigMap %s/%s, which pod %s waits for: %w", singleton.Namespace, step.ConfigMap, step.Pod.Name, err)
	}
	return nil
}

// retire scales a ReplicaSet to zero. Deleting the pod would only have it
// recreated; the Deployment controller does not fight the scale.
func (r *Reconciler) retire(ctx context.Context, namespace string, step handoff.Retire) error {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: step.ReplicaSet}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
	err := r.Client.SubResource("scale").Patch(ctx, rs, patch, client.WithSubResourceBody(&autoscalingv1.Scale{}))
	if err != nil {
		return fmt.Errorf("scale ReplicaSet %s/%s to zero: %w", namespace, step.ReplicaSet, err)
	}
	return nil
}

func (r *Reconciler) markReady(ctx context.Context, namespace string, step handoff.MarkReady) error {
	patch := mergePatch(object{
		"metadata": object{"uid": step.Pod.UID},
		"status": object{"conditions": []object{{
			"type": v1.ReadyCondition, "status": corev1.ConditionTrue, "reason": "Holds",
			"message":            "the pod holds",
			"lastTransitionTime": metav1.NewTime(r.Clock.Now()),
		}}},
	})
	if err := r.Client.Status().Patch(ctx, podOf(namespace, step.Pod), patch); err != nil {
		return fmt.Errorf("set the readiness gate of pod %s/%s: %w", namespace, step.Pod.Name, err)
	}
	return nil
}
