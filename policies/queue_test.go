package policies_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// wantQueued fails unless clients of the fenced pod may wait for the time. 0: the pod queues nothing.
func wantQueued(t *testing.T, pod *corev1.Pod, s *v1.StatefulSingleton, want time.Duration) {
	t.Helper()
	settings, problem := injected.FencedBy(pod, s)
	if problem != "" || settings.Queue != want {
		t.Errorf("clients may wait for %s, want %s; problem %q", settings.Queue, want, problem)
	}
	if problem := injected.NotQueueableBy(pod, s); want > 0 && problem != "" {
		t.Errorf("the pod queues connections, although %s", problem)
	}
}

// wantNothingOfQueue fails if something of an earlier decision to queue connections is left, except for moved liveness probes.
func wantNothingOfQueue(t *testing.T, pod []byte) {
	t.Helper()
	for _, left := range []string{"FENCING_QUEUE_SECONDS", "name: STATEFULSINGLETON_PORTS"} {
		if bytes.Contains(pod, []byte(left)) {
			t.Errorf("%s is left in a pod that does not queue:\n%s", left, pod)
		}
	}
	for _, c := range allContainers(decoded[corev1.Pod](t, pod)) {
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && probe.Exec != nil && slices.Contains(probe.Exec.Command, "/var/run/signal/gate") && !gocmp.Equal(gateRunsLiveness(), probe.Exec) {
				t.Errorf("an exec probe of container %s in a pod that does not queue is %q", c.Name, probe.Exec.Command)
			}
		}
	}
}

// gateRunsLiveness is the handler of a liveness probe that was moved.
func gateRunsLiveness() *corev1.ExecAction {
	return &corev1.ExecAction{Command: []string{"/var/run/signal/gate", "probe", "liveness"}}
}

// queuedPod returns the pod in testdata/injected that queues connections.
func queuedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	return new(decoded[corev1.Pod](t, readFile(t, "testdata/injected/queue.yaml")))
}

// container returns the container of spec.containers with the name.
func container(t *testing.T, pod *corev1.Pod, name string) *corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("the pod has no container %s", name)
	}
	return &pod.Spec.Containers[i]
}

func grpcProbe() *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}}}
}

func withPort(protocol corev1.Protocol) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: 5432, Protocol: protocol})
	}
}

