//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// leaseDuration is the shortest duration of a Lease.
const leaseDuration = signal.MinLeaseSeconds * time.Second

// busyLeaseDuration is for Leases that must not expire on a busy machine.
const busyLeaseDuration = 15 * time.Second

// fenced are the options of a singleton with fencing by a Lease. Its application stops fast, because SIGTERM and SIGKILL of
// the gate are only 0.8 s apart.
func fenced() world.Options {
	return world.Options{LeaseDuration: new(int32(signal.MinLeaseSeconds)), Env: map[string]string{"STOP_SECONDS": "0.1"}}
}

// withSpare creates a singleton with two pods, and waits until the spare is warm.
func withSpare(t *testing.T, o world.Options) (s *world.Singleton, old *corev1.Pod) {
	t.Helper()
	o.Replicas = 2
	s = singleton(t, o)
	standby(t, s)
	return s, holder(t, s)
}

// awaitFenced waits for the status and the reason of condition Fenced.
func awaitFenced(t *testing.T, s *world.Singleton, status metav1.ConditionStatus, reason string) {
	t.Helper()
	must(t, s.Await(t.Context(), fmt.Sprintf("Fenced is %s with reason %s", status, reason), func(got *v1.StatefulSingleton) bool {
		c := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionFenced)
		return c != nil && c.Status == status && c.Reason == reason
	}))
}

// wantNamed checks that the Lease names the holder with the epoch.
func wantNamed(t *testing.T, s *world.Singleton, epoch int32) {
	t.Helper()
	pod := holder(t, s)
	lease, err := s.Lease(t.Context())
	must(t, err)
	want := signal.HolderIdentity(pod.Name, string(pod.UID))
	if got := ptr.Deref(lease.Spec.HolderIdentity, ""); got != want || ptr.Deref(lease.Spec.LeaseTransitions, 0) != epoch {
		t.Errorf("Lease %s names %q with epoch %d, want %q with %d", lease.Name, got, ptr.Deref(lease.Spec.LeaseTransitions, 0), want, epoch)
	}
}

// wantGap logs the time from the last entry of all earlier processes to the start of the last process.
// The gate kills the old process a sixth of the duration before the Lease can expire.
func wantGap(t *testing.T, a application, duration time.Duration) {
	t.Helper()
	entries, err := a.Journal()
	must(t, err)
	starts, err := a.Starts()
	must(t, err)
	last, before := starts[len(starts)-1], int64(0)
	for _, e := range entries {
		if e.Pod != last.Pod || e.Run != last.Run {
			before = max(before, e.Monotonic)
		}
	}
	gap := time.Duration(last.Monotonic - before)
	t.Logf("%s from the last write of the old process to the start of the new one", gap.Round(time.Millisecond))
	if before == 0 || gap < duration/6 {
		t.Errorf("the new process started %s after the last write of the old one, want %s at least", gap, duration/6)
	}
}

// The holder's sidecar is suspended, and cannot renew the Lease. The gate stops the application by itself, and the spare
// starts. The sidecar then continues with its old view.
func TestFencedSidecarStandsStill(t *testing.T) {
	t.Parallel()
	s, old := withSpare(t, fenced())
	goOn := suspend(t, old, "/ko-app/gate", "sidecar")
	wantHandedOver(t, s, 2, v1.CauseExpiry, v1.ProofLeaseExpired)
	wantGap(t, s, leaseDuration)
	next := holder(t, s)
	goOn()
	wantStays(t, next, s)
	wantStarts(t, s, 2)
	wantNamed(t, s, 2)
}

// The controllers stand still for longer than the durations of two Leases. A fenced application runs on, and the writer of a lock
// without fencing stays, although nobody renews its Lease. The controllers then continue with their old view.
func TestControllersStandStill(t *testing.T) {
	alone(t)
	const short = 2
	var s *world.Singleton
	var old, first *corev1.Pod
	var l *world.Lock
	var writers func() []world.Tenure
	atOnce(t,
		func() {
			s = singleton(t, fenced())
			old = holder(t, s)
		},
		func() {
			l, writers = lock(t, v1.StatefulSetLockSpec{LeaseDurationSeconds: short})
			first = writer(t, l, nil)
		},
	)
	t.Cleanup(func() { _ = w.Cluster(context.Background(), "process", "continue", "manager") })
	cluster(t, "process", "stop", "manager")
	wantNobodyElse(t, leaseDuration+short*time.Second, old, s)
	since := time.Now()
	cluster(t, "process", "continue", "manager")
	awaitRenewal(t, client.ObjectKey{Namespace: l.Namespace, Name: world.LockName}, since)
	wantNobodyElse(t, leaseDuration, old, s)
	wantWriters(t, writers(), first)
	must(t, s.AwaitHolder(t.Context(), 1))
	awaitFenced(t, s, metav1.ConditionTrue, "LeaseRenewed")
	wantNamed(t, s, 1)
	wantStarts(t, s, 1)
}

