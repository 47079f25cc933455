package policies_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// podWith returns a pod with containers that have variables. Each container has a command and a readiness probe.
func podWith(containers, variables int) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "db-0", Labels: map[string]string{"app": "db", appsv1.StatefulSetPodNameLabel: "db-0"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "1", Controller: new(true)}},
		},
	}
	for i := range containers {
		c := corev1.Container{
			Name: fmt.Sprint("c", i), Image: "app", Command: []string{"/app"},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}},
		}
		c.ReadinessProbe.TCPSocket.Port.IntVal = int32(8000 + i)
		for j := range variables {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", j), Value: "a value of usual length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// largestPod returns a pod with as many containers and variables as the policies accept, of which the rules of a singleton that
// holds all containers change as many as possible.
func largestPod() *corev1.Pod {
	pod := largestQueuedPod()
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; i%2 == 0 {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, *c)
		}
	}
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.RestartPolicy != nil })
	return pod
}

// largestQueuedPod is like largestPod for a singleton with a queue. A pod that queues has no held init containers.
func largestQueuedPod() *corev1.Pod {
	pod := podWith(policies.MaxContainers, policies.MaxVariables/policies.MaxContainers)
	pod.Spec.HostNetwork = true
	live := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Command = []string{"/var/run/signal/gate", "wrap", "--", "/app"}
		c.Ports = []corev1.ContainerPort{{Name: "app", ContainerPort: int32(8000 + i)}, {ContainerPort: int32(9000 + i), Protocol: corev1.ProtocolUDP}}
		c.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: new(false)}
		c.LivenessProbe = live.DeepCopy()
		c.LivenessProbe.TCPSocket.Port = intstr.FromString("app")
		for j := range c.Env {
			switch j % 4 {
			case 0:
				c.Env[j] = corev1.EnvVar{Name: podUID().Name, Value: "forged"}
			case 1:
				c.Env[j] = barrier(secondRequest)
			case 2:
				c.Env[j] = containerEnv("another")
			case 3:
				c.Env[j] = corev1.EnvVar{Name: signal.LivenessEnv, Value: "forged"}
			}
		}
	}
	return pod
}

// The policies hold the largest pod that they accept, and do not apply to a pod with one more container or variable.
func TestSizeOfPods(t *testing.T) {
	s := readSingleton(t, "hold-init-containers")
	s.Spec.Fencing, s.Spec.Connections = v1.FencingLease, v1.ConnectionsQueue
	another := *s.DeepCopy()
	another.Name, another.UID, another.Spec.Containers = "another", "another", []string{"c1"}
	another.Spec.Fencing, another.Spec.Connections = v1.FencingKubelet, v1.ConnectionsRefuse
	lock := fencedLock(nil)
	tests := map[string]rendering{
		"singleton": ownPolicy(s, options),
		"namespace": sharedPolicy(another, *s),
		"lock":      ownPolicy(lock, options),
	}
	for name, policy := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKyverno(t, policy)
			largest := largestPod()
			largest.OwnerReferences[0].Name = lock.Spec.StatefulSetName
			largest.Namespace = s.Namespace
			if mutated := decoded[corev1.Pod](t, k.mutate(t, encode(t, largest), firstRequest)); len(mutated.Labels) == len(largest.Labels) {
				t.Error("the policy does not change the largest pod")
			}
			queued := largestQueuedPod()
			queued.Namespace = s.Namespace
			if mutated := decoded[corev1.Pod](t, k.mutate(t, encode(t, queued), firstRequest)); name != "lock" {
				wantQueued(t, &mutated, s, 5*time.Minute)
			}
			for what, enlarge := range map[string]func(*corev1.Pod){
				"a container": func(p *corev1.Pod) {
					p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "one-more", Image: "app", Command: []string{"/app"}})
				},
				"an init container": func(p *corev1.Pod) {
					p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "one-more", Image: "app", Command: []string{"/app"}})
				},
				"a variable": func(p *corev1.Pod) {
					p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "ONE_MORE"})
				},
				"a mount": func(p *corev1.Pod) {
					p.Spec.InitContainers[0].VolumeMounts = append(p.Spec.InitContainers[0].VolumeMounts, corev1.VolumeMount{Name: "one-more", MountPath: "/"})
				},
			} {
				pod := largest.DeepCopy()
				enlarge(pod)
				data := encode(t, pod)
				if diff := cmp.Diff(decoded[map[string]any](t, data), decoded[map[string]any](t, mutateBy(t, k.mutatingPolicy, data, firstRequest))); diff != "" {
					t.Errorf("the policy changes a pod with %s more (-want +got):\n%s", what, diff)
				}
			}
		})
	}
}