// A pod that cannot queue connections is the same as without the queue.
func TestNotQueued(t *testing.T) {
	tests := map[string]struct {
		pod      string
		change   func(*corev1.Pod)
		names    []string
		holdInit bool
		// want is part of what injected.NotQueueableBy says.
		want string
	}{
		"no port":           {pod: "shell", want: "no held container has a TCP port in ports"},
		"ports without TCP": {pod: "shell", change: both(inApp(withPort(corev1.ProtocolUDP)), inApp(withPort(corev1.ProtocolSCTP))), want: "no held container has a TCP port in ports"},
		"a port of an init container": {pod: "fencing", change: func(p *corev1.Pod) { withPort(corev1.ProtocolTCP)(&p.Spec.InitContainers[1]) },
			want: "no held container has a TCP port in ports"},
		"a port of a container that is not held": {pod: "fencing", change: func(p *corev1.Pod) { withPort(corev1.ProtocolTCP)(&p.Spec.Containers[1]) },
			names: []string{"db"}, want: "no held container has a TCP port in ports"},
		"may gain privileges": {pod: "queue", change: func(p *corev1.Pod) { p.Spec.Containers[1].SecurityContext.AllowPrivilegeEscalation = new(true) },
			want: "container web needs securityContext.allowPrivilegeEscalation: false"},
		"may gain privileges by default": {pod: "shell", change: inApp(withPort(corev1.ProtocolTCP)),
			want: "container db needs securityContext.allowPrivilegeEscalation: false"},
		"gRPC liveness": {pod: "queue", change: func(p *corev1.Pod) { p.Spec.Containers[3].LivenessProbe = grpcProbe() },
			want: "container backup has a gRPC probe"},
		"gRPC readiness":              {pod: "queue", change: inApp(func(c *corev1.Container) { c.ReadinessProbe = grpcProbe() }), want: "container db has a gRPC probe"},
		"a held init container":       {pod: "queue", holdInit: true, want: "init container proxy is held"},
		"an init container by name":   {pod: "queue", names: []string{"db", "proxy"}, want: "init container proxy is held"},
		"a native sidecar comes held": {pod: "queue", change: holdProxy, want: "init container proxy is held"},
		"not fenceable":               {pod: "scratch", change: inApp(withPort(corev1.ProtocolTCP)), want: "container db needs a command"},
		"not fenceable: PID":          {pod: "queue", change: func(p *corev1.Pod) { p.Spec.HostPID = true }, want: "the pod has hostPID"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := readSingleton(t, "queue")
			s.Spec.Containers, s.Spec.HoldInitContainers = test.names, test.holdInit
			refusing := s.DeepCopy()
			refusing.Spec.Connections = v1.ConnectionsRefuse
			pod := encode(t, readPod(t, test.pod, test.change))

			k := newKyverno(t, ownPolicy(s, options))
			got := k.mutate(t, pod, firstRequest)

			wantSame(t, "as without the queue", newKyverno(t, ownPolicy(refusing, options)).mutate(t, pod, firstRequest), got)
			wantSame(t, "after a second pass", got, k.mutate(t, got, secondRequest))
			wantNothingOfQueue(t, got)
			object := decoded[corev1.Pod](t, got)
			if problem := injected.NotQueueableBy(&object, s); problem != test.want {
				t.Errorf("the problem is %q, want %q", problem, test.want)
			}
		})
	}
}

// A container that is not held, and one with a gRPC probe that is not held, do not matter for the queue.
func TestQueuedBesideOthers(t *testing.T) {
	s := readSingleton(t, "queue")
	s.Spec.Containers = []string{"db"}
	original := readPod(t, "queue", func(p *corev1.Pod) {
		p.Spec.Containers[1].LivenessProbe = grpcProbe()
		p.Spec.Containers[2].Env = []corev1.EnvVar{{Name: "STATEFULSINGLETON_PORTS", Value: "mine"}}
	})

	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, original), firstRequest))

	wantQueued(t, &got, s, 2*time.Minute)
	if diff := gocmp.Diff(original.Spec.Containers[1:], got.Spec.Containers[1:]); diff != "" {
		t.Errorf("containers that are not held (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(original.Spec.InitContainers, got.Spec.InitContainers[1:]); diff != "" {
		t.Errorf("init containers (-want +got):\n%s", diff)
	}
}

