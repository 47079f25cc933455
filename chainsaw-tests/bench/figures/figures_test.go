package figures

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "update the golden files")

func TestDistribute(t *testing.T) {
	tests := map[string]struct {
		values []int64
		want   Distribution
	}{
		"none":     {nil, Distribution{}},
		"one":      {[]int64{7}, Distribution{7, 7, 7}},
		"two":      {[]int64{9, 1}, Distribution{1, 9, 9}},
		"odd":      {[]int64{30, 10, 20}, Distribution{20, 30, 30}},
		"negative": {[]int64{-5, -20, -10}, Distribution{-10, -5, -5}},
		// The 95th percentile of twenty values is not the maximum.
		"twenty": {[]int64{20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, Distribution{10, 19, 20}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Distribute(tc.values)); diff != "" {
				t.Errorf("distribution (-want +got):\n%s", diff)
			}
		})
	}
}

// results returns invented results in round numbers.
func results() *Results {
	signalled := func(late int64) Sample {
		return Sample{GapMS: 300 + late, DowntimeMS: 400 + late, ReadyMS: 2000 + late, Moments: map[string]int64{
			Created: 100, Warm: 1400, Asked: 1500, Stopping: 1510, Exit: 1520, Status: 1600 + late, Record: 1650 + late, Signal: 1700 + late,
			Start: 1820 + late, Ready: 2000 + late, Gone: 2500,
		}}
	}
	plain := func(gap int64) Sample {
		return Sample{GapMS: gap, DowntimeMS: gap + 200, ReadyMS: gap + 300, Moments: map[string]int64{
			Asked: 50, Stopping: 90, Exit: 100, Status: 200, Created: 210, Start: 100 + gap, Ready: gap + 300, Gone: 400,
		}}
	}
	both := plain(-500)
	both.Overlaps = 1
	r := &Results{
		Date:       time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine:    Machine{CPU: "a processor", CPUs: 2, MemoryGiB: 16, Kernel: "6.1", System: "a system", Nodes: 2},
		Versions:   map[string]string{"statefulsingleton": "abc1234", "kubernetes": "v1.36.3"},
		Systems:    []Term{{"wrapper", "ours"}, {Recreate, "a Deployment with strategy Recreate"}, {"rollingupdate", "two at once"}},
		Causes:     []Term{{"rollout", "the template is changed"}, {"delete", "the pod is deleted"}},
		Conditions: []Term{{"cached", "the image is on the node"}, {"pull", "the image is pulled"}},
		Rows: []Row{
			{System: "wrapper", Cause: "rollout", Condition: "cached", Samples: []Sample{signalled(0), signalled(100), signalled(10)}},
			{System: Recreate, Cause: "rollout", Condition: "cached", Samples: []Sample{plain(900), plain(1000)}},
			{System: "rollingupdate", Cause: "rollout", Condition: "cached", Samples: []Sample{both}},
			{System: "wrapper", Cause: "rollout", Condition: "pull", Samples: []Sample{signalled(20)}},
			{System: Recreate, Cause: "rollout", Condition: "pull", Samples: []Sample{plain(12000)}},
			{System: "wrapper", Cause: "delete", Condition: "cached", Failed: []string{"the node fell over"}, Samples: nil},
		},
	}
	r.Compute()
	return r
}

