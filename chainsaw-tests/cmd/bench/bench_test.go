package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

func TestCombinations(t *testing.T) {
	for args, want := range map[string]any{
		"gap": 22 + 6 + 7 + 7,
		"gap -only ^(recreate|wrapper).drain.cached": 2,
		"locks":                 10,
		"locks -only node-lost": 1,
		"clusters":              5,
		"connections":           3*2 + 4*2 + 1,
		"gap -only earthquake":  `no combination matches "earthquake"`,
		"gap -n 5 wrapper":      `unknown argument "wrapper"`,
	} {
		words := strings.Fields(args)
		r, err := subjects[slices.IndexFunc(subjects, func(s *subject) bool { return s.name == words[0] })].parse(words[1:])
		if err != nil {
			wantError(t, err, fmt.Sprint(want))
		} else if n := len(r.combinations()); n != want {
			t.Errorf("bench %s: %d combinations, want %v", args, n, want)
		}
	}
}

// wantError fails unless err contains want, or is nil if want is empty.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestRowAndVerdict(t *testing.T) {
	tests := map[string]struct {
		system   string
		overlaps int
		failed   error
		wantErr  string
	}{
		"good":              {system: "wrapper"},
		"two of Kubernetes": {system: "recreate", overlaps: 1},
		"two of ours":       {system: "barrier", overlaps: 1, wantErr: "two ran: 1 overlaps of barrier, drain"},
		"failed":            {system: "wrapper", failed: context.DeadlineExceeded, wantErr: "1 of 3 changes failed of wrapper, drain"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			of := row{System: tc.system, Cause: "drain", values: map[string][]int64{}}
			of.add(sample{ms: map[string]int64{"gap": 7}}, nil)
			of.add(sample{ms: map[string]int64{"gap": 5}, overlaps: tc.overlaps}, nil)
			if tc.failed != nil {
				of.add(sample{}, tc.failed)
			}
			if got := of.MS["gap"].Max; got != 7 || of.N != 2 {
				t.Errorf("maximum %d of %d changes, want 7 of 2", got, of.N)
			}
			wantError(t, (&run{subject: &gap, results: results{Rows: []row{of}}}).verdict(), tc.wantErr)
		})
	}
}

// entriesOf reads a journal such as "100 2 start, 1150 2 stop", with the milliseconds, the process, and the event.
func entriesOf(t *testing.T, text string) (entries []journal.Entry) {
	t.Helper()
	for line := range strings.SplitSeq(text, ", ") {
		var e journal.Entry
		if _, err := fmt.Sscan(line, &e.Monotonic, &e.Run, &e.Event); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		e.Monotonic, e.Pod = e.Monotonic*int64(time.Millisecond), fmt.Sprint("db-", e.Run)
		entries = append(entries, e)
	}
	return entries
}

func TestProcesses(t *testing.T) {
	const earlier = "10 1 start, 80 1 stopping, 90 1 stop, 100 2 start, "
	tests := map[string]struct {
		since   string
		lost    bool
		wantGap int64 // in milliseconds
		wantErr string
	}{
		"one after the other": {since: "1100 2 stopping, 1150 2 stop, 1450 3 start", wantGap: 300},
		"both at once":        {since: "1020 3 overlap, 1020 3 start, 1150 2 stop", wantGap: -130},
		"on a lost node":      {since: "1100 2 alive, 1150 2 alive, 1450 3 start, 1500 3 alive", lost: true, wantGap: 300},
		"no start":            {since: "1150 2 stop", wantErr: "started 0 times"},
		"crashed":             {since: "1150 2 stop, 1450 3 start, 1500 4 start", wantErr: "started 2 times"},
		"killed":              {since: "1450 3 start", wantErr: "no end"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			exit, start, err := processes(entriesOf(t, earlier+tc.since), 1000*time.Millisecond, tc.lost)
			wantError(t, err, tc.wantErr)
			if gap := start - exit; err == nil && gap.Milliseconds() != tc.wantGap {
				t.Errorf("gap %s, want %d ms", gap, tc.wantGap)
			}
		})
	}
}