// Kyverno's engine for NamespacedMutatingPolicies also checks how many singletons of a shared policy select the pod.
func TestSelectedByMany(t *testing.T) {
	for many, wantHeld := range map[int]bool{policies.MaxSelecting: true, policies.MaxSelecting + 1: false} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			data := encode(t, podWith(1, 1))
			mutated := mutateBy(t, newKyverno(t, sharedPolicy(selecting(t, many, many)...)).mutatingPolicy, data, firstRequest)
			if held := !cmp.Equal(decoded[map[string]any](t, data), decoded[map[string]any](t, mutated)); held != wantHeld {
				t.Errorf("the policy holds the pod: %t, want %t", held, wantHeld)
			}
		})
	}
}

// Kyverno decodes and encodes the whole pod for each mutation, also for those of other singletons.
func TestMutationsOfSharedPolicy(t *testing.T) {
	count := func(singletons int) int {
		policy := sharedPolicy(selecting(t, 1, singletons)...).render(t, policies.NamespacedMutatingPolicy)
		mutations, _, err := unstructured.NestedSlice(policy.Object, "spec", "mutations")
		if err != nil {
			t.Fatal(err)
		}
		return len(mutations)
	}
	if one, many := count(1), count(20); one == 0 || many != one {
		t.Errorf("a policy of one singleton has %d mutations and a policy of 20 has %d, want equally many", one, many)
	}
}

// selecting returns singletons with a queue of a shared policy that hold different containers. Some select the pods of podWith.
func selecting(t testing.TB, some, all int) (singletons []v1.StatefulSingleton) {
	t.Helper()
	for i := range all {
		s := *readSingleton(t, "hold-init-containers")
		s.Name, s.UID, s.Spec.Containers = fmt.Sprint("db-", i), "", []string{fmt.Sprint("c", i)}
		s.Spec.Fencing, s.Spec.Connections = v1.FencingLease, v1.ConnectionsQueue
		if i >= some {
			s.Spec.Selector = v1.LabelSelector{MatchLabels: map[string]string{"app": s.Name}}
		}
		singletons = append(singletons, s)
	}
	return singletons
}

// BenchmarkMutation measures the time that Kyverno's engines need for a pod.
func BenchmarkMutation(b *testing.B) {
	fenced := readSingleton(b, "hold-init-containers")
	fenced.Spec.Fencing = v1.FencingLease
	queue := fenced.DeepCopy()
	queue.Spec.Connections = v1.ConnectionsQueue
	lock := fencedLock(nil)
	lock.Namespace, lock.Spec.StatefulSetName = fenced.Namespace, "db"
	large := podWith(1, 1)
	large.Annotations = map[string]string{"large": strings.Repeat("a", 1<<20)}
	for _, test := range []struct {
		name string
		rendering
	}{
		{"default", ownPolicy(readSingleton(b, "default"), options)}, {"fenced", ownPolicy(fenced, options)}, {"queue", ownPolicy(queue, options)},
		{"lock", ownPolicy(lock, options)}, {"shared", sharedPolicy(selecting(b, policies.MaxSelecting, 20)...)},
	} {
		k := newKyverno(b, test.rendering)
		for _, pod := range []struct {
			name string
			*corev1.Pod
		}{{"10x30", podWith(10, 30)}, {"20x20", podWith(20, 20)}, {"50x20", podWith(50, 20)}, {"largest", largestPod()}, {"largest-queued", largestQueuedPod()}, {"1MiB", large}} {
			data := encode(b, pod.Pod)
			for kind, policy := range map[policies.Kind]json.RawMessage{policies.ClusterPolicy: k.clusterPolicy, policies.NamespacedMutatingPolicy: k.mutatingPolicy} {
				b.Run(test.name+"/"+pod.name+"/"+string(kind), func(b *testing.B) {
					mutateBy(b, policy, data, firstRequest) // compiles the policy
					for b.Loop() {
						mutateBy(b, policy, data, firstRequest)
					}
				})
			}
		}
	}
}