// Each pass decides anew whether the pod queues connections, and leaves nothing of an earlier decision.
func TestQueuedAgain(t *testing.T) {
	const wait = 2 * time.Minute
	nothing := func(*corev1.Pod) {}
	tests := map[string]struct {
		change   func(*corev1.Pod)
		wantWait time.Duration
		// wantSame is true if the second pass restores the pod of the first pass.
		wantSame bool
	}{
		"unchanged":             {nothing, wait, true},
		"the API's defaults":    {both(setDefaults, setProbeDefaults), wait, false},
		"another time":          {sidecarEnv("FENCING_QUEUE_SECONDS", "3600"), wait, true},
		"another time as well":  {inSidecar(addEnv("FENCING_QUEUE_SECONDS", "3600")), wait, true},
		"no settings":           {func(p *corev1.Pod) { p.Spec.InitContainers[0].Env = p.Spec.InitContainers[0].Env[:3] }, wait, true},
		"other ports":           {inApp(setEnv("STATEFULSINGLETON_PORTS", "1,{{request.object.metadata.name}}")), wait, true},
		"ports by a field":      {inApp(addField("STATEFULSINGLETON_PORTS")), wait, true},
		"no ports":              {inApp(withoutEnv("STATEFULSINGLETON_PORTS")), wait, true},
		"no startup probe":      {func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = nil }, wait, true},
		"no gate in the probes": {func(p *corev1.Pod) { releaseProbe(p.Spec.Containers[1].ReadinessProbe, "readiness") }, wait, true},
		"forged original probes": {func(p *corev1.Pod) {
			addEnv("STATEFULSINGLETON_LIVENESS_PROBE", "mine")(&p.Spec.Containers[2])
			addField("STATEFULSINGLETON_LIVENESS_PROBE")(&p.Spec.Containers[3])
		}, wait, true},
		"a held init container": {holdProxy, 0, false},
		"a privilege":           {inApp(func(c *corev1.Container) { c.SecurityContext = nil }), 0, false},
		"a gRPC probe":          {func(p *corev1.Pod) { p.Spec.Containers[3].LivenessProbe = grpcProbe() }, 0, false},
		"no ports of the containers": {func(p *corev1.Pod) {
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].Ports = nil
			}
		}, 0, false},
		"not fenceable": {addContainer("late"), 0, false},
	}
	s := readSingleton(t, "queue")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := queuedPod(t)
			first := encode(t, pod)
			test.change(pod)
			k := newKyverno(t, ownPolicy(s, options))

			again := k.mutate(t, encode(t, pod), firstRequest)

			if test.wantSame {
				wantSame(t, "after a second pass", first, again)
			}
			wantSame(t, "after a third pass", again, k.mutate(t, again, secondRequest))
			got := decoded[corev1.Pod](t, again)
			wantEachOnce(t, allContainers(got))
			if test.wantWait > 0 {
				wantQueued(t, &got, s, test.wantWait)
				return
			}
			wantNothingOfQueue(t, again)
			if web := container(t, &got, "web"); !gocmp.Equal([]string{"ready", "{{ user }}", "$(FOO)", ""}, web.ReadinessProbe.Exec.Command) {
				t.Errorf("the exec probe of a pod that does not queue is %q", web.ReadinessProbe.Exec.Command)
			}
			for _, name := range []string{"db", "web"} {
				before, after := container(t, pod, name), container(t, &got, name)
				if diff := gocmp.Diff(before.LivenessProbe, after.LivenessProbe); diff != "" {
					t.Errorf("moved liveness probe of container %s (-want +got):\n%s", name, diff)
				}
				if diff := gocmp.Diff(originalLiveness(before), originalLiveness(after)); diff != "" {
					t.Errorf("original liveness probe of container %s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

// holdProxy puts the wrapper in front of the command of the init container of pod queue.
func holdProxy(p *corev1.Pod) {
	proxy := &p.Spec.InitContainers[len(p.Spec.InitContainers)-1]
	proxy.Command = append([]string{"/var/run/signal/gate", "wrap", "--"}, proxy.Command...)
}

// originalLiveness returns the variables of a container with the original of a moved liveness probe.
func originalLiveness(c *corev1.Container) (variables []corev1.EnvVar) {
	for _, e := range c.Env {
		if e.Name == "STATEFULSINGLETON_LIVENESS_PROBE" {
			variables = append(variables, e)
		}
	}
	return variables
}

// setProbeDefaults sets what the API server sets in probes before it calls Kyverno again.
func setProbeDefaults(p *corev1.Pod) {
	for _, c := range allContainers(*p) {
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil {
				probe.SuccessThreshold = cmp.Or(probe.SuccessThreshold, 1)
				probe.FailureThreshold = cmp.Or(probe.FailureThreshold, 3)
				probe.PeriodSeconds = cmp.Or(probe.PeriodSeconds, 10)
			}
		}
	}
}

func addField(name string) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}})
	}
}

