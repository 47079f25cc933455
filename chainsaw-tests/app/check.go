package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// summary is what a journal tells.
type summary struct {
	Handoffs []handoff `json:"handoffs"`
	// Overlaps counts the times that two processes ran at once.
	Overlaps int `json:"overlaps"`
}

// handoff is a change of the running process.
type handoff struct {
	From string `json:"from"`
	To   string `json:"to"`
	// GapMilliseconds is the time from the old process's end to the new one's
	// start. It is nil where the old one could not write down its end.
	GapMilliseconds *int64 `json:"gapMilliseconds,omitempty"`
}

// processRun is one process's life, as far as it wrote it down.
type processRun struct {
	pod        string
	start, end time.Time
}

func checkCommand() *cobra.Command {
	var least int
	var output string
	cmd := &cobra.Command{
		Use:   "check DIR",
		Short: "Read the journal: which processes ran, with what gap, and whether two ever ran at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output is %q: give text or json", output)
			}
			file, err := os.Open(filepath.Join(args[0], journalFile))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s has no %s: has the application ever run there?", args[0], journalFile)
			}
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			entries, err := readEntries(file)
			if err != nil {
				return err
			}
			s := summarize(entries)
			if err := s.print(cmd.OutOrStdout(), output); err != nil {
				return err
			}
			return s.verdict(least)
		},
	}
	cmd.Flags().IntVar(&least, "min-handoffs", 0, "fail unless there were that many handoffs at least")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func readEntries(r io.Reader) ([]entry, error) {
	var entries []entry
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d of the journal: %w", len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}

// summarize finds the handoffs and the overlaps. An overlap is a lock that was
// found taken, or two lives that cross by the processes' own clocks.
func summarize(entries []entry) summary {
	var s summary
	byID := map[string]*processRun{}
	var runs []*processRun
	for _, e := range entries {
		id := fmt.Sprintf("%s/%d", e.Pod, e.Run)
		run := byID[id]
		if run == nil {
			run = &processRun{pod: e.Pod}
			byID[id] = run
			runs = append(runs, run)
		}
		switch e.Event {
		case "start":
			run.start = e.Time
		case "overlap":
			s.Overlaps++
		case "stop":
			run.end = e.Time
		}
	}
	slices.SortFunc(runs, func(a, b *processRun) int { return a.start.Compare(b.start) })
	for i := 1; i < len(runs); i++ {
		old, next := runs[i-1], runs[i]
		h := handoff{From: old.pod, To: next.pod}
		if !old.end.IsZero() {
			h.GapMilliseconds = new(next.start.Sub(old.end).Milliseconds())
			if next.start.Before(old.end) {
				s.Overlaps++
			}
		}
		if old.pod != next.pod {
			s.Handoffs = append(s.Handoffs, h)
		}
	}
	return s
}

// gaps are those that are known, the shortest first.
func (s summary) gaps() []int64 {
	var gaps []int64
	for _, h := range s.Handoffs {
		if h.GapMilliseconds != nil {
			gaps = append(gaps, *h.GapMilliseconds)
		}
	}
	slices.SortFunc(gaps, cmp.Compare[int64])
	return gaps
}

func (s summary) print(w io.Writer, output string) error {
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
	if gaps := s.gaps(); len(gaps) > 0 {
		_, _ = fmt.Fprintf(w, ", gap: median %d ms, worst %d ms", gaps[len(gaps)/2], gaps[len(gaps)-1])
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (s summary) verdict(least int) error {
	if s.Overlaps > 0 {
		return fmt.Errorf("two processes ran at once %d times", s.Overlaps)
	}
	if len(s.Handoffs) < least {
		return fmt.Errorf("%d handoffs, want %d at least", len(s.Handoffs), least)
	}
	return nil
}
