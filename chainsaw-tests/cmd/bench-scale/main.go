// Command bench-scale measures the cost of many singletons. The controller, Kyverno and the API server are real, and
// kwok simulates the kubelets.
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
)

const usage = `bench-scale creates increasing numbers of singletons, with each kind of policies, and with a policy for each
singleton and for each namespace. It measures what the policies cost Kyverno and the API server, and what up to 100 handoffs
at once cost the controller. It kills Kyverno, and fails if a pod is admitted that is not held.

Run it with make bench-scale on the local cluster, without any other load. When it ends, also by Ctrl-C, it removes
everything that it created.

Examples:
  make bench-scale                                                       the default run, and docs/benchmarks/scale.md
  make bench-scale SCALE="-singletons 1,20 -out dist/bench/scale.json"   a short run
  bin/bench-scale -report                                                the table and the picture, without a run

Flags:
`

type options struct {
	singletons []int
	out        string
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
			err = write(o.out)
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
	singletons := flags.String("singletons", "1,100,500,1000", "numbers of singletons, comma-separated and increasing")
	flags.StringVar(&o.out, "out", "docs/benchmarks/scale.json", "`file` of the figures")
	flags.BoolVar(&o.report, "report", false, "write the table and the picture beside the file of the figures, without a run")
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q: see --help", flags.Arg(0))
	}
	for number := range strings.SplitSeq(*singletons, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-singletons contains %q: use numbers of 1 or more", number)
		}
		o.singletons = append(o.singletons, n)
	}
	if !slices.IsSorted(o.singletons) {
		return o, errors.New("-singletons must increase")
	}
	return o, nil
}
