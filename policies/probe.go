package policies

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// probeName is the name of all probe pods. An error contains the name and must not change with each probe. A
	// dry-run stores nothing, so probes do not collide.
	probeName = "statefulsingleton-probe"
	// probeAnnotation is "true" on a probe pod.
	probeAnnotation = "apps.statefulsingleton.com/probe"
	// answerPrefix begins the annotations with which ClusterPolicies answer a probe, and mutatingAnswerPrefix those of
	// NamespacedMutatingPolicies. Policies of both kinds can have the same name.
	answerPrefix         = "policy.statefulsingleton.com/"
	mutatingAnswerPrefix = "mutatingpolicy.statefulsingleton.com/"
)

// answer returns the annotation that the rules of a policy add to a probe pod.
func answer(policy Ref) string {
	if policy.Kind == NamespacedMutatingPolicy {
		return mutatingAnswerPrefix + policy.Name
	}
	return answerPrefix + policy.Name
}

// singletonProbe returns a pod that s selects.
func singletonProbe(s *v1.StatefulSingleton, o Options) (*corev1.Pod, error) {
	labels, err := selectedLabels(&s.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("make a probe pod for StatefulSingleton %s/%s: %w", s.Namespace, s.Name, err)
	}
	name := "probe"
	if len(s.Spec.Containers) > 0 {
		name = s.Spec.Containers[0]
	}
	pod := probePod(s.Namespace, name, o)
	pod.Labels = labels
	if queues(s) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}} // otherwise the pod would not be queueable
	}
	return pod, nil
}

// probePod returns a pod for a server-side dry-run, with one container.
func probePod(namespace, container string, o Options) *corev1.Pod {
	// A quota can reject pods without requests, and a LimitRange pods with small requests. The probe requests as much
	// as the sidecar, so only a rule that rejects every held pod rejects the probe.
	resources := corev1.ResourceList{}
	maps.Copy(resources, o.sidecarResources().Limits)
	maps.Copy(resources, o.sidecarResources().Requests)
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: probeName, Annotations: map[string]string{probeAnnotation: "true"},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:      container,
				Image:     probeName,
				Command:   []string{"/probe"},
				Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

var (
	// ErrNotFenced is the error for a pod that is held and not fenced.
	ErrNotFenced = errors.New("pod is not fenced")
	// ErrNotQueued is the error for a pod that is fenced and cannot queue connections.
	ErrNotQueued = errors.New("pod does not queue connections")
)

// checkSingletonProbe returns nil if a probe pod of s is held, and fenced and prepared for the queue if s asks for it.
func checkSingletonProbe(pod *corev1.Pod, s *v1.StatefulSingleton) error {
	if err := CheckInjected(pod, s); err != nil {
		return err
	}
	// Another webhook may have added a container to the probe that keeps pods from being fenced, or from queueing.
	if s.Spec.Fencing != v1.FencingLease || injected.NotFenceableBy(pod, s) != "" {
		return nil
	}
	settings, problem := injected.FencedBy(pod, s)
	if problem != "" {
		return fmt.Errorf("%w: %s", ErrNotFenced, problem)
	}
	if queues(s) && injected.NotQueueableBy(pod, s) == "" && settings.Queue == 0 {
		return fmt.Errorf("%w: container %s has no %s", ErrNotQueued, v1.SidecarName, signal.QueueEnv)
	}
	return nil
}

// Answered returns true if the rules of the policy applied to a probe pod.
func Answered(pod *corev1.Pod, policy Ref) bool {
	return pod.Annotations[answer(policy)] == "true"
}

// barrierConfigMap matches the name of a barrier's ConfigMap.
var barrierConfigMap = regexp.MustCompile("^" + barrierPrefix + "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

// CheckInjected returns nil if pod is held as s asks, or an error that names everything that is missing. The guard
// "held" of the chart checks the same for every pod, and also rejects forged fields.
func CheckInjected(pod *corev1.Pod, s *v1.StatefulSingleton) error {
	var missing []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			missing = append(missing, fmt.Errorf(format, args...))
		}
	}
	require(pod.Annotations[v1.InjectedAnnotation] == s.Namespace+"/"+s.Name, "annotation %s is not %s/%s", v1.InjectedAnnotation, s.Namespace, s.Name)
	require(pod.Labels[v1.SingletonLabel] == s.Name, "label %s is not %s", v1.SingletonLabel, s.Name)
	require(slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1.ReadyCondition}), "no readiness gate %s", v1.ReadyCondition)
	require(slices.ContainsFunc(pod.Spec.Volumes, isSignalVolume), "no emptyDir volume %s", signalVolume)
	require(slices.ContainsFunc(pod.Spec.Volumes, isPodinfoVolume), "no downward API volume %s with %s", podinfoVolume, signal.Annotation)
	require(slices.ContainsFunc(pod.Spec.InitContainers, isSidecar), "no native sidecar %s", v1.SidecarName)

	named := slices.DeleteFunc(injected.Containers(pod, s), func(h injected.Container) bool { return !h.Named })
	require(slices.ContainsFunc(named, func(h injected.Container) bool { return !h.Init }),
		"no regular container to hold: spec.containers names %s", strings.Join(s.Spec.Containers, ", "))
	for _, h := range named {
		require(works(pod, h), "container %s is not held", h.Name)
	}
	if len(missing) > 0 {
		return fmt.Errorf("pod is not injected: %w", errors.Join(missing...))
	}
	return nil
}

