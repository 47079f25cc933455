package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
)

func TestCheck(t *testing.T) {
	lines := jsonLines(t, "0 a 0 start", "10 a 0 stop", "30 b 0 start", "40 b 0 stop", "140 c 0 start", "500 d 0 start")
	tests := map[string]struct {
		journal string
		args    []string
		want    string
		wantErr string
	}{
		"handoffs": {
			journal: lines, args: []string{"--min-handoffs", "3"},
			want: "a -> b  gap 20 ms\nb -> c  gap 100 ms\nc -> d  gap unknown: killed\nhandoffs 3, overlaps 0, gap: median 100 ms, worst 100 ms\n",
		},
		"too few are shown, and fail": {
			journal: jsonLines(t, "0 a 0 start"), args: []string{"--min-handoffs", "1"},
			want: "handoffs 0, overlaps 0\n", wantErr: "0 handoffs, want 1 at least",
		},
		"an overlap is shown, and fails": {
			journal: jsonLines(t, "0 a 0 start", "5 b 0 overlap"),
			want:    "a -> b  gap unknown: killed\nhandoffs 1, overlaps 1\n", wantErr: "two processes ran at once",
		},
		"a stale token is shown, and fails": {
			journal: jsonLines(t, "0 a 2 start", "5 a 2 stop", "10 b 1 start"),
			want:    "a -> b  gap 5 ms\nhandoffs 1, overlaps 0, gap: median 5 ms, worst 5 ms, stale 1\n", wantErr: "fencing token of an earlier holder",
		},
		"a line that is still being written": {journal: jsonLines(t, "0 a 0 start") + `{"event":"st`, want: "handoffs 0, overlaps 0\n"},
		"no journal":                         {wantErr: "has the application ever run there?"},
		"a broken line":                      {journal: lines + "{\n", wantErr: "line 7 of the journal"},
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

// jsonLines returns a journal with the entries, such as "30 b 1 start": the milliseconds, the pod, its epoch and the event. A pod has one
// process.
func jsonLines(t *testing.T, entries ...string) string {
	t.Helper()
	var lines bytes.Buffer
	for _, entry := range entries {
		e, ms := journal.Entry{}, 0
		if _, err := fmt.Sscan(entry, &ms, &e.Pod, &e.Epoch, &e.Event); err != nil {
			t.Fatal(err)
		}
		e.Time = time.UnixMilli(int64(ms))
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
