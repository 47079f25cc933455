// Command bench-scale measures what many singletons cost: the controller, Kyverno and
// the API server are real, and kwok plays the kubelets.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `bench-scale makes ever more singletons, each with a Deployment of one, and measures at each number
what the controller and Kyverno take, and how 100 handoffs at once go; at the last number also with
policies that the singletons of a namespace share. It runs by make bench-scale, on the local cluster,
with nothing else going on. The end of it, by Ctrl-C too, removes what it made.

Examples:
  make bench-scale                                                       the default, and the tables in docs/scale.md
  make bench-scale SCALE="-singletons 20 -namespaces 5 -handoffs 10 -idle 10s -out dist/scale.json"    a try
  go run ./chainsaw-tests/bench-scale -report                            the tables once more, without a run

Flags:
`

type options struct {
	singletons []int
	namespaces int
	handoffs   int
	idle       time.Duration
	out        string
	page       string
	report     bool
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if o.report {
			err = report(o.out, o.page)
		} else {
			err = measure(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bench-scale", flag.ContinueOnError)
	singletons := flags.String("singletons", "1,100,300,500,1000", "how many there are at each step, comma-separated, growing")
	flags.IntVar(&o.namespaces, "namespaces", 50, "how many namespaces they are spread over")
	flags.IntVar(&o.handoffs, "handoffs", 100, "how many are handed over at once; at steps of fewer, all")
	flags.DurationVar(&o.idle, "idle", 5*time.Minute, "how long to measure while nothing happens; in five minutes the controller looks once at each singleton")
	flags.StringVar(&o.out, "out", "docs/benchmarks/scale.json", "the file of the results")
	flags.StringVar(&o.page, "page", "docs/scale.md", "with -report: the page whose tables between <!-- bench --> markers are written anew")
	flags.BoolVar(&o.report, "report", false, "write the tables from the file, without a run")
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag, see --help", flags.Arg(0))
	}
	for number := range strings.SplitSeq(*singletons, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-singletons has %q: give numbers from 1 on", number)
		}
		o.singletons = append(o.singletons, n)
	}
	if !slices.IsSorted(o.singletons) || o.namespaces < 1 || o.handoffs < 1 {
		return o, errors.New("-singletons must grow, and -namespaces and -handoffs be 1 or more")
	}
	return o, nil
}
