// Command mutations checks the tests. For each entry of the lists beside it, it breaks the source in one place and runs
// the tests that should notice. There is one list for each area. A mutation that no test notices is a survivor. A
// survivor means that a test is missing, or that the code is not needed.
//
// Each worker has a copy of the tree. So the checkout does not change, and a test that reads a chart's template reads
// the changed one. A worker builds the test binary in its copy and runs it there. Go takes the modules of others from
// its build cache in every copy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"
)

const usage = `Change the source on purpose, one place at a time, and check that a test fails.

The mutations are listed in ` + lists + `. The program exits with 1 if a mutation survives and its
entry does not explain why, if an explained mutation is caught, or if an entry does not build.

Usage:
  make mutations MUTATIONS="FLAGS"

Examples:
  make mutations
  make mutations MUTATIONS="-area handoff"
  make mutations MUTATIONS="-run 'terminal|epoch' -parallel 1"
  make mutations MUTATIONS=-list

Flags:
`

// lists are the files of the mutations, from the root of the tree.
const lists = "chainsaw-tests/cmd/mutations/*.yaml"

// errFailed ends a run whose report says what is wrong.
var errFailed = errors.New("the tests or the lists need a change: see above")

type options struct {
	root     string
	lists    string
	out      io.Writer
	names    *regexp.Regexp
	areas    *regexp.Regexp
	parallel int
	timeout  time.Duration
	list     bool
}

func main() {
	o := options{root: ".", lists: lists, out: os.Stdout}
	names := flag.String("run", "", "regular `expression`: only the mutations whose name matches")
	areas := flag.String("area", "", "regular `expression`: only the lists whose whole file name matches, without .yaml")
	flag.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "`number` of mutations at a time; each has a copy of the tree")
	flag.DurationVar(&o.timeout, "timeout", 5*time.Minute, "`duration` after which a test run of a mutation is stopped")
	flag.BoolVar(&o.list, "list", false, "print the mutations and run nothing")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.choose(*names, *areas); err != nil {
		fmt.Fprintf(os.Stderr, "mutations: %v\n", err)
		os.Exit(2)
	}
	if err := mutations(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "mutations: %v\n", err)
		os.Exit(1)
	}
}

// choose sets which mutations run, and checks what the flags say.
func (o *options) choose(names, areas string) (err error) {
	if o.names, err = regexp.Compile(names); err != nil {
		return fmt.Errorf("-run %q: %w", names, err)
	}
	if areas == "" {
		areas = ".*"
	}
	if o.areas, err = regexp.Compile("^(?:" + areas + ")$"); err != nil {
		return fmt.Errorf("-area %q: %w", areas, err)
	}
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: choose mutations by -run and -area", flag.Arg(0))
	case o.parallel < 1:
		return fmt.Errorf("-parallel %d: use 1 or more", o.parallel)
	case o.timeout <= 0:
		return fmt.Errorf("-timeout %s: use a duration above 0", o.timeout)
	}
	return nil
}

func mutations(ctx context.Context, o options) (err error) {
	all, err := readLists(o.root, o.lists)
	if err != nil {
		return err
	}
	var chosen []mutation
	for _, m := range all {
		if o.areas.MatchString(m.area) && o.names.MatchString(m.Name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no mutation matches -run %q and -area %q: -list without flags prints all %d", o.names, o.areas, len(all))
	}
	if o.list {
		return printList(o.out, chosen)
	}
	dir, err := os.MkdirTemp("", "mutations")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workers, err := newWorkers(ctx, o.root, dir, min(o.parallel, len(chosen)))
	if err != nil {
		return err
	}
	results, err := run(ctx, workers, chosen, o)
	failed := report(o.out, results)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped after %d of %d mutations", len(results), len(chosen))
	case err == nil && failed:
		return errFailed
	}
	return err
}

// printList writes a line for each mutation.
func printList(out io.Writer, chosen []mutation) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range chosen {
		fmt.Fprintf(table, "%s\t%s\t%s\n", m.area, m.Name, filepath.ToSlash(m.File))
	}
	return table.Flush()
}
