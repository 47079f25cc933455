package main

import (
	"encoding/json"
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
	var output string
	cmd := &cobra.Command{
		Use:   "check DIR",
		Short: "Read the journal: which processes ran, with what gap, and whether two ever ran at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output is %q: use text or json", output)
			}
			entries, err := journal.Read(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s has no %s: has the application ever run there?", args[0], journal.File)
			}
			if err != nil {
				return err
			}
			s := journal.Summarize(entries)
			if err := show(s, cmd.OutOrStdout(), output); err != nil {
				return err
			}
			return verdict(s, least)
		},
	}
	cmd.Flags().IntVar(&least, "min-handoffs", 0, "fail unless there were that many handoffs at least")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// gaps returns the known gaps in increasing order.
func gaps(s journal.Summary) []int64 {
	var known []int64
	for _, h := range s.Handoffs {
		if h.GapMilliseconds != nil {
			known = append(known, *h.GapMilliseconds)
		}
	}
	slices.Sort(known)
	return known
}

func show(s journal.Summary, w io.Writer, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(s)
	}
	for _, h := range s.Handoffs {
		gap := "unknown: killed"
		if h.GapMilliseconds != nil {
			gap = fmt.Sprintf("%d ms", *h.GapMilliseconds)
		}
		_, _ = fmt.Fprintf(w, "%s -> %s  gap %s\n", h.From, h.To, gap)
	}
	_, _ = fmt.Fprintf(w, "handoffs %d, overlaps %d", len(s.Handoffs), s.Overlaps)
	if gaps := gaps(s); len(gaps) > 0 {
		_, _ = fmt.Fprintf(w, ", gap: median %d ms, worst %d ms", gaps[len(gaps)/2], gaps[len(gaps)-1])
	}
	if s.Stale > 0 {
		_, _ = fmt.Fprintf(w, ", stale %d", s.Stale)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func verdict(s journal.Summary, least int) error {
	if err := s.Verdict(); err != nil {
		return err
	}
	if len(s.Handoffs) < least {
		return fmt.Errorf("%d handoffs, want %d at least", len(s.Handoffs), least)
	}
	return nil
}
