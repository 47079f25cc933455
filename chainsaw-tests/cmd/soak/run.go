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
	// done counts the actions by name.
	done map[string]int
	// faulted counts the faults.
	faulted int
}

type totals struct {
	handoffs, faults, overlaps, stale int
	worst                             time.Duration
}

func newRun(w *world.World, o options) (*run, error) {
	if err := errors.Join(os.RemoveAll(o.out), os.MkdirAll(o.out, 0o755)); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(o.out, "faults.log"))
	return &run{World: w, options: o, start: time.Now(), file: file, done: map[string]int{}}, err
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

// count records an action on a workload or, if it has no namespace, on the whole cluster.
func (r *run) count(subject, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[what]++
	if subject == "" {
		r.faulted++
		subject = "cluster"
	}
	r.note(subject, what)
}

// missed records that a fault was not possible, for example because another fault had ended its target.
func (r *run) missed(b scheduledFault, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done["missed: "+b.fault.name]++
	r.note("cluster", fmt.Sprintf("%s was missed: %v", b, err))
}

func (r *run) note(whom, what string) {
	_, _ = fmt.Fprintf(r.file, "%s %s: %s\n", time.Now().UTC().Format(time.RFC3339Nano), whom, what)
}

// judge reads all journals.
func (r *run) judge() totals {
	var t totals
	for _, a := range r.actors {
		s, _ := a.Check() // a failed check is counted
		t.handoffs += len(s.Handoffs)
		t.overlaps += s.Overlaps
		t.stale += s.Stale
		for _, h := range s.Handoffs {
			if h.GapMilliseconds != nil {
				t.worst = max(t.worst, time.Duration(*h.GapMilliseconds)*time.Millisecond)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.faults = r.faulted
	return t
}

// endFaults ends all faults, and waits until every workload is complete.
func (r *run) endFaults(ctx context.Context) error {
	fmt.Println("soak: the faults stop")
	if err := errors.Join(r.Cluster(ctx, "up"), r.AwaitWhole(ctx)); err != nil {
		return err
	}
	var failed []error
	if r.faulted == 0 {
		failed = append(failed, fmt.Errorf("no fault was injected, see %s", r.file.Name()))
	}
	for _, a := range r.actors {
		if err := a.settle(ctx); err != nil {
			failed = append(failed, err)
		}
		_, err := a.Check()
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func (r *run) table() {
	last := r.judge()
	r.mu.Lock()
	defer r.mu.Unlock()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(what string, value any) { _, _ = fmt.Fprintf(table, "%s\t%v\n", what, value) }
	_, _ = fmt.Fprintln(table)
	for _, name := range slices.Sorted(maps.Keys(r.done)) {
		row("  "+name, r.done[name])
	}
	row("seed", r.seed)
	row("time", time.Since(r.start).Round(time.Second))
	row("workloads", len(r.actors))
	row("faults", r.faulted)
	row("handoffs", last.handoffs)
	row("worst recorded gap", last.worst)
	row("overlaps", last.overlaps)
	row("stale tokens, and names used twice", last.stale)
	_ = table.Flush()
}

// evidence stores the logs and objects of a failure.
func (r *run) evidence(ctx context.Context) error {
	failed := []error{r.Evidence(ctx, r.out)}
	for _, a := range r.actors {
		if a != nil && a.subject != nil {
			failed = append(failed, os.CopyFS(filepath.Join(r.out, "journals", a.Key().Namespace), os.DirFS(a.journals())))
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
