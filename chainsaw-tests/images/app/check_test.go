package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at returns an entry at the time in milliseconds after a fixed time, by a process that started at another time.
func at(ms int, pod string, started int, event string) entry {
	morning := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	when := func(ms int) time.Time { return morning.Add(time.Duration(ms) * time.Millisecond) }
	return entry{Event: event, Pod: pod, Run: when(started).UnixNano(), Time: when(ms)}
}

// with returns the entry with an epoch.
func with(epoch int64, e entry) entry {
	e.Epoch = epoch
	return e
}

// since returns the entry at the time in milliseconds since the machine's first boot.
func since(ms int, e entry) entry {
	e.Monotonic, e.Boot = int64(ms)*1e6, "first"
	return e
}

// inBoot returns the entry in another boot.
func inBoot(boot string, e entry) entry {
	e.Boot = boot
	return e
}

func TestSummarize(t *testing.T) {
	tests := map[string]struct {
		entries []entry
		want    summary
	}{
		"nothing ran": {},
		"one runs": {
			entries: []entry{at(0, "a", 0, "start")},
		},
		"one handoff": {
			entries: []entry{at(0, "a", 0, "start"), at(900, "a", 0, "stopping"), at(1000, "a", 0, "stop"), at(1250, "b", 1250, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(250))}}},
		},
		"several handoffs, and back": {
			entries: []entry{
				at(0, "a", 0, "start"), at(10, "a", 0, "stop"),
				at(30, "b", 30, "start"), at(40, "b", 30, "stop"),
				at(70, "a", 70, "start"),
			},
			want: summary{Handoffs: []handoff{
				{From: "a", To: "b", GapMilliseconds: new(int64(20))},
				{From: "b", To: "a", GapMilliseconds: new(int64(30))},
			}},
		},
		"a gap of nothing is a gap": {
			entries: []entry{at(0, "a", 0, "start"), at(10, "a", 0, "stop"), at(10, "b", 10, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(0))}}},
		},
		"killed without a stop": {
			entries: []entry{at(0, "a", 0, "start"), at(50, "b", 50, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b"}}},
		},
		"killed while it stopped": {
			entries: []entry{at(0, "a", 0, "start"), at(40, "a", 0, "stopping"), at(50, "b", 50, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b"}}},
		},
		"a container's restart is no handoff": {
			entries: []entry{at(0, "a", 0, "start"), at(10, "a", 0, "stop"), at(20, "a", 20, "start")},
		},
		"a container's restart after a kill, then a handoff": {
			entries: []entry{at(0, "a", 0, "start"), at(20, "a", 20, "start"), at(30, "a", 20, "stop"), at(35, "b", 35, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(5))}}},
		},
		"the next pod of a StatefulSet has the same name": {
			entries: []entry{
				with(1, at(0, "a", 0, "start")), with(1, at(10, "a", 0, "stop")),
				with(2, at(30, "a", 30, "start")),
			},
			want: summary{Handoffs: []handoff{{From: "a", To: "a", GapMilliseconds: new(int64(20))}}},
		},
		"overlap by the lock": {
			entries: []entry{at(0, "a", 0, "start"), at(50, "b", 50, "overlap"), at(50, "b", 50, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b"}}, Overlaps: 1},
		},
		"overlap by the lock within one pod": {
			entries: []entry{at(0, "a", 0, "start"), at(50, "a", 50, "overlap"), at(50, "a", 50, "start")},
			want:    summary{Overlaps: 1},
		},
		"overlap by crossing lives": {
			entries: []entry{at(0, "a", 0, "start"), at(50, "b", 50, "start"), at(60, "a", 0, "stop")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(-10))}}, Overlaps: 1},
		},
		"overlap with one that lived on and was killed": {
			entries: []entry{at(0, "a", 0, "start"), at(50, "b", 50, "start"), at(60, "a", 0, "stopping")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b"}}, Overlaps: 1},
		},
		"one overlap, told by the lock and by the lives": {
			entries: []entry{at(0, "a", 0, "start"), at(51, "b", 50, "overlap"), at(50, "b", 50, "start"), at(60, "a", 0, "stop")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(-10))}}, Overlaps: 1},
		},
		"two overlap with one long life": {
			entries: []entry{
				at(0, "a", 0, "start"),
				at(10, "b", 10, "start"), at(20, "b", 10, "stop"),
				at(30, "c", 30, "start"), at(40, "c", 30, "stop"),
				at(100, "a", 0, "stop"),
			},
			want: summary{
				Handoffs: []handoff{
					{From: "a", To: "b", GapMilliseconds: new(int64(-90))},
					{From: "b", To: "c", GapMilliseconds: new(int64(10))},
				},
				Overlaps: 2,
			},
		},
		"overlap with one that wrote that it was alive, and was killed": {
			entries: []entry{at(0, "a", 0, "start"), at(40, "a", 0, "alive"), at(30, "b", 30, "start")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b"}}, Overlaps: 1},
		},
		"no overlap: the clock was set back in between": {
			entries: []entry{
				since(1000, at(5000, "a", 5000, "start")), since(2000, at(6000, "a", 5000, "stop")),
				since(2250, at(0, "b", 0, "start")),
			},
			want: summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(250))}}},
		},
		"an overlap that a clock set forth would hide": {
			entries: []entry{
				since(1000, at(0, "a", 0, "start")), since(1500, at(5000, "b", 5000, "start")), since(2000, at(1000, "a", 0, "stop")),
			},
			want: summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(-500))}}, Overlaps: 1},
		},
		"after a reboot only the wall's clock tells": {
			entries: []entry{
				since(9000, at(0, "a", 0, "start")), since(9010, at(10, "a", 0, "stop")),
				inBoot("second", since(5, at(30, "b", 30, "start"))),
			},
			want: summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(20))}}},
		},
		"a lower token than before": {
			entries: []entry{with(2, at(0, "a", 0, "start")), with(2, at(5, "a", 0, "stop")), with(1, at(10, "b", 10, "start"))},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(5))}}, Stale: 1},
		},
		"two pods with one token": {
			entries: []entry{with(1, at(0, "a", 0, "start")), with(1, at(5, "a", 0, "stop")), with(1, at(10, "b", 10, "start"))},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(5))}}, Stale: 1},
		},
		"one that knows of no token, then the first": {
			entries: []entry{at(0, "a", 0, "start"), at(5, "a", 0, "stop"), with(1, at(10, "b", 10, "start"))},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(5))}}},
		},
		"killed between the overlap and the start": {
			entries: []entry{at(0, "a", 0, "start"), at(50, "b", 49, "overlap"), at(60, "a", 0, "stop")},
			want:    summary{Handoffs: []handoff{{From: "a", To: "b", GapMilliseconds: new(int64(-11))}}, Overlaps: 1},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, summarize(tc.entries)); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	handoffs := func(n int) []handoff { return make([]handoff, n) }
	tests := map[string]struct {
		summary summary
		least   int
		wantErr string
	}{
		"nothing asked for":         {summary: summary{}},
		"as many as asked for":      {summary: summary{Handoffs: handoffs(3)}, least: 3},
		"more than asked for":       {summary: summary{Handoffs: handoffs(4)}, least: 3},
		"fewer than asked for":      {summary: summary{Handoffs: handoffs(2)}, least: 3, wantErr: "2 handoffs, want 3 at least"},
		"overlap":                   {summary: summary{Handoffs: handoffs(3), Overlaps: 1}, least: 3, wantErr: "two processes ran at once"},
		"a stale token":             {summary: summary{Handoffs: handoffs(3), Stale: 1}, wantErr: "fencing token of an earlier holder"},
		"overlap without a handoff": {summary: summary{Overlaps: 1}, wantErr: "two processes ran at once"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			wantError(t, tc.summary.verdict(tc.least), tc.wantErr)
		})
	}
}

