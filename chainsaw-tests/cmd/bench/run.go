package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/machine"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// run is one run of the benchmark.
type run struct {
	*world.World
	options
	applications map[workload]*application
	nodes        *nodes
	registry     *registry
	results      *figures.Gap
	start        time.Time
	// first is the first round of this run, if an earlier run measured some rounds. earlier is the number of handoffs
	// of that run.
	first, earlier int
	// leaving is the previous series, whose pod is terminating.
	leaving *series
	// done counts the handoffs so far, including the failed handoffs.
	done, failed int
}

func measure(ctx context.Context, o options) error {
	scratch, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	nodes, described, err := connect(ctx, o.summary)
	if err != nil {
		return err
	}
	r := &run{World: nodes.World, options: o, applications: map[workload]*application{}, nodes: nodes, start: time.Now()}
	r.results = &figures.Gap{Run: described, Systems: terms(o.plan.systems), Causes: terms(o.plan.causes), Conditions: terms(o.plan.conditions)}
	if o.more {
		earlier, err := figures.Read[figures.Gap](o.out)
		if err == nil {
			err = r.results.Continue(earlier)
		}
		if err != nil {
			return fmt.Errorf("continue %s: %w", o.out, err)
		}
		r.first = r.results.Fewest(o.plan.combinations())
		for _, row := range r.results.Rows {
			r.earlier += len(row.Samples)
		}
	}
	if r.registry, err = serveImage(ctx, scratch, r.App, slices.ContainsFunc(o.plan.conditions, func(c condition) bool { return c.pull })); err != nil {
		return err
	}
	defer r.registry.close()
	fmt.Printf("bench: %d combinations, %d handoffs of each, %d measured before\n", o.plan.combinations(), o.rounds, r.earlier)
	err = r.rounds(ctx)
	err = errors.Join(err, r.clean(context.WithoutCancel(ctx)))
	r.print(os.Stdout)
	if o.summary != "" {
		err = errors.Join(err, figures.Write(o.summary, r.results.Summary()))
	}
	return errors.Join(err, r.verdict())
}

// connect connects to the cluster, and describes the run that starts now.
func connect(ctx context.Context, summary string) (*nodes, figures.Run, error) {
	w, err := world.Connect(ctx, ".")
	if err != nil {
		return nil, figures.Run{}, err
	}
	n, err := findNodes(ctx, w)
	if err != nil {
		return nil, figures.Run{}, err
	}
	// New pods need Kyverno, also while the second node is lost.
	if err := w.KyvernoElsewhere(ctx, n.names[1]); err != nil {
		return nil, figures.Run{}, err
	}
	described, err := machine.Describe(ctx, w, summary)
	return n, described, err
}

// verdict returns an error if a handoff failed, or if two processes of a singleton ran at once.
func (r *run) verdict() error {
	var bad []error
	if r.failed > 0 {
		bad = append(bad, fmt.Errorf("%d of %d handoffs failed, see \"failed\" in %s", r.failed, r.done, r.out))
	}
	for _, row := range r.results.Rows {
		if plain := r.plan.options(workload{row.System, row.Condition}).Plain; !plain && row.Overlaps > 0 {
			bad = append(bad, fmt.Errorf("two ran: %d overlaps of %s, %s, %s", row.Overlaps, row.System, row.Cause, row.Condition))
		}
	}
	return errors.Join(bad...)
}

func findNodes(ctx context.Context, w *world.World) (*nodes, error) {
	var list corev1.NodeList
	if err := w.List(ctx, &list); err != nil {
		return nil, err
	}
	if len(list.Items) != 2 {
		return nil, fmt.Errorf("the cluster has %d nodes, want the two that `cluster up` starts with", len(list.Items))
	}
	names := [2]string{list.Items[0].Name, list.Items[1].Name}
	for _, name := range names {
		if err := w.Cordon(ctx, name, false); err != nil { // a killed run may have cordoned it
			return nil, err
		}
	}
	return &nodes{World: w, names: names, home: names[0]}, nil
}