// Without the readiness probe's startup probe, a pod that no longer queues is Ready as early as before.
func TestStartupProbeOfTheQueueIsRemoved(t *testing.T) {
	s := readSingleton(t, "queue")
	k := newKyverno(t, ownPolicy(s, options))
	original := readPod(t, "queue", func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = nil })
	pod := decoded[corev1.Pod](t, k.mutate(t, encode(t, original), firstRequest))
	if pod.Spec.Containers[0].StartupProbe == nil {
		t.Fatal("container db has no startup probe")
	}
	pod.Spec.Containers[3].LivenessProbe = grpcProbe()

	got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), secondRequest))

	if probe := got.Spec.Containers[0].StartupProbe; probe != nil {
		t.Errorf("container db has startup probe %v", probe)
	}
	if got.Spec.Containers[1].StartupProbe == nil {
		t.Error("container web has a liveness probe and no startup probe")
	}
}

// A manifest can contain variables of the policy's own, also with text that Kyverno could evaluate.
func TestForgedVariablesOfTheQueue(t *testing.T) {
	s := readSingleton(t, "queue")
	k := newKyverno(t, ownPolicy(s, options))
	forged := func(name string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: name, Value: "{{ request.object.metadata.name }}"}, {Name: name, Value: "1"}, {Name: name}}
	}
	t.Run("ports", func(t *testing.T) {
		pod := readPod(t, "queue", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append(forged("STATEFULSINGLETON_PORTS"), p.Spec.Containers[0].Env...)
			addField("STATEFULSINGLETON_PORTS")(&p.Spec.Containers[2])
		})
		wantSame(t, "as without the variables", encode(t, queuedPod(t)), k.mutate(t, encode(t, pod), firstRequest))
	})
	t.Run("original probes", func(t *testing.T) {
		pod := readPod(t, "queue", func(p *corev1.Pod) {
			for i := range p.Spec.Containers {
				c := &p.Spec.Containers[i]
				c.Env = append(forged("STATEFULSINGLETON_LIVENESS_PROBE"), c.Env...)
				addField("STATEFULSINGLETON_LIVENESS_PROBE")(c)
			}
		})
		wantSame(t, "as without the variables", encode(t, queuedPod(t)), k.mutate(t, encode(t, pod), firstRequest))
	})
	t.Run("an address", func(t *testing.T) {
		pod := queuedPod(t)
		pod.Spec.HostNetwork = true
		inSidecar(addEnv("READINESS_HOST", `{{ request.object.metadata.name }}","port":1,"x":"`))(pod)
		got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), secondRequest))
		if probe := got.Spec.Containers[0].ReadinessProbe; probe.HTTPGet.Host != "" || probe.HTTPGet.Port.IntValue() != 9909 {
			t.Errorf("the probe asks %v", probe.HTTPGet)
		}
	})
}

// The gate needs up to a second more than the original probe.
func TestLivenessTimeout(t *testing.T) {
	k := newKyverno(t, ownPolicy(readSingleton(t, "queue"), options))
	for timeout, want := range map[int32]int32{0: 2, 1: 2, 60: 61, 1<<31 - 1: 999_999} {
		t.Run(fmt.Sprint(timeout), func(t *testing.T) {
			t.Parallel()
			pod := readPod(t, "queue", inApp(func(c *corev1.Container) { c.LivenessProbe.TimeoutSeconds = timeout }))
			got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))
			if seconds := got.Spec.Containers[0].LivenessProbe.TimeoutSeconds; seconds != want {
				t.Errorf("timeoutSeconds is %d, want %d", seconds, want)
			}
		})
	}
}

