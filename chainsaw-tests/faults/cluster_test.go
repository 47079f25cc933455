//go:build cluster

package faults_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// statefulCluster creates a StatefulCluster. During the whole test, no two pods may have the same name. At the end of each test, also
// of a failed one, the journals must not show two processes on one volume.
func statefulCluster(t *testing.T, o world.ClusterOptions) (*world.Cluster, *world.Names) {
	t.Helper()
	c, err := w.NewCluster(t.Context(), "clusters", o)
	if c != nil {
		t.Cleanup(func() {
			ctx := context.Background()
			if _, err := c.Check(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				evidence(t, c.Namespace)
				return // kept for debugging
			}
			must(t, c.Remove(ctx))
		})
	}
	must(t, err)
	names, err := c.WatchNames(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if _, err := names.Count(); err != nil {
			t.Error(err)
		}
	})
	return c, names
}

// tolerationSeconds is how long the pods stay bound to a lost node.
const tolerationSeconds = 5

// membersOn creates StatefulClusters with three pods each. The numbers say how many of the last pods are on the node.
func membersOn(t *testing.T, node string, last ...int32) (clusters []*world.Cluster) {
	t.Helper()
	cordon := func(node string, closed bool) { must(t, w.Cordon(context.Background(), node, closed)) }
	t.Cleanup(func() { cordon(node, false); cordon(otherNode(node), false) })
	cordon(node, true)
	clusters = make([]*world.Cluster, len(last))
	var create []func()
	for i, n := range last {
		create = append(create, func() {
			clusters[i], _ = statefulCluster(t, world.ClusterOptions{Spec: v1.StatefulClusterSpec{Replicas: new(3 - n)}, Volumes: 6, Pod: world.TolerateLostNodes(tolerationSeconds)})
		})
	}
	atOnce(t, create...)
	cordon(node, false)
	cordon(otherNode(node), true)
	for _, c := range clusters {
		must(t, c.Scale(t.Context(), 3))
	}
	for _, c := range clusters {
		must(t, c.AwaitAvailable(t.Context()))
	}
	cordon(otherNode(node), false)
	return clusters
}

// awaitSuccessor waits for pod db-3, the successor of lost pod db-2, which must be created in time. Then it waits until all pods are
// available.
func awaitSuccessor(t *testing.T, c *world.Cluster, lost time.Time) {
	t.Helper()
	must(t, world.AwaitFor(t.Context(), time.Until(lost.Add((tolerationSeconds+60)*time.Second)), "pod db-3", func(ctx context.Context) error {
		pods, err := c.Pods(ctx)
		if err == nil && pods["db-3"] == nil {
			err = fmt.Errorf("pods %v", slices.Sorted(maps.Keys(pods)))
		}
		return err
	}))
	t.Logf("the successor was created %s after the loss of the node", time.Since(lost).Round(time.Second))
	must(t, c.AwaitAvailable(t.Context()))
	t.Logf("all pods were available %s after the loss of the node", time.Since(lost).Round(time.Second))
}

// wantAtMost checks until the returned function is called that the status never counts more pods.
func wantAtMost(t *testing.T, c *world.Cluster, replicas int32) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			if got, err := c.Read(ctx); err == nil && max(got.Status.Replicas, got.Status.ReadyReplicas) > replicas {
				t.Errorf("status %+v counts more than %d pods", got.Status, replicas)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

func wantMember(t *testing.T, c *world.Cluster, name string, state v1.MemberState, claim string) {
	t.Helper()
	got, err := c.Read(t.Context())
	must(t, err)
	if m := world.Member(got, name); m == nil || m.State != state || len(m.Claims) != 1 || m.Claims[0].Name != claim {
		t.Errorf("member %+v, want %s with state %s and claim %s", m, name, state, claim)
	}
}

func wantPods(t *testing.T, c *world.Cluster, want ...string) {
	t.Helper()
	pods, err := c.Pods(t.Context())
	must(t, err)
	if got := slices.Sorted(maps.Keys(pods)); !slices.Equal(got, want) {
		t.Errorf("%s: pods %v, want %v", c.Namespace, got, want)
	}
}

func wantClaims(t *testing.T, c *world.Cluster, want ...string) {
	t.Helper()
	got, err := c.Claims(t.Context())
	must(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("%s: claims %v, want %v", c.Namespace, got, want)
	}
}

// All pods are deleted again and again, 60 times in total. In two rounds, the manager is killed after it has recorded the
// successors, and before it creates their pods. Nothing else that runs at the same time needs the manager.
func TestMembersDeleted(t *testing.T) {
	t.Parallel()
	const replicas, rounds = 15, 4
	c, names := statefulCluster(t, world.ClusterOptions{Spec: v1.StatefulClusterSpec{Replicas: new(int32(replicas))}, Volumes: replicas})
	claims, err := c.Claims(t.Context())
	must(t, err)
	for round := range rounds {
		pods, err := c.Pods(t.Context())
		must(t, err)
		deletion := func() {
			for _, pod := range pods {
				deletePod(t, pod, new(int64(1)))
			}
		}
		if round%3 == 0 {
			killBeforeCreate(t, c, deletion)
		} else {
			deletion()
		}
		must(t, c.AwaitAvailable(t.Context(), slices.Collect(maps.Keys(pods))...))
	}
	wantClaims(t, c, claims...)
	pods, err := c.Pods(t.Context())
	must(t, err)
	if used, _ := names.Count(); len(pods) != replicas || used != replicas*(rounds+1) {
		t.Errorf("%d pods and %d names, want %d and %d", len(pods), used, replicas, replicas*(rounds+1))
	}
	got, err := c.Read(t.Context())
	must(t, err)
	if want := int64(replicas * (rounds + 1)); got.Status.Next != want || len(got.Status.Released) > 0 {
		t.Errorf("the next name has number %d, want %d; released claims %v", got.Status.Next, want, got.Status.Released)
	}
}

// killBeforeCreate kills the manager while the pods of recorded successors cannot be created.
func killBeforeCreate(t *testing.T, c *world.Cluster, deletion func()) {
	t.Helper()
	r := refuse(t, c, "CreatePod")
	deletion()
	must(t, c.Await(t.Context(), "recorded successors without pods", func(got *v1.StatefulCluster) bool {
		return !slices.ContainsFunc(got.Status.Members, func(m v1.ClusterMember) bool { return m.State != v1.MemberPending })
	}))
	r.await(t)
	must(t, w.KillClusterManager(t.Context()))
	r.lift(t)
}
