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
	"time"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

const usage = `bench-scale creates increasing numbers of singletons, with each kind of policies, and with a policy for each
singleton and for each namespace. It measures what the policies cost Kyverno and the API server. It restarts Kyverno with
NamespacedMutatingPolicies, and fails if a pod is admitted that is not held.

With few policies and with the most singletons, each singleton also has a Deployment of one replica. There, it measures
the resources of the controller, and 100 handoffs at once.

Run it with make bench-scale on the local cluster, without any other load. When it ends, also by Ctrl-C, it removes
everything that it created.

Examples:
  make bench-scale                                                       the default run, and the tables in docs/benchmarks/scale.md
  make bench-scale SCALE="-singletons 1,20 -namespaces 5 -handoffs 10 -idle 10s -out dist/scale.json"    a short run
  make bench-report                                                      the tables, without a run

Flags:
`

type options struct {
	singletons []int
	kinds      []policies.Kind
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
	singletons := flags.String("singletons", "1,100,500,1000", "numbers of singletons, comma-separated and increasing")
	kinds := flags.String("kinds", "ClusterPolicy,NamespacedMutatingPolicy", "kinds of policies, comma-separated")
	flags.IntVar(&o.namespaces, "namespaces", 50, "number of namespaces with singletons")
	flags.IntVar(&o.handoffs, "handoffs", 100, "number of handoffs at once, at most one for each singleton")
	flags.DurationVar(&o.idle, "idle", time.Minute, "duration of the measurement without any change; the controller reconciles each singleton once in five minutes")
	flags.StringVar(&o.out, "out", "docs/benchmarks/scale.json", "file of the results")
	flags.StringVar(&o.page, "page", "docs/benchmarks/scale.md", "with -report: page whose tables between <!-- bench --> markers are replaced")
	flags.BoolVar(&o.report, "report", false, "write the tables from the file of the results, without a run")
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
	for name := range strings.SplitSeq(*kinds, ",") {
		kind := policies.Kind(name)
		if !slices.Contains(policies.Kinds, kind) {
			return o, fmt.Errorf("-kinds contains %q: use %v", name, policies.Kinds)
		}
		o.kinds = append(o.kinds, kind)
	}
	if !slices.IsSorted(o.singletons) || o.namespaces < 1 || o.handoffs < 1 {
		return o, errors.New("-singletons must increase, and -namespaces and -handoffs must be 1 or more")
	}
	return o, nil
}
