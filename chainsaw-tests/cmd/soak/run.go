package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// kinds are the options of the singletons.
var kinds = []world.Options{
	{},
	{Barrier: true},
	{StatefulSet: true},
	{StatefulSet: true, Barrier: true},
	{Env: map[string]string{"STOP_SECONDS": "3"}},
	{Barrier: true, Env: map[string]string{"STOP_SECONDS": "0", "START_SECONDS": "2"}},
	// Some faults last longer than the shorter duration.
	{LeaseDuration: 5, Env: map[string]string{"STOP_SECONDS": "0.1"}},
	{StatefulSet: true, LeaseDuration: 15},
}

// run is a run of the soak test.
type run struct {
	*world.World
	options
	start  time.Time
	actors []*actor
	// file has a line for each action.
	file *os.File

	mu sync.Mutex
	// done counts the actions by name.
	done map[string]int
	// faulted counts the faults.
	faulted int
	// current has the current faults.
	current []string
	// servers counts the faults of one API server.
	servers int
	// kills counts the stored logs of controllers that were killed.
	kills int
	// last has the last totals of the journals.
	last totals
	// unheld has the singletons without a holder at the end.
	unheld int
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

// begin creates the singletons.
func (r *run) begin(ctx context.Context) error {
	r.actors = make([]*actor, len(kinds))
	failed := make([]error, len(kinds))
	var made sync.WaitGroup
	for i, kind := range kinds {
		made.Go(func() {
			var s *world.Singleton
			s, failed[i] = r.NewSingleton(ctx, "soak", kind)
			r.actors[i] = &actor{r, s, kind, rand.New(rand.NewPCG(r.seed, uint64(1+i)))}
		})
	}
	made.Wait()
	return errors.Join(failed...)
}

// count records an action on a singleton or on the cluster.
func (r *run) count(singleton, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[what]++
	if singleton == "" {
		r.faulted++
		singleton = "cluster"
	}
	r.note(singleton, what)
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

// begins records that a fault has begun. ends records its end.
func (r *run) begins(b scheduledFault) (ends func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = append(r.current, b.String())
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.Index(r.current, b.String())
		r.current = slices.Delete(r.current, i, i+1)
		r.note("cluster", b.String()+" is over")
	}
}

func (r *run) now() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.current) == 0 {
		return "nothing"
	}
	return strings.Join(r.current, ", ")
}

// judge reads all journals.
func (r *run) judge(ctx context.Context) totals {
	var t totals
	for _, a := range r.actors {
		s, _ := a.Check(ctx) // a failed check is counted
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
	r.last = t
	return t
}

func (r *run) total() totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// endFaults ends all faults, and waits for a holder of every singleton.
func (r *run) endFaults(ctx context.Context) error {
	fmt.Println("soak: the faults stop")
	if err := errors.Join(r.Cluster(ctx, "up"), r.AwaitWhole(ctx)); err != nil {
		return err
	}
	var failed []error
	if r.total().faults == 0 {
		failed = append(failed, fmt.Errorf("no fault was injected, see %s", r.file.Name()))
	}
	for _, a := range r.actors {
		err := world.Await(ctx, a.Namespace+": one replica", func(ctx context.Context) error {
			return errors.Join(a.Scale(ctx, 1), a.TryAgain(ctx))
		})
		if err = errors.Join(err, a.AwaitHolder(ctx, 1)); err != nil {
			r.unheld++
			failed = append(failed, err)
		}
		_, err = a.Check(ctx)
		failed = append(failed, err)
	}
	r.judge(ctx)
	return errors.Join(failed...)
}

func (r *run) table(out io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(what string, value any) { _, _ = fmt.Fprintf(table, "%s\t%v\n", what, value) }
	_, _ = fmt.Fprintln(table)
	for _, name := range slices.Sorted(maps.Keys(r.done)) {
		row("  "+name, r.done[name])
	}
	row("seed", r.seed)
	row("time", time.Since(r.start).Round(time.Second))
	row("singletons", len(r.actors))
	row("faults", r.faulted)
	row("handoffs", r.last.handoffs)
	row("worst recorded gap", r.last.worst)
	row("overlaps", r.last.overlaps)
	row("stale tokens", r.last.stale)
	row("singletons without a holder", r.unheld)
	_ = table.Flush()
}

// killController first stores the logs, which are lost with the pods.
func (r *run) killController(ctx context.Context) error {
	r.mu.Lock()
	r.kills++
	file := filepath.Join(r.out, fmt.Sprintf("controller-%d.log", r.kills))
	r.mu.Unlock()
	if err := r.ControllerLogs(ctx, file); err != nil {
		r.note("cluster", err.Error())
	}
	return r.KillController(ctx)
}

// nextServer returns the number of the API server for the next fault.
func (r *run) nextServer() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers++
	return strconv.Itoa(1 + r.servers%len(r.Servers))
}

func (r *run) stopLeader(ctx context.Context) error {
	leader, err := r.Leader(ctx)
	if err != nil {
		return err
	}
	return r.Cluster(ctx, "process", "stop", "manager", "--on", leader.Spec.NodeName)
}

// drain cordons the node and evicts every holder on it. A rejected eviction waits for the successor, which the cordon
// causes.
func (r *run) drain(ctx context.Context, node string) error {
	if err := r.Cordon(ctx, node, true); err != nil {
		return err
	}
	for _, a := range r.actors {
		pod, err := a.Holder(ctx)
		if err != nil || pod.Spec.NodeName != node {
			continue // there is no holder
		}
		if err := a.Evict(ctx); err != nil && !apierrors.IsTooManyRequests(err) {
			return err
		}
	}
	return nil
}

// evidence stores the logs and objects of a failure.
func (r *run) evidence(ctx context.Context) error {
	failed := []error{r.Evidence(ctx, r.out)}
	for _, a := range r.actors {
		if a != nil && a.Singleton != nil {
			failed = append(failed, os.CopyFS(filepath.Join(r.out, "journals", a.Namespace), os.DirFS(a.Dir)))
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
