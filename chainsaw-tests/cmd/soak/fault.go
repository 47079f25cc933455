package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// fault is a failure of the cluster or of one node.
type fault struct {
	name string
	// inject causes the fault, and end ends it after a while. end is nil if the fault ends by itself.
	inject, end func(ctx context.Context, r *run, node string) error
}

var faults = []fault{
	{name: "controller killed", inject: func(ctx context.Context, r *run, _ string) error { return r.killController(ctx) }},
	{name: "leader stands still",
		inject: func(ctx context.Context, r *run, _ string) error { return r.stopLeader(ctx) },
		end: ignoring(func(ctx context.Context, r *run, _ string) error {
			return r.Cluster(ctx, "process", "continue", "manager")
		})},
	{name: "API server killed", inject: func(ctx context.Context, r *run, _ string) error {
		return r.Cluster(ctx, "process", "kill", "kube-apiserver", "--on", "control")
	}},
	{name: "Kyverno killed", inject: func(ctx context.Context, r *run, _ string) error { return r.KillKyverno(ctx) }},
	{name: "Kyverno scaled to zero",
		inject: func(ctx context.Context, r *run, _ string) error { return r.ScaleKyverno(ctx, 0) },
		end:    func(ctx context.Context, r *run, _ string) error { return r.ScaleKyverno(ctx, r.KyvernoReplicas()) }},
	{name: "kubelet killed", inject: process("kill", "kubelet")},
	{name: "kubelet stands still", inject: process("stop", "kubelet"), end: ignoring(process("continue", "kubelet"))},
	{name: "containerd killed", inject: process("kill", "containerd")},
	{name: "node cut off",
		inject: func(ctx context.Context, r *run, node string) error { return r.Cluster(ctx, "node", "partition", node) },
		end:    func(ctx context.Context, r *run, node string) error { return r.Cluster(ctx, "node", "heal", node) }},
	{name: "node drained",
		inject: func(ctx context.Context, r *run, node string) error { return r.drain(ctx, node) },
		end:    func(ctx context.Context, r *run, node string) error { return r.Cordon(ctx, node, false) }},
}

// clusterFaults are faults for StatefulClusters: of their manager, and of nodes for so long that pods are lost.
var clusterFaults = []fault{
	{name: "manager of StatefulClusters killed", inject: func(ctx context.Context, r *run, _ string) error { return r.KillClusterManager(ctx) }},
	{name: "manager of StatefulClusters stands still",
		inject: process("stop", "cluster-manager"), end: ignoring(process("continue", "cluster-manager"))},
	{name: "node cut off until it is not Ready",
		inject: func(ctx context.Context, r *run, node string) error { return r.loseNode(ctx, "partition", node) },
		end:    func(ctx context.Context, r *run, node string) error { return r.Cluster(ctx, "node", "heal", node) }},
	{name: "node killed until it is not Ready",
		inject: func(ctx context.Context, r *run, node string) error { return r.loseNode(ctx, "kill", node) },
		end:    func(ctx context.Context, r *run, node string) error { return r.Cluster(ctx, "node", "heal", node) }},
}

// serverFaults are faults of one of several API servers. The number of the server rotates.
var serverFaults = []fault{
	{name: "one API server killed", inject: func(ctx context.Context, r *run, _ string) error {
		return r.Cluster(ctx, "process", "kill", "kube-apiserver-"+r.nextServer())
	}},
	{name: "API server cut off from etcd",
		inject: func(ctx context.Context, r *run, _ string) error {
			return r.Cluster(ctx, "apiserver", "cut", r.nextServer())
		},
		end: healServers},
	{name: "API server with late watches",
		inject: func(ctx context.Context, r *run, _ string) error {
			return r.Cluster(ctx, "apiserver", "delay", r.nextServer(), "5s")
		},
		end: healServers},
}

// faults returns the faults of the run. With several API servers, they include faults of one server.
func (r *run) faults() []fault {
	all := slices.Clone(faults)
	if r.clusters {
		all = append(all, clusterFaults...)
	}
	if len(r.Servers) > 1 {
		all = append(all, serverFaults...)
	}
	return all
}

