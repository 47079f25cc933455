//go:build cluster

package faults_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The containers of the holder are killed one after the other. The application keeps running until the kubelet has started
// the sidecar again. The application ends with the gate, and starts again in the same pod.
func TestFencedContainersKilled(t *testing.T) {
	t.Parallel()
	const duration = 45 * time.Second // a busy kubelet took more than 7 s to start the sidecar again
	o := fenced()
	o.LeaseDuration = new(int32(duration.Seconds()))
	s, old := withSpare(t, o)
	kill(t, old, "/ko-app/gate", "sidecar")
	killed := time.Now()
	lease, err := s.Lease(t.Context())
	must(t, err)
	awaitRenewal(t, client.ObjectKeyFromObject(lease), killed)
	wantNobodyElse(t, duration, old, s)
	wantStarts(t, s, 1)
	kill(t, old, gate(old)...)
	awaitStarts(t, s, 2)
	must(t, s.AwaitHolder(t.Context(), 1))
	awaitFenced(t, s, metav1.ConditionTrue, "LeaseRenewed")
	if got := holder(t, s); got.UID != old.UID {
		t.Errorf("pod %s holds, want %s still", got.Name, old.Name)
	}
	wantStarts(t, s, 2)
}

// The cgroup freezer stops the gate and its application. The sidecar runs on and renews the Lease, so no other pod starts.
func TestFencedContainerFrozen(t *testing.T) {
	t.Parallel()
	o := fenced()
	o.LeaseDuration = new(int32(busyLeaseDuration.Seconds()))
	s, old := withSpare(t, o)
	thaw := freezerOf(t, old).freeze(t)
	wantNobodyElse(t, busyLeaseDuration+leaseDuration, old, s)
	wantStarts(t, s, 1)
	thaw()
	must(t, s.AwaitHolder(t.Context(), 1))
	wantNobodyElse(t, leaseDuration, old, s)
}

// freezer is the file that freezes the processes of a cgroup.
type freezer struct{ file, frozen, thawed string }

// freezerOf returns the freezer of the application's container.
func freezerOf(t *testing.T, pod *corev1.Pod) freezer {
	t.Helper()
	pid, err := world.Process(pod, "/app")
	must(t, err)
	p, err := procfs.NewProc(pid)
	must(t, err)
	cgroups, err := p.Cgroups()
	must(t, err)
	for _, c := range cgroups {
		switch root := "/sys/fs/cgroup"; {
		case slices.Contains(c.Controllers, "freezer"): // version 1
			return freezer{filepath.Join(root, "freezer", c.Path, "freezer.state"), "FROZEN", "THAWED"}
		case len(cgroups) == 1: // version 2
			return freezer{filepath.Join(root, c.Path, "cgroup.freeze"), "1", "0"}
		}
	}
	t.Fatalf("process %d is in no cgroup with a freezer: %+v", pid, cgroups)
	return freezer{}
}

// freeze freezes the processes until thaw is called.
func (f freezer) freeze(t *testing.T) (thaw func()) {
	t.Helper()
	set := func(state string) error { return os.WriteFile(f.file, []byte(state), 0) }
	t.Cleanup(func() { _ = set(f.thawed) }) // the cgroup may be gone
	must(t, set(f.frozen))
	return func() { must(t, set(f.thawed)) }
}

// Programs stop under the gate as they stop without the gate.
func TestFencedPrograms(t *testing.T) {
	t.Parallel()
	listens := func(port int32) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}}
	}
	for name, tt := range map[string]struct {
		program corev1.Container
		want    int32
	}{
		"PostgreSQL": {corev1.Container{
			Image: "postgres:17", Command: []string{"docker-entrypoint.sh", "postgres"}, ReadinessProbe: listens(5432),
			Env: []corev1.EnvVar{{Name: "POSTGRES_PASSWORD", Value: "secret"}},
		}, 0},
		"nginx": {corev1.Container{
			Image: "nginx:1.26", Command: []string{"nginx", "-g", "daemon off;"}, ReadinessProbe: listens(80),
		}, 0},
		"a JVM": {corev1.Container{
			Image: "eclipse-temurin:21-jre", Command: []string{"java", "-m", "jdk.httpserver", "-b", "0.0.0.0", "-p", "8080"}, ReadinessProbe: listens(8080),
		}, 143},
		"a shell that forks": {corev1.Container{ // the image's stop signal is SIGINT
			Image:   "postgres:17",
			Command: []string{"sh", "-c", `trap 'kill $child; wait $child; exit 3' INT; sleep 1000 & child=$!; touch /tmp/traps; sh -c 'sleep 1000 & wait' & wait`},
			// As PID 1, a shell without the trap ignores SIGINT.
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/traps"}},
			}},
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(o world.Options) int32 {
				t.Helper()
				o.Pod = func(spec *corev1.PodSpec) {
					tt.program.Name = "app"
					spec.Containers, spec.Volumes = []corev1.Container{tt.program}, nil
				}
				s, err := w.NewSingleton(t.Context(), "faults", o)
				must(t, err)
				t.Cleanup(func() { must(t, s.Remove(context.Background())) })
				return exitCode(t, s)
			}
			without, with := run(world.Options{Plain: true}), run(world.Options{LeaseDuration: new(int32(15))})
			if without != tt.want || with != tt.want {
				t.Errorf("exit code %d without the gate, %d with it, want %d", without, with, tt.want)
			}
		})
	}
}

// exitCode deletes the only pod after it is Ready, and returns the exit code that the kubelet reports.
func exitCode(t *testing.T, s *world.Singleton) int32 {
	t.Helper()
	var pod corev1.Pod
	err := world.Await(t.Context(), "a Ready pod", func(ctx context.Context) error {
		pods, err := s.Pods(ctx)
		if err == nil && (len(pods) != 1 || !world.IsTrue(&pods[0], corev1.PodReady)) {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		if err == nil {
			pod = pods[0]
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.Describe(context.Background()))
	}
	reports, err := w.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name})
	must(t, err)
	defer reports.Stop()
	deletePod(t, &pod, nil)
	return lastReport(t, reports).State.Terminated.ExitCode
}
