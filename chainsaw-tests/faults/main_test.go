//go:build cluster

// Package faults_test tests faults of real clusters, one at a time. In none of them do two pods run, and each ends with
// a holder. The tests break the cluster on which they run, and repair it:
//
//	bin/cluster exec -- go -C chainsaw-tests test -count=1 -tags cluster ./faults
//
// Tests whose fault concerns one application run in parallel, and the other tests run alone.
package faults_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

var w *world.World

func TestMain(m *testing.M) {
	flag.Parse()
	// Each test starts and stops containers. More tests at once keep two cores so busy that processes miss their deadlines.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	code, err := runOnCluster(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runOnCluster(m *testing.M) (code int, err error) {
	if w, err = world.Connect(context.Background()); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// application is an application with a journal.
type application interface {
	Key() types.NamespacedName
	Journal() ([]journal.Entry, error)
	Starts() ([]journal.Entry, error)
	Ended() (bool, error)
	Check() (journal.Summary, error)
}

// singleton creates a singleton with a Ready holder. At the end of each test, also of a failed one, the journal must
// not show an overlap.
func singleton(t *testing.T, o world.Options) *world.Singleton {
	t.Helper()
	s, err := w.NewSingleton(t.Context(), "faults", o)
	if s != nil {
		t.Cleanup(func() {
			ctx := context.Background()
			if _, err := s.Check(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				evidence(t, s.Namespace)
				return // kept for debugging
			}
			must(t, s.Remove(ctx))
		})
	}
	must(t, err)
	return s
}

// evidence stores logs and objects for debugging. It also prints what the controller and the pods logged about the namespace,
// because CI does not keep the files.
func evidence(t *testing.T, namespace string) {
	dir := filepath.Join("../../dist/faults", t.Name())
	if err := w.Evidence(context.Background(), dir); err != nil {
		t.Log(err)
	}
	t.Logf("the evidence is in %s", dir)
	logged, err := w.LoggedAbout(context.Background(), namespace)
	if err != nil {
		t.Log(err)
	}
	t.Log(logged)
}

// alone marks a test that breaks what other tests need. The cluster is complete before the next test begins.
func alone(t *testing.T) {
	t.Cleanup(func() {
		must(t, w.Cluster(context.Background(), "up"))
		must(t, w.AwaitWhole(context.Background()))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// atOnce runs the parts at the same time, because each of them mostly waits.
func atOnce(t *testing.T, parts ...func()) {
	t.Helper()
	var running sync.WaitGroup
	for _, part := range parts {
		running.Go(part)
	}
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// cluster runs the cluster program.
func cluster(t *testing.T, args ...string) {
	t.Helper()
	must(t, w.Cluster(t.Context(), args...))
}

func holder(t *testing.T, s *world.Singleton) *corev1.Pod {
	t.Helper()
	pod, err := s.Holder(t.Context())
	must(t, err)
	return pod
}

func standby(t *testing.T, s *world.Singleton) *corev1.Pod {
	t.Helper()
	pod, err := s.AwaitStandby(t.Context())
	must(t, err)
	return pod
}

func deletePod(t *testing.T, pod *corev1.Pod, grace *int64) {
	t.Helper()
	must(t, w.DeletePod(t.Context(), pod, grace))
}

// suspend stops a process of the pod until goOn is called.
func suspend(t *testing.T, pod *corev1.Pod, command ...string) (goOn func()) {
	t.Helper()
	pid, err := world.Process(pod, command...)
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // the pod may be gone
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	return func() { must(t, syscall.Kill(pid, syscall.SIGCONT)) }
}

func kill(t *testing.T, pod *corev1.Pod, command ...string) {
	t.Helper()
	pid, err := world.Process(pod, command...)
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

// force is the grace period of a force delete.
var force = new(int64(0))

// decided is an application whose controller can be asked to decide again.
type decided interface {
	application
	Decided(ctx context.Context) (recorded types.UID, err error)
}

// wantStays checks that the controller decides twice more, and that afterwards the record names the pod and no other pod has
// started. The controller changes the record before it starts a pod.
func wantStays(t *testing.T, pod *corev1.Pod, a decided) {
	t.Helper()
	recorded, err := a.Decided(t.Context())
	must(t, err)
	if recorded != pod.UID {
		t.Fatalf("%s: the record names the pod with uid %s, want pod %s (%s) still", a.Key().Namespace, recorded, pod.Name, pod.UID)
	}
	wantNobodyElse(t, 0, pod, a)
}

// wantNobodyElse checks for the duration that no pod but the old holder starts.
func wantNobodyElse(t *testing.T, during time.Duration, old *corev1.Pod, a application) {
	t.Helper()
	wantOnly(t, during, map[application]*corev1.Pod{a: old})
}

// wantOnly checks for the duration that no process of the applications starts, except in the pods.
func wantOnly(t *testing.T, during time.Duration, pods map[application]*corev1.Pod) {
	t.Helper()
	for deadline := time.Now().Add(during); ; time.Sleep(200 * time.Millisecond) {
		for a, pod := range pods {
			starts, err := a.Starts()
			must(t, err)
			if last := starts[len(starts)-1]; last.Pod != pod.Name {
				t.Fatalf("%s: pod %s started with epoch %d, though nothing proves that %s has terminated", a.Key().Namespace, last.Pod, last.Epoch, pod.Name)
			}
		}
		if time.Now().After(deadline) {
			return
		}
	}
}

// wantHandedOver waits for a Ready holder with the epoch, and checks the cause, the proof and the number of handoffs in
// the journal.
func wantHandedOver(t *testing.T, s *world.Singleton, epoch int64, cause v1.Cause, proof v1.Proof) {
	t.Helper()
	must(t, s.AwaitHolder(t.Context(), epoch))
	got, err := s.Read(t.Context())
	must(t, err)
	if l := got.Status.LastTransition; got.Status.Epoch != epoch || l.Cause != cause || l.Proof != proof {
		t.Errorf("%s: epoch %d, cause %s, proof %s; want %d, %s, %s", s.Namespace, got.Status.Epoch, l.Cause, l.Proof, epoch, cause, proof)
	}
	wantStarts(t, s, int(epoch))
}

// wantStarts checks the number of processes in the journal, and that no two ran at once.
func wantStarts(t *testing.T, a application, want int) {
	t.Helper()
	starts, err := a.Starts()
	must(t, err)
	if len(starts) != want {
		t.Errorf("%s: %d processes started, want %d: %+v", a.Key().Namespace, len(starts), want, starts)
	}
	_, err = a.Check()
	must(t, err)
}

// awaitStarts waits until so many processes have started.
func awaitStarts(t *testing.T, a application, want int) {
	t.Helper()
	must(t, world.Await(t.Context(), fmt.Sprintf("process %d of the application", want), func(context.Context) error {
		starts, err := a.Starts()
		if err == nil && len(starts) < want {
			err = fmt.Errorf("%d have started", len(starts))
		}
		return err
	}))
}

// awaitRenewal waits until the Lease of a pod or a node has been renewed after the time since.
func awaitRenewal(t *testing.T, key types.NamespacedName, since time.Time) {
	t.Helper()
	must(t, world.Await(t.Context(), "a renewal of Lease "+key.String(), func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		err := w.Get(ctx, key, lease)
		if err == nil && !lease.Spec.RenewTime.After(since) {
			err = fmt.Errorf("it was renewed at %s", lease.Spec.RenewTime)
		}
		return err
	}))
}

// through returns a client that uses the API server with the number, from 1.
func through(t *testing.T, server int) client.WithWatch {
	t.Helper()
	c, err := w.Through(server)
	must(t, err)
	return c
}

// everywhere waits until the condition holds at all API servers. Each of them learns of changes by itself.
func everywhere(t *testing.T, what string, condition func(context.Context, client.Client) error) {
	t.Helper()
	var servers []client.Client
	for i := range w.Servers {
		servers = append(servers, through(t, i+1))
	}
	must(t, world.Await(t.Context(), what, func(ctx context.Context) (failed error) {
		for i, server := range servers {
			if err := condition(ctx, server); err != nil {
				failed = errors.Join(failed, fmt.Errorf("API server %d: %w", i+1, err))
			}
		}
		return failed
	}))
}

// podGone waits until the object of the pod is removed.
func podGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	must(t, world.Await(t.Context(), "the end of pod "+pod.Name, func(ctx context.Context) error {
		got := &corev1.Pod{}
		err := w.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, got)
		switch {
		case err == nil && got.UID == pod.UID:
			return fmt.Errorf("it is there, phase %s, finalizers %v", got.Status.Phase, got.Finalizers)
		case err == nil:
			return nil
		}
		return client.IgnoreNotFound(err)
	}))
}
