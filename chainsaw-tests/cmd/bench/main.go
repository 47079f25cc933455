// Command bench measures how long an application is down while its pod changes: with StatefulSingletons, StatefulSetLocks and
// StatefulClusters, and with Kubernetes' own workloads in the same run. It also counts the requests that fail meanwhile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
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
  bench gap|locks|clusters|connections [FLAGS]
  bench report                 writes the tables and pictures in docs/benchmarks from the files there, without a run

Examples:
  bin/cluster exec -- bin/bench gap -only '(wrapper|recreate) rollout cached' -n 5
  bin/cluster exec -- bin/bench locks -n 1
`

// options are the flags of a run.
type options struct {
	// only selects the combinations. It matches their texts.
	only *regexp.Regexp
	// repeats is the number of changes of each combination.
	repeats int
	out     string
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
	if len(args) == 1 && args[0] == "report" {
		for _, s := range subjects {
			if err := s.report("docs/benchmarks"); err != nil {
				return err
			}
		}
		return nil
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		fmt.Print(usage)
		return flag.ErrHelp
	}
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == args[0] })
	if i < 0 {
		return fmt.Errorf("unknown argument %q: see --help", args[0])
	}
	r, err := subjects[i].parse(args[1:])
	if err != nil {
		return err
	}
	return r.measure(ctx)
}

// parse returns the run with the flags.
func (s *subject) parse(args []string) (*run, error) {
	r := &run{subject: s}
	flags := flag.NewFlagSet("bench "+s.name, flag.ContinueOnError)
	only := flags.String("only", "", fmt.Sprintf("`regular expression` of the texts \"system cause condition\", of %v %v %v", s.systems, s.causes, s.conditions))
	flags.IntVar(&r.repeats, "n", s.rounds, "number of changes of each combination")
	flags.StringVar(&r.out, "out", filepath.Join("dist/bench", s.name+".json"), "`file` of the figures")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q: see --help", flags.Arg(0))
	}
	var err error
	if r.only, err = regexp.Compile(*only); err == nil && len(r.combinations()) == 0 {
		err = fmt.Errorf("no combination matches %q: see --help", *only)
	}
	return r, err
}
