package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// action acts on the whole cluster, or on the node.
type action func(ctx context.Context, r *run, node string) error

// fault is a failure of the cluster or of one node.
type fault struct {
	name string
	// inject causes the fault, and end ends it after a while. end is nil if the fault ends by itself.
	inject, end action
}

var faults = []fault{
	{"controller killed", whole((*run).killController), nil},
	{"leader stands still", whole((*run).stopLeader), ignoring(cluster("process", "continue", "manager"))},
	{"API server killed", cluster("process", "kill", "kube-apiserver", "--on", "control"), nil},
	{"Kyverno killed", whole((*run).KillKyverno), nil},
	{"Kyverno scaled to zero",
		func(ctx context.Context, r *run, _ string) error { return r.ScaleKyverno(ctx, 0) },
		func(ctx context.Context, r *run, _ string) error { return r.ScaleKyverno(ctx, r.KyvernoReplicas()) }},
	{"kubelet killed", cluster("process", "kill", "kubelet", "--on", "NODE"), nil},
	{"kubelet stands still", cluster("process", "stop", "kubelet", "--on", "NODE"), ignoring(cluster("process", "continue", "kubelet", "--on", "NODE"))},
	{"containerd killed", cluster("process", "kill", "containerd", "--on", "NODE"), nil},
	{"node cut off", cluster("node", "partition", "NODE"), cluster("node", "heal", "NODE")},
	{"node drained", drain, func(ctx context.Context, r *run, node string) error { return r.Cordon(ctx, node, false) }},
}

// clusterFaults are faults for StatefulClusters: of their manager, and of nodes for so long that pods are lost.
var clusterFaults = []fault{
	{"manager of StatefulClusters killed", whole((*run).KillClusterManager), nil},
	{"manager of StatefulClusters stands still",
		cluster("process", "stop", "cluster-manager", "--on", "NODE"), ignoring(cluster("process", "continue", "cluster-manager", "--on", "NODE"))},
	{"node cut off until it is not Ready", untilNotReady(cluster("node", "partition", "NODE")), cluster("node", "heal", "NODE")},
	{"node killed until it is not Ready", untilNotReady(cluster("node", "kill", "NODE")), cluster("node", "heal", "NODE")},
}

// serverFaults are faults of one of several API servers.
var serverFaults = []fault{
	{"one API server killed", cluster("process", "kill", "kube-apiserver-SERVER"), nil},
	{"API server cut off from etcd", cluster("apiserver", "cut", "SERVER"), healServers},
	{"API server with late watches", cluster("apiserver", "delay", "SERVER", "5s"), healServers},
}

// possible returns the faults of the run. With several API servers, they include faults of one server.
func (r *run) possible() []fault {
	all := slices.Clone(faults)
	if r.clusters {
		all = append(all, clusterFaults...)
	}
	if len(r.Servers) > 1 {
		all = append(all, serverFaults...)
	}
	return all
}

// cluster runs the program cluster with the words. NODE stands for the node, and SERVER for the number of an API server, which
// rotates.
func cluster(words ...string) action {
	return func(ctx context.Context, r *run, node string) error {
		var args []string
		for _, word := range words {
			if strings.Contains(word, "SERVER") {
				word = strings.ReplaceAll(word, "SERVER", strconv.Itoa(1+int(r.servers.Add(1))%len(r.Servers)))
			}
			args = append(args, strings.ReplaceAll(word, "NODE", node))
		}
		return r.Cluster(ctx, args...)
	}
}

// whole is for faults of the whole cluster.
func whole(do func(*run, context.Context) error) action {
	return func(ctx context.Context, r *run, _ string) error { return do(r, ctx) }
}

// ignoring is for ends of faults that another fault or the kubelet may have ended.
func ignoring(end action) action {
	return func(ctx context.Context, r *run, node string) error {
		if err := end(ctx, r, node); err != nil && !strings.Contains(err.Error(), "no process") {
			return err
		}
		return nil
	}
}

// untilNotReady breaks the node, and waits until Kubernetes has noticed.
func untilNotReady(breaks action) action {
	return func(ctx context.Context, r *run, node string) error {
		if err := breaks(ctx, r, node); err != nil {
			return err
		}
		return world.Await(ctx, node+" is not Ready", func(ctx context.Context) error {
			n := &corev1.Node{}
			err := r.Get(ctx, types.NamespacedName{Name: node}, n)
			if err == nil && world.NodeReady(n) {
				err = errors.New("it is Ready")
			}
			return err
		})
	}
}

// healServers ends the faults of all API servers, because it does not know which one the fault has chosen.
func healServers(ctx context.Context, r *run, _ string) error {
	for i := range r.Servers {
		if err := r.Cluster(ctx, "apiserver", "heal", strconv.Itoa(i+1)); err != nil {
			return err
		}
	}
	return nil
}

// drain cordons the node, and requests evictions.
func drain(ctx context.Context, r *run, node string) error {
	if err := r.Cordon(ctx, node, true); err != nil {
		return err
	}
	for _, a := range r.actors {
		if err := a.evict(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// killController first stores the logs, which are lost with the pods.
func (r *run) killController(ctx context.Context) error {
	file := filepath.Join(out, fmt.Sprintf("controller-%d.log", time.Now().Unix()))
	if err := r.ControllerLogs(ctx, file); err != nil {
		r.note("cluster", err.Error())
	}
	return r.KillController(ctx)
}

func (r *run) stopLeader(ctx context.Context) error {
	leader, err := r.Leader(ctx)
	if err != nil {
		return err
	}
	return r.Cluster(ctx, "process", "stop", "manager", "--on", leader.Spec.NodeName)
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
		if len(r.queue) == 0 {
			for _, i := range r.random.Perm(len(r.faults)) {
				r.queue = append(r.queue, r.faults[i])
			}
		}
		next.scheduled = append(next.scheduled, scheduledFault{r.queue[0], "node" + strconv.Itoa(1+r.random.IntN(2)), time.Duration(1+r.random.IntN(12)) * time.Second})
		r.queue = r.queue[1:]
	}
	next.handoffs = 1 + r.random.IntN(8)
	return next
}

// breakThings runs until the context ends, and ends all faults.
func (r *run) breakThings(ctx context.Context) error {
	rounds := newRounds(r.seed, r.possible())
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
	for before := len(r.judge().Handoffs); len(r.judge().Handoffs) < before+n; {
		if world.Pause(ctx, time.Second) != nil {
			return
		}
	}
}

// inject retries a fault that is not possible during another fault. It also ends the fault after the context has ended.
func (r *run) inject(ctx context.Context, b scheduledFault) error {
	defer func() { r.note("cluster", b.String()+" is over") }()
	err := world.AwaitFor(ctx, time.Minute, b.String(), func(ctx context.Context) error { return b.fault.inject(ctx, r, b.node) })
	if err == nil {
		r.count(r.injected, "cluster", b.fault.name)
	} else if ctx.Err() == nil { // for example because another fault had ended its target
		r.note("cluster", fmt.Sprintf("%s was missed: %v", b, err))
	}
	if b.fault.end == nil {
		return nil
	}
	if err == nil {
		_ = world.Pause(ctx, b.lasts) // the fault also ends with the run
	}
	return world.Await(context.WithoutCancel(ctx), "an end of "+b.String(), func(ctx context.Context) error { return b.fault.end(ctx, r, b.node) })
}
