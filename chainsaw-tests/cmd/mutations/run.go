package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// verdict is what became of a mutation.
type verdict string

const (
	// caught: a test failed.
	caught verdict = "caught"
	// timedOut: a test did not end in time. This counts as caught, but it takes long and may not name what is wrong.
	timedOut verdict = "timed out"
	// survived: every test passed, and the entry does not say why.
	survived verdict = "SURVIVED"
	// explained: every test passed, and the entry says why.
	explained verdict = "explained"
	// stale: the entry says that no test can notice the mutation, and a test failed.
	stale verdict = "STALE"
	// broken: the mutated package does not build, so no test ran.
	broken verdict = "DOES NOT BUILD"
	// unclear: the test program failed and no test did, as when the API server that the tests need does not start.
	unclear verdict = "NO TEST FAILED"
)

// result is a mutation's verdict.
type result struct {
	mutation
	verdict verdict
	// detail is the test that failed first, or what the compiler prints.
	detail string
	took   time.Duration
}

// String is the progress line of a mutation.
func (r result) String() string {
	line := fmt.Sprintf("%-14s %6.1fs  %s: %s", r.verdict, r.took.Seconds(), r.area, r.Name)
	if r.detail != "" && r.verdict != broken && r.verdict != unclear {
		line += " (" + r.detail + ")"
	}
	return line
}

// baselineTimeout bounds the tests of one package in the unmutated tree.
const baselineTimeout = 30 * time.Minute

// run runs the tests in the unmutated tree, where they must pass, and then those of each mutation with it. It returns
// the results in the order of the mutations; if it fails, those that it has.
func run(ctx context.Context, workers []worker, chosen []mutation, o options) ([]result, error) {
	if err := baseline(ctx, workers, chosen, o); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	n, results := 0, make([]result, len(chosen))
	err := each(ctx, workers, len(chosen), func(ctx context.Context, w worker, i int) error {
		start := time.Now()
		verdict, detail, err := w.judge(ctx, chosen[i], o.timeout)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", chosen[i].area, chosen[i].Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		results[i] = result{chosen[i], verdict, detail, time.Since(start)}
		fmt.Fprintf(o.out, "[%*d/%d] %s\n", len(fmt.Sprint(len(chosen))), n, len(chosen), results[i])
		return nil
	})
	return slices.DeleteFunc(results, func(r result) bool { return r.verdict == "" }), err
}

// each calls do for 0 to n-1, each time with a worker that does nothing else then. It stops at the first error.
func each(ctx context.Context, workers []worker, n int, do func(context.Context, worker, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	next := make(chan int)
	group.Go(func() error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for _, w := range workers {
		group.Go(func() error {
			for i := range next {
				if err := do(ctx, w, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// baseline runs all tests of the mutations in the unmutated tree, each once, by package. One that fails there would
// count as catching every mutation, and one that does not run, as missing it.
func baseline(ctx context.Context, workers []worker, chosen []mutation, o options) error {
	var packages []string
	patterns := map[string][]string{}
	for _, m := range chosen {
		for _, t := range m.Tests {
			if !slices.Contains(packages, t.Package) {
				packages = append(packages, t.Package)
			}
			if !slices.Contains(patterns[t.Package], t.Run) {
				patterns[t.Package] = append(patterns[t.Package], t.Run)
			}
		}
	}
	fmt.Fprintf(o.out, "unmutated: the tests of %d packages\n", len(packages))
	var mu sync.Mutex
	return each(ctx, workers, len(packages), func(ctx context.Context, w worker, i int) error {
		start, pkg := time.Now(), packages[i]
		if err := w.passes(ctx, pkg, patterns[pkg]); err != nil {
			return fmt.Errorf("unmutated: %s: %w", pkg, err)
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(o.out, "unmutated: %s passes (%.1fs)\n", pkg, time.Since(start).Seconds())
		return nil
	})
}

// passes returns an error unless each pattern selects a test of the package, and all tests that they select pass.
func (w worker) passes(ctx context.Context, pkg string, patterns []string) error {
	output, err := w.build(ctx, pkg)
	if err == nil {
		// The alternatives of -run may have slashes each.
		output, err = w.test(ctx, pkg, strings.Join(patterns, "|"), baselineTimeout, "-test.v")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("the tests must pass before mutations mean anything: %w\n%s", err, tail(output))
	}
	for _, pattern := range patterns {
		if !slices.ContainsFunc(ran(output), func(test string) bool {
			return strings.Count(test, "/") >= strings.Count(pattern, "/") && selects(pattern, test)
		}) {
			return fmt.Errorf("run %q: every test that it matches is skipped, or there is none: see go test -v -run %q %s", pattern, pattern, pkg)
		}
	}
	return nil
}

var (
	started = regexp.MustCompile(`(?m)^=== RUN   (\S+)$`)
	skipped = regexp.MustCompile(`(?m)^\s*--- SKIP: (\S+) \(`)
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+) \(`)
	crashed = regexp.MustCompile(`(?m)^(?:panic|fatal error): .*$`)
	// names matches what says which test failed, or that the program crashed while tests ran.
	names = regexp.MustCompile(failed.String() + "|" + crashed.String())
	late  = regexp.MustCompile(`(?m)^panic: test timed out after .*\n\s+running tests:\n\s+(\S+) \(`)
)

// ran returns the tests that ran and were not skipped, from the output of go test -v.
func ran(output string) (tests []string) {
	not := map[string]bool{}
	for _, match := range skipped.FindAllStringSubmatch(output, -1) {
		not[match[1]] = true
	}
	for _, match := range started.FindAllStringSubmatch(output, -1) {
		if !not[match[1]] {
			tests = append(tests, match[1])
		}
	}
	return tests
}

// judge runs the tests of a mutation with it. An error is one of this program, not of the tests.
func (w worker) judge(ctx context.Context, m mutation, timeout time.Duration) (v verdict, detail string, err error) {
	undo, err := w.mutate(m)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, undo()) }()
	for _, t := range m.Tests {
		output, err := w.build(ctx, t.Package)
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		if err != nil {
			return broken, tail(output), nil
		}
		output, err = w.test(ctx, t.Package, t.Run, timeout, "-test.failfast")
		if err != nil && ctx.Err() == nil && !names.MatchString(output) {
			// The machine may have been too slow for the API server to start.
			output, err = w.test(ctx, t.Package, t.Run, timeout, "-test.failfast")
		}
		v, detail := caught, firstFailed(output)
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return "", "", ctx.Err()
		case err == nil:
			continue
		case errors.Is(err, context.DeadlineExceeded):
			v, detail = timedOut, t.Package+" did not stop by itself"
		case !errors.As(err, &exit):
			return "", "", err
		case late.MatchString(output):
			v, detail = timedOut, late.FindStringSubmatch(output)[1]
		case !names.MatchString(output):
			return unclear, tail(output), nil
		}
		if m.Survives != "" {
			v = stale
		}
		return v, detail, nil
	}
	if m.Survives != "" {
		return explained, "", nil
	}
	return survived, "", nil
}

// firstFailed is the name of the test that failed first, with that of its subtest, or why the program crashed if no
// test is named.
func firstFailed(output string) string {
	name := ""
	for _, match := range failed.FindAllStringSubmatch(output, -1) {
		if name != "" && !strings.HasPrefix(match[1], name+"/") {
			break
		}
		name = match[1]
	}
	if name == "" {
		return crashed.FindString(output)
	}
	return name
}

// tail is the last lines of what a program prints.
func tail(output string) string {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
