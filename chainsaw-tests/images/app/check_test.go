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

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
)

// at returns an entry at the time in milliseconds after a fixed time, by a process that started at another time.
func at(ms int, pod string, started int, event string) journal.Entry {
	morning := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	when := func(ms int) time.Time { return morning.Add(time.Duration(ms) * time.Millisecond) }
	return journal.Entry{Event: event, Pod: pod, Run: when(started).UnixNano(), Time: when(ms)}
}

func TestVerdict(t *testing.T) {
	handoffs := func(n int) []journal.Handoff { return make([]journal.Handoff, n) }
	tests := map[string]struct {
		summary journal.Summary
		least   int
		wantErr string
	}{
		"nothing asked for":         {summary: journal.Summary{}},
		"as many as asked for":      {summary: journal.Summary{Handoffs: handoffs(3)}, least: 3},
		"more than asked for":       {summary: journal.Summary{Handoffs: handoffs(4)}, least: 3},
		"fewer than asked for":      {summary: journal.Summary{Handoffs: handoffs(2)}, least: 3, wantErr: "2 handoffs, want 3 at least"},
		"overlap":                   {summary: journal.Summary{Handoffs: handoffs(3), Overlaps: 1}, least: 3, wantErr: "two processes ran at once"},
		"a stale token":             {summary: journal.Summary{Handoffs: handoffs(3), Stale: 1}, wantErr: "fencing token of an earlier holder"},
		"overlap without a handoff": {summary: journal.Summary{Overlaps: 1}, wantErr: "two processes ran at once"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			wantError(t, verdict(tc.summary, tc.least), tc.wantErr)
		})
	}
}

func TestCheck(t *testing.T) {
	lines := jsonLines(t,
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
			journal: lines, args: []string{"--min-handoffs", "3"},
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
		"a broken line":  {journal: lines + "{\n", wantErr: "line 7 of the journal"},
		"unknown output": {journal: lines, args: []string{"-o", "yaml"}, wantErr: "use text or json"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.journal != "" {
				if err := os.WriteFile(filepath.Join(dir, journal.File), []byte(tc.journal), 0o600); err != nil {
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

func jsonLines(t *testing.T, entries ...journal.Entry) string {
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
