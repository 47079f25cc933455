package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// fault is a failure of the cluster or of one node.
type fault struct {
	name string
	// strike causes the fault, and mend ends it after a while. mend is nil if the fault ends by itself.
	strike, mend func(ctx context.Context, r *run, node string) error
}

var faults = []fault{
	{name: "controller killed", strike: func(ctx context.Context, r *run, _ string) error { return r.killController(ctx) }},
	{name: "leader stands still",
		strike: func(ctx context.Context, r *run, _ string) error { return r.stopLeader(ctx) },
		mend: ignoring(func(ctx context.Context, r *run, _ string) error {
			return r.Cluster(ctx, "process", "continue", "manager")
		})},
	{name: "API server killed", strike: controlProcess("kill", "kube-apiserver")},
	{name: "Kyverno killed", strike: func(ctx context.Context, r *run, _ string) error { return r.KillKyverno(ctx) }},
	{name: "Kyverno scaled to zero",
		strike: func(ctx context.Context, r *run, _ string) error { return r.ScaleKyverno(ctx, 0) },
		mend:   func(ctx context.Context, r *run, _ string) error { return r.ScaleKyverno(ctx, 1) }},
	{name: "kubelet killed", strike: process("kill", "kubelet")},
	{name: "kubelet stands still", strike: process("stop", "kubelet"), mend: ignoring(process("continue", "kubelet"))},
	{name: "containerd killed", strike: process("kill", "containerd")},
	{name: "node cut off",
		strike: func(ctx context.Context, r *run, node string) error { return r.Cluster(ctx, "node", "partition", node) },
		mend:   func(ctx context.Context, r *run, node string) error { return r.Cluster(ctx, "node", "heal", node) }},
	{name: "node drained",
		strike: func(ctx context.Context, r *run, node string) error { return r.drain(ctx, node) },
		mend:   func(ctx context.Context, r *run, node string) error { return r.Cordon(ctx, node, false) }},
}

func process(do, program string) func(context.Context, *run, string) error {
	return func(ctx context.Context, r *run, node string) error {
		return r.Cluster(ctx, "process", do, program, "--on", node)
	}
}

func controlProcess(do, program string) func(context.Context, *run, string) error {
	return func(ctx context.Context, r *run, _ string) error {
		return r.Cluster(ctx, "process", do, program, "--on", "control")
	}
}

// ignoring is for faults that another fault or the kubelet may have ended.
func ignoring(mend func(context.Context, *run, string) error) func(context.Context, *run, string) error {
	return func(ctx context.Context, r *run, node string) error {
		if err := mend(ctx, r, node); err != nil && !strings.Contains(err.Error(), "no process") {
			return err
		}
		return nil
	}
}

// blow is a fault of a node with its duration.
type blow struct {
	fault fault
	node  string
	lasts time.Duration
}

func (b blow) String() string { return b.fault.name + " (" + b.node + ")" }

// round has the faults that happen at the same time, and the number of handoffs until the next round. Faults without
// handoffs would prove nothing.
type round struct {
	blows    []blow
	handoffs int
}

// roundPatience is how long to wait for these handoffs. The next fault may happen during a stuck handoff.
const roundPatience = time.Minute

// rounds selects the faults. Each fault happens once before a fault is repeated, so a short soak test has several kinds
// of faults. One of three rounds has two faults at the same time.
type rounds struct {
	random *rand.Rand
	deck   []fault
}

func newRounds(seed uint64) *rounds { return &rounds{random: rand.New(rand.NewPCG(seed, 0))} }

func (r *rounds) next() round {
	n := 1
	if r.random.IntN(3) == 0 {
		n = 2
	}
	var next round
	for range n {
		next.blows = append(next.blows, blow{r.deal(), "node" + strconv.Itoa(1+r.random.IntN(2)), time.Duration(1+r.random.IntN(12)) * time.Second})
	}
	next.handoffs = 1 + r.random.IntN(8)
	return next
}

func (r *rounds) deal() fault {
	if len(r.deck) == 0 {
		for _, i := range r.random.Perm(len(faults)) {
			r.deck = append(r.deck, faults[i])
		}
	}
	dealt := r.deck[0]
	r.deck = r.deck[1:]
	return dealt
}

// breakThings runs until the context ends, and ends all faults.
func (r *run) breakThings(ctx context.Context) error {
	deal := newRounds(r.seed)
	for {
		next := deal.next()
		var blows sync.WaitGroup
		failed := make(chan error, len(next.blows))
		for _, b := range next.blows {
			blows.Go(func() { failed <- r.strike(ctx, b) })
		}
		blows.Wait()
		for range next.blows {
			if err := <-failed; err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := r.AwaitWhole(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("after %v: %w", next.blows, err)
		}
		r.awaitHandoffs(ctx, next.handoffs)
	}
}

// awaitHandoffs returns after the number of handoffs, or after roundPatience.
func (r *run) awaitHandoffs(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, roundPatience)
	defer cancel()
	for before := r.judge(ctx).handoffs; r.judge(ctx).handoffs < before+n; {
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// strike retries a fault that is not possible during another fault. It also ends the fault after the context has ended.
func (r *run) strike(ctx context.Context, b blow) error {
	defer r.begins(b)()
	err := world.AwaitFor(ctx, time.Minute, b.String(), func(ctx context.Context) error { return b.fault.strike(ctx, r, b.node) })
	if err == nil {
		r.count("", b.fault.name)
		if b.fault.mend == nil {
			return nil
		}
		pause(ctx, b.lasts)
	}
	if err != nil && ctx.Err() == nil {
		r.missed(b, err)
	}
	if b.fault.mend == nil {
		return nil
	}
	return world.Await(context.WithoutCancel(ctx), "an end of "+b.String(), func(ctx context.Context) error { return b.fault.mend(ctx, r, b.node) })
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
