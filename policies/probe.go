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
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// probeName is every probe pod's: a refusal names the pod, and would be news each
	// time if that were another one. A dry-run stores nothing, so none is in its way.
	probeName = "statefulsingleton-probe"
	// probeAnnotation is "true" on a probe pod.
	probeAnnotation = "apps.statefulsingleton.com/probe"
	// answerPrefix begins the annotations by which policies answer.
	answerPrefix = "policy.statefulsingleton.com/"
)

// answer is the annotation by which the rules of the policy of that name tell that
// a probe pod went through them.
func answer(policy string) string { return answerPrefix + policy }

// ProbePod returns a pod that s selects, to be created in a server-side dry-run
// alone: what comes back shows whether pods of s are injected now. It meets Pod
// Security "restricted" and its image is never pulled. It fails where the
// selector picks no pod whatever.
func ProbePod(s *v1.StatefulSingleton, o Options) (*corev1.Pod, error) {
	labels, err := selectedLabels(&s.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("make a probe pod for StatefulSingleton %s/%s: %w", s.Namespace, s.Name, err)
	}
	name := "probe"
	if len(s.Spec.Containers) > 0 {
		name = s.Spec.Containers[0]
	}
	// A quota may refuse pods that ask for nothing, and a LimitRange those that ask for too
	// little: it asks for as much as the sidecar, so that only what refuses every pod refuses it.
	resources := corev1.ResourceList{}
	maps.Copy(resources, o.sidecarResources().Limits)
	maps.Copy(resources, o.sidecarResources().Requests)
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: probeName, Labels: labels,
			Annotations: map[string]string{probeAnnotation: "true"},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:      name,
				Image:     probeName,
				Command:   []string{"/probe"},
				Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}, nil
}

// CheckProbe returns nil where a probe pod of s is held, and the policy of that name
// had its part in it: another one may hold the pod, and be about to go.
func CheckProbe(pod *corev1.Pod, s *v1.StatefulSingleton, policy string) error {
	if !Answered(pod, policy) {
		return fmt.Errorf("pod went through no rule of ClusterPolicy %s for StatefulSingleton %s/%s", policy, s.Namespace, s.Name)
	}
	return CheckInjected(pod, s)
}

// Answered tells whether a probe pod went through rules of the policy of that name.
func Answered(pod *corev1.Pod, policy string) bool {
	return pod.Annotations[answer(policy)] == "true"
}

// barrierConfigMap is the form of the name of a barrier's ConfigMap.
var barrierConfigMap = regexp.MustCompile("^" + barrierPrefix + "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

// CheckInjected returns nil where pod is held as s asks, else an error that names
// everything that is missing. Guard "held" of the chart checks the same of every pod, and
// also that nobody has forged a part of it.
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

	holds := slices.DeleteFunc(handoff.Holds(pod, s), func(h handoff.Hold) bool { return !h.Named })
	require(slices.ContainsFunc(holds, func(h handoff.Hold) bool { return !h.Init }),
		"no regular container to hold: spec.containers names %s", strings.Join(s.Spec.Containers, ", "))
	for _, h := range holds {
		require(works(pod, h), "container %s is not held", h.Container)
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
func works(pod *corev1.Pod, h handoff.Hold) bool {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	c := all[slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == h.Container })]
	switch h.By {
	case handoff.ByWrapper:
		// The gate needs its volume and the pod's uid. See sharesProcesses.
		return hasMount(c, signalVolume, signal.Dir) && hasOwnUID(c) &&
			!ptr.Deref(pod.Spec.ShareProcessNamespace, false) && !pod.Spec.HostPID
	case handoff.ByBarrier:
		return barrierConfigMap.MatchString(h.ConfigMap) && slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == signal.EpochEnv && e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil &&
				e.ValueFrom.ConfigMapKeyRef.Name == h.ConfigMap && e.ValueFrom.ConfigMapKeyRef.Key == signal.EpochKey
		})
	case handoff.ByNothing:
	}
	return false
}

// hasOwnUID tells whether the one variable signal.PodUIDEnv of c is the pod's uid.
func hasOwnUID(c corev1.Container) bool {
	var fields []string
	for _, e := range c.Env {
		if e.Name == signal.PodUIDEnv {
			field := ""
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				field = e.ValueFrom.FieldRef.FieldPath
			}
			fields = append(fields, field)
		}
	}
	return slices.Equal(fields, []string{"metadata.uid"})
}

func hasMount(c corev1.Container, volume, path string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == volume && m.MountPath == path
	})
}
