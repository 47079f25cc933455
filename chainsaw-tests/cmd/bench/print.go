package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
)

// newTable returns a function that adds a line to a table. The table is printed by flush.
func newTable(out io.Writer) (line func(cells ...any), flush func()) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line = func(cells ...any) {
		for _, cell := range cells {
			_, _ = fmt.Fprintf(table, "%v\t", cell)
		}
		_, _ = fmt.Fprintln(table)
	}
	return line, func() { _ = table.Flush() }
}

func triple(d figures.Distribution) string { return fmt.Sprintf("%d %d %d", d.P50, d.P95, d.Max) }

// print prints the figures.
func (r *run) print(out io.Writer) {
	line, flush := newTable(out)
	defer flush()
	line("\nmilliseconds: p50 p95 max", "cause", "condition", "n", "failed", "gap", "downtime", "by EndpointSlices", "start to Ready", "ready", "overlaps", "to Recreate")
	for _, row := range r.results.Rows {
		line(row.System, row.Cause, row.Condition, row.N, len(row.Failed), triple(row.GapMS), triple(row.DowntimeMS), triple(row.EndpointsDowntimeMS), triple(row.StartReadyMS), triple(row.ReadyMS),
			row.Overlaps, figures.Ratio(row.RatioToRecreate))
	}
	line()
	for _, row := range r.results.Rows {
		for _, stage := range row.Stages {
			line(row.System, row.Cause, row.Condition, stage.From+" to "+stage.To, triple(stage.Distribution))
		}
	}
}

// print prints the figures.
func (r *locksRun) print(out io.Writer) {
	line, flush := newTable(out)
	defer flush()
	line("\nmilliseconds: p50 p95 max", "cause", "n", "failed", "write gap", "label gap", "downtime", "overlaps")
	for _, row := range r.results.Rows {
		line(row.System, row.Cause, row.N, len(row.Failed), triple(row.WriteGapMS), triple(row.LabelGapMS), triple(row.DowntimeMS), row.Overlaps)
	}
}
