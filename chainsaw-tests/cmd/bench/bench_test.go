package main

import (
	"context"
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
	tests := map[string]struct {
		args    []string
		want    int
		wantErr string
	}{
		"all handoffs":     {args: []string{"gap"}, want: 22 + 6 + 7 + 7},
		"some handoffs":    {args: []string{"gap", "-systems", "recreate,wrapper", "-causes=drain", "--conditions", "cached"}, want: 2},
		"all locks":        {args: []string{"locks"}, want: 10},
		"a lost node":      {args: []string{"locks", "-causes", "node-lost"}, want: 1},
		"all clusters":     {args: []string{"clusters"}, want: 5},
		"an unknown cause": {args: []string{"gap", "-causes", "rollout,earthquake"}, wantErr: `"earthquake" is unknown: choose among rollout,delete,drain,node-lost`},
		"too many":         {args: []string{"gap", "wrapper"}, wantErr: `unknown argument "wrapper"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := subjects[slices.IndexFunc(subjects, func(s *subject) bool { return s.name == tc.args[0] })]
			o, err := s.parse(tc.args[1:])
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			r := &run{subject: s, options: o}
			if n := len(r.combinations()); err != nil || n != tc.want {
				t.Errorf("%d combinations, %v, want %d", n, err, tc.want)
			}
		})
	}
}

func TestRowAndVerdict(t *testing.T) {
	tests := map[string]struct {
		system  string
		samples []sample
		failed  error
		wantErr string
	}{
		"good":              {system: "wrapper", samples: []sample{{}}},
		"two of Kubernetes": {system: "recreate", samples: []sample{{overlaps: 1}}},
		"two of ours":       {system: "barrier", samples: []sample{{}, {overlaps: 1}}, wantErr: "two ran: 1 overlaps of barrier, drain"},
		"failed":            {system: "wrapper", samples: []sample{{}}, failed: context.DeadlineExceeded, wantErr: "1 of 2 changes failed of wrapper, drain"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			of := row{System: tc.system, Cause: "drain", values: map[string][]int64{}}
			for i, s := range tc.samples {
				s.ms = map[string]int64{"gap": int64(i)}
				of.add(s, nil)
			}
			if tc.failed != nil {
				of.add(sample{}, tc.failed)
			}
			if got := of.MS["gap"].Max; got != int64(len(tc.samples)-1) || of.N != len(tc.samples) {
				t.Errorf("maximum %d of %d changes, want %d of %d", got, of.N, len(tc.samples)-1, len(tc.samples))
			}
			err := (&run{subject: &gap, results: results{Rows: []row{of}}}).verdict()
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("verdict %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestProcesses(t *testing.T) {
	const ms = time.Millisecond
	entry := func(event string, run int64, at time.Duration) journal.Entry {
		return journal.Entry{Event: event, Run: run, Monotonic: int64(at)}
	}
	earlier := []journal.Entry{entry("start", 1, 10*ms), entry("stopping", 1, 80*ms), entry("stop", 1, 90*ms), entry("start", 2, 100*ms)}
	tests := map[string]struct {
		since   []journal.Entry
		lost    bool
		wantGap time.Duration
		wantErr string
	}{
		"one after the other": {since: []journal.Entry{entry("stopping", 2, 1100*ms), entry("stop", 2, 1150*ms), entry("start", 3, 1450*ms)}, wantGap: 300 * ms},
		"both at once":        {since: []journal.Entry{entry("overlap", 3, 1020*ms), entry("start", 3, 1020*ms), entry("stop", 2, 1150*ms)}, wantGap: -130 * ms},
		"on a lost node": {
			since: []journal.Entry{entry("alive", 2, 1100*ms), entry("alive", 2, 1150*ms), entry("start", 3, 1450*ms), entry("alive", 3, 1500*ms)}, lost: true,
			wantGap: 300 * ms,
		},
		"no start": {since: []journal.Entry{entry("stop", 2, 1150*ms)}, wantErr: "started 0 times"},
		"crashed":  {since: []journal.Entry{entry("stop", 2, 1150*ms), entry("start", 3, 1450*ms), entry("start", 4, 1500*ms)}, wantErr: "started 2 times"},
		"killed":   {since: []journal.Entry{entry("start", 3, 1450*ms)}, wantErr: "no end"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			exit, start, err := processes(append(earlier, tc.since...), 1000*ms, tc.lost)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || start-exit != tc.wantGap {
				t.Errorf("gap %s, %v, want %s", start-exit, err, tc.wantGap)
			}
		})
	}
}

func TestLongestPause(t *testing.T) {
	tests := map[string]struct {
		times []time.Duration
		want  time.Duration
	}{
		"none":         {nil, 0},
		"one":          {[]time.Duration{5}, 0},
		"out of order": {[]time.Duration{40, 10, 20, 45}, 20},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := longestPause(tc.times); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
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
	entry := func(event, pod string, at time.Duration) journal.Entry {
		return journal.Entry{Event: event, Pod: pod, Monotonic: int64(at)}
	}
	change := func(write, label, downtime int64, overlaps int) sample {
		return sample{map[string]int64{"write gap": write, "label gap": label, "downtime": downtime}, overlaps}
	}
	off := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	moved := []world.Tenure{{Pod: "db-0", Unlabelled: off}, {Pod: "db-1", Seen: off.Add(250 * ms)}}
	// Before the change, db-1 was a writer too.
	earlier := []journal.Entry{entry("write", "db-1", 700*ms), entry("start", "db-0", 800*ms)}
	tests := map[string]struct {
		tenures []world.Tenure
		since   []journal.Entry
		want    sample
		wantErr string
	}{
		"one after the other": {
			tenures: moved,
			since:   []journal.Entry{entry("write", "db-0", 1010*ms), entry("stop", "db-0", 1020*ms), entry("start", "db-1", 1200*ms), entry("write", "db-1", 1300*ms)},
			want:    change(180, 250, 400, 0),
		},
		"a late write of the old writer": {
			tenures: moved,
			since:   []journal.Entry{entry("write", "db-1", 1200*ms), entry("write", "db-0", 1250*ms), entry("write", "db-1", 1300*ms)},
			want:    change(-50, 250, 400, 1),
		},
		"a process that did not end": {
			tenures: moved,
			since:   []journal.Entry{entry("write", "db-0", 1010*ms), entry("overlap", "db-1", 1200*ms), entry("start", "db-1", 1200*ms)},
			want:    change(190, 250, 400, 1),
		},
		"a third writer": {
			tenures: moved,
			since:   []journal.Entry{entry("write", "db-2", 1100*ms), entry("write", "db-1", 1200*ms)},
			wantErr: "pod db-2 wrote too",
		},
		"no write":          {tenures: moved, wantErr: "lacks writes"},
		"two changes":       {tenures: append(moved, world.Tenure{Pod: "db-2"}), wantErr: "want the old and the next"},
		"the same pod":      {tenures: []world.Tenure{{Pod: "db-0", Unlabelled: off}, {Pod: "db-0"}}, wantErr: "want the old and the next"},
		"the label is kept": {tenures: []world.Tenure{{Pod: "db-0"}, {Pod: "db-1"}}, wantErr: "want the old and the next"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := newChange(measurement{begun: 1000 * ms, downtime: 400 * ms, tenures: tc.tenures}, append(earlier, tc.since...))
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(sample{})); diff != "" {
				t.Errorf("change (-want +got):\n%s", diff)
			}
		})
	}
}
