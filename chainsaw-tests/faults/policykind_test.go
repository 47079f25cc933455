//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The kind of the policies changes, and changes back, while pods are created that one singleton selects. Each of them is held
// or rejected, also while Kyverno restarts. This singleton and a fenced one hand over meanwhile, and the writer of a lock moves.
// The holder and the standby of another singleton do not restart.
func TestPolicyKindChanges(t *testing.T) {
	alone(t)
	t.Cleanup(func() { must(t, changePolicyKind(context.Background(), policies.ClusterPolicy)) })
	var idle, busy, slow *world.Singleton
	var idleHolder, idleStandby, last *corev1.Pod
	var l *world.Lock
	var writers func() []world.Tenure
	o := leased()
	o.Spec.LeaseDurationSeconds = 60 // requests can take seconds meanwhile, and no Lease is to expire
	atOnce(t,
		func() {
			idle = singleton(t, world.Options{})
			must(t, idle.Scale(t.Context(), 2))
			idleHolder, idleStandby = holder(t, idle), standby(t, idle)
		},
		func() { busy = singleton(t, world.Options{}) },
		// The next pod warms up so slowly that it takes over during the change.
		func() { slow = singleton(t, world.Options{LeaseDuration: new(int32(60)), InitTime: 10 * time.Second}) },
		func() { l, last, writers = leasedLock(t, o) },
	)
	wantHeld, create := watchPods(t, busy.Namespace), keepCreating(t, busy)
	wantSlowHeld := watchPods(t, slow.Namespace)
	wanted := []*corev1.Pod{last}
	for i, kind := range []policies.Kind{policies.NamespacedMutatingPolicy, policies.ClusterPolicy} {
		must(t, busy.Roll(t.Context()))
		must(t, slow.Roll(t.Context()))
		deletePod(t, last, nil)
		installed := make(chan error, 1)
		go func() { installed <- changePolicyKind(t.Context(), kind) }()
		create(3 * time.Second)
		must(t, <-installed)
		must(t, world.Await(t.Context(), "policies of kind "+string(kind)+" only", func(ctx context.Context) error {
			create(time.Second)
			return policiesAre(ctx, kind)
		}))
		last = writer(t, l, last)
		wanted = append(wanted, last)
		must(t, l.AwaitReplicas(t.Context()))
		must(t, w.KillKyverno(t.Context()))
		create(5 * time.Second)
		must(t, w.AwaitWhole(t.Context()))
		if held := create(time.Second); held == 0 {
			t.Errorf("%s: no pod was held", kind)
		}
		must(t, busy.TryAgain(t.Context()))
		must(t, busy.AwaitHolder(t.Context(), int64(2+i)))
		must(t, slow.AwaitHolder(t.Context(), int64(2+i)))
		awaitFenced(t, slow, metav1.ConditionTrue, "LeaseRenewed")
		awaitLockFenced(t, l, metav1.ConditionTrue, string(v1.LockFencingLease))
	}
	wantHeld(t)
	wantSlowHeld(t)
	wantWriters(t, writers(), wanted...)
	for _, a := range []application{busy, slow, l} {
		wantStarts(t, a, 3)
	}
	wantStarts(t, idle, 1)
	if is := holder(t, idle); is.UID != idleHolder.UID {
		t.Errorf("pod %s holds, want %s", is.Name, idleHolder.Name)
	}
	if is := standby(t, idle); is.UID != idleStandby.UID {
		t.Errorf("pod %s is the standby, want %s", is.Name, idleStandby.Name)
	}
}

// changePolicyKind changes the chart's policyKind, and waits for the controller.
func changePolicyKind(ctx context.Context, kind policies.Kind) error {
	return upgradeChart(ctx, "--set", "policyKind="+string(kind), "--wait", "--timeout", "3m")
}

// policiesAre returns an error unless the controller's policies are all of one kind, and there are some.
func policiesAre(ctx context.Context, kind policies.Kind) error {
	var failed error
	for _, each := range policies.Kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(each.GVK())
		if err := w.List(ctx, list, client.MatchingLabels{v1.ManagedByLabel: v1.ManagedBy}); err != nil {
			return err
		}
		if n := len(list.Items); (n > 0) != (each == kind) {
			failed = errors.Join(failed, fmt.Errorf("%d are of kind %s", n, each))
		}
	}
	return failed
}
