package handoff_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// A singleton that is deleted leaves a pod that runs to another one that picks it, too.
func TestFarewellLeavesRunnersToOthers(t *testing.T) {
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		// goes: the other singleton is being deleted, too.
		goes     bool
		wantKeep []handoff.PodRef
	}{
		"nobody else":             {snapshot: MakeSnapshot(holder()).Holder("db-1")},
		"another picks it":        {snapshot: MakeSnapshot(holder()).Holder("db-1").Other("other", "db"), wantKeep: []handoff.PodRef{ref("db-1")}},
		"another that goes":       {snapshot: MakeSnapshot(holder()).Holder("db-1").Other("other", "db"), goes: true},
		"another picks others":    {snapshot: MakeSnapshot(holder()).Holder("db-1").Other("other", "cache")},
		"it runs and is not held": {snapshot: MakeSnapshot(MakePod("db-1").Running().Protected()).Other("other", "db"), wantKeep: []handoff.PodRef{ref("db-1")}},
		"a signal may be late":    {snapshot: MakeSnapshot(MakePod("db-1").Injected().Warm().Protected()).Other("other", "db")},
		"it is dead":              {snapshot: MakeSnapshot(holder().Ended()).Holder("db-1").Other("other", "db")},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.goes {
				tc.snapshot.Others[0].DeletionTimestamp = new(metav1.NewTime(now))
			}
			keep, message := handoff.Farewell(tc.snapshot.Snapshot, now)
			if diff := cmp.Diff(tc.wantKeep, keep); diff != "" || message != "" {
				t.Errorf("it waits for %q, and keeps (-want +got):\n%s", message, diff)
			}
		})
	}
}

// Of the pods of a singleton that is gone only those may go that are dead for good, and
// that no other one has to let go of.
func TestOrphans(t *testing.T) {
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     []string
	}{
		"ended":                        {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()), []string{"db-1"}},
		"never signalled":              {MakeSnapshot(MakePod("db-1").Injected().Warm().Protected().Deleting()), []string{"db-1"}},
		"runs":                         {MakeSnapshot(MakePod("db-1").Running().Protected()), nil},
		"stops":                        {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting()), nil},
		"its barrier may be opened":    {MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm().ChosenBy("gone").Deleting()), nil},
		"ended, and another picks it":  {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()).Other("other", "db"), nil},
		"ended, and another is beside": {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()).Other("other", "cache"), []string{"db-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, pod := range handoff.Orphans(tc.snapshot.Snapshot) {
				got = append(got, pod.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("orphans (-want +got):\n%s", diff)
			}
		})
	}
}
