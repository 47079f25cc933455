// Command bench measures how long an application is down while its pod changes: with StatefulSingletons, StatefulSetLocks and
// StatefulClusters, and with Kubernetes' own workloads in the same run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const usage = `bench causes many changes, one at a time, and measures each of them.
Run it with make bench on the local cluster, without any other load.

Each round does one change for every useful combination of a system, a cause and a condition. Ctrl-C ends the run, and the
file has the figures of the changes so far. The exit code is 1 if a change failed (see "failed" in the file), or if two
processes ran at once where one is guaranteed.

Usage:
  bench gap|locks|clusters [FLAGS]
  bench report                 writes the tables and pictures in docs/benchmarks from the files there, without a run

Examples:
  bin/cluster exec -- bin/bench gap -systems wrapper,recreate -causes rollout -conditions cached -n 5
  bin/cluster exec -- bin/bench locks -n 1
`

// options are the flags of a run. An empty list means all.
type options struct {
	systems, causes, conditions []string
	rounds                      int
	out                         string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		fmt.Print(usage)
		return flag.ErrHelp
	}
	if args[0] == "report" {
		for _, s := range subjects {
			if err := s.report("docs/benchmarks"); err != nil {
				return err
			}
		}
		return nil
	}
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == args[0] })
	if i < 0 {
		return fmt.Errorf("unknown argument %q: see --help", args[0])
	}
	o, err := subjects[i].parse(args[1:])
	if err != nil {
		return err
	}
	return subjects[i].measure(ctx, o)
}

func (s *subject) parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bench "+s.name, flag.ContinueOnError)
	list := func(name string, all []string, chosen *[]string) {
		*chosen = all
		flags.Func(name, "comma-separated: "+strings.Join(all, ","), func(text string) (err error) {
			*chosen, err = choose(all, text)
			return err
		})
	}
	list("systems", s.systems, &o.systems)
	list("causes", s.causes, &o.causes)
	list("conditions", s.conditions, &o.conditions)
	flags.IntVar(&o.rounds, "n", s.rounds, "number of changes of each combination")
	flags.StringVar(&o.out, "out", filepath.Join("dist/bench", s.name+".json"), "`file` of the figures")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q: see --help", flags.Arg(0))
	}
	return o, nil
}

// choose returns the named elements in the order of all.
func choose(all []string, text string) ([]string, error) {
	names := strings.Split(text, ",")
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("%q is unknown: choose among %s", name, strings.Join(all, ","))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(names, name) }), nil
}
