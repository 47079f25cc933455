package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// summary is the result of a check of a journal.
type summary struct {
	Handoffs []handoff `json:"handoffs"`
	// Overlaps counts the processes that started while another process ran.
	Overlaps int `json:"overlaps"`
	// Stale counts the processes that started with the epoch of an earlier holder: a lower epoch than an earlier
	// process, or that of another pod.
	Stale int `json:"stale"`
}

// handoff is a change of the running process.
type handoff struct {
	From string `json:"from"`
	To   string `json:"to"`
	// GapMilliseconds is the time from the end of the old process to the start of the new process. It is nil if the old
	// process could not record its end.
	GapMilliseconds *int64 `json:"gapMilliseconds,omitempty"`
}

// processRun is one process, as far as it is recorded.
type processRun struct {
	pod   string
	epoch int64
	start instant
	// seen is the time of its last entry. It ran at least until then.
	seen instant
	// stopped is true if it recorded its end, at the time seen.
	stopped bool
	// overlap is true if another process had the lock.
	overlap bool
}

// instant is a time by the clock since the boot and by the wall clock.
type instant struct {
	wall      time.Time
	monotonic int64
	boot      string
}

func (e entry) instant() instant { return instant{e.Time, e.Monotonic, e.Boot} }

// sub returns the time from then to m. It uses the clock since the boot if both are of the same boot, because the wall
// clock may be set back.
func (m instant) sub(then instant) time.Duration {
	if m.monotonic != 0 && then.monotonic != 0 && m.boot == then.boot {
		return time.Duration(m.monotonic - then.monotonic)
	}
	return m.wall.Sub(then.wall)
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
				return fmt.Errorf("--output is %q: use text or json", output)
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

// readEntries returns all entries, without a line that is still being written.
func readEntries(r io.Reader) ([]entry, error) {
	var entries []entry
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		var e entry
		if err := errors.Join(err, json.Unmarshal(line, &e)); err != nil {
			return nil, fmt.Errorf("line %d of the journal: %w", len(entries)+1, err)
		}
		entries = append(entries, e)
	}
}

// summarize computes the handoffs, overlaps and stale epochs. A process overlaps if another process had the lock, or if
// it started before the end of an earlier process, by their clocks.
func summarize(entries []entry) summary {
	var s summary
	var lived instant
	holders := map[int64]string{}
	var epoch int64
	runs := processRuns(entries)
	for i, run := range runs {
		if run.overlap || i > 0 && run.start.sub(lived) < 0 {
			s.Overlaps++
		}
		if i == 0 || run.seen.sub(lived) > 0 {
			lived = run.seen
		}
		// A pod that started before its singleton existed has no epoch.
		if run.epoch != 0 {
			if holder, ok := holders[run.epoch]; run.epoch < epoch || ok && holder != run.pod {
				s.Stale++
			}
			holders[run.epoch] = run.pod
			epoch = max(epoch, run.epoch)
		}
		// A restarted container keeps name and epoch. The next pod of a StatefulSet keeps the name.
		if i == 0 || runs[i-1].pod == run.pod && runs[i-1].epoch == run.epoch {
			continue
		}
		h := handoff{From: runs[i-1].pod, To: run.pod}
		if old := runs[i-1]; old.stopped {
			h.GapMilliseconds = new(run.start.sub(old.seen).Milliseconds())
		}
		s.Handoffs = append(s.Handoffs, h)
	}
	return s
}

// processRuns returns the processes of the journal in the order of their starts.
func processRuns(entries []entry) []*processRun {
	type key struct {
		pod string
		run int64
	}
	byKey := map[key]*processRun{}
	for _, e := range entries {
		k := key{e.Pod, e.Run}
		if byKey[k] == nil {
			byKey[k] = &processRun{pod: e.Pod, epoch: e.Epoch, start: instant{wall: time.Unix(0, e.Run)}}
		}
		run := byKey[k]
		run.seen = e.instant()
		switch e.Event {
		case "start":
			run.start = e.instant()
		case "overlap":
			run.overlap = true
		case "stop":
			run.stopped = true
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *processRun) int {
		return cmp.Or(cmp.Compare(a.start.sub(b.start), 0), cmp.Compare(a.pod, b.pod))
	})
}

// gaps returns the known gaps in increasing order.
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
	if s.Stale > 0 {
		_, _ = fmt.Fprintf(w, ", stale %d", s.Stale)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (s summary) verdict(least int) error {
	if s.Overlaps > 0 {
		return fmt.Errorf("two processes ran at once: %d began while another one ran", s.Overlaps)
	}
	if s.Stale > 0 {
		return fmt.Errorf("%d processes began with the fencing token of an earlier holder, or of another pod", s.Stale)
	}
	if len(s.Handoffs) < least {
		return fmt.Errorf("%d handoffs, want %d at least", len(s.Handoffs), least)
	}
	return nil
}
