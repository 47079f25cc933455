package handoff

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
)

// FencedBy returns the settings of the pod's sidecar. The problem says why the pod is not fenced by the Lease of the
// singleton, and is empty if it is fenced. The field spec.fencing does not matter, because it applies only to new pods.
func FencedBy(pod *corev1.Pod, singleton *v1.StatefulSingleton) (settings fencing.Settings, problem string) {
	if problem := NotFenceable(pod, singleton); problem != "" {
		return fencing.Settings{}, problem
	}
	containers := held(pod, singleton)
	if !isHeld(pod, containers) {
		return fencing.Settings{}, "no policy injected the pod"
	}
	if pod.Annotations[v1.FencingAnnotation] != string(v1.FencingLease) {
		return fencing.Settings{}, "the pod was injected before fencing was turned on"
	}
	for _, h := range containers {
		if !h.supervised {
			return fencing.Settings{}, fmt.Sprintf("%s of container %s is not the name of the container", fencing.ContainerEnv, h.name)
		}
	}
	sidecar := initContainer(pod, v1.SidecarName)
	if sidecar == nil || !hasCredentials(pod, sidecar) {
		return fencing.Settings{}, fmt.Sprintf("container %s has no volume %s at %s", v1.SidecarName, fencing.CredentialsVolume, fencing.CredentialsDir)
	}
	return settingsOf(sidecar, pod.Name, singleton, containers)
}

// NotFenceable returns why a policy cannot prepare the pod for fencing, or nothing if it can.
func NotFenceable(pod *corev1.Pod, singleton *v1.StatefulSingleton) string {
	switch {
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
		return "the pod has shareProcessNamespace"
	case pod.Spec.HostPID:
		return "the pod has hostPID"
	}
	for _, h := range held(pod, singleton) {
		if h.unheld {
			return fmt.Sprintf("nothing holds container %s", h.name)
		}
		if h.configMap != "" {
			return fmt.Sprintf("container %s %s", h.name, notWrappable(pod, h.name))
		}
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == fencing.CredentialsVolume && !isCredentials(volume) {
			return fmt.Sprintf("volume %s is the pod's own", volume.Name)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name != v1.SidecarName && slices.ContainsFunc(c.VolumeMounts, mountsCredentials) {
			return fmt.Sprintf("container %s mounts volume %s", c.Name, fencing.CredentialsVolume)
		}
	}
	return ""
}

// notWrappable returns why a container has a barrier instead of the wrapper.
func notWrappable(pod *corev1.Pod, container string) string {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	switch c := all[slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == container })]; {
	case len(c.Command) == 0:
		return "needs a command"
	case c.StartupProbe != nil:
		return "has a startupProbe"
	case c.Lifecycle != nil && c.Lifecycle.PostStart != nil:
		return "has a postStart hook"
	}
	return "is held by a barrier"
}

func initContainer(pod *corev1.Pod, name string) *corev1.Container {
	i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &pod.Spec.InitContainers[i]
}

// hasCredentials returns true if the pod has the volume with the credentials, and mounts it in the sidecar.
func hasCredentials(pod *corev1.Pod, sidecar *corev1.Container) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == fencing.CredentialsVolume }) &&
		slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool {
			return mountsCredentials(m) && m.MountPath == fencing.CredentialsDir && m.ReadOnly && m.SubPath == "" && m.SubPathExpr == ""
		})
}

func mountsCredentials(m corev1.VolumeMount) bool { return m.Name == fencing.CredentialsVolume }

// CredentialsSources returns what is in the volume fencing.CredentialsVolume: the token of the pod, and the certificate
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

// settingsOf returns the settings in the sidecar's environment, if they are for the Lease of the singleton and for
// exactly the held containers.
func settingsOf(sidecar *corev1.Container, pod string, singleton *v1.StatefulSingleton, containers []heldContainer) (fencing.Settings, string) {
	settings, err := fencing.Parse(func(name string) string {
		env := variable(sidecar, name)
		switch from := env.ValueFrom; {
		case from == nil:
			return env.Value
		case name == fencing.PodNameEnv && from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
			return pod
		}
		return ""
	})
	want := singleton.Namespace + "/" + fencing.LeaseName(singleton.Name)
	var names []string
	for _, h := range containers {
		names = append(names, h.name)
	}
	switch {
	case err != nil:
		return fencing.Settings{}, fmt.Sprintf("container %s: %v", v1.SidecarName, err)
	case settings == nil || settings.Namespace+"/"+settings.Lease != want:
		return fencing.Settings{}, fmt.Sprintf("%s of container %s is not %s", fencing.LeaseEnv, v1.SidecarName, want)
	case settings.Pod != pod:
		return fencing.Settings{}, fmt.Sprintf("%s of container %s is not the name of the pod", fencing.PodNameEnv, v1.SidecarName)
	case !sets.New(settings.Held...).Equal(sets.New(names...)):
		return fencing.Settings{}, fmt.Sprintf("%s of container %s are not the held containers", fencing.HeldEnv, v1.SidecarName)
	}
	return *settings, ""
}
