package handoff

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// surging returns the pod's Deployment if a rollout of it creates a new pod before it deletes the pod. Otherwise it
// returns nil and the reason.
func (d *decision) surging(pod *corev1.Pod) (deployment *appsv1.Deployment, why string) {
	controller := metav1.GetControllerOf(pod)
	if controller == nil {
		return nil, fmt.Sprintf("pod %s belongs to no Deployment", pod.Name)
	}
	if deployment = d.deployment(pod); deployment == nil {
		return nil, fmt.Sprintf("pod %s belongs to %s %s, and not to a Deployment", pod.Name, controller.Kind, controller.Name)
	}
	if why = CannotSurge(deployment); why != "" {
		return nil, why
	}
	return deployment, ""
}

// CannotSurge returns why a rollout of the Deployment creates no pod before it deletes the old one. Empty: it does.
func CannotSurge(deployment *appsv1.Deployment) (why string) {
	spec := &deployment.Spec
	replicas := int(ptr.Deref(spec.Replicas, 1))
	surge, unavailable := 1, 0 // the defaults for one replica
	if rolling := spec.Strategy.RollingUpdate; rolling != nil {
		surge = resolve(rolling.MaxSurge, replicas, true)
		unavailable = resolve(rolling.MaxUnavailable, replicas, false)
	}
	switch {
	case deployment.DeletionTimestamp != nil || replicas == 0:
		why = "is being deleted or has no replicas"
	case spec.Paused:
		why = "is paused"
	case spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		why = "has strategy Recreate"
	case surge == 0:
		why = "has maxSurge 0"
	case unavailable >= replicas:
		why = "stops the holder at once in a rollout, because its maxUnavailable is not below its replicas"
	default:
		return ""
	}
	return fmt.Sprintf("Deployment %s %s", deployment.Name, why)
}

// resolve returns the number of pods for a count or a percentage, rounded as the Deployment controller does
// (k8s.io/kubernetes/pkg/controller/deployment/util.ResolveFenceposts).
func resolve(value *intstr.IntOrString, replicas int, roundUp bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, intstr.FromString("25%")), replicas, roundUp)
	if err != nil {
		return 0 // the API server rejects such a value
	}
	return n
}

// Reasons of condition Warm.
const (
	ownerSurges      = "OwnerSurges"
	ownerCannotSurge = "OwnerCannotSurge"
)

// reportWarm reports whether a rollout warms up the next pod while the holder runs. The condition does not change while no pod
// is expected.
func (d *decision) reportWarm() {
	active := d.active()
	if active == nil {
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionWarm)
		return
	}
	if d.unwanted(active.Pod) {
		return
	}
	if _, why := d.surging(active.Pod); why != "" {
		d.setCondition(v1.ConditionWarm, false, ownerCannotSurge,
			fmt.Sprintf("%s, so the old pod stops before the next one is created%s", why, surgeHelp(d.deployment(active.Pod))))
		return
	}
	message := fmt.Sprintf("pod %s runs until the pod of the next rollout is warm", active.Name)
	if len(d.status.NodeClaims) > 0 {
		message += fmt.Sprintf(". In a drain, it stops first if claim %s must be attached to another node%s", d.status.NodeClaims[0], d.attachHelp())
	}
	d.setCondition(v1.ConditionWarm, true, ownerSurges, message)
}

// surgeHelp says how to make a Deployment create the next pod before it deletes the old one. Nil: the pods belong to no Deployment.
func surgeHelp(deployment *appsv1.Deployment) string {
	if deployment == nil {
		return ". Only a Deployment can create the next pod first"
	}
	to, command := SurgeCommand(deployment)
	return fmt.Sprintf(". To %s, run: %s", to, command)
}

// SurgeCommand returns a command, and what it is for: a rollout of the Deployment then creates the next pod before it deletes the old
// one.
func SurgeCommand(deployment *appsv1.Deployment) (to, command string) {
	if deployment.Spec.Paused {
		return "resume the Deployment", fmt.Sprintf("kubectl rollout resume -n %s deployment/%s", deployment.Namespace, deployment.Name)
	}
	return "change that without a rollout", fmt.Sprintf("kubectl patch -n %s deployment %s --type=json -p '%s'", deployment.Namespace, deployment.Name, SurgePatch())
}

// SurgePatch returns the JSON patch of SurgeCommand for a Deployment that is not paused.
func SurgePatch() []byte {
	return []byte(`[{"op":"replace","path":"/spec/strategy","value":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":1,"maxUnavailable":0}}}]`)
}
