package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// report prints a table of the areas, and each mutation that needs attention. It returns true if the tests or the lists
// need a change.
func report(out io.Writer, results []result) (failed bool) {
	if len(results) == 0 {
		return false
	}
	verdicts := []verdict{caught, timedOut, survived, explained, stale, broken, unclear}
	counts := map[string]map[verdict]int{}
	var areas []string
	for _, r := range results {
		if counts[r.area] == nil {
			counts[r.area] = map[verdict]int{}
			areas = append(areas, r.area)
		}
		counts[r.area][r.verdict]++
		counts[r.area][""]++
	}
	slices.Sort(areas)
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(verdict) any) {
		fmt.Fprintf(table, "%s\t%v\t", name, cell(""))
		for _, v := range verdicts {
			fmt.Fprintf(table, "%v\t", cell(v))
		}
		fmt.Fprintln(table)
	}
	row("area", func(v verdict) any {
		if v == "" {
			return "mutations"
		}
		return strings.ToLower(string(v))
	})
	for _, area := range areas {
		row(area, func(v verdict) any { return counts[area][v] })
	}
	row("all", func(v verdict) any {
		sum := 0
		for _, area := range areas {
			sum += counts[area][v]
		}
		return sum
	})
	_ = table.Flush() // what is said to a person
	for _, part := range []struct {
		verdict verdict
		means   string
		failed  bool
	}{
		{survived, "No test notices these. Add a test, remove the code, or say in survives why nothing observable changes:", true},
		{stale, "A test notices these, so what their entries say in survives is wrong. Remove it:", true},
		{broken, "These do not build, so no test ran. Correct new:", true},
		{unclear, "The test program failed with these, and no test did. Name tests that start with the mutation, or run these again if the machine was too busy:", true},
		{timedOut, "These are only noticed by a timeout. A test that fails at once, and says why, would be better:", false},
	} {
		first := true
		for _, r := range results {
			if r.verdict != part.verdict {
				continue
			}
			if first {
				fmt.Fprintf(out, "\n%s\n", part.means)
			}
			first, failed = false, failed || part.failed
			fmt.Fprintf(out, "  %s: %s (%s)\n", r.area, r.Name, r.File)
			if r.detail != "" {
				fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(r.detail, "\n", "\n      "))
			}
			fmt.Fprintf(out, "      %s\n", r.command())
		}
	}
	return failed
}

// special are the characters that make, the shell or a regular expression would take for their own.
var special = regexp.MustCompile(`[^A-Za-z0-9 ,:=/_-]`)

// command runs the mutation alone.
func (r result) command() string {
	return fmt.Sprintf(`make mutations MUTATIONS="-area %s -run '^%s'"`, r.area, special.ReplaceAllString(r.Name, "."))
}
