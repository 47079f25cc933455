// Command soak requests handoffs of singletons, or replacements of the pods of StatefulClusters, while parts of the cluster fail at
// random. It checks that two processes never ran at once on the same data, that no name was used twice, and that each workload is
// complete after the faults. It runs by `make soak`, on a cluster that it may break. The seed determines the faults and handoffs,
// but not their exact times.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

func main() {
	o := options{}
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the faults and handoffs; 0 means a random seed")
	flag.IntVar(&o.handoffs, "handoffs", 200, "minimum number of handoffs: of a singleton, or of a volume of a StatefulCluster to the next pod")
	flag.BoolVar(&o.clusters, "clusters", false, "run StatefulClusters instead of singletons, with faults of their own")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("soak: seed %d, %d handoffs\n", o.seed, o.handoffs)
	if err := soak(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "soak: %v\nsoak: to repeat the run: make %s SEED=%d HANDOFFS=%d\n", err, o.target(), o.seed, o.handoffs)
		os.Exit(1)
	}
}

const (
	// limit is the time limit of a run.
	limit = 40 * time.Minute
	// out is the directory of the log of the faults, of the controller's logs and, after a failure, of the journals.
	out = "dist/soak"
)

type options struct {
	seed     uint64
	handoffs int
	clusters bool
}

// target returns the target of the Makefile.
func (o options) target() string {
	if o.clusters {
		return "soak-clusters"
	}
	return "soak"
}

func soak(ctx context.Context, o options) error {
	w, err := world.Connect(ctx)
	if err != nil {
		return err
	}
	r, err := newRun(w, o)
	if err != nil {
		return err
	}
	defer func() { _ = r.file.Close() }()
	// Also after an error or an interrupt.
	after := context.WithoutCancel(ctx)
	if err = r.begin(ctx); err == nil {
		err = errors.Join(r.injectFaults(ctx), r.endFaults(after))
		r.table()
	}
	if err != nil {
		if kept := r.evidence(after); kept != nil {
			err = errors.Join(err, fmt.Errorf("keep the evidence: %w", kept))
		}
		return fmt.Errorf("%w\nThe log of the faults, the journals and the controller's logs are in %s", err, out)
	}
	return r.remove(after)
}

// injectFaults injects faults until enough handoffs have happened.
func (r *run) injectFaults(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range r.actors {
		group.Go(func() error {
			a.act(ctx)
			return nil
		})
	}
	group.Go(func() error { return r.breakThings(ctx) })
	group.Go(func() error {
		defer cancel()
		return r.follow(ctx)
	})
	return group.Wait()
}

// follow prints the progress until enough handoffs have happened or a check fails.
func (r *run) follow(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d handoffs within %s: %w", len(r.judge().Handoffs), r.handoffs, limit, ctx.Err())
		case <-tick.C:
		}
		total, faults := r.judge(), r.faults()
		fmt.Printf("soak: %4d s: %d/%d handoffs, %d faults, %d overlaps\n",
			int(time.Since(r.start).Seconds()), len(total.Handoffs), r.handoffs, faults, total.Overlaps+total.Stale)
		if err := total.Verdict(); err != nil {
			return err
		}
		if len(total.Handoffs) >= r.handoffs {
			return nil
		}
	}
}
