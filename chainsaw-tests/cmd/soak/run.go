package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// run is a run of the soak test.
type run struct {
	*world.World
	options
	start  time.Time
	actors []*actor
	// file has a line for each action.
	file *os.File
	// servers counts the faults of one API server.
	servers atomic.Int64

	mu sync.Mutex
	// caused and injected count the causes of handoffs and the faults by name.
	caused, injected map[string]int
}

func newRun(w *world.World, o options) (*run, error) {
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(out, "faults.log"))
	return &run{World: w, options: o, start: time.Now(), file: file, caused: map[string]int{}, injected: map[string]int{}}, err
}

// begin creates the workloads.
func (r *run) begin(ctx context.Context) error {
	var create []func(*rand.Rand) (subject, error)
	if r.clusters {
		for _, spec := range clusterSpecs {
			create = append(create, func(random *rand.Rand) (subject, error) { return r.newMembers(ctx, spec, random) })
		}
	} else {
		for _, kind := range kinds {
			create = append(create, func(*rand.Rand) (subject, error) { return r.newSingleton(ctx, kind) })
		}
	}
	r.actors = make([]*actor, len(create))
	var all errgroup.Group
	for i, create := range create {
		all.Go(func() error {
			random := rand.New(rand.NewPCG(r.seed, uint64(1+i)))
			s, err := create(random)
			r.actors[i] = &actor{r, s, random}
			return err
		})
	}
	return all.Wait()
}

// count records a fault of the cluster, or a cause of a handoff of a workload.
func (r *run) count(actions map[string]int, whom, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	actions[what]++
	r.note(whom, what)
}

func (r *run) note(whom, what string) {
	_, _ = fmt.Fprintf(r.file, "%s %s: %s\n", time.Now().UTC().Format(time.RFC3339Nano), whom, what)
}

// judge reads all journals.
func (r *run) judge() (total journal.Summary) {
	for _, a := range r.actors {
		s, _ := a.Check() // a failed check is counted
		total.Handoffs = append(total.Handoffs, s.Handoffs...)
		total.Overlaps += s.Overlaps
		total.Stale += s.Stale
	}
	return total
}

// faults returns the number of faults so far.
func (r *run) faults() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.injected {
		n += times
	}
	return n
}

// endFaults ends all faults, and waits until every workload is complete.
func (r *run) endFaults(ctx context.Context) error {
	fmt.Println("soak: the faults stop")
	if err := errors.Join(r.Cluster(ctx, "up"), r.AwaitWhole(ctx)); err != nil {
		return err
	}
	var failed []error
	if r.faults() == 0 {
		failed = append(failed, fmt.Errorf("no fault was injected, see %s", r.file.Name()))
	}
	for _, a := range r.actors {
		failed = append(failed, a.settle(ctx))
		_, err := a.Check()
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func (r *run) table() {
	total := r.judge()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(what string, value any) { fmt.Fprintf(table, "%s\t%v\n", what, value) }
	fmt.Fprintln(table)
	for _, actions := range []map[string]int{r.caused, r.injected} {
		for _, name := range slices.Sorted(maps.Keys(actions)) {
			row("  "+name, actions[name])
		}
	}
	row("seed", r.seed)
	row("time", time.Since(r.start).Round(time.Second))
	row("workloads", len(r.actors))
	row("faults", r.faults())
	row("handoffs", len(total.Handoffs))
	row("overlaps", total.Overlaps)
	row("stale tokens, and names used twice", total.Stale)
	_ = table.Flush()
}

// evidence stores the logs and objects of a failure.
func (r *run) evidence(ctx context.Context) error {
	failed := []error{r.Evidence(ctx, out)}
	for _, a := range r.actors {
		if a != nil && a.subject != nil {
			failed = append(failed, os.CopyFS(filepath.Join(out, "journals", a.Key().Namespace), os.DirFS(a.journals())))
		}
	}
	return errors.Join(failed...)
}

func (r *run) remove(ctx context.Context) error {
	var failed []error
	for _, a := range r.actors {
		failed = append(failed, a.Remove(ctx))
	}
	return errors.Join(failed...)
}
