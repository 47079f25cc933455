package injected

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// FencedBy returns the settings of the pod's sidecar. The problem says why the pod is not fenced by the Lease of the
// singleton, and is empty if it is fenced. The field spec.fencing does not matter, because it applies only to new pods.
func FencedBy(pod *corev1.Pod, singleton *v1.StatefulSingleton) (settings signal.LeaseSettings, problem string) {
	if problem := NotFenceableBy(pod, singleton); problem != "" {
		return signal.LeaseSettings{}, problem
	}
	containers := Containers(pod, singleton)
	if !IsHeld(pod, containers) {
		return signal.LeaseSettings{}, "no policy injected the pod"
	}
	if pod.Annotations[v1.FencingAnnotation] != string(v1.FencingLease) {
		return signal.LeaseSettings{}, "the pod was injected before fencing was turned on"
	}
	var names []string
	for _, h := range containers {
		if !IsSupervised(h.Container) {
			return signal.LeaseSettings{}, fmt.Sprintf("%s of container %s is not the name of the container", signal.ContainerEnv, h.Name)
		}
		names = append(names, h.Name)
	}
	return SettingsOf(pod, signal.LeaseName(singleton.Name), names)
}

// NotFenceableBy returns why the policy of the singleton cannot prepare the pod for fencing, or nothing if it can.
func NotFenceableBy(pod *corev1.Pod, singleton *v1.StatefulSingleton) string {
	if problem := NotFenceable(pod); problem != "" {
		return problem
	}
	for _, h := range Containers(pod, singleton) {
		if h.Unheld {
			return fmt.Sprintf("nothing holds container %s", h.Name)
		}
		if h.ConfigMap != "" {
			return fmt.Sprintf("container %s %s", h.Name, cmp.Or(NotWrappable(h.Container), "is held by a barrier"))
		}
	}
	return ""
}

// NotQueueableBy returns why the policy of the singleton cannot prepare the pod to queue the connections of clients, or nothing
// if it can. The field spec.connections does not matter, because it applies only to new pods.
func NotQueueableBy(pod *corev1.Pod, singleton *v1.StatefulSingleton) string {
	if problem := NotFenceableBy(pod, singleton); problem != "" {
		return problem
	}
	hasPort := false
	// A queue starts before the release, when containers behind a held init container do not exist yet.
	for _, h := range Containers(pod, singleton) {
		switch {
		case h.Init:
			return fmt.Sprintf("init container %s is held", h.Name)
		case hasGRPC(h.LivenessProbe) || hasGRPC(h.ReadinessProbe):
			return fmt.Sprintf("container %s has a gRPC probe", h.Name)
		case !slices.ContainsFunc(h.Ports, isTCP):
		case h.SecurityContext == nil || ptr.Deref(h.SecurityContext.AllowPrivilegeEscalation, true):
			return fmt.Sprintf("container %s needs securityContext.allowPrivilegeEscalation: false", h.Name)
		default:
			hasPort = true
		}
	}
	if !hasPort {
		return "no held container has a TCP port in ports"
	}
	return ""
}

func hasGRPC(p *corev1.Probe) bool { return p != nil && p.GRPC != nil }

func isTCP(p corev1.ContainerPort) bool {
	return p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP
}

// NotWrappable returns why a policy holds the container by a barrier. Empty: by the wrapper.
func NotWrappable(c *corev1.Container) string {
	switch {
	case len(c.Command) == 0:
		return "needs a command"
	case c.StartupProbe != nil:
		return "has a startupProbe"
	case c.Lifecycle != nil && c.Lifecycle.PostStart != nil:
		return "has a postStart hook"
	}
	return ""
}

// NotFenceable returns why no Lease can fence the pod. Empty: if its containers are prepared, a Lease can.
func NotFenceable(pod *corev1.Pod) string {
	switch {
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
		return "the pod has shareProcessNamespace"
	case pod.Spec.HostPID:
		return "the pod has hostPID"
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == signal.CredentialsVolume && !isCredentials(volume) {
			return fmt.Sprintf("volume %s is the pod's own", volume.Name)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name != v1.SidecarName && slices.ContainsFunc(c.VolumeMounts, mountsCredentials) {
			return fmt.Sprintf("container %s mounts volume %s", c.Name, signal.CredentialsVolume)
		}
	}
	return ""
}

// IsSupervised returns true if the gate starts the main process of the container, and asks the sidecar whether the main
// process may run.
func IsSupervised(c *corev1.Container) bool {
	return IsWrapped(c) && Variable(c, signal.ContainerEnv) == corev1.EnvVar{Name: signal.ContainerEnv, Value: c.Name}
}

// Variable returns the environment variable of a container. The last variable of a name wins, as in Kubernetes.
func Variable(c *corev1.Container, name string) corev1.EnvVar {
	for _, env := range slices.Backward(c.Env) {
		if env.Name == name {
			return env
		}
	}
	return corev1.EnvVar{}
}

// SettingsOf returns the settings of the pod's sidecar. The problem says why the sidecar does not renew the Lease for exactly
// the held containers. It is empty if the sidecar does.
func SettingsOf(pod *corev1.Pod, lease string, held []string) (settings signal.LeaseSettings, problem string) {
	i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1.SidecarName })
	if i < 0 || !hasCredentials(pod, &pod.Spec.InitContainers[i]) {
		return signal.LeaseSettings{}, fmt.Sprintf("container %s has no volume %s at %s", v1.SidecarName, signal.CredentialsVolume, signal.CredentialsDir)
	}
	sidecar := &pod.Spec.InitContainers[i]
	found, err := signal.ParseLeaseSettings(func(name string) string {
		env := Variable(sidecar, name)
		switch from := env.ValueFrom; {
		case from == nil:
			return env.Value
		case name == signal.PodNameEnv && from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
			return pod.Name
		}
		return ""
	})
	want := pod.Namespace + "/" + lease
	switch {
	case err != nil:
		return signal.LeaseSettings{}, fmt.Sprintf("container %s: %v", v1.SidecarName, err)
	case found == nil || found.Namespace+"/"+found.Lease != want:
		return signal.LeaseSettings{}, fmt.Sprintf("%s of container %s is not %s", signal.LeaseEnv, v1.SidecarName, want)
	case found.Pod != pod.Name:
		return signal.LeaseSettings{}, fmt.Sprintf("%s of container %s is not the name of the pod", signal.PodNameEnv, v1.SidecarName)
	case !sets.New(found.Held...).Equal(sets.New(held...)):
		return signal.LeaseSettings{}, fmt.Sprintf("%s of container %s are not the held containers", signal.HeldEnv, v1.SidecarName)
	}
	return *found, ""
}

// hasCredentials returns true if the pod has the volume with the credentials, and mounts it in the sidecar.
func hasCredentials(pod *corev1.Pod, sidecar *corev1.Container) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == signal.CredentialsVolume }) &&
		slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool {
			return mountsCredentials(m) && m.MountPath == signal.CredentialsDir && m.ReadOnly && m.SubPath == "" && m.SubPathExpr == ""
		})
}

func mountsCredentials(m corev1.VolumeMount) bool { return m.Name == signal.CredentialsVolume }

// CredentialsSources returns what is in the volume signal.CredentialsVolume: the token of the pod, and the certificate
// authority of the API server.
func CredentialsSources() []corev1.VolumeProjection {
	return []corev1.VolumeProjection{
		// 3600 is the API server's default.
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))}},
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
			Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
		}},
	}
}

func isCredentials(v corev1.Volume) bool {
	return v.Projected != nil && equality.Semantic.DeepEqual(v.Projected.Sources, CredentialsSources())
}
