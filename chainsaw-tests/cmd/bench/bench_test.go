package main

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		args    []string
		want    string // systems, causes and conditions
		wantErr string
	}{
		"all": {nil, "wrapper barrier recreate statefulset rollingupdate wrapper-spare wrapper-lease wrapper-lease-spare; rollout delete drain node-lost; cached pull init slow-stop", ""},
		"some, in the order of all": {[]string{"-systems", "recreate, wrapper", "-causes=drain", "--conditions", "init"},
			"wrapper recreate; drain; init", ""},
		"unknown":   {[]string{"-causes", "rollout,earthquake"}, "", `"earthquake" is unknown: choose among rollout, delete, drain, node-lost`},
		"none":      {[]string{"-n", "0"}, "", "-n is 0"},
		"left over": {[]string{"wrapper"}, "", `unknown argument "wrapper"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tc.args)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			got := strings.Join([]string{strings.Join(names(o.plan.systems), " "), strings.Join(names(o.plan.causes), " "),
				strings.Join(names(o.plan.conditions), " ")}, "; ")
			if err != nil || got != tc.want {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// After each round, every combination has the same number of handoffs, even if handoffs of an earlier round failed or
// were repeated.
func TestDue(t *testing.T) {
	samples := func(n int) []figures.Sample { return make([]figures.Sample, n) }
	r := &run{options: options{plan: plan{allSystems, allCauses, allConditions}}, results: &figures.Gap{Rows: []figures.Row{
		{System: "wrapper", Cause: "rollout", Condition: "cached", Samples: samples(2)},
		{System: "wrapper", Cause: "delete", Condition: "cached", Samples: samples(3)},
		{System: "wrapper", Cause: "drain", Condition: "cached", Samples: samples(1), Failed: []string{"the node fell over"}},
		{System: "barrier", Cause: "drain", Condition: "cached", Samples: samples(3)},
	}}}
	for round, want := range [][]string{nil, {"drain"}, {"rollout", "drain"}, {"rollout", "delete", "drain"}} {
		if diff := cmp.Diff(want, names(r.due(workload{"wrapper", "cached"}, round))); diff != "" {
			t.Errorf("due in round %d (-want +got):\n%s", round, diff)
		}
	}
	if got := names(r.due(workload{"barrier", "cached"}, 0)); !slices.Equal(got, []string{"rollout", "delete"}) {
		t.Errorf("due are %v, want what was never measured", got)
	}
}

func TestEachRoundHasEveryWorkloadOnce(t *testing.T) {
	p := plan{allSystems, allCauses, allConditions}
	for round := range 3 {
		seen := map[workload]int{}
		for _, w := range p.workloads(round) {
			seen[w]++
		}
		// A spare is not measured with pulled images.
		if len(seen) != 8+3+4+4 || p.combinations() != 22+6+7+7 || len(p.workloads(round)) != len(seen) {
			t.Errorf("round %d: %v", round, seen)
		}
	}
	if slices.Equal(p.workloads(0), p.workloads(1)) {
		t.Error("two rounds have the same order")
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

func TestSample(t *testing.T) {
	const ms = time.Millisecond
	entry := func(event string, run int64, at time.Duration) world.Entry {
		return world.Entry{Event: event, Run: run, Monotonic: int64(at)}
	}
	earlier := []world.Entry{entry("start", 1, 10*ms), entry("stopping", 1, 80*ms), entry("stop", 1, 90*ms), entry("start", 2, 100*ms)}
	tests := map[string]struct {
		since   []world.Entry
		lost    bool
		want    figures.Sample
		wantErr string
	}{
		"one after the other": {
			since: []world.Entry{entry("stopping", 2, 1100*ms), entry("stop", 2, 1150*ms), entry("start", 3, 1450*ms)},
			want: figures.Sample{GapMS: 300, DowntimeMS: 400, EndpointsDowntimeMS: 350, StartReadyMS: 150, ReadyMS: 600, Times: map[string]int64{
				figures.Asked: 50, figures.Stopping: 100, figures.Exit: 150, figures.Created: 20, figures.Start: 450, figures.Ready: 600}},
		},
		"both at once": {
			since: []world.Entry{entry("overlap", 3, 1020*ms), entry("start", 3, 1020*ms), entry("stopping", 2, 1100*ms), entry("stop", 2, 1150*ms)},
			want: figures.Sample{GapMS: -130, DowntimeMS: 400, EndpointsDowntimeMS: 350, StartReadyMS: 580, ReadyMS: 600, Times: map[string]int64{
				figures.Asked: 50, figures.Stopping: 100, figures.Exit: 150, figures.Created: 20, figures.Start: 20, figures.Ready: 600}},
		},
		"on a lost node": {
			since: []world.Entry{entry("alive", 2, 1100*ms), entry("alive", 2, 1150*ms), entry("start", 3, 1450*ms), entry("alive", 3, 1500*ms)}, lost: true,
			want: figures.Sample{GapMS: 300, DowntimeMS: 400, EndpointsDowntimeMS: 350, StartReadyMS: 150, ReadyMS: 600, Times: map[string]int64{
				figures.Asked: 50, figures.Exit: 150, figures.Created: 20, figures.Start: 450, figures.Ready: 600}},
		},
		"no start": {since: []world.Entry{entry("stopping", 2, 1100*ms), entry("stop", 2, 1150*ms)}, wantErr: "started 0 times"},
		"crashed":  {since: []world.Entry{entry("stop", 2, 1150*ms), entry("start", 3, 1450*ms), entry("start", 4, 1500*ms)}, wantErr: "started 2 times"},
		"killed":   {since: []world.Entry{entry("start", 3, 1450*ms)}, wantErr: "no end"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			old := observer.Life{figures.Created: 50 * ms, figures.Asked: 1050 * ms}
			next := observer.Life{figures.Created: 1020 * ms, figures.Ready: 1600 * ms}
			err := addJournal(append(earlier, tc.since...), 1000*ms, tc.lost, old, next)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h := &handoff{begun: 1000 * ms, service: &prober{answers: []time.Duration{1, 400*ms + 1}}, direct: &prober{answers: []time.Duration{1, 350*ms + 1}}}
			if diff := cmp.Diff(tc.want, newSample(h, old, next, 0)); diff != "" {
				t.Errorf("sample (-want +got):\n%s", diff)
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
		if n != 3_000_000 || err != nil || r.served() != 3_000_000 {
			t.Errorf("wrote %d, %v, served %d", n, err, r.served())
		}
		// The first burst is free.
		if took := time.Since(start).Seconds(); took < 2.7 || took > 3 {
			t.Errorf("3 MB at 1 MB/s took %.1f s", took)
		}
	})
}

func TestVerdict(t *testing.T) {
	tests := map[string]struct {
		row    figures.Row
		failed int
		want   string
	}{
		"good":              {row: figures.Row{System: "wrapper", Condition: "cached", N: 1}},
		"two of Kubernetes": {row: figures.Row{System: "rollingupdate", Condition: "cached", N: 1, Overlaps: 1}},
		"two of ours":       {row: figures.Row{System: "barrier", Cause: "drain", Condition: "cached", N: 1, Overlaps: 1}, want: "two ran: 1 overlaps of barrier, drain, cached"},
		"failed":            {row: figures.Row{System: "wrapper", Condition: "cached"}, failed: 1, want: "1 of 1 handoffs failed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := &run{options: options{plan: plan{allSystems, allCauses, allConditions}}, failed: tc.failed, done: 1,
				results: &figures.Gap{Rows: []figures.Row{tc.row}}}
			err := r.verdict()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("verdict %v, want %q", err, tc.want)
			}
		})
	}
}

func TestParseLocks(t *testing.T) {
	tests := map[string]struct {
		args    []string
		want    string // causes of each system
		wantErr string
	}{
		"all": {nil, "none: switchover killed deleted; termination: switchover killed deleted; lease: switchover killed deleted node-lost", ""},
		"some": {[]string{"-systems", "lease,none", "-causes=node-lost,killed"},
			"none: killed; lease: killed node-lost", ""},
		"unknown":           {[]string{"-systems", "raft"}, "", `"raft" is unknown: choose among none, termination, lease`},
		"none":              {[]string{"-n", "0"}, "", "-n is 0"},
		"report of nothing": {[]string{"-report"}, "", "-report needs -summary"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parseLocks(tc.args)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			var got []string
			for _, s := range o.systems {
				got = append(got, s.Name+": "+strings.Join(names(o.causesOf(s)), " "))
			}
			if err != nil || strings.Join(got, "; ") != tc.want {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestParseClusters(t *testing.T) {
	tests := map[string]struct {
		args    []string
		want    string // causes of each system
		wantErr string
	}{
		"all":               {nil, "statefulcluster: deleted node-lost scaled; statefulset: deleted scaled", ""},
		"some":              {[]string{"-systems", "statefulset", "-causes=node-lost,scaled"}, "statefulset: scaled", ""},
		"unknown":           {[]string{"-causes", "upgrade"}, "", `"upgrade" is unknown: choose among deleted, node-lost, scaled`},
		"none":              {[]string{"-n", "0"}, "", "-n is 0"},
		"report of nothing": {[]string{"-report"}, "", "-report needs -summary"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parseClusters(tc.args)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			var got []string
			for _, s := range o.systems {
				got = append(got, s.Name+": "+strings.Join(names(o.causesOf(s)), " "))
			}
			if err != nil || strings.Join(got, "; ") != tc.want {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestNewChange(t *testing.T) {
	const ms = time.Millisecond
	entry := func(event, pod string, at time.Duration) world.Entry {
		return world.Entry{Event: event, Pod: pod, Monotonic: int64(at)}
	}
	off := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	moved := []world.Tenure{{Pod: "db-0", Unlabelled: off}, {Pod: "db-1", Seen: off.Add(250 * ms)}}
	// Before the change, db-1 was a writer too.
	earlier := []world.Entry{entry("write", "db-1", 700*ms), entry("start", "db-0", 800*ms)}
	tests := map[string]struct {
		tenures []world.Tenure
		since   []world.Entry
		want    figures.Change
		wantErr string
	}{
		"one after the other": {
			tenures: moved,
			since:   []world.Entry{entry("write", "db-0", 1010*ms), entry("stop", "db-0", 1020*ms), entry("start", "db-1", 1200*ms), entry("write", "db-1", 1300*ms)},
			want:    figures.Change{WriteGapMS: 180, LabelGapMS: 250, DowntimeMS: 400},
		},
		"a late write of the old writer": {
			tenures: moved,
			since:   []world.Entry{entry("write", "db-1", 1200*ms), entry("write", "db-0", 1250*ms), entry("write", "db-1", 1300*ms)},
			want:    figures.Change{WriteGapMS: -50, LabelGapMS: 250, DowntimeMS: 400, Overlaps: 1},
		},
		"a process that did not end": {
			tenures: moved,
			since:   []world.Entry{entry("write", "db-0", 1010*ms), entry("overlap", "db-1", 1200*ms), entry("start", "db-1", 1200*ms)},
			want:    figures.Change{WriteGapMS: 190, LabelGapMS: 250, DowntimeMS: 400, Overlaps: 1},
		},
		"a third writer": {
			tenures: moved,
			since:   []world.Entry{entry("write", "db-2", 1100*ms), entry("write", "db-1", 1200*ms)},
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
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("change (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdictOfLocks(t *testing.T) {
	tests := map[string]struct {
		row    figures.LockRow
		failed int
		want   string
	}{
		"good":                    {row: figures.LockRow{System: "lease", N: 1}},
		"two without fencing":     {row: figures.LockRow{System: "none", N: 1, Overlaps: 1}},
		"two in spite of fencing": {row: figures.LockRow{System: "termination", Cause: "deleted", N: 1, Overlaps: 1}, want: "two writers: 1 overlaps of termination, deleted"},
		"failed":                  {row: figures.LockRow{System: "lease"}, failed: 1, want: "1 of 1 changes failed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := &locksRun{failed: tc.failed, done: 1, results: &figures.Locks{Rows: []figures.LockRow{tc.row}}}
			err := r.verdict()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("verdict %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReportLocks(t *testing.T) {
	directory := t.TempDir()
	summary, page := filepath.Join(directory, "locks.json"), filepath.Join(directory, "locks.md")
	results := &figures.Locks{Rows: []figures.LockRow{{System: "lease", Cause: "deleted", N: 1}}}
	if err := figures.Write(summary, results); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte("Before.\n<!-- bench -->\n<!-- /bench -->\nAfter.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := command(t.Context(), []string{"locks", "-report", "-summary", summary}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := results.Tables()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("Before.\n<!-- bench -->\n"+want+"<!-- /bench -->\nAfter.\n", string(got)); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}