func isSignalVolume(v corev1.Volume) bool {
	return v.Name == signalVolume && v.EmptyDir != nil
}

func isPodinfoVolume(v corev1.Volume) bool {
	field := fmt.Sprintf("metadata.annotations['%s']", signal.Annotation)
	return v.Name == podinfoVolume && v.DownwardAPI != nil &&
		slices.ContainsFunc(v.DownwardAPI.Items, func(i corev1.DownwardAPIVolumeFile) bool {
			return i.Path == podinfoFile && i.FieldRef != nil && i.FieldRef.FieldPath == field
		})
}

func isSidecar(c corev1.Container) bool {
	return c.Name == v1.SidecarName && ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways &&
		slices.Equal(c.Command, []string{imageGate}) && slices.Equal(c.Args, []string{"sidecar"}) &&
		hasMount(c, signalVolume, signal.Dir) && hasMount(c, podinfoVolume, signal.PodinfoDir)
}

// works returns true if the pod has everything that the wrapper or the barrier of a container needs.
func works(pod *corev1.Pod, h injected.Container) bool {
	switch {
	case h.Unheld:
		return false
	case h.ConfigMap != "":
		return barrierConfigMap.MatchString(h.ConfigMap) && slices.ContainsFunc(h.Env, func(e corev1.EnvVar) bool {
			return e.Name == signal.EpochEnv && e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil &&
				e.ValueFrom.ConfigMapKeyRef.Name == h.ConfigMap && e.ValueFrom.ConfigMapKeyRef.Key == signal.EpochKey
		})
	}
	// The gate needs its volume and the pod's UID. See sharesProcesses.
	return hasMount(*h.Container, signalVolume, signal.Dir) && hasOwnUID(*h.Container) &&
		!ptr.Deref(pod.Spec.ShareProcessNamespace, false) && !pod.Spec.HostPID
}

// hasOwnUID returns true if c has one variable signal.PodUIDEnv, and its value is the pod's UID.
func hasOwnUID(c corev1.Container) bool {
	all := slices.DeleteFunc(slices.Clone(c.Env), func(e corev1.EnvVar) bool { return e.Name != signal.PodUIDEnv })
	if len(all) != 1 || all[0].ValueFrom == nil || all[0].ValueFrom.FieldRef == nil {
		return false
	}
	return all[0].ValueFrom.FieldRef.FieldPath == "metadata.uid"
}

func hasMount(c corev1.Container, volume, path string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == volume && m.MountPath == path
	})
}
