//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/prober"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// stopTime is how long the application of queueing takes to stop, while its clients already wait for the next pod.
const stopTime = 4 * time.Second

// queueing are the options of a singleton that queues connections.
func queueing() world.Options {
	return world.Options{
		Queue: true, LeaseDuration: new(int32(busyLeaseDuration.Seconds())),
		Env: map[string]string{"STOP_SECONDS": fmt.Sprint(stopTime.Seconds())},
	}
}

// awaitQueue waits for the status and the reason of condition ConnectionsQueued.
func awaitQueue(t *testing.T, s *world.Singleton, status metav1.ConditionStatus, reason string) {
	t.Helper()
	must(t, s.Await(t.Context(), fmt.Sprintf("ConnectionsQueued is %s with reason %s", status, reason), func(got *v1.StatefulSingleton) bool {
		c := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionConnectionsQueued)
		return c != nil && c.Status == status && c.Reason == reason
	}))
}

// clients are connected to a Service. They open a connection every 20 ms.
type clients struct {
	*prober.Prober
	stop context.CancelFunc
	// since is the time from which on their requests count. Before, the nodes may not know the Service.
	since time.Duration
}

// startClients returns clients that have had answers.
func startClients(t *testing.T, ask prober.Ask) *clients {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &clients{Prober: prober.Start(ctx, 20*time.Millisecond, ask), stop: stop}
	t.Cleanup(stop)
	c.await(t)
	return c
}

// askHTTP returns requests to the address that have more time than any handoff takes.
func askHTTP(address string) prober.Ask {
	return prober.HTTP(http.MethodGet, func() string { return "http://" + address }, 30*time.Second, false)
}

// await waits until requests are answered from now on. Earlier requests do not count.
func (c *clients) await(t *testing.T) {
	t.Helper()
	c.awaitAnswers(t)
	c.since = journal.Now()
}

func (c *clients) awaitAnswers(t *testing.T) {
	t.Helper()
	now := journal.Now()
	must(t, world.Await(t.Context(), "answers", func(context.Context) error { return c.Answered(now) }))
}

// wantNoneFailed checks that all requests that count were answered, and ends the clients.
func (c *clients) wantNoneFailed(t *testing.T) {
	t.Helper()
	c.awaitAnswers(t)
	c.stop()
	requests := c.Finish(c.since)
	t.Logf("%d requests, the longest took %s", len(requests), prober.Longest(requests).Round(time.Millisecond))
	failed, now := prober.Failed(requests), journal.Now()
	for i, r := range failed {
		if i == 0 || i == len(failed)-1 || r.Begun-failed[i-1].Begun > time.Second {
			t.Logf("a request of %s failed after %s: %v", time.Now().Add(r.Begun-now).UTC().Format(time.StampMilli), r.Ended-r.Begun, r.Err)
		}
	}
	if len(failed) > 0 {
		t.Errorf("%d of %d requests failed", len(failed), len(requests))
	}
}

// awaitStopping waits until the holder's application has got its stop signal. All nodes then send clients to the next pod.
func awaitStopping(t *testing.T, s *world.Singleton, old *corev1.Pod) {
	t.Helper()
	must(t, world.Await(t.Context(), "pod "+old.Name+" stops", func(context.Context) error {
		entries, err := s.Journal()
		stops := func(e journal.Entry) bool { return e.Event == "stopping" && e.Pod == old.Name }
		if err == nil && !slices.ContainsFunc(entries, stops) {
			err = errors.New("it runs")
		}
		return err
	}))
}

// gate is the command of the gate of the application.
func gate(pod *corev1.Pod) []string {
	return append([]string{signal.GatePath}, pod.Spec.Containers[0].Command[1:]...)
}

// A part of a handoff fails while clients wait in the queue of the next pod. The handoff takes longer, and no request fails.
func TestQueueOutlastsFaults(t *testing.T) {
	alone(t)
	const away = stopTime + 2*time.Second
	s := singleton(t, queueing())
	address, err := s.Expose(t.Context(), 8080)
	must(t, err)
	t.Cleanup(func() { _ = w.Cluster(context.Background(), "process", "continue", "kube-apiserver") })
	for i, fault := range []struct {
		name string
		fail func(old, next *corev1.Pod)
	}{
		{"the sidecar of the next pod is killed", func(_, next *corev1.Pod) {
			kill(t, next, "/ko-app/gate", "sidecar")
		}},
		{"the gate of the next pod stands still", func(old, next *corev1.Pod) {
			goOn := suspend(t, next, gate(next)...)
			wantNobodyElse(t, away, old, s)
			goOn()
		}},
		{"the sidecar of the old pod is killed", func(old, _ *corev1.Pod) {
			kill(t, old, "/ko-app/gate", "sidecar")
		}},
		{"the API server is away", func(old, _ *corev1.Pod) {
			cluster(t, "process", "stop", "kube-apiserver")
			wantNobodyElse(t, away, old, s)
			cluster(t, "process", "continue", "kube-apiserver")
		}},
	} {
		t.Log(fault.name)
		awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
		old := holder(t, s)
		c := startClients(t, askHTTP(address))
		must(t, s.Roll(t.Context()))
		next := standby(t, s)
		awaitStopping(t, s, old)
		fault.fail(old, next)
		must(t, s.AwaitHolder(t.Context(), int64(i)+2))
		awaitStarts(t, s, i+2) // the gate reports the start before the application does
		wantStarts(t, s, i+2)
		c.wantNoneFailed(t)
	}
	awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
}