// rounds runs all rounds. It records failures, and stops only when the context ends.
func (r *run) rounds(ctx context.Context) error {
	for round := r.first; round < r.options.rounds; round++ {
		for _, w := range r.plan.workloads(round) {
			r.series(ctx, w, round)
			if err := r.save(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
		}
		r.depart(ctx) // the next round may begin with the same application
	}
	return nil
}

// due returns the causes that the current round has not measured yet. An interrupted run can have measured some of
// them.
func (r *run) due(w workload, round int) []cause {
	return slices.DeleteFunc(r.plan.causesOf(w), func(c cause) bool {
		row := r.results.Row(w.system, c.Name, w.condition)
		return row != nil && len(row.Samples) > round
	})
}

// series does one handoff of the application for each due cause.
func (r *run) series(ctx context.Context, w workload, round int) {
	causes := r.due(w, round)
	if len(causes) == 0 {
		return
	}
	t, err := r.begin(ctx, w)
	r.depart(ctx)
	for _, c := range causes {
		if ctx.Err() != nil {
			return
		}
		if t == nil && err == nil { // the last handoff failed
			t, err = r.begin(ctx, w)
		}
		var s figures.Sample
		if err == nil {
			s, err = t.once(c)
		}
		if ctx.Err() != nil {
			return
		}
		r.count(w, c, round, s, err)
		if err != nil {
			r.drop(ctx, w)
			if t != nil {
				t.cancel()
			}
			t, err = nil, nil
		}
	}
	if t == nil {
		return
	}
	if err := t.Scale(ctx, 0); err != nil {
		fmt.Printf("bench: %s %s keeps its pod: %v\n", w.system, w.condition, err) // the run continues
	}
	r.leaving = t
}

// depart waits until the pod of the previous series is removed, while the next application's pod starts.
func (r *run) depart(ctx context.Context) {
	t := r.leaving
	if t == nil {
		return
	}
	r.leaving = nil
	if err := t.end(); err != nil && ctx.Err() == nil {
		fmt.Printf("bench: %s %s does not end, another application comes next: %v\n", t.of.system, t.of.condition, err)
		r.drop(ctx, t.of)
	}
}

// count records the result of a handoff and prints the progress.
func (r *run) count(w workload, c cause, round int, s figures.Sample, err error) {
	row := r.results.Row(w.system, c.Name, w.condition)
	if row == nil {
		r.results.Rows = append(r.results.Rows, figures.Row{System: w.system, Cause: c.Name, Condition: w.condition})
		row = &r.results.Rows[len(r.results.Rows)-1]
	}
	r.done++
	outcome := fmt.Sprintf("gap %d ms, downtime %d ms, by EndpointSlices %d ms, start to Ready %d ms", s.GapMS, s.DowntimeMS, s.EndpointsDowntimeMS, s.StartReadyMS)
	if s.Overlaps > 0 {
		outcome += fmt.Sprintf(", %d overlaps", s.Overlaps)
	}
	if err != nil {
		r.failed++
		row.Failed = append(row.Failed, err.Error())
		outcome = "failed: " + err.Error()
	} else {
		row.Samples = append(row.Samples, s)
	}
	all := r.plan.combinations()*r.options.rounds - r.earlier
	spent := time.Since(r.start)
	left := time.Duration(float64(spent) / float64(r.done) * float64(all-r.done))
	fmt.Printf("bench: round %d/%d, %d/%d, %s left: %s %s %s: %s\n", round+1, r.options.rounds, r.done, all,
		left.Round(time.Second), w.system, c.Name, w.condition, outcome)
}

// drop removes the application. Its next series begins with a new one.
func (r *run) drop(ctx context.Context, w workload) {
	app := r.applications[w]
	delete(r.applications, w)
	if app == nil {
		return
	}
	if err := app.Remove(context.WithoutCancel(ctx)); err != nil {
		fmt.Printf("bench: remove %s: %v\n", app.Namespace, err)
	}
}

// save writes the results so far, in the order of the plan.
func (r *run) save() error {
	sorted := *r.results
	sorted.Rows = nil
	for _, condition := range r.plan.conditions {
		for _, cause := range r.plan.causes {
			for _, system := range r.plan.systems {
				if row := r.results.Row(system.Name, cause.Name, condition.Name); row != nil {
					sorted.Rows = append(sorted.Rows, *row)
				}
			}
		}
	}
	sorted.Compute()
	r.results = &sorted
	return figures.Write(r.out, r.results)
}

// clean removes everything that the run created.
func (r *run) clean(ctx context.Context) error {
	failed := []error{r.nodes.uncordon(ctx), r.nodes.steer(ctx, "")}
	for _, app := range r.applications {
		if app != nil {
			failed = append(failed, app.Remove(ctx))
		}
	}
	return errors.Join(failed...)
}

// newSample computes a sample from the clients and from the events of two pods.
func newSample(h *handoff, old, next observer.Life, overlaps int) figures.Sample {
	return figures.Sample{
		GapMS:               (next[figures.Start] - old[figures.Exit]).Milliseconds(),
		DowntimeMS:          h.service.downtime().Milliseconds(),
		EndpointsDowntimeMS: h.direct.downtime().Milliseconds(),
		StartReadyMS:        (next[figures.Ready] - next[figures.Start]).Milliseconds(),
		ReadyMS:             (next[figures.Ready] - h.begun).Milliseconds(),
		Overlaps:            overlaps,
		Times:               observer.Times(old, next, h.begun),
	}
}
