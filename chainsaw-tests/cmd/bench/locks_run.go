package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// locksRun is one run of the benchmark of locks.
type locksRun struct {
	*world.World
	options locksOptions
	nodes   *nodes
	results *figures.Locks
	start   time.Time
	// done counts the changes so far, including the failed changes.
	done, failed int
}

func measureLocks(ctx context.Context, o locksOptions) error {
	nodes, described, err := connect(ctx, o.summary)
	if err != nil {
		return err
	}
	r := &locksRun{
		World: nodes.World, options: o, nodes: nodes, start: time.Now(),
		results: &figures.Locks{Run: described, Systems: terms(o.systems), Causes: terms(o.causes)},
	}
	for _, c := range o.causes { // in the order of the page
		for _, s := range o.systems {
			if slices.ContainsFunc(o.causesOf(s), func(of lockCause) bool { return of.Name == c.Name }) {
				r.results.Row(s.Name, c.Name)
			}
		}
	}
	fmt.Printf("bench: %d combinations, %d changes of each\n", o.changes(), o.rounds)
	err = r.rounds(ctx)
	r.print(os.Stdout)
	if o.summary != "" {
		err = errors.Join(err, figures.Write(o.summary, r.results.Summary()))
	}
	return errors.Join(err, r.verdict())
}

// rounds runs all rounds. It records failures, and stops only when the context ends.
func (r *locksRun) rounds(ctx context.Context) error {
	for round := range r.options.rounds {
		systems := slices.Clone(r.options.systems)
		// In random order, so changes of the machine over time affect all systems equally.
		rand.New(rand.NewPCG(0, uint64(round))).Shuffle(len(systems), func(i, j int) { systems[i], systems[j] = systems[j], systems[i] })
		for _, s := range systems {
			r.series(ctx, s, round)
			r.results.Compute()
			if err := figures.Write(r.options.out, r.results); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
		}
	}
	return nil
}

// series does one change of the writer for each cause. After a failure, a new lock follows.
func (r *locksRun) series(ctx context.Context, s lockSystem, round int) {
	var t *lockSeries
	end := func() {
		if t == nil {
			return
		}
		if err := t.end(context.WithoutCancel(ctx)); err != nil {
			fmt.Printf("bench: remove %s: %v\n", t.Namespace, err) // the run continues
		}
		t = nil
	}
	defer end()
	for _, c := range r.options.causesOf(s) {
		var change figures.Change
		var err error
		if t == nil {
			t, err = r.begin(ctx, s)
		}
		if err == nil {
			change, err = t.once(ctx, c)
		}
		if ctx.Err() != nil {
			return
		}
		r.count(s, c, round, change, err)
		if err != nil {
			end()
		}
	}
}

// count records the result of a change and prints the progress.
func (r *locksRun) count(s lockSystem, c lockCause, round int, change figures.Change, err error) {
	row := r.results.Row(s.Name, c.Name)
	r.done++
	outcome := fmt.Sprintf("write gap %d ms, label gap %d ms, downtime %d ms, %d overlaps", change.WriteGapMS, change.LabelGapMS, change.DowntimeMS, change.Overlaps)
	if err != nil {
		r.failed++
		row.Failed = append(row.Failed, err.Error())
		outcome = "failed: " + err.Error()
	} else {
		row.Samples = append(row.Samples, change)
	}
	all := r.options.changes() * r.options.rounds
	left := time.Duration(float64(time.Since(r.start)) / float64(r.done) * float64(all-r.done))
	fmt.Printf("bench: round %d/%d, %d/%d, %s left: %s %s: %s\n", round+1, r.options.rounds, r.done, all,
		left.Round(time.Second), s.Name, c.Name, outcome)
}

// verdict returns an error if a change failed, or if two writers of a lock with fencing wrote at once.
func (r *locksRun) verdict() error {
	var bad []error
	if r.failed > 0 {
		bad = append(bad, fmt.Errorf("%d of %d changes failed, see \"failed\" in %s", r.failed, r.done, r.options.out))
	}
	for _, row := range r.results.Rows {
		if row.System != "none" && row.Overlaps > 0 {
			bad = append(bad, fmt.Errorf("two writers: %d overlaps of %s, %s", row.Overlaps, row.System, row.Cause))
		}
	}
	return errors.Join(bad...)
}
