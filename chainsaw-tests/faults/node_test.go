//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// victim returns a node that Kyverno does not need. The node takes no new pods until the end of the test.
func victim(t *testing.T) (name string, cordon func()) {
	t.Helper()
	name = "node2"
	must(t, w.KyvernoElsewhere(t.Context(), name))
	return name, func() {
		t.Helper()
		t.Cleanup(func() { must(t, w.Cordon(context.Background(), name, false)) })
		must(t, w.Cordon(t.Context(), name, true))
	}
}

// on creates a singleton whose holder is on the node and stays there when the node is cordoned.
func on(t *testing.T, node string, o world.Options) (*world.Singleton, *corev1.Pod) {
	t.Helper()
	o.Drain = v1.DrainEvict
	return placed(t, node, o)
}

// placed creates a singleton whose holder is on the node.
func placed(t *testing.T, node string, o world.Options) (*world.Singleton, *corev1.Pod) {
	t.Helper()
	o.Node = node
	s := singleton(t, o)
	pod := holder(t, s)
	if pod.Spec.NodeName != node {
		t.Fatalf("pod %s is on %s, want %s", pod.Name, pod.Spec.NodeName, node)
	}
	return s, pod
}

// spareElsewhere adds a spare, which may not be on the node.
func spareElsewhere(t *testing.T, s *world.Singleton, node string) {
	t.Helper()
	must(t, s.Scale(t.Context(), 2))
	if spare := standby(t, s); spare.Spec.NodeName == node {
		t.Fatalf("the spare %s is on %s, as the holder is", spare.Name, node)
	}
}

