package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const locksUsage = `bench locks causes many changes of the writer of StatefulSetLocks, and measures each change.
It is the second part of make bench. Run it on the local cluster, without any other load.

Each round does one change for every useful combination of a system and a cause, with a new lock for each system.
Ctrl-C ends the run and writes the results so far. The exit code is 1 if a change failed (see "failed" in the file) or
two writers of a lock with fencing wrote at once.

Systems:  %s
Causes:   %s

Examples:
  bin/cluster exec -- bin/bench locks -n 1
  bin/cluster exec -- bin/bench locks -systems lease -causes killed,node-lost -n 5
  bin/cluster exec -- bin/bench locks -summary docs/benchmarks/locks.json      the run of make bench
  bin/bench locks -report -summary docs/benchmarks/locks.json                  the page, without a run

Flags:
`

// lockSystem is a lock with one value of spec.fencing.
type lockSystem struct {
	figures.Term
	fencing v1.LockFencing
}

// lockCause changes the writer of a lock.
type lockCause struct {
	figures.Term
	begin func(*lockSeries, context.Context) error
	// prepare runs before the measurement, and end after it. Both can be nil.
	prepare, end func(*lockSeries, context.Context) error
	// systems are the measured systems, or nil for all.
	systems []string
}

const lockLeaseSeconds = 15

var allLockSystems = []lockSystem{
	{term("none", "a StatefulSetLock with three pods and `fencing: None`. The old writer can still write through open connections"), v1.LockFencingNone},
	{term("termination", "the same with `fencing: Termination`. The pod of the old writer has terminated before another pod becomes the writer"), v1.LockFencingTermination},
	{term("lease", fmt.Sprintf("the same with `fencing: Lease` and a Lease of %d s. The application has a role, and starts again to change it", lockLeaseSeconds)), v1.LockFencingLease},
}

var allLockCauses = []lockCause{
	{Term: term("switchover", "the node of the writer is cordoned, as at the beginning of a drain"), begin: (*lockSeries).cordon},
	{Term: term("killed", "the main process of the writer is killed with SIGKILL"), begin: (*lockSeries).kill, end: (*lockSeries).replaceKilled},
	{Term: term("deleted", "the pod of the writer is deleted"), begin: (*lockSeries).deleteWriter},
	// Without a Lease, the lock waits for the node, or for Kubernetes to declare the node lost.
	{Term: term(nodeLost, "the node of the writer is killed, as in a power failure"),
		prepare: (*lockSeries).prepareLoss, begin: (*lockSeries).loseNode, end: (*lockSeries).healNode, systems: []string{"lease"}},
}

func (s lockSystem) options() world.LockOptions {
	return world.LockOptions{
		Spec:   v1.StatefulSetLockSpec{LeaseDurationSeconds: lockLeaseSeconds, Fencing: s.fencing},
		Shared: true, Roles: s.fencing == v1.LockFencingLease,
		Env: map[string]string{"ALIVE_SECONDS": "0.05", "STOP_SECONDS": "0"},
	}
}

// locksOptions are the options of bench locks.
type locksOptions struct {
	systems []lockSystem
	causes  []lockCause
	rounds  int
	// out is the file of all samples, and summary is the file of the figures.
	out, summary string
	report       bool
}

func parseLocks(args []string) (locksOptions, error) {
	o := locksOptions{}
	flags := flag.NewFlagSet("bench locks", flag.ContinueOnError)
	systems := flags.String("systems", strings.Join(names(allLockSystems), ","), "systems to measure, comma-separated")
	causes := flags.String("causes", strings.Join(names(allLockCauses), ","), "causes of a change, comma-separated")
	flags.IntVar(&o.rounds, "n", 15, "number of changes of each combination")
	flags.StringVar(&o.out, "out", "dist/bench/locks.json", "`file` of all samples")
	flags.StringVar(&o.summary, "summary", "", "`file` of the figures, without samples")
	flags.BoolVar(&o.report, "report", false, "write the figures of -summary into the page of the same name, without a run")
	flags.Usage = func() {
		_, _ = fmt.Fprintf(flags.Output(), locksUsage, strings.Join(names(allLockSystems), ", "), strings.Join(names(allLockCauses), ", "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var failed [3]error
	failed[0] = checkFlags(flags, o.rounds, o.report, o.summary)
	o.systems, failed[1] = choose(allLockSystems, *systems)
	o.causes, failed[2] = choose(allLockCauses, *causes)
	return o, errors.Join(failed[:]...)
}

// causesOf returns the measured causes of a system.
func (o locksOptions) causesOf(s lockSystem) []lockCause {
	return slices.DeleteFunc(slices.Clone(o.causes), func(c lockCause) bool {
		return c.systems != nil && !slices.Contains(c.systems, s.Name)
	})
}

// changes returns the number of changes in a round.
func (o locksOptions) changes() (n int) {
	for _, s := range o.systems {
		n += len(o.causesOf(s))
	}
	return n
}

func benchLocks(ctx context.Context, o locksOptions) error {
	if o.report {
		return reportTables[figures.Locks](o.summary)
	}
	return measureLocks(ctx, o)
}

// reportTables writes the figures into the page beside the summary.
func reportTables[T figures.Locks | figures.Clusters, R interface {
	*T
	Tables() (string, error)
}](summary string) error {
	results, err := figures.Read[T](summary)
	if err != nil {
		return err
	}
	tables, err := R(results).Tables()
	if err != nil {
		return err
	}
	return figures.ReplaceIn(strings.TrimSuffix(summary, filepath.Ext(summary))+".md", tables)
}

func (t *lockSeries) cordon(ctx context.Context) error {
	return t.run.nodes.cordon(ctx, t.writer.Spec.NodeName)
}

func (t *lockSeries) kill(context.Context) error {
	pid, err := world.Process(t.writer, "/app")
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (t *lockSeries) deleteWriter(ctx context.Context) error { return t.DeletePod(ctx, t.writer, nil) }

func (t *lockSeries) loseNode(ctx context.Context) error {
	return t.run.Cluster(ctx, "node", "kill", t.writer.Spec.NodeName)
}

func (t *lockSeries) healNode(ctx context.Context) error {
	return errors.Join(t.run.Cluster(ctx, "up"), t.run.AwaitWhole(ctx))
}
