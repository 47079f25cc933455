package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/machine"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/report"
)

// subject is what one part of the benchmark measures.
type subject struct {
	name                        string
	systems, causes, conditions []string
	// measures returns true if the combination is useful.
	measures func(combination) bool
	// metrics are the columns of the table, and drawn is the one in the picture.
	metrics []string
	drawn   string
	// rounds is the default number of changes of each combination.
	rounds int
	// sparse returns true for systems that only one of sparseRounds rounds measures, because they are there for comparison. Nil: none.
	sparse func(system string) bool
	// begin may return a series together with an error, to end it.
	begin func(context.Context, *lab, workload) (series, error)
	// guarded returns true if the system guarantees that two processes never run at once.
	guarded func(system string) bool
}

// sparseRounds is for subjects that must measure some systems often.
const sparseRounds = 4

var subjects = []*subject{&gap, &locks, &clusters, &connections}

// nodeLost is the cause that kills the node of the pod, as in a power failure.
const nodeLost = "node-lost"

// workload is one application of a run, and combination is one cause of its changes.
type (
	workload    struct{ System, Condition string }
	combination struct {
		workload
		Cause string
	}
)

// series is a workload that changes several times.
type series interface {
	once(ctx context.Context, cause string) (sample, error)
	end(context.Context) error
}

// sample has the measurements of one change.
type sample struct {
	// ms has the times in milliseconds, and counts has the numbers of requests.
	ms, counts map[string]int64
	// overlaps counts the processes that started or wrote while another process ran.
	overlaps int
}

// results are the figures of a run.
type results struct {
	machine.Run
	Rows []row `json:"rows"`
}

// row has the figures of a combination.
type row struct {
	System    string `json:"system"`
	Cause     string `json:"cause"`
	Condition string `json:"condition,omitempty"`
	// N is the number of changes that did not fail, and Failed has the errors of the others.
	N        int                            `json:"n"`
	Overlaps int                            `json:"overlaps"`
	MS       map[string]report.Distribution `json:"ms"`
	Counts   map[string]report.Distribution `json:"counts,omitempty"`
	Failed   []string                       `json:"failed,omitempty"`
	values   map[string][]int64
}

// run is one run of the benchmark.
type run struct {
	*subject
	options
	lab     *lab
	results results
	start   time.Time
}

func (r *run) measure(ctx context.Context) (err error) {
	if r.lab, err = connect(ctx); err != nil {
		return err
	}
	r.start = time.Now()
	if r.results.Run, err = machine.Describe(ctx, r.lab.World); err != nil {
		return err
	}
	for _, c := range r.combinations() {
		r.results.Rows = append(r.results.Rows, row{System: c.System, Cause: c.Cause, Condition: c.Condition, values: map[string][]int64{}})
	}
	for round := range r.repeats {
		for _, w := range r.workloads(round) {
			if ctx.Err() != nil {
				break
			}
			r.series(ctx, w)
			if err := report.WriteJSON(r.out, r.results); err != nil {
				return err
			}
		}
	}
	return errors.Join(ctx.Err(), r.lab.close(context.WithoutCancel(ctx)), r.verdict())
}

// combinations returns what the run measures, in the order of the table.
func (r *run) combinations() (all []combination) {
	conditions := r.conditions
	if len(conditions) == 0 {
		conditions = []string{""}
	}
	for _, condition := range conditions {
		for _, cause := range r.causes {
			for _, system := range r.systems {
				c := combination{workload{system, condition}, cause}
				if r.measures(c) && r.only.MatchString(fmt.Sprint(system, " ", cause, " ", condition)) {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// workloads returns the workloads of a round in random order, so changes of the machine over time affect all systems equally.
func (r *run) workloads(round int) (all []workload) {
	for _, row := range r.results.Rows {
		w := workload{row.System, row.Condition}
		skipped := r.sparse != nil && r.sparse(w.System) && round%sparseRounds != 0
		if !skipped && !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	rand.New(rand.NewPCG(0, uint64(round))).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// series does one change of the workload for each cause. After a failure, a new workload follows.
func (r *run) series(ctx context.Context, w workload) {
	var t series
	end := func() {
		if t == nil {
			return
		}
		if err := t.end(context.WithoutCancel(ctx)); err != nil {
			fmt.Printf("bench: remove %s %s: %v\n", w.System, w.Condition, err) // the run continues
		}
		t = nil
	}
	defer end()
	for i := range r.results.Rows {
		row := &r.results.Rows[i]
		if (workload{row.System, row.Condition}) != w || ctx.Err() != nil {
			continue
		}
		var s sample
		var err error
		if t == nil {
			t, err = r.begin(ctx, r.lab, w)
		}
		if err == nil {
			s, err = t.once(ctx, row.Cause)
		}
		if ctx.Err() != nil {
			return
		}
		row.add(s, err)
		fmt.Printf("bench: %s: %s %s %s: %v %v, %d overlaps, %v\n", time.Since(r.start).Round(time.Second), w.System, row.Cause, w.Condition, s.ms, s.counts, s.overlaps, err)
		if err != nil {
			end()
		}
	}
}

// add adds the result of a change.
func (r *row) add(s sample, err error) {
	if err != nil {
		r.Failed = append(r.Failed, err.Error())
		return
	}
	r.N++
	r.Overlaps += s.overlaps
	r.MS, r.Counts = r.distribute(s.ms), r.distribute(s.counts)
}

// distribute adds the values of one change, and returns the distributions of these metrics so far.
func (r *row) distribute(values map[string]int64) map[string]report.Distribution {
	all := map[string]report.Distribution{}
	for metric, value := range values {
		r.values[metric] = append(r.values[metric], value)
		all[metric] = report.Distribute(r.values[metric])
	}
	return all
}

// verdict returns an error if a change failed, or if two processes ran at once that must not.
func (r *run) verdict() error {
	var bad []error
	for _, row := range r.results.Rows {
		if n := len(row.Failed); n > 0 {
			bad = append(bad, fmt.Errorf("%d of %d changes failed of %s, %s, %s: see %q in %s", n, row.N+n, row.System, row.Cause, row.Condition, "failed", r.out))
		}
		if row.Overlaps > 0 && r.guarded(row.System) {
			bad = append(bad, fmt.Errorf("two ran: %d overlaps of %s, %s, %s", row.Overlaps, row.System, row.Cause, row.Condition))
		}
	}
	return errors.Join(bad...)
}
