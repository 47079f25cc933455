package singleton_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// inject changes a pod with one container like the policy.
func inject(pod *corev1.Pod, singleton client.ObjectKey) *corev1.Pod {
	if pod.Annotations[v1.InjectedAnnotation] != "" {
		return pod
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1.InjectedAnnotation, singleton.String())
	metav1.SetMetaDataLabel(&pod.ObjectMeta, v1.SingletonLabel, singleton.Name)
	spec := &pod.Spec
	spec.ReadinessGates = append(spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1.ReadyCondition})
	spec.Volumes = append(spec.Volumes,
		corev1.Volume{Name: "statefulsingleton-signal", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "statefulsingleton-podinfo", VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "start-signal", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + signal.Annotation + "']"},
			}}},
		}})
	spec.InitContainers = slices.Insert(spec.InitContainers, 0, corev1.Container{
		Name: v1.SidecarName, Image: "gate", Command: []string{"/ko-app/gate"}, Args: []string{"sidecar"},
		RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "statefulsingleton-signal", MountPath: signal.Dir},
			{Name: "statefulsingleton-podinfo", MountPath: "/etc/statefulsingleton", ReadOnly: true},
		},
	})
	main := &spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "statefulsingleton-signal", MountPath: signal.Dir, ReadOnly: true})
	if len(main.Command) > 0 {
		main.Command = append(slices.Clone(signal.Wrapper), main.Command...)
		main.Env = append(main.Env, corev1.EnvVar{Name: signal.PodUIDEnv, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
		}})
		main.StartupProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{signal.GatePath, "started"}}},
			PeriodSeconds: 1, FailureThreshold: 1<<31 - 1,
		}
		return pod
	}
	main.Env = append(main.Env, corev1.EnvVar{Name: signal.EpochEnv, ValueFrom: &corev1.EnvVarSource{
		ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "statefulsingleton-" + string(uuid.NewUUID())}, Key: signal.EpochKey,
		},
	}})
	return pod
}

// barrierOf returns the ConfigMap that the pod waits for, or "" if the wrapper holds the pod.
func barrierOf(pod *corev1.Pod) string {
	for _, env := range pod.Spec.Containers[0].Env {
		if env.Name == signal.EpochEnv {
			return env.ValueFrom.ConfigMapKeyRef.Name
		}
	}
	return ""
}

// The following functions set the status that the kubelet reports for a pod with one container, in the order of the pod
// lifecycle.

// pulling sets the status of a pod that is bound to a node and not warm.
func pulling(pod *corev1.Pod) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "db"`}}
	reported(pod, corev1.PodPending, waiting, false)
}

// held sets the status of a pod that waits only for the signal.
func held(pod *corev1.Pod) {
	if configMap := barrierOf(pod); configMap != "" {
		waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "CreateContainerConfigError", Message: fmt.Sprintf("configmap %q not found", configMap),
		}}
		reported(pod, corev1.PodPending, waiting, false)
		return
	}
	reported(pod, corev1.PodRunning, isRunning(), false)
}

// running sets the status of a pod whose main process has started.
func running(pod *corev1.Pod) { reported(pod, corev1.PodRunning, isRunning(), true) }

// ready sets the status of a Ready pod.
func ready(pod *corev1.Pod) {
	running(pod)
	pod.Status.ContainerStatuses[0].Ready = true
	setCondition(pod, corev1.PodReady, corev1.ConditionTrue, "")
}

// ended sets the status of a terminated pod.
func ended(pod *corev1.Pod) {
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"}}
	reported(pod, corev1.PodSucceeded, terminated, false)
	setCondition(pod, corev1.ContainersReady, corev1.ConditionFalse, "PodCompleted")
	for i := range pod.Status.InitContainerStatuses {
		pod.Status.InitContainerStatuses[i].State = terminated
	}
}

func isRunning() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

func reported(pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState, started bool) {
	pod.Status.Phase = phase
	setCondition(pod, corev1.PodScheduled, corev1.ConditionTrue, "")
	for _, sidecar := range pod.Spec.InitContainers {
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: sidecar.Name, State: isRunning(), Started: new(true), Ready: true, ImageID: "gate"}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: state, Started: &started, ImageID: "db"}}
}

func setCondition(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) {
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Now()})
}