// healServers ends the faults of all API servers, because it does not know which one inject has chosen.
func healServers(ctx context.Context, r *run, _ string) error {
	for i := range r.Servers {
		if err := r.Cluster(ctx, "apiserver", "heal", strconv.Itoa(i+1)); err != nil {
			return err
		}
	}
	return nil
}

func process(do, program string) func(context.Context, *run, string) error {
	return func(ctx context.Context, r *run, node string) error {
		return r.Cluster(ctx, "process", do, program, "--on", node)
	}
}

// ignoring is for faults that another fault or the kubelet may have ended.
func ignoring(end func(context.Context, *run, string) error) func(context.Context, *run, string) error {
	return func(ctx context.Context, r *run, node string) error {
		if err := end(ctx, r, node); err != nil && !strings.Contains(err.Error(), "no process") {
			return err
		}
		return nil
	}
}

// scheduledFault is a fault of a node with its duration.
type scheduledFault struct {
	fault fault
	node  string
	lasts time.Duration
}

func (b scheduledFault) String() string { return b.fault.name + " (" + b.node + ")" }

// round has the faults that happen at the same time, and the number of handoffs until the next round. Faults without
// handoffs would prove nothing.
type round struct {
	scheduled []scheduledFault
	handoffs  int
}

// roundPatience is how long to wait for these handoffs. The next fault may happen during a stuck handoff.
const roundPatience = time.Minute

// rounds selects the faults. Each fault happens once before a fault is repeated, so a short soak test has several kinds
// of faults. One of three rounds has two faults at the same time.
type rounds struct {
	random *rand.Rand
	faults []fault
	queue  []fault
}

func newRounds(seed uint64, faults []fault) *rounds {
	return &rounds{random: rand.New(rand.NewPCG(seed, 0)), faults: faults}
}

func (r *rounds) next() round {
	n := 1
	if r.random.IntN(3) == 0 {
		n = 2
	}
	var next round
	for range n {
		next.scheduled = append(next.scheduled, scheduledFault{r.nextFault(), "node" + strconv.Itoa(1+r.random.IntN(2)), time.Duration(1+r.random.IntN(12)) * time.Second})
	}
	next.handoffs = 1 + r.random.IntN(8)
	return next
}

func (r *rounds) nextFault() fault {
	if len(r.queue) == 0 {
		for _, i := range r.random.Perm(len(r.faults)) {
			r.queue = append(r.queue, r.faults[i])
		}
	}
	first := r.queue[0]
	r.queue = r.queue[1:]
	return first
}

// breakThings runs until the context ends, and ends all faults.
func (r *run) breakThings(ctx context.Context) error {
	rounds := newRounds(r.seed, r.faults())
	for {
		next := rounds.next()
		var injections errgroup.Group
		for _, b := range next.scheduled {
			injections.Go(func() error { return r.inject(ctx, b) })
		}
		if err := injections.Wait(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := r.AwaitWhole(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("after %v: %w", next.scheduled, err)
		}
		r.awaitHandoffs(ctx, next.handoffs)
	}
}

// awaitHandoffs returns after the number of handoffs, or after roundPatience.
func (r *run) awaitHandoffs(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, roundPatience)
	defer cancel()
	for before := r.judge().handoffs; r.judge().handoffs < before+n; {
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// inject retries a fault that is not possible during another fault. It also ends the fault after the context has ended.
func (r *run) inject(ctx context.Context, b scheduledFault) error {
	defer func() { r.note("cluster", b.String()+" is over") }()
	err := world.AwaitFor(ctx, time.Minute, b.String(), func(ctx context.Context) error { return b.fault.inject(ctx, r, b.node) })
	if err == nil {
		r.count("", b.fault.name)
	} else if ctx.Err() == nil {
		r.missed(b, err)
	}
	if b.fault.end == nil {
		return nil
	}
	if err == nil {
		pause(ctx, b.lasts)
	}
	return world.Await(context.WithoutCancel(ctx), "an end of "+b.String(), func(ctx context.Context) error { return b.fault.end(ctx, r, b.node) })
}

// pause returns false if the context ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
