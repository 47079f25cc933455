package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
)

func checkCommand() *cobra.Command {
	var least int
	cmd := &cobra.Command{
		Use:   "check DIR",
		Short: "Read the journal: which processes ran, with what gap, and whether two ever ran at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := journal.Read(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s has no %s: has the application ever run there?", args[0], journal.File)
			}
			if err != nil {
				return err
			}
			s := journal.Summarize(entries)
			show(s, cmd.OutOrStdout())
			if err := s.Verdict(); err != nil {
				return err
			}
			if len(s.Handoffs) < least {
				return fmt.Errorf("%d handoffs, want %d at least", len(s.Handoffs), least)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&least, "min-handoffs", 0, "fail unless there were that many handoffs at least")
	return cmd
}

// show prints the handoffs, and the median and the worst of the known gaps.
func show(s journal.Summary, w io.Writer) {
	var gaps []int64
	for _, h := range s.Handoffs {
		gap := "unknown: killed"
		if h.GapMilliseconds != nil {
			gap = fmt.Sprintf("%d ms", *h.GapMilliseconds)
			gaps = append(gaps, *h.GapMilliseconds)
		}
		fmt.Fprintf(w, "%s -> %s  gap %s\n", h.From, h.To, gap)
	}
	fmt.Fprintf(w, "handoffs %d, overlaps %d", len(s.Handoffs), s.Overlaps)
	if len(gaps) > 0 {
		slices.Sort(gaps)
		fmt.Fprintf(w, ", gap: median %d ms, worst %d ms", gaps[len(gaps)/2], gaps[len(gaps)-1])
	}
	if s.Stale > 0 {
		fmt.Fprintf(w, ", stale %d", s.Stale)
	}
	fmt.Fprintln(w)
}
