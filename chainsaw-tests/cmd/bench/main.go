// Command bench measures how long an application is down in a handoff, with StatefulSingleton and with Kubernetes' own
// strategies, side by side in one run. The subcommand locks measures changes of the writer of StatefulSetLocks, and clusters
// measures changes of the pods of StatefulClusters.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `bench causes many handoffs, and measures the gap and the downtime of each.
Run it with make bench on the local cluster, without any other load. It causes one handoff at a time.

Each round does one handoff of every useful combination of a system, a cause and a condition.
Ctrl-C ends the run and writes the results so far. The exit code is 1 if a handoff failed (see "failed" in the file) or
two pods of a singleton ran at once.

Systems:     %s
Causes:      %s
Conditions:  %s

Examples:
  make bench                                                   the default run, and the pages in docs/benchmarks
  make bench BENCH=-continue                                   the rest of a run that Ctrl-C ended
  make bench BENCH="-systems wrapper,wrapper-spare,recreate -causes delete -n 5"
  bin/cluster exec -- bin/bench -systems wrapper,recreate -causes rollout -conditions cached -n 5
  make bench-report                                            the pages, without a run
  bin/bench locks --help                                       the second part: StatefulSetLocks
  bin/bench clusters --help                                    the third part: StatefulClusters

Flags:
`

type options struct {
	plan   plan
	rounds int
	more   bool
	// out is the file of all samples, and summary is the file of the figures.
	out, summary string
	readme       string
	report       bool
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
	switch {
	case len(args) > 0 && args[0] == "locks":
		o, err := parseLocks(args[1:])
		if err != nil {
			return err
		}
		return benchLocks(ctx, o)
	case len(args) > 0 && args[0] == "clusters":
		o, err := parseClusters(args[1:])
		if err != nil {
			return err
		}
		return benchClusters(ctx, o)
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	return bench(ctx, o)
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	systems := flags.String("systems", strings.Join(names(allSystems), ","), "systems to measure, comma-separated")
	causes := flags.String("causes", strings.Join(names(allCauses), ","), "causes of a handoff, comma-separated")
	conditions := flags.String("conditions", strings.Join(names(allConditions), ","), "conditions that make a handoff longer, comma-separated")
	flags.IntVar(&o.rounds, "n", 15, "number of handoffs of each combination")
	flags.BoolVar(&o.more, "continue", false, "continue the run in the file of -out, up to -n handoffs of each combination")
	flags.StringVar(&o.out, "out", "dist/bench/gap.json", "`file` of all samples")
	flags.StringVar(&o.summary, "summary", "", "`file` of the figures, without samples")
	flags.BoolVar(&o.report, "report", false, "write the page and the picture beside -summary, without a run")
	flags.StringVar(&o.readme, "readme", "", "with -report: `file` whose table between <!-- bench --> markers is replaced")
	flags.Usage = func() {
		_, _ = fmt.Fprintf(flags.Output(), usage, strings.Join(names(allSystems), ", "),
			strings.Join(names(allCauses), ", "), strings.Join(names(allConditions), ", "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if err := checkFlags(flags, o.rounds, o.report, o.summary); err != nil {
		return o, err
	}
	var failed [3]error
	o.plan.systems, failed[0] = choose(allSystems, *systems)
	o.plan.causes, failed[1] = choose(allCauses, *causes)
	o.plan.conditions, failed[2] = choose(allConditions, *conditions)
	return o, errors.Join(failed[:]...)
}

// checkFlags checks the flags that both parts of the benchmark have.
func checkFlags(flags *flag.FlagSet, rounds int, report bool, summary string) error {
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q: see --help", flags.Arg(0))
	case rounds < 1:
		return fmt.Errorf("-n is %d: use 1 or more", rounds)
	case report && summary == "":
		return errors.New("-report needs -summary, the file with the figures")
	}
	return nil
}

func bench(ctx context.Context, o options) error {
	if o.report {
		return report(o.summary, o.readme)
	}
	return measure(ctx, o)
}
