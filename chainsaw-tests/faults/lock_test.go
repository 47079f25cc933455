//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	locks "github.com/statefulsingleton/statefulsingleton/controller/lock"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// lock creates a StatefulSetLock. During the whole test, a watch must not show two writers. The function that it returns
// ends the watch, and returns all writers in their order.
func lock(t *testing.T, spec v1.StatefulSetLockSpec) (l *world.Lock, writers func() []world.Tenure) {
	t.Helper()
	return lockWith(t, world.LockOptions{Spec: spec})
}

// lockWith is lock with other pods. At the end of each test, also of a failed one, the journal must not show an overlap.
func lockWith(t *testing.T, o world.LockOptions) (l *world.Lock, writers func() []world.Tenure) {
	t.Helper()
	l, err := w.NewLock(t.Context(), "locks", o)
	if l != nil {
		t.Cleanup(func() {
			ctx := context.Background()
			if o.Roles {
				if _, err := l.Check(); err != nil {
					t.Error(err)
				}
			}
			if t.Failed() {
				evidence(t, l.Namespace)
				return // kept for debugging
			}
			must(t, l.Remove(ctx))
		})
	}
	must(t, err)
	return l, watchWriters(t, l)
}

// watchWriters checks until the end of the test, or until stop, that a watch never shows two writers.
func watchWriters(t *testing.T, l *world.Lock) (stop func() []world.Tenure) {
	t.Helper()
	var watched *world.Writers
	must(t, world.Await(t.Context(), "a watch of the pods", func(context.Context) (err error) {
		watched, err = l.WatchWriters(context.Background())
		return err
	}))
	stop = func() []world.Tenure {
		tenures, err := watched.Stop()
		if err != nil {
			t.Error(err)
		}
		return tenures
	}
	t.Cleanup(func() { stop() })
	return stop
}

// fencedBy are the options of a lock.
func fencedBy(fencing v1.LockFencing) world.LockOptions {
	return world.LockOptions{
		Spec:  v1.StatefulSetLockSpec{LeaseDurationSeconds: 15, Fencing: fencing},
		Roles: fencing == v1.LockFencingLease,
	}
}

// writer waits for another writer than the last one.
func writer(t *testing.T, l *world.Lock, last *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod, err := l.AwaitWriter(t.Context(), last)
	must(t, err)
	return pod
}

// wantWriters checks which pods were writers.
func wantWriters(t *testing.T, tenures []world.Tenure, pods ...*corev1.Pod) {
	t.Helper()
	var got, want []string
	for _, tenure := range tenures {
		got = append(got, tenure.Pod)
	}
	for _, pod := range pods {
		want = append(want, pod.Name)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("writers %v, want %v", got, want)
	}
}

// wantMoved checks whether the last writer but one was deleted before the last one followed. That ends a tenure only with
// Termination.
func wantMoved(t *testing.T, tenures []world.Tenure, fencing v1.LockFencing) {
	t.Helper()
	old := tenures[len(tenures)-2]
	if want := fencing == v1.LockFencingTermination; old.Terminating != want {
		t.Errorf("pod %s was terminating when the next writer had its label: %t, want %t", old.Pod, old.Terminating, want)
	}
}

// The process of the writer stands still until another pod is the writer. When the pod is Ready again, it stays a reader,
// and Services send it no requests for the writer.
func TestLockUnready(t *testing.T) {
	t.Parallel()
	l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15})
	first := writer(t, l, nil)
	goOn := suspend(t, first, "/app")
	second := writer(t, l, first)
	goOn()
	must(t, l.AwaitReplicas(t.Context()))
	wantReader(t, first)
	wantWriters(t, writers(), first, second)
}

// wantReader checks that the pod is a reader, and was not replaced.
func wantReader(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	is := &corev1.Pod{}
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(pod), is))
	if is.UID != pod.UID || is.Labels[v1.StsRoleLabel] != v1.StsRoleReader {
		t.Errorf("pod %s has labels %v, and uid %s instead of %s", is.Name, is.Labels, is.UID, pod.UID)
	}
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

// Fifteen deletions of the writer, one after the other, with a second controller. The second controller also acts on the
// locks of tests that run at the same time.
func TestLockDeletions(t *testing.T) {
	t.Parallel()
	mgr := newManager(t)
	second := &locks.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: mgr.GetEventRecorder("statefulsingleton"),
		Injection: &injection.Reconciler{Kind: injection.Locks, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}},
	}
	must(t, second.SetupWithManager(mgr))
	start(t, mgr)
	l, writers := lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: 15})
	const deletions = 15
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
	for _, fencing := range []v1.LockFencing{v1.LockFencingNone, v1.LockFencingTermination, v1.LockFencingLease} {
		t.Run(string(fencing), func(t *testing.T) {
			t.Parallel()
			o := fencedBy(fencing)
			o.MinReadySeconds = 10 // by itself, a StatefulSet deletes the last pod while the Lease is still being released
			l, writers := lockWith(t, o)
			first := writer(t, l, nil)
			must(t, l.RollOut(t.Context()))
			must(t, l.AwaitReplicas(t.Context()))
			second := writer(t, l, first)
			tenures := writers()
			wantWriters(t, tenures, first, second)
			wantMoved(t, tenures, fencing)
			if second.Name == first.Name {
				t.Errorf("pod %s is the writer again", second.Name)
			}
		})
	}
}

// A drain of the node of a writer that is not the lowest pod moves the writer first, and ends.
func TestLockDrain(t *testing.T) {
	for _, fencing := range []v1.LockFencing{v1.LockFencingTermination, v1.LockFencingLease} {
		t.Run(string(fencing), func(t *testing.T) {
			l, writers := lockWith(t, fencedBy(fencing))
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
			tenures := writers()
			wantWriters(t, tenures, first, second, third)
			wantMoved(t, tenures, fencing)
		})
	}
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
		return errors.New("it exists")
	}))
	must(t, world.Await(t.Context(), "the Lease and the policy are removed", func(ctx context.Context) error {
		if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: world.LockName}, &coordinationv1.Lease{}); !apierrors.IsNotFound(err) {
			return errors.Join(err, errors.New("the Lease exists"))
		}
		policy := &metav1.PartialObjectMetadata{}
		policy.SetGroupVersionKind(schema.GroupVersionKind{Group: "kyverno.io", Version: "v1", Kind: "ClusterPolicy"})
		if err := l.Get(ctx, client.ObjectKey{Name: policies.NameOf(got)}, policy); !apierrors.IsNotFound(err) {
			return errors.Join(err, errors.New("the policy exists"))
		}
		return nil
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