// The node of the next pod is lost while clients wait there. Later clients are answered by another pod.
func TestQueueOnLostNode(t *testing.T) {
	alone(t)
	node, _ := victim(t)
	must(t, w.LeadElsewhere(t.Context(), node)) // a new leader observes a Lease from the beginning
	o := queueing()
	o.Env["STOP_SECONDS"] = "10" // so that the node is lost before
	o.Pod = world.TolerateLostNodes(tolerationSeconds)
	s, old := placed(t, otherNode(node), o)
	taint(t, otherNode(node), "faults.test/elsewhere=yes:PreferNoSchedule")
	address, err := s.Expose(t.Context(), 8080)
	must(t, err)
	awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
	c := startClients(t, askHTTP(address))
	must(t, s.Roll(t.Context()))
	next := standby(t, s)
	if next.Spec.NodeName != node {
		t.Fatalf("pod %s is on %s, want %s", next.Name, next.Spec.NodeName, node)
	}
	awaitStopping(t, s, old)
	cluster(t, "node", "kill", node)
	awaitStarts(t, s, 2)
	must(t, s.AwaitHolder(t.Context(), 2))
	if last := holder(t, s); last.Spec.NodeName == node {
		t.Errorf("pod %s runs on %s, which is lost", last.Name, node)
	}
	wantNotReady(t, next)
	c.awaitAnswers(t)
}

// An application that does not listen on the queued ports gets no queue any more: its clients are refused, and do not wait. Once it
// listens again, they are queued again.
func TestQueueCloses(t *testing.T) {
	t.Parallel()
	t.Run("because the application ends", func(t *testing.T) {
		t.Parallel()
		s := singleton(t, queueing())
		address, err := s.Expose(t.Context(), 8080)
		must(t, err)
		awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
		must(t, s.SetEnv(t.Context(), "DATA", "/missing"))
		awaitQueue(t, s, metav1.ConditionFalse, string(queue.ApplicationEnded))
		wantRefused(t, askHTTP(address))
		must(t, s.SetEnv(t.Context(), "DATA", "/data"))
		must(t, s.AwaitHolder(t.Context(), 3))
		awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
		awaitStarts(t, s, 2)
		wantStarts(t, s, 2)
	})
	t.Run("because the application listens on another port", func(t *testing.T) {
		t.Parallel()
		s := program(t, corev1.Container{
			Image: "python:3.13-slim", Command: []string{"python3", "-m", "http.server", "$(PORT)"}, Env: []corev1.EnvVar{{Name: "PORT", Value: "8080"}},
			Ports:          []corev1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 8081}},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"python3", "--version"}}}},
		})
		address, err := s.Expose(t.Context(), 8080)
		must(t, err)
		awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
		must(t, s.SetEnv(t.Context(), "PORT", "8081"))
		awaitQueue(t, s, metav1.ConditionFalse, string(queue.NotBound))
		wantRefused(t, askHTTP(address))
		must(t, s.Roll(t.Context()))
		must(t, s.AwaitHolder(t.Context(), 3))
		awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
	})
}

// wantRefused checks that the application's port refuses connections.
func wantRefused(t *testing.T, ask prober.Ask) {
	t.Helper()
	if err := ask(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a request got error %v, want a refused connection", err)
	}
}

// program creates a singleton with the program, which queues connections.
func program(t *testing.T, is corev1.Container) *world.Singleton {
	t.Helper()
	is.Name, is.SecurityContext = "app", &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}, // without io_uring, which Node tries
	}
	o := queueing()
	o.MaxTransitionTime = 15 // how long clients wait for a port
	o.Pod = func(spec *corev1.PodSpec) { spec.Containers, spec.Volumes = []corev1.Container{is}, nil }
	s, err := w.NewSingleton(t.Context(), "faults", o)
	if s != nil {
		t.Cleanup(func() {
			if t.Failed() {
				evidence(t, s.Namespace)
				return // kept for debugging
			}
			must(t, s.Remove(context.Background()))
		})
	}
	must(t, err)
	return s
}

// No request to an unmodified program fails in a rollout, and when the new pod is deleted just after that. The programs run one after
// the other: one that has no CPU for seconds ends with clients that it has not answered.
func TestQueuePrograms(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		image   string
		command []string
		port    int32
		ask     func(address string) prober.Ask
	}{
		"Valkey": {"valkey/valkey:8", []string{"valkey-server", "--protected-mode", "no"}, 6379, askValkey},
		"Node":   {"node:20-slim", []string{"node", "-e", `require("http").createServer((_, r) => r.end()).listen(8080)`}, 8080, askHTTP},
		"a JVM":  {"eclipse-temurin:21-jre", []string{"java", "-m", "jdk.httpserver", "-b", "0.0.0.0", "-p", "8080"}, 8080, askHTTP},
	} {
		t.Run(name, func(t *testing.T) {
			s := program(t, corev1.Container{
				Image: tt.image, Command: tt.command, Ports: []corev1.ContainerPort{{ContainerPort: tt.port}},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(tt.port)}}},
			})
			address, err := s.Expose(t.Context(), tt.port)
			must(t, err)
			awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
			c := startClients(t, tt.ask(address))
			must(t, s.Roll(t.Context()))
			must(t, s.AwaitHolder(t.Context(), 2))
			awaitQueue(t, s, metav1.ConditionTrue, "PortsKnown")
			deletePod(t, holder(t, s), nil)
			must(t, s.AwaitHolder(t.Context(), 3))
			c.wantNoneFailed(t)
		})
	}
}

// askValkey opens a connection, and expects an answer to a command.
func askValkey(address string) prober.Ask {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, "80"))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		deadline, _ := ctx.Deadline()
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
			return err
		}
		answer := make([]byte, len("+PONG\r\n"))
		if _, err := io.ReadFull(conn, answer); err != nil {
			return err
		}
		if string(answer) != "+PONG\r\n" {
			return fmt.Errorf("answered %q", answer)
		}
		return nil
	}
}