func TestCheck(t *testing.T) {
	journal := jsonLines(t,
		at(0, "a", 0, "start"), at(10, "a", 0, "stop"),
		at(30, "b", 30, "start"), at(40, "b", 30, "stop"),
		at(140, "c", 140, "start"),
		at(500, "d", 500, "start"),
	)
	tests := map[string]struct {
		journal string
		args    []string
		want    string
		wantErr string
	}{
		"text": {
			journal: journal, args: []string{"--min-handoffs", "3"},
			want: "a -> b  gap 20 ms\nb -> c  gap 100 ms\nc -> d  gap unknown: killed\nhandoffs 3, overlaps 0, gap: median 100 ms, worst 100 ms\n",
		},
		"json": {
			journal: jsonLines(t, at(0, "a", 0, "start"), at(10, "a", 0, "stop"), at(30, "b", 30, "start")), args: []string{"--output", "json"},
			want: `{
  "handoffs": [
    {
      "from": "a",
      "to": "b",
      "gapMilliseconds": 20
    }
  ],
  "overlaps": 0,
  "stale": 0
}
`,
		},
		"too few are shown, and fail": {
			journal: jsonLines(t, at(0, "a", 0, "start")), args: []string{"--min-handoffs", "1"},
			want: "handoffs 0, overlaps 0\n", wantErr: "0 handoffs, want 1 at least",
		},
		"an overlap is shown, and fails": {
			journal: jsonLines(t, at(0, "a", 0, "start"), at(5, "a", 5, "overlap")),
			want:    "handoffs 0, overlaps 1\n", wantErr: "two processes ran at once",
		},
		"a line that is still being written": {
			journal: jsonLines(t, at(0, "a", 0, "start")) + `{"event":"st`, want: "handoffs 0, overlaps 0\n",
		},
		"no journal":     {wantErr: "has the application ever run there?"},
		"a broken line":  {journal: journal + "{\n", wantErr: "line 7 of the journal"},
		"unknown output": {journal: journal, args: []string{"-o", "yaml"}, wantErr: "use text or json"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.journal != "" {
				if err := os.WriteFile(filepath.Join(dir, journalFile), []byte(tc.journal), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			cmd := checkCommand()
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			cmd.SetOut(&out)
			cmd.SetArgs(append([]string{dir}, tc.args...))
			wantError(t, cmd.Execute(), tc.wantErr)
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSeconds(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    time.Duration
		wantErr string
	}{
		"unset":        {want: time.Minute},
		"whole":        {text: "3", want: 3 * time.Second},
		"broken":       {text: "0.25", want: 250 * time.Millisecond},
		"not a number": {text: "soon", want: time.Minute, wantErr: `STOP_SECONDS is "soon": use a number of seconds, for example 1.5`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("STOP_SECONDS", tc.text)
			got := time.Minute
			wantError(t, seconds("STOP_SECONDS", &got), tc.wantErr)
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func jsonLines(t *testing.T, entries ...entry) string {
	t.Helper()
	var lines bytes.Buffer
	for _, e := range entries {
		if err := json.NewEncoder(&lines).Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	return lines.String()
}

// wantError fails unless err contains want, or is nil if want is empty.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