// A mesh moves probes to its own sidecar, before Kyverno or between two passes. The gate then asks the mesh.
func TestLivenessInAMesh(t *testing.T) {
	k := newKyverno(t, ownPolicy(readSingleton(t, "queue"), options))
	meshed := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/app-health/db/livez", Port: intstr.FromInt32(15020), Scheme: corev1.URISchemeHTTP,
	}}}
	for name, pod := range map[string]*corev1.Pod{
		"before Kyverno":     readPod(t, "queue", nil),
		"between two passes": queuedPod(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod.Spec.Containers[0].LivenessProbe = meshed.DeepCopy()

			mutated := k.mutate(t, encode(t, pod), firstRequest)

			db := container(t, new(decoded[corev1.Pod](t, mutated)), "db")
			if diff := gocmp.Diff(gateRunsLiveness(), db.LivenessProbe.Exec); diff != "" || db.LivenessProbe.HTTPGet != nil {
				t.Errorf("the gate does not run the probe %v", db.LivenessProbe)
			}
			if variables := originalLiveness(db); len(variables) != 1 {
				t.Errorf("container db has the variables %v, want one", variables)
			}
			if restoreProbe(db, corev1.Container{}); !gocmp.Equal(meshed, db.LivenessProbe) {
				t.Errorf("the gate asks %v, want the probe of the mesh", db.LivenessProbe)
			}
			wantSame(t, "after a second pass", mutated, k.mutate(t, mutated, secondRequest))
		})
	}
}

// The policy does not take a probe for its own, and does not turn an invalid probe into a valid one.
func TestLivenessNotMoved(t *testing.T) {
	k := newKyverno(t, ownPolicy(readSingleton(t, "queue"), options))
	tcp := &corev1.TCPSocketAction{Port: intstr.FromInt32(5432)}
	withGate := func(command ...string) *corev1.ExecAction {
		return &corev1.ExecAction{Command: append(gateRunsLiveness().Command, command...)}
	}
	for name, test := range map[string]struct{ probe, want corev1.ProbeHandler }{
		"the gate's command": {corev1.ProbeHandler{Exec: withGate()}, corev1.ProbeHandler{Exec: withGate()}},
		"begins like the gate's command": {corev1.ProbeHandler{Exec: withGate("mine")},
			corev1.ProbeHandler{Exec: withGate("--", "/var/run/signal/gate", "probe", "liveness", "mine")}},
		"two handlers": {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"live"}}, TCPSocket: tcp},
			corev1.ProbeHandler{Exec: withGate("--", "live"), TCPSocket: tcp}},
		"no handler": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := readPod(t, "queue", inApp(func(c *corev1.Container) {
				c.LivenessProbe = &corev1.Probe{ProbeHandler: test.probe, TimeoutSeconds: 7}
			}))

			mutated := k.mutate(t, encode(t, pod), firstRequest)

			db := container(t, new(decoded[corev1.Pod](t, mutated)), "db")
			if diff := gocmp.Diff(&corev1.Probe{ProbeHandler: test.want, TimeoutSeconds: 7}, db.LivenessProbe); diff != "" {
				t.Errorf("liveness probe (-want +got):\n%s", diff)
			}
			if variables := originalLiveness(db); len(variables) != 0 {
				t.Errorf("container db has the variables %v", variables)
			}
			wantSame(t, "after a second pass", mutated, k.mutate(t, mutated, secondRequest))
		})
	}
}

// The probe of a singleton must be prepared for the queue, unless no pod with its containers can be.
func TestCheckProbeOfQueue(t *testing.T) {
	s := readSingleton(t, "queue")
	for name, test := range map[string]struct {
		change  func(*corev1.Pod)
		wantErr error
	}{
		"queued":     {change: func(*corev1.Pod) {}},
		"not queued": {change: inSidecar(withoutEnv("FENCING_QUEUE_SECONDS")), wantErr: policies.ErrNotQueued},
		"not fenced": {change: inSidecar(withoutEnv("FENCING_LEASE")), wantErr: policies.ErrNotFenced},
		"a webhook added a container that cannot queue": {change: func(p *corev1.Pod) {
			inSidecar(withoutEnv("FENCING_QUEUE_SECONDS"))(p)
			p.Spec.Containers[0].LivenessProbe = grpcProbe()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := queuedPod(t)
			ref := policies.ClusterPolicy.Of(s)
			pod.Annotations["policy.statefulsingleton.com/"+ref.Name] = "true"
			test.change(pod)
			if err := policies.CheckProbe(pod, s, ref); !errors.Is(err, test.wantErr) {
				t.Errorf("CheckProbe returns %v, want %v", err, test.wantErr)
			}
		})
	}
}
