//go:build cluster

package faults_test

import (
	"context"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// lock creates a StatefulSetLock. During the whole test, a watch must not show two writers. The function that it returns
// ends the watch, and returns all writers in their order.
func lock(t *testing.T, spec v1.StatefulSetLockSpec) (l *world.Lock, writers func() []world.Tenure) {
	t.Helper()
	l, err := w.NewLock(t.Context(), "locks", spec)
	if l != nil {
		t.Cleanup(func() {
			if t.Failed() {
				evidence(t)
				return // kept for debugging
			}
			must(t, l.Remove(context.Background()))
		})
	}
	must(t, err)
	watched, err := l.WatchWriters(context.Background())
	must(t, err)
	stop := func() []world.Tenure {
		tenures, err := watched.Stop()
		if err != nil {
			t.Error(err)
		}
		return tenures
	}
	t.Cleanup(func() { stop() })
	return l, stop
}

// writer waits for another writer than the last one.
func writer(t *testing.T, l *world.Lock, last *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod, err := l.AwaitWriter(t.Context(), last)
	must(t, err)
	return pod
}

// wantWriters checks which pods were writers.
func wantWriters(t *testing.T, got []world.Tenure, want ...*corev1.Pod) {
	t.Helper()
	same := func(tenure world.Tenure, pod *corev1.Pod) bool { return tenure.Pod == pod.Name }
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("writers %v, want %d others", got, len(want))
	}
}

// The process of the writer is killed. Its pod becomes a reader, and stays one after it is Ready again.
func TestLockCrash(t *testing.T) {
	t.Parallel()
	l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15})
	first := writer(t, l, nil)
	pid, err := world.Process(first, "/app")
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	second := writer(t, l, first)
	must(t, l.AwaitReplicas(t.Context()))
	is := &corev1.Pod{}
	must(t, l.Get(t.Context(), client.ObjectKeyFromObject(first), is))
	if is.UID != first.UID || is.Labels[v1.StsRoleLabel] != v1.StsRoleReader {
		t.Errorf("pod %s has labels %v", is.Name, is.Labels)
	}
	wantWriters(t, writers(), first, second)
}

// With Termination, an open connection to the old writer ends before another pod is the writer.
func TestLockSession(t *testing.T) {
	t.Parallel()
	l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15, Fencing: v1.LockFencingTermination})
	first := writer(t, l, nil)
	session, err := net.Dial("tcp", net.JoinHostPort(first.Status.PodIP, "8080"))
	must(t, err)
	defer func() { _ = session.Close() }()
	ended := make(chan time.Time)
	go func() {
		_, _ = session.Read(make([]byte, 1))
		ended <- time.Now()
	}()
	deletePod(t, first, nil)
	second := writer(t, l, first)
	at := <-ended
	tenures := writers()
	wantWriters(t, tenures, first, second)
	if len(tenures) == 2 && tenures[1].Seen.Before(at) {
		t.Errorf("the session ended %s after the next pod became the writer", at.Sub(tenures[1].Seen))
	}
}

// Fifty deletions of the writer, one after the other.
func TestLockDeletions(t *testing.T) {
	t.Parallel()
	l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15})
	const deletions = 50
	var last *corev1.Pod
	for range deletions {
		last = writer(t, l, last)
		deletePod(t, last, new(int64(1)))
	}
	writer(t, l, last)
	if got := len(writers()); got != deletions+1 {
		t.Errorf("%d tenures, want %d", got, deletions+1)
	}
}

// A rollout moves the writer once, to an updated pod, and the writer stays afterwards.
func TestLockRollout(t *testing.T) {
	t.Parallel()
	for _, fencing := range []v1.LockFencing{v1.LockFencingNone, v1.LockFencingTermination} {
		t.Run(string(fencing), func(t *testing.T) {
			t.Parallel()
			l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15, Fencing: fencing})
			first := writer(t, l, nil)
			must(t, l.RollOut(t.Context()))
			must(t, l.AwaitReplicas(t.Context()))
			second := writer(t, l, first)
			wantWriters(t, writers(), first, second)
			if second.Name == "db-0" {
				t.Errorf("pod %s is the writer again", second.Name)
			}
		})
	}
}

// A drain of the node of a writer that is not the lowest pod moves the writer first, and ends.
func TestLockDrain(t *testing.T) {
	l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15, Fencing: v1.LockFencingTermination})
	first := writer(t, l, nil)
	deletePod(t, first, nil)
	second := writer(t, l, first)
	must(t, l.AwaitReplicas(t.Context()))
	t.Cleanup(func() { must(t, w.Cordon(context.Background(), second.Spec.NodeName, false)) })
	must(t, l.Drain(t.Context(), second.Spec.NodeName))
	third := writer(t, l, second)
	if third.Spec.NodeName == second.Spec.NodeName {
		t.Errorf("the writer is on node %s still", third.Spec.NodeName)
	}
	wantWriters(t, writers(), first, second, third)
}

// The deletion of the lock removes labels and finalizers, Lease and policy. The pods keep running.
func TestLockRemoved(t *testing.T) {
	t.Parallel()
	l, _ := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15, Fencing: v1.LockFencingTermination})
	old := writer(t, l, nil)
	got, err := l.Read(t.Context())
	must(t, err)
	must(t, l.Delete(t.Context(), got))
	must(t, world.Await(t.Context(), "the lock is removed", func(ctx context.Context) error {
		if _, err := l.Read(ctx); err != nil {
			return client.IgnoreNotFound(err)
		}
		return context.DeadlineExceeded
	}))
	var pods corev1.PodList
	must(t, l.List(t.Context(), &pods, client.InNamespace(l.Namespace)))
	for _, p := range pods.Items {
		_, role := p.Labels[v1.StsRoleLabel]
		_, lock := p.Labels[v1.LockLabel]
		if role || lock || len(p.Finalizers) > 0 {
			t.Errorf("pod %s has labels %v and finalizers %v", p.Name, p.Labels, p.Finalizers)
		}
	}
	is := &corev1.Pod{}
	must(t, l.Get(t.Context(), types.NamespacedName{Namespace: l.Namespace, Name: old.Name}, is))
	if is.UID != old.UID || is.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("pod %s was replaced or restarted", old.Name)
	}
}
