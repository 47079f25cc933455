package policies_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// askSidecar is the readiness probe that asks the sidecar for the readiness of container db.
func askSidecar(host string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/ready/db", Port: intstr.FromInt32(9909), Scheme: corev1.URISchemeHTTP, Host: host,
		}},
		TimeoutSeconds: 26,
	}
}

// probedPod returns pod shell with a readiness probe of container db.
func probedPod(t *testing.T) corev1.Pod {
	t.Helper()
	pod := *readPod(t, "shell", nil)
	pod.Spec.Containers[0].Name = "db"
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(5432)},
	}}
	return pod
}

// The sidecars of two pods on the network of one node do not have the same address.
func TestReadinessOnTheHostNetwork(t *testing.T) {
	t.Parallel()
	k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))
	pod := probedPod(t)
	pod.Spec.HostNetwork = true
	hosts := map[string]bool{}
	for range 3 {
		injected := k.mutate(t, encode(t, pod), firstRequest)
		got := decoded[corev1.Pod](t, injected)

		host := got.Spec.Containers[0].ReadinessProbe.HTTPGet.Host
		if !regexp.MustCompile(`^127(\.1\d\d){3}$`).MatchString(host) {
			t.Errorf("host %q is not a loopback address", host)
		}
		hosts[host] = true
		if diff := cmp.Diff(askSidecar(host), got.Spec.Containers[0].ReadinessProbe); diff != "" {
			t.Errorf("readiness probe (-want +got):\n%s", diff)
		}
		if !slices.Contains(got.Spec.InitContainers[0].Env, corev1.EnvVar{Name: "READINESS_HOST", Value: host}) {
			t.Errorf("the sidecar does not serve on %s: %v", host, got.Spec.InitContainers[0].Env)
		}
		if again := k.mutate(t, injected, firstRequest); !bytes.Equal(again, injected) {
			t.Errorf("a second pass changed the pod:\n%s", cmp.Diff(string(injected), string(again)))
		}
	}
	if len(hosts) < 2 {
		t.Errorf("all pods have the same address: %v", hosts)
	}
}

// A mesh also moves readiness probes to its own sidecar. Its webhook can run before Kyverno, or between two passes.
func TestReadinessInAMesh(t *testing.T) {
	meshed := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/app-health/db/readyz", Port: intstr.FromInt32(15020), Scheme: corev1.URISchemeHTTP,
	}}}
	k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))

	t.Run("before Kyverno", func(t *testing.T) {
		t.Parallel()
		pod := probedPod(t)
		pod.Spec.Containers[0].ReadinessProbe = meshed.DeepCopy()
		got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))

		if diff := cmp.Diff(askSidecar(""), got.Spec.Containers[0].ReadinessProbe); diff != "" {
			t.Errorf("readiness probe (-want +got):\n%s", diff)
		}
		restored := got.Spec.Containers[0].DeepCopy()
		if restoreProbe(restored, got.Spec.InitContainers[0]); !cmp.Equal(meshed, restored.ReadinessProbe) {
			t.Errorf("the sidecar asks %v, want the probe of the mesh", restored.ReadinessProbe)
		}
	})
	t.Run("between two passes", func(t *testing.T) {
		t.Parallel()
		pod := decoded[corev1.Pod](t, k.mutate(t, encode(t, probedPod(t)), firstRequest))
		pod.Spec.Containers[0].ReadinessProbe = meshed.DeepCopy()
		want := pod.DeepCopy()
		got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))

		if diff := cmp.Diff(*want, got); diff != "" {
			t.Errorf("the second pass changed the pod, and the sidecar may ask itself (-want +got):\n%s", diff)
		}
	})
}

// A copy of a held pod without the sidecar asks the sidecar already. The sidecar must not ask itself. A variable has a maximum
// length, above which no container starts.
func TestReadinessVariables(t *testing.T) {
	k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))
	for name, change := range map[string]func(*corev1.Container){
		"asks the sidecar": func(c *corev1.Container) { c.ReadinessProbe = askSidecar("") },
		"many ports": func(c *corev1.Container) {
			for i := range 2000 {
				c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: int32(i + 1)})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := probedPod(t)
			change(&pod.Spec.Containers[0])
			got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))

			for _, e := range got.Spec.InitContainers[0].Env {
				if len(e.Value) > 1000 || name == "asks the sidecar" && e.Name == "READINESS_PROBE_db" {
					t.Errorf("the sidecar has variable %s with %d characters", e.Name, len(e.Value))
				}
			}
		})
	}
}

// Kyverno decodes a number as one of two types, and prints large numbers with an exponent.
func TestReadinessTimeoutIsAnInteger(t *testing.T) {
	k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))
	for name, tc := range map[string]struct {
		period, timeout int32
		want            string
	}{
		"long":    {300, 60, "375"},
		"maximal": {1<<31 - 1, 1<<31 - 1, "999999"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := probedPod(t)
			pod.Spec.Containers[0].ReadinessProbe.PeriodSeconds = tc.period
			pod.Spec.Containers[0].ReadinessProbe.TimeoutSeconds = tc.timeout
			got := decoded[map[string]any](t, k.mutate(t, encode(t, pod), firstRequest))

			container := got["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
			timeout, err := json.Marshal(container["readinessProbe"].(map[string]any)["timeoutSeconds"])
			if err != nil || string(timeout) != tc.want {
				t.Errorf("timeoutSeconds: %s, want %s; error %v", timeout, tc.want, err)
			}
		})
	}
}