// The table and the picture have times and counts.
func TestTable(t *testing.T) {
	of := row{System: "wrapper-queue", Cause: "drain", values: map[string][]int64{}}
	of.add(sample{ms: map[string]int64{"gap": 400}, counts: map[string]int64{"failed": 0}}, nil)
	of.add(sample{ms: map[string]int64{"gap": 300}, counts: map[string]int64{"failed": 2}}, nil)
	rows := []row{of}
	s := &subject{metrics: []string{"failed", "gap"}, drawn: "failed"}
	want := [][]string{{"cause", "system", "n", "failed", "gap", "overlaps"}, {"drain", "wrapper-queue", "2", "0 / 2", "300 / 400", "0"}}
	if diff := cmp.Diff(want, s.table(rows)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	for drawn, want := range map[string]string{"failed": "requests", "gap": "seconds"} {
		s.drawn = drawn
		if got := s.picture(rows).Unit; got != want {
			t.Errorf("the picture of %s has unit %q, want %q", drawn, got, want)
		}
	}
}

// A client keeps the address of the last Ready pod until another pod is Ready.
func TestEndpoints(t *testing.T) {
	slice := func(address string, ready *bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}},
		}}
	}
	e := &endpoints{}
	for _, step := range []struct {
		slice *discoveryv1.EndpointSlice
		want  string
	}{
		{slice("10.0.0.1", nil), ""},
		{slice("10.0.0.1", new(true)), "http://10.0.0.1:8080"},
		{slice("10.0.0.1", new(false)), "http://10.0.0.1:8080"},
		{&discoveryv1.EndpointSlice{}, "http://10.0.0.1:8080"},
		{slice("fd00::2", new(true)), "http://[fd00::2]:8080"},
	} {
		e.see(step.slice)
		if got := e.address(); got != step.want {
			t.Errorf("address %q after %v, want %q", got, step.slice.Endpoints, step.want)
		}
	}
}

func TestRegistryIsAsSlowAsItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{limiter: rate.NewLimiter(rate.Inf, burst)}
		r.limit(1_000_000)
		start := time.Now()
		n, err := (&limited{httptest.NewRecorder(), context.Background(), r}).Write(make([]byte, 3_000_000))
		if n != 3_000_000 || err != nil || r.bytes.Load() != 3_000_000 {
			t.Errorf("wrote %d, %v, served %d", n, err, r.bytes.Load())
		}
		// The first burst is free.
		if took := time.Since(start).Seconds(); took < 2.7 || took > 3 {
			t.Errorf("3 MB at 1 MB/s took %.1f s", took)
		}
	})
}

func TestNewChange(t *testing.T) {
	const ms = time.Millisecond
	off := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	moved := []world.Tenure{{Pod: "db-0", Unlabelled: off}, {Pod: "db-1", Seen: off.Add(250 * ms)}}
	// Before the change, db-1 was a writer too.
	const earlier = "700 1 write, 800 0 start"
	tests := map[string]struct {
		tenures               []world.Tenure
		since                 string
		wantGap, wantOverlaps int
		wantErr               string
	}{
		"one after the other":            {moved, ", 1010 0 write, 1020 0 stop, 1200 1 start, 1300 1 write", 180, 0, ""},
		"a late write of the old writer": {moved, ", 1200 1 write, 1250 0 write, 1300 1 write", -50, 1, ""},
		"a process that did not end":     {moved, ", 1010 0 write, 1200 1 overlap, 1200 1 start", 190, 1, ""},
		"a third writer":                 {moved, ", 1100 2 write, 1200 1 write", 0, 0, "pod db-2 wrote too"},
		"no write":                       {moved, "", 0, 0, "lacks writes"},
		"two changes":                    {append(moved, world.Tenure{Pod: "db-2"}), "", 0, 0, "want the old and the next"},
		"the same pod":                   {[]world.Tenure{{Pod: "db-0", Unlabelled: off}, {Pod: "db-0"}}, "", 0, 0, "want the old and the next"},
		"the label is kept":              {[]world.Tenure{{Pod: "db-0"}, {Pod: "db-1"}}, "", 0, 0, "want the old and the next"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := newChange(measurement{begun: 1000 * ms, downtime: 400 * ms, tenures: tc.tenures}, entriesOf(t, earlier+tc.since))
			wantError(t, err, tc.wantErr)
			want := sample{ms: map[string]int64{"write gap": int64(tc.wantGap), "label gap": 250, "downtime": 400}, overlaps: tc.wantOverlaps}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(sample{})); diff != "" && err == nil {
				t.Errorf("change (-want +got):\n%s", diff)
			}
		})
	}
}