// The kubelet is suspended, and the pods continue to run, also with fencing by a Lease. Neither a deletion nor a force deletion
// is a proof: no other pod starts, and no claim is given away. Meanwhile a singleton has phase Failed, and afterwards it continues
// by itself.
func TestKubeletStandsStill(t *testing.T) {
	alone(t)
	node, cordon := victim(t)
	members := membersOn(t, node, 1)[0]
	pods, err := members.Pods(t.Context())
	must(t, err)
	var deleted, forced, renews *world.Singleton
	var a, b, c *corev1.Pod
	o := fenced()
	o.MaxTransitionTime = 5
	atOnce(t,
		func() { deleted, a = on(t, node, world.Options{MaxTransitionTime: 5}) },
		func() { forced, b = on(t, node, world.Options{MaxTransitionTime: 5}) },
		func() { renews, c = on(t, node, o) },
	)
	cordon()
	t.Cleanup(func() { _ = w.Cluster(context.Background(), "process", "continue", "kubelet", "--on", node) })
	cluster(t, "process", "stop", "kubelet", "--on", node)
	deletePod(t, pods["db-2"], force)
	deletePod(t, a, nil)
	deletePod(t, b, force)
	deletePod(t, c, nil)
	for _, s := range []*world.Singleton{deleted, forced, renews} {
		standby(t, s)
	}
	wantOnly(t, 2*leaseDuration, map[application]*corev1.Pod{deleted: a, forced: b, renews: c})
	for _, s := range []*world.Singleton{deleted, forced, renews} {
		must(t, s.Await(t.Context(), "phase Failed", func(got *v1.StatefulSingleton) bool { return got.Status.Phase == v1.PhaseFailed }))
	}
	wantPods(t, members, "db-0", "db-1", "db-2")
	wantMember(t, members, "db-2", v1.MemberActive, "data-db-2")

	cluster(t, "process", "continue", "kubelet", "--on", node)
	wantHandedOver(t, deleted, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	wantHandedOver(t, forced, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	must(t, renews.AwaitHolder(t.Context(), 2)) // the kubelet's report or the release of the Lease can come first
	wantStarts(t, renews, 2)
	must(t, members.AwaitAvailable(t.Context(), "db-2"))
	wantMember(t, members, "db-3", v1.MemberActive, "data-db-2")
	wantClaims(t, members, "data-db-0", "data-db-1", "data-db-2")
}

// The kubelet of a node is killed and returns, and then containerd. A holder of the node keeps running, and a spare keeps waiting,
// until its holder on another node is deleted. Of each holder that was stopping, one handoff follows.
func TestKubeletAndContainerdKilled(t *testing.T) {
	alone(t)
	spared, b := withSpare(t, world.Options{Drain: v1.DrainEvict})
	spare := standby(t, spared)
	node := spare.Spec.NodeName
	must(t, w.KyvernoElsewhere(t.Context(), node))
	var kept, deleted, rolled *world.Singleton
	var a, c *corev1.Pod
	stopsSlowly := world.Options{Env: map[string]string{"STOP_SECONDS": "10"}}
	atOnce(t,
		func() { kept, a = on(t, node, world.Options{}) },
		func() { deleted, c = on(t, node, stopsSlowly) },
		func() { rolled, _ = on(t, node, stopsSlowly) },
	)
	killWhileStops := func(program string, s *world.Singleton) {
		t.Helper()
		must(t, s.Await(t.Context(), "the holder stops", func(got *v1.StatefulSingleton) bool { return reason(got) == "HolderStopping" }))
		cluster(t, "process", "kill", program, "--on", node)
	}
	wantOthersUnchanged := func() {
		t.Helper()
		wantStays(t, a, kept)
		wantStarts(t, kept, 1)
		wantStays(t, b, spared)
		wantStarts(t, spared, 1)
		if got := standby(t, spared); got.UID != spare.UID {
			t.Errorf("pod %s is the spare, want %s still", got.Name, spare.Name)
		}
	}

	deletePod(t, c, nil)
	killWhileStops("kubelet", deleted)
	awaitRenewal(t, types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: node}, time.Now())
	wantHandedOver(t, deleted, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	wantOthersUnchanged()

	must(t, rolled.Roll(t.Context()))
	killWhileStops("containerd", rolled)
	wantHandedOver(t, rolled, 2, v1.CauseRollout, v1.ProofKubeletReported)
	wantOthersUnchanged()

	deletePod(t, b, nil)
	wantHandedOver(t, spared, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	if got := holder(t, spared); got.UID != spare.UID {
		t.Errorf("pod %s holds, want the spare %s", got.Name, spare.Name)
	}
}

// A node is cut off and its object is deleted. The garbage collector then reports its pods as Failed, although they
// run. After the node has returned and has stopped the pod, only a person can attest the termination, because the
// report of the kubelet came too late.
func TestNodeObjectDeleted(t *testing.T) {
	alone(t)
	node, cordon := victim(t)
	s, old := on(t, node, world.Options{})
	cordon()
	cluster(t, "node", "partition", node)
	must(t, w.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))
	must(t, world.Await(t.Context(), "phase Failed of pod "+old.Name, func(ctx context.Context) error {
		pod, err := s.Holder(ctx)
		if err == nil && pod.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return err
	}))
	standby(t, s)
	wantStays(t, old, s)

	cluster(t, "process", "kill", "kubelet", "--on", node) // a starting kubelet registers its node
	cluster(t, "node", "heal", node)
	awaitEnd(t, s)
	must(t, world.Await(t.Context(), "the late report of the kubelet", func(ctx context.Context) error {
		pod, err := s.Holder(ctx)
		if err == nil && pod.Status.ContainerStatuses[0].State.Terminated == nil {
			err = fmt.Errorf("the container is %+v", pod.Status.ContainerStatuses[0].State)
		}
		return err
	}))
	wantStays(t, old, s)
	must(t, s.Attest(t.Context(), old.UID))
	wantHandedOver(t, s, 2, v1.CauseEviction, v1.ProofAttested)
}

// awaitEnd waits until the application has recorded its end.
func awaitEnd(t *testing.T, a application) {
	t.Helper()
	must(t, world.Await(t.Context(), "the end of the application", func(context.Context) error {
		ended, err := a.Ended()
		if err == nil && !ended {
			err = errors.New("it runs")
		}
		return err
	}))
}

// awaitNotReady waits until Kubernetes has noticed that the node is lost.
func awaitNotReady(t *testing.T, node string) {
	t.Helper()
	must(t, world.Await(t.Context(), node+" is noticed", func(ctx context.Context) error {
		n := &corev1.Node{}
		err := w.Get(ctx, types.NamespacedName{Name: node}, n)
		if err == nil && world.NodeReady(n) {
			err = errors.New("it is called Ready")
		}
		return err
	}))
}

// taint adds the taint to the node, and removes it at the end of the test.
func taint(t *testing.T, node, taint string) {
	t.Helper()
	kubectl := func(taint string) error {
		out, err := exec.CommandContext(context.Background(), "kubectl", "taint", "node", node, taint).CombinedOutput()
		if err != nil {
			return fmt.Errorf("taint %s with %s: %w: %s", node, taint, err, out)
		}
		return nil
	}
	t.Cleanup(func() { must(t, kubectl(taint+"-")) })
	must(t, kubectl(taint))
}

// A node fails as in a power failure and returns, and its holders and the member of a StatefulCluster continue. It fails again
// permanently. A spare of a fenced singleton starts after the Lease has expired. If the Lease never expires, or without one, another
// pod starts only after an attestation. The member is replaced soon, and its claim is kept.
func TestNodeKilled(t *testing.T) {
	alone(t)
	node, cordon := victim(t)
	must(t, w.LeadElsewhere(t.Context(), node)) // a new leader observes a Lease from the beginning
	c := membersOn(t, node, 1)[0]
	var attested, outOfService *world.Singleton
	var a, b *corev1.Pod
	atOnce(t,
		func() { attested, a = on(t, node, world.Options{LeaseDuration: new(int32(0))}) },
		func() { outOfService, b = on(t, node, world.Options{Barrier: true}) },
	)
	both := []*world.Singleton{attested, outOfService}

	cluster(t, "node", "kill", node)
	cluster(t, "node", "heal", node)
	for i, pod := range []*corev1.Pod{a, b} {
		awaitStarts(t, both[i], 2)
		must(t, both[i].AwaitHolder(t.Context(), 1))
		if got := holder(t, both[i]); got.UID != pod.UID {
			t.Errorf("pod %s holds, want %s still: its node is back", got.Name, pod.Name)
		}
	}
	must(t, c.AwaitAvailable(t.Context()))
	wantPods(t, c, "db-0", "db-1", "db-2")

	expires, _ := on(t, node, fenced())
	cordon()
	spareElsewhere(t, expires, node)
	lost := time.Now()
	cluster(t, "node", "kill", node)
	deletePod(t, a, force)
	deletePod(t, b, nil)
	wantHandedOver(t, expires, 2, v1.CauseExpiry, v1.ProofLeaseExpired)
	wantGap(t, expires, leaseDuration)
	standby(t, attested)
	standby(t, outOfService)
	awaitNotReady(t, node)
	awaitSuccessor(t, c, lost)
	wantClaims(t, c, "data-db-0", "data-db-1", "data-db-2", "data-db-3")
	wantStays(t, a, attested)
	wantStays(t, b, outOfService)

	must(t, attested.Attest(t.Context(), a.UID))
	must(t, attested.AwaitHolder(t.Context(), 2))
	wantProof(t, attested, v1.ProofAttested)
	wantNobodyElse(t, 0, b, outOfService)
	taint(t, node, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	must(t, outOfService.AwaitHolder(t.Context(), 2))
	wantProof(t, outOfService, v1.ProofNodeOutOfService)
	podGone(t, a)
	podGone(t, b)
	must(t, c.AwaitAvailable(t.Context(), "db-2"))
	wantPods(t, c, "db-0", "db-1", "db-3")
	wantClaims(t, c, "data-db-0", "data-db-1", "data-db-2", "data-db-3")
}

func wantProof(t *testing.T, s *world.Singleton, want v1.Proof) {
	t.Helper()
	got, err := s.Read(t.Context())
	must(t, err)
	if got.Status.LastTransition.Proof != want {
		t.Errorf("%s: proof %s, want %s", s.Namespace, got.Status.LastTransition.Proof, want)
	}
}
