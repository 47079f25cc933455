package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	one, two := time.Unix(1000, 0), time.Unix(2000, 0)
	type acknowledged struct {
		n      int64
		server time.Time
		at     time.Duration
	}
	tests := map[string]struct {
		told        []acknowledged
		table       []int64
		want        comparison
		wantProblem string
	}{
		"nothing": {
			want:        comparison{},
			wantProblem: "no row was acknowledged",
		},
		"all are there": {
			told:  []acknowledged{{1, one, 0}, {2, one, 10 * time.Millisecond}},
			table: []int64{1, 2},
			want: comparison{
				Acknowledged: 2, LongestPauseMilliseconds: 10,
				Servers: []server{{Started: one, Rows: 2}},
			},
		},
		"over a handoff, whose first row is there without a word": {
			told:  []acknowledged{{1, one, 0}, {3, two, 1500 * time.Millisecond}, {4, two, 1510 * time.Millisecond}},
			table: []int64{1, 2, 3, 4},
			want: comparison{
				Acknowledged: 3, Unacknowledged: 1, LongestPauseMilliseconds: 1500,
				Servers: []server{{Started: one, Rows: 1}, {Started: two, Rows: 2, PauseMilliseconds: 1500}},
			},
		},
		"a transaction fails": {
			told:  []acknowledged{{1, one, 0}},
			table: []int64{1},
			want: comparison{
				Acknowledged: 1, Failed: 1,
				Servers: []server{{Started: one, Rows: 1}},
			},
		},
		"some are lost": {
			told:  []acknowledged{{1, one, 0}, {2, one, 0}, {3, one, 0}},
			table: []int64{2},
			want: comparison{
				Acknowledged: 3, Lost: []int64{1, 3},
				Servers: []server{{Started: one, Rows: 3}},
			},
			wantProblem: "2 of 3 acknowledged rows are not in the table, the first of them 1",
		},
		"the old server answers again": {
			told:  []acknowledged{{1, one, 0}, {2, two, 0}, {3, one, 0}},
			table: []int64{1, 2, 3},
			want: comparison{
				Acknowledged: 3, Returned: []time.Time{one},
				Servers: []server{{Started: one, Rows: 1}, {Started: two, Rows: 1}, {Started: one, Rows: 1}},
			},
			wantProblem: "two ran at once",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var r record
			for range tc.want.Failed {
				r.fail()
			}
			for _, a := range tc.told {
				r.acknowledge(a.n, a.server, time.Unix(3000, 0).Add(a.at))
			}
			got := r.compare(tc.table)
			want := tc.want
			if want.Lost == nil {
				want.Lost = []int64{}
			}
			if want.Returned == nil {
				want.Returned = []time.Time{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("comparison (-want +got):\n%s", diff)
			}
			problem := ""
			if err := got.problem(); err != nil {
				problem = err.Error()
			}
			if !strings.Contains(problem, tc.wantProblem) || (tc.wantProblem == "") != (problem == "") {
				t.Errorf("problem %q, want %q", problem, tc.wantProblem)
			}
		})
	}
}
