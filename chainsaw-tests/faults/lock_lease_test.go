//go:build cluster

package faults_test

import (
	"context"
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// leased are the options of a lock with fencing by a Lease of the shortest duration.
func leased() world.LockOptions {
	o := fencedBy(v1.LockFencingLease)
	o.Spec.LeaseDurationSeconds = signal.MinLeaseSeconds
	return o
}

// leasedLock creates a lock, and waits until the application of its first writer has recorded its start.
func leasedLock(t *testing.T, o world.LockOptions) (l *world.Lock, first *corev1.Pod, writers func() []world.Tenure) {
	t.Helper()
	l, writers = lockWith(t, o)
	first = writer(t, l, nil)
	awaitStarts(t, l, 1)
	return l, first, writers
}

// The sidecar of the writer is suspended, and cannot renew the Lease. The gate stops the application by itself, and another
// pod becomes the writer. The sidecar then continues with its old view.
func TestLockLeaseSidecarStopped(t *testing.T) {
	t.Parallel()
	l, first, writers := leasedLock(t, leased())
	goOn := suspend(t, first, "/ko-app/gate", "sidecar")
	second := writer(t, l, first)
	awaitStarts(t, l, 2)
	wantGap(t, l, leaseDuration)
	goOn()
	wantStays(t, second, l)
	wantStarts(t, l, 2)
	wantReader(t, first)
	wantWriters(t, writers(), first, second)
}

// The main process of the writer is killed. Another pod becomes the writer. The old pod stays, and its main process starts again
// as a reader.
func TestLockLeaseKilled(t *testing.T) {
	t.Parallel()
	l, old, writers := leasedLock(t, leased())
	kill(t, old, "/app")
	next := writer(t, l, old)
	awaitRestart(t, old)
	wantReader(t, old)
	wantWriters(t, writers(), old, next)
}

// awaitRestart waits until the container of the pod was restarted, and is Ready. pod is the pod before that.
func awaitRestart(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	must(t, world.Await(t.Context(), "a restart in pod "+pod.Name, func(ctx context.Context) error {
		is := &corev1.Pod{}
		if err := w.Get(ctx, client.ObjectKeyFromObject(pod), is); err != nil {
			return err
		}
		restarts, ready := is.Status.ContainerStatuses[0].RestartCount, world.IsTrue(is, corev1.PodReady)
		if restarts == pod.Status.ContainerStatuses[0].RestartCount || !ready {
			return fmt.Errorf("%d restarts, Ready %t", restarts, ready)
		}
		return nil
	}))
}

// The cgroup freezer stops the gate and its application. The sidecar runs on and renews the Lease, so no other pod becomes
// the writer, although the writer is unready.
func TestLockLeaseGateFrozen(t *testing.T) {
	t.Parallel()
	o := leased()
	o.Spec.LeaseDurationSeconds = int32(busyLeaseDuration.Seconds())
	l, first, _ := leasedLock(t, o)
	thaw := freezerOf(t, first).freeze(t)
	wantNobodyElse(t, busyLeaseDuration+leaseDuration, first, l)
	wantStarts(t, l, 1)
	thaw()
	must(t, l.AwaitReplicas(t.Context()))
	writer(t, l, nil)
}

// Fencing changes on a running lock, and applies to the pods of the next rollout. Condition Fenced follows. Only pods that the
// Lease fences record in the journal.
func TestLockLeaseChanged(t *testing.T) {
	t.Parallel()
	o := leased()
	o.Spec.Fencing = v1.LockFencingNone
	l, _ := lockWith(t, o)
	first := writer(t, l, nil)
	awaitLockFenced(t, l, metav1.ConditionFalse, string(v1.LockFencingNone))

	changeLockFencing(t, l, v1.LockFencingLease)
	awaitLockFenced(t, l, metav1.ConditionFalse, "NotFenced")
	must(t, l.RollOut(t.Context()))
	must(t, l.AwaitReplicas(t.Context()))
	second := writer(t, l, first)
	awaitStarts(t, l, 1)
	awaitLockFenced(t, l, metav1.ConditionTrue, string(v1.LockFencingLease))
	wantLeaseOf(t, l, second)

	changeLockFencing(t, l, v1.LockFencingTermination)
	must(t, l.RollOut(t.Context()))
	must(t, l.AwaitReplicas(t.Context()))
	third := writer(t, l, second)
	awaitEnd(t, l)
	awaitLockFenced(t, l, metav1.ConditionTrue, string(v1.LockFencingTermination))
	if injected.IsWrapped(&third.Spec.Containers[0]) {
		t.Errorf("the new pod %s is wrapped", third.Name)
	}
}

// awaitLockFenced waits for the status and the reason of condition Fenced.
func awaitLockFenced(t *testing.T, l *world.Lock, status metav1.ConditionStatus, reason string) {
	t.Helper()
	must(t, l.Await(t.Context(), fmt.Sprintf("Fenced is %s with reason %s", status, reason), func(got *v1.StatefulSetLock) bool {
		c := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionFenced)
		return c != nil && c.Status == status && c.Reason == reason
	}))
}

// changeLockFencing changes spec.fencing, and waits until new pods are created for it.
func changeLockFencing(t *testing.T, l *world.Lock, to v1.LockFencing) {
	t.Helper()
	got, err := l.Read(t.Context())
	must(t, err)
	must(t, w.Patch(t.Context(), got, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"fencing":%q}}`, to))))
	must(t, l.AwaitPolicy(t.Context()))
}

// wantLeaseOf checks that the Lease names the writer as the pod that renews the Lease.
func wantLeaseOf(t *testing.T, l *world.Lock, pod *corev1.Pod) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	must(t, l.Get(t.Context(), l.Key(), lease))
	if got, want := ptr.Deref(lease.Spec.HolderIdentity, ""), signal.HolderIdentity(pod.Name, string(pod.UID)); got != want {
		t.Errorf("Lease %s names %q, want %q", lease.Name, got, want)
	}
}