func TestCompute(t *testing.T) {
	r := results()
	got := *r.Row("wrapper", "rollout", "cached")
	got.Samples = nil
	want := Row{
		System: "wrapper", Cause: "rollout", Condition: "cached", N: 3,
		GapMS: Distribution{310, 400, 400}, DowntimeMS: Distribution{410, 500, 500}, ReadyMS: Distribution{2010, 2100, 2100},
		RatioToRecreate: 0.344,
		Legs: []Leg{
			{"cause", Asked, Distribution{1500, 1500, 1500}},
			{Asked, Exit, Distribution{20, 20, 20}},
			{Exit, Status, Distribution{90, 180, 180}},
			{Status, Record, Distribution{50, 50, 50}},
			{Record, Signal, Distribution{50, 50, 50}},
			{Signal, Start, Distribution{120, 120, 120}},
			{Start, Ready, Distribution{180, 180, 180}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if both := r.Row("rollingupdate", "rollout", "cached"); both.Overlaps != 1 || both.RatioToRecreate != 0 {
		t.Errorf("overlaps %d, ratio %g, want 1 and none", both.Overlaps, both.RatioToRecreate)
	}
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "gap.json")
	want := results()
	if err := want.Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func TestContinue(t *testing.T) {
	tests := map[string]struct {
		change    func(*Results)
		wantErr   string
		wantCodes string
	}{
		"the same":          {func(*Results) {}, "", "abc1234"},
		"other code":        {func(r *Results) { r.Versions["statefulsingleton"] = "def5678" }, "", "abc1234 and def5678"},
		"another version":   {func(r *Results) { r.Versions["kubernetes"] = "v1.37.0" }, "v1.36.3", ""},
		"another machine":   {func(r *Results) { r.Machine.CPUs = 64 }, "start a new run", ""},
		"fewer systems":     {func(r *Results) { r.Systems = r.Systems[1:] }, "start a new run", ""},
		"another condition": {func(r *Results) { r.Conditions[0].About = "the image is not" }, "start a new run", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			earlier, now := results(), results()
			now.Rows = nil
			tc.change(now)
			err := now.Continue(earlier)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || now.Rows != nil {
					t.Errorf("error %v, %d rows, want %q", err, len(now.Rows), tc.wantErr)
				}
				return
			}
			if codes := now.Versions["statefulsingleton"]; err != nil || len(now.Rows) != len(earlier.Rows) || codes != tc.wantCodes {
				t.Errorf("error %v, %d rows of %s, want %d of %s", err, len(now.Rows), codes, len(earlier.Rows), tc.wantCodes)
			}
		})
	}
}

func TestFewest(t *testing.T) {
	r := results()
	if got := r.Fewest(len(r.Rows)); got != 0 {
		t.Errorf("%d handoffs of each at least, want 0: one combination has failed each time", got)
	}
	failed := r.Row("wrapper", "delete", "cached")
	failed.Samples = append(failed.Samples, Sample{})
	if got := r.Fewest(len(r.Rows)); got != 1 {
		t.Errorf("%d handoffs of each at least, want 1", got)
	}
	if got := r.Fewest(len(r.Rows) + 1); got != 0 {
		t.Errorf("%d handoffs of each at least, want 0: one combination was never measured", got)
	}
}

func TestGolden(t *testing.T) {
	r := results()
	tests := map[string]func() (string, error){
		"summary.md": func() (string, error) { return r.Summary("docs/benchmarks") },
		"page.md":    r.Page,
		"gap.svg":    r.Picture,
	}
	for name, make := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := make()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s differs, update it with go test -update (-want +got):\n%s", file, diff)
			}
		})
	}
}

func TestPictureNeedsBoth(t *testing.T) {
	r := results()
	r.Rows = r.Rows[:1]
	if _, err := r.Picture(); err == nil {
		t.Error("no error, want an error: there is no row of Recreate")
	}
}

func TestReplace(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    string
		wantErr bool
	}{
		"empty":      {"a\n<!-- bench -->\n<!-- /bench -->\nb\n", "a\n<!-- bench -->\nnew\n<!-- /bench -->\nb\n", false},
		"full":       {"a\n<!-- bench -->\nold\n<!-- /bench -->\nb\n", "a\n<!-- bench -->\nnew\n<!-- /bench -->\nb\n", false},
		"no markers": {"a\nb\n", "", true},
		"no end":     {"a\n<!-- bench -->\nb\n", "", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Replace(tc.text, "new\n")
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
