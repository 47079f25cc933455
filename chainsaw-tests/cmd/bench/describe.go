package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/machine"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// describe tells what the run is of, and on what.
func describe(ctx context.Context, w *world.World) (*figures.Results, error) {
	on, versions, err := machine.Describe(ctx, w)
	return &figures.Results{Date: time.Now().UTC().Truncate(time.Second), Machine: on, Versions: versions}, err
}

// print shows the figures on the terminal.
func (r *run) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells ...any) {
		for _, cell := range cells {
			_, _ = fmt.Fprintf(table, "%v\t", cell)
		}
		_, _ = fmt.Fprintln(table)
	}
	triple := func(d figures.Distribution) string { return fmt.Sprintf("%d %d %d", d.P50, d.P95, d.Max) }
	line("\nmilliseconds: p50 p95 max", "cause", "condition", "n", "failed", "gap", "downtime", "ready", "overlaps", "to Recreate")
	for _, row := range r.results.Rows {
		line(row.System, row.Cause, row.Condition, row.N, len(row.Failed), triple(row.GapMS), triple(row.DowntimeMS), triple(row.ReadyMS),
			row.Overlaps, figures.Ratio(row.RatioToRecreate))
	}
	line()
	for _, row := range r.results.Rows {
		for _, leg := range row.Legs {
			line(row.System, row.Cause, row.Condition, leg.From+" to "+leg.To, triple(leg.Distribution))
		}
	}
	_ = table.Flush()
}