// The API server stands still for longer than the durations of the Leases. A fenced application and the fenced writer of a lock stop
// before the Leases can expire. An application whose Lease never expires runs on, but does not start again. When the API server is
// back, a pod of each runs without a person.
func TestFencedWithoutAPIServer(t *testing.T) {
	alone(t)
	var s, never *world.Singleton
	var old, kept, first *corev1.Pod
	var l *world.Lock
	var writers func() []world.Tenure
	atOnce(t,
		func() {
			s = singleton(t, fenced())
			old = holder(t, s)
		},
		func() {
			never = singleton(t, world.Options{LeaseDuration: new(int32(0))})
			kept = holder(t, never)
		},
		func() { l, first, writers = leasedLock(t, leased()) },
	)
	wantWriters(t, writers(), first) // the watch could break
	t.Cleanup(func() { _ = w.Cluster(context.Background(), "process", "continue", "kube-apiserver") })
	away := time.Now()
	cluster(t, "process", "stop", "kube-apiserver")
	for _, a := range []application{s, l} {
		awaitEnd(t, a)
		entries, err := a.Journal()
		must(t, err)
		if ended := entries[len(entries)-1].Time.Sub(away); ended > leaseDuration {
			t.Errorf("%s: the application ended %s after the API server, want %s at most", a.Key().Namespace, ended, leaseDuration)
		}
	}
	kill(t, kept, "/app")
	wantOnly(t, leaseDuration, map[application]*corev1.Pod{s: old, l: first, never: kept})
	for _, a := range []application{s, l, never} {
		wantStarts(t, a, 1)
	}
	cluster(t, "process", "continue", "kube-apiserver")
	watchWriters(t, l)
	awaitStarts(t, s, 2)
	awaitStarts(t, never, 2)
	must(t, never.AwaitHolder(t.Context(), 1))
	must(t, s.AwaitHolder(t.Context(), 1))
	awaitFenced(t, s, metav1.ConditionTrue, "LeaseRenewed")
	awaitStarts(t, l, 2)
	writer(t, l, nil)
}

// wantNotReady waits until the pod of a lost node is not Ready, and so in no Service. The node controller would take longer.
func wantNotReady(t *testing.T, lost *corev1.Pod) {
	t.Helper()
	must(t, world.Await(t.Context(), "pod "+lost.Name+" is not Ready", func(ctx context.Context) error {
		pod := &corev1.Pod{}
		err := w.Get(ctx, client.ObjectKeyFromObject(lost), pod)
		if err == nil && pod.DeletionTimestamp == nil && proof.IsTrue(pod, corev1.PodReady) {
			err = errors.New("it is Ready")
		}
		return client.IgnoreNotFound(err)
	}))
}

// Fencing is turned on and off on a running singleton. Each change applies to the pod of the next rollout, and restarts
// nothing. A rollout of a fenced pod hands over as soon as the pod has released the Lease.
func TestFencingChanges(t *testing.T) {
	alone(t) // its Lease must be released before the kubelet reports
	s := singleton(t, world.Options{})
	changeFencing := func(to v1.Fencing, starts int) {
		t.Helper()
		old := holder(t, s)
		change(t, s, fmt.Sprintf(`{"spec":{"fencing":%q,"leaseDurationSeconds":%d}}`, to, signal.MinLeaseSeconds))
		must(t, s.Await(t.Context(), "the changed policy is installed", policyInstalled("Injected")))
		wantNobodyElse(t, leaseDuration, old, s)
		wantStarts(t, s, starts)
	}
	changeFencing(v1.FencingLease, 1)
	awaitFenced(t, s, metav1.ConditionFalse, "CreatedBefore")
	must(t, s.Roll(t.Context()))
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
	awaitFenced(t, s, metav1.ConditionTrue, "LeaseRenewed")
	wantNamed(t, s, 2)
	must(t, s.Roll(t.Context()))
	wantHandedOver(t, s, 3, v1.CauseRollout, v1.ProofLeaseReleased)
	awaitFenced(t, s, metav1.ConditionTrue, "LeaseRenewed")
	wantNamed(t, s, 3)
	starts, err := s.Starts()
	must(t, err)
	if last := starts[len(starts)-1]; last.Epoch != 3 {
		t.Errorf("the application's environment has epoch %d, want 3", last.Epoch)
	}

	changeFencing(v1.FencingKubelet, 3)
	awaitFenced(t, s, metav1.ConditionTrue, "LeaseRenewed") // the holder is still fenced
	must(t, s.Roll(t.Context()))
	wantHandedOver(t, s, 4, v1.CauseRollout, v1.ProofLeaseReleased)
	must(t, s.Await(t.Context(), "no condition Fenced", func(got *v1.StatefulSingleton) bool {
		return meta.FindStatusCondition(got.Status.Conditions, v1.ConditionFenced) == nil
	}))
	wantNobodyElse(t, leaseDuration, holder(t, s), s)
	wantStarts(t, s, 4)
}
