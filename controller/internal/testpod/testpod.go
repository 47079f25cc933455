// Package testpod changes the pods of tests as the policies change pods.
package testpod

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Fence prepares a pod for fencing by the Lease, which the pod renews within 15 s. The first init container is the sidecar, which gets
// more variables, and the wrapper holds the other containers that are held.
func Fence(p *corev1.Pod, lease string, more ...corev1.EnvVar) {
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1.FencingAnnotation, string(v1.FencingLease))
	var held []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if c := &list[i]; injected.IsWrapped(c) {
				c.Env = append(c.Env, corev1.EnvVar{Name: signal.ContainerEnv, Value: c.Name})
				held = append(held, c.Name)
			}
		}
	}
	sidecar := &p.Spec.InitContainers[0]
	sidecar.Env = slices.Concat([]corev1.EnvVar{
		{Name: signal.LeaseEnv, Value: p.Namespace + "/" + lease},
		{Name: signal.LeaseDurationEnv, Value: "15"},
		{Name: signal.HeldEnv, Value: strings.Join(held, ",")},
	}, more, []corev1.EnvVar{
		{Name: signal.PodNameEnv, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{Name: signal.APIServerEnv, Value: "https://10.96.0.1:443"},
		{Name: signal.AuthoritiesEnv, Value: signal.Fingerprint(nil)},
	})
	sidecar.VolumeMounts = append(sidecar.VolumeMounts, corev1.VolumeMount{Name: signal.CredentialsVolume, MountPath: signal.CredentialsDir, ReadOnly: true})
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: signal.CredentialsVolume, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: injected.CredentialsSources()},
	}})
}
