//go:build cluster

package faults_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// A node is cut off, and the processes on it run on:
//
//   - Of singletons, neither a deletion, a force deletion nor an eviction by a taint is a proof. After the network is restored, the
//     kubelet reports the termination.
//   - The gate of a fenced singleton or of a fenced writer stops the application. The next one starts without a person, after the
//     Lease has expired, and the old one does not start again when the network is restored.
//   - With Termination, no pod of a lock becomes the writer until the kubelet has reported the termination.
//   - A lost member is replaced soon, and its claim is kept. Of two lost members, only one is replaced, and the message says what a
//     person can do. The old pods end when the network is restored, and are never counted.
func TestNodeCutOff(t *testing.T) {
	alone(t)
	node, _ := victim(t)
	must(t, w.LeadElsewhere(t.Context(), node)) // a new leader observes a Lease from the beginning
	clusters := membersOn(t, node, 1, 2)
	one, two := clusters[0], clusters[1]
	var deleted, forced, evicted, expired, spared *world.Singleton
	var ends, renews *world.Lock
	var a, b, c, d, e, f, g *corev1.Pod
	var endsWriters, renewsWriters func() []world.Tenure
	o := fencedBy(v1.LockFencingTermination)
	o.Shared = true
	// The return of the node keeps everything busy for seconds, in which a shorter Lease can expire again.
	const duration = 30 * time.Second
	fences, leases := fenced(), leased()
	fences.LeaseDuration, leases.Spec.LeaseDurationSeconds = new(int32(30)), 30
	atOnce(t,
		func() { deleted, a = on(t, node, world.Options{}) },
		func() { forced, b = on(t, node, world.Options{Barrier: true}) },
		func() { evicted, c = on(t, node, world.Options{Pod: world.TolerateLostNodes(tolerationSeconds)}) },
		func() { ends, f, endsWriters = writerOn(t, node, o) },
	)
	atOnce(t, // later, because a Lease can expire while so many pods start
		func() { expired, d = placed(t, node, fences) },
		func() { spared, e = placed(t, node, fences) },
		func() { renews, g, renewsWriters = writerOn(t, node, leases) },
	)
	// A cordon would move the writers. The scheduler gives this taint more weight than the preferred node.
	taint(t, node, "faults.test/lost-soon=yes:PreferNoSchedule")
	spareElsewhere(t, spared, node)

	cluster(t, "node", "partition", node)
	lost := time.Now()
	deletePod(t, a, nil)
	deletePod(t, b, force)
	deletePod(t, f, force)

	for _, s := range []*world.Singleton{expired, spared} {
		wantHandedOver(t, s, 2, v1.CauseExpiry, v1.ProofLeaseExpired)
		wantGap(t, s, duration)
		if next := holder(t, s); next.Spec.NodeName == node {
			t.Errorf("pod %s runs on %s, which is cut off", next.Name, node)
		}
	}
	wantNotReady(t, d)
	wantNotReady(t, e)
	renewsNext := writer(t, renews, g)
	awaitStarts(t, renews, 2)
	wantGap(t, renews, duration)
	if renewsNext.Spec.NodeName == node {
		t.Errorf("pod %s runs on %s, which is cut off", renewsNext.Name, node)
	}
	awaitSuccessor(t, one, lost)
	wantClaims(t, one, "data-db-0", "data-db-1", "data-db-2", "data-db-3")
	wantMember(t, one, "db-2", v1.MemberLost, "data-db-2")
	wantMember(t, one, "db-3", v1.MemberActive, "data-db-3")
	must(t, two.Await(t.Context(), "condition Stalled", func(got *v1.StatefulCluster) bool {
		stalled := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionStalled)
		return stalled != nil && stalled.Reason == "TooManyLost" &&
			strings.Contains(got.Status.Message, "kubectl taint node "+node+" node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	}))
	must(t, two.Await(t.Context(), "one successor", func(got *v1.StatefulCluster) bool { return got.Status.AvailableReplicas == 2 }))
	wantClaims(t, two, "data-db-0", "data-db-1", "data-db-2", "data-db-3")
	must(t, ends.Await(t.Context(), "a message about the node", func(got *v1.StatefulSetLock) bool {
		return strings.Contains(got.Status.Message, "its node "+node+" does not report")
	}))
	for _, s := range []*world.Singleton{deleted, forced, evicted} {
		standby(t, s)
	}
	wantStays(t, a, deleted)
	wantStays(t, b, forced)
	wantStays(t, c, evicted)

	neverMore := wantAtMost(t, one, 3)
	healed := time.Now()
	cluster(t, "node", "heal", node)
	wantHandedOver(t, deleted, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	wantHandedOver(t, forced, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	wantHandedOver(t, evicted, 2, v1.CauseEviction, v1.ProofKubeletReported)
	podGone(t, d) // the rollout has deleted it
	endsNext := writer(t, ends, f)
	wantWriters(t, endsWriters(), f, endsNext)
	if seen := endsWriters()[1].Seen; seen.Before(healed) {
		t.Errorf("pod %s became the writer while nothing proved the end of pod %s", endsNext.Name, f.Name)
	}
	must(t, one.AwaitAvailable(t.Context(), "db-2"))
	must(t, two.AwaitAvailable(t.Context(), "db-1", "db-2"))
	neverMore()
	wantPods(t, one, "db-0", "db-1", "db-3")
	wantPods(t, two, "db-0", "db-3", "db-4")
	wantClaims(t, one, "data-db-0", "data-db-1", "data-db-2", "data-db-3")
	claims, err := two.Claims(t.Context())
	must(t, err)
	if !slices.Contains(claims, "data-db-1") || !slices.Contains(claims, "data-db-2") {
		t.Errorf("claims %v, want those of the lost pods too", claims)
	}
	must(t, renews.AwaitReplicas(t.Context()))
	wantStays(t, renewsNext, renews)
	for _, s := range []*world.Singleton{expired, spared} {
		wantStays(t, holder(t, s), s)
		wantStarts(t, s, 2)
		wantNamed(t, s, 2)
	}
	wantStarts(t, renews, 2)
	wantReader(t, g)
	wantWriters(t, renewsWriters(), g, renewsNext)
}

// writerOn creates a lock whose writer is on the node.
func writerOn(t *testing.T, node string, o world.LockOptions) (l *world.Lock, first *corev1.Pod, writers func() []world.Tenure) {
	t.Helper()
	o.Node = node
	l, writers = lockWith(t, o)
	first = writer(t, l, nil)
	if first.Spec.NodeName != node {
		t.Fatalf("pod %s is on %s, want %s", first.Name, first.Spec.NodeName, node)
	}
	if o.Roles {
		awaitStarts(t, l, 1)
	}
	return l, first, writers
}
