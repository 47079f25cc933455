// Command bench-scale measures the cost of many singletons. The controller, Kyverno and the API server are real, and
// kwok simulates the kubelets.
package main

import (
	"context"
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
	o := options{singletons: []int{1, 100, 500, 1000}}
	flag.Func("singletons", "comma-separated `numbers` of singletons (default 1,100,500,1000)", func(text string) (err error) {
		o.singletons, err = numbers(text)
		return err
	})
	flag.StringVar(&o.out, "out", "docs/benchmarks/scale.json", "`file` of the figures")
	flag.BoolVar(&o.report, "report", false, "write the table and the picture beside the file of the figures, without a run")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.report {
		err = write(o.out)
	} else {
		err = measure(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

// numbers returns the numbers in increasing order.
func numbers(text string) (all []int, err error) {
	for number := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of 1 or more", number)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return all, nil
}
