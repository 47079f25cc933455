package handoff_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// While a singleton is deleted, a running pod keeps its finalizer if another singleton selects the pod.
func TestDeletionKeepsPodsOfOthers(t *testing.T) {
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		// goes is true if the other singleton is also being deleted.
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
			keep, message := handoff.KeptWhileDeleting(tc.snapshot.Snapshot, now)
			if diff := cmp.Diff(tc.wantKeep, keep); diff != "" || message != "" {
				t.Errorf("it waits for %q, and keeps (-want +got):\n%s", message, diff)
			}
		})
	}
}

// strip returns the step that removes the finalizer of the pod in the version that was read.
func strip(name string) handoff.RemoveFinalizer {
	return handoff.RemoveFinalizer{Pod: ref(name), Version: version}
}

// A deleted singleton first removes the finalizers of its pods, each in the version that was read. The singleton is
// removed only after no pod is left to wait for.
func TestFinalize(t *testing.T) {
	finish := handoff.Finish{Version: version}
	unchoose := handoff.RemoveFinalizer{Pod: ref("db-2"), Version: version, Unchoose: true}
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	for name, tc := range map[string]struct {
		snapshot    *SnapshotWrapper
		want        []handoff.Step
		wantMessage string
	}{
		"no pods":          {snapshot: MakeSnapshot(), want: []handoff.Step{finish}},
		"a holder":         {snapshot: MakeSnapshot(holder()).Holder("db-1"), want: []handoff.Step{strip("db-1"), finish}},
		"a standby":        {snapshot: MakeSnapshot(MakePod("db-1").Injected().Warm()), want: []handoff.Step{finish}},
		"an protected one": {snapshot: MakeSnapshot(MakePod("db-1").Injected().Warm().Protected()), want: []handoff.Step{strip("db-1"), finish}},
		"ended":            {snapshot: MakeSnapshot(holder().Deleting().Ended()).Holder("db-1"), want: []handoff.Step{strip("db-1"), finish}},
		"one stops": {
			snapshot: MakeSnapshot(holder().Deleting(), MakePod("db-2").Injected().Warm().Protected()).Holder("db-1"), want: []handoff.Step{strip("db-2")},
			wantMessage: "the StatefulSingleton is removed once pod db-1 has terminated: the pod is terminating",
		},
		"the pod garbage collector failed it, and nobody deleted it": {
			snapshot:    MakeSnapshot(holder().FailedByGC("DeletionByPodGC")).Holder("db-1"),
			wantMessage: "the pod is terminating, but it is Failed without a report that every held container has ended",
		},
		"the holder is lost": {snapshot: MakeSnapshot().Holder("db-1"), wantMessage: "the StatefulSingleton is removed once there is a proof that its holder has terminated"},
		"the holder is lost and attested": {
			snapshot: MakeSnapshot().Holder("db-1").Attest("db-1-uid"), want: []handoff.Step{finish},
		},
		"chosen, and not recorded": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().ChosenBy("stfs-uid").Warm()), want: []handoff.Step{unchoose, finish},
		},
		"chosen, not recorded, without a finalizer": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().Annotation(v1.ChosenByAnnotation, "stfs-uid").Warm()), want: []handoff.Step{unchoose, finish},
		},
		"chosen and recorded": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().ChosenBy("stfs-uid").Warm()).Chosen("db-2"), want: []handoff.Step{strip("db-2"), finish},
		},
		"chosen by another": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().ChosenBy("gone").Warm()), want: []handoff.Step{strip("db-2"), finish},
		},
	} {
		t.Run(name, func(t *testing.T) {
			steps, message := handoff.Finalize(tc.snapshot.Snapshot, now)
			if diff := cmp.Diff(tc.want, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if !strings.Contains(message, tc.wantMessage) || (message == "") != (tc.wantMessage == "") {
				t.Errorf("message %q, want %q in it", message, tc.wantMessage)
			}
		})
	}
}

// Pods of a removed singleton lose their finalizer only with a proof of termination, and only if no other singleton
// selects them.
func TestOrphans(t *testing.T) {
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     []string
	}{
		"ended":                               {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()), []string{"db-1"}},
		"never signalled":                     {MakeSnapshot(MakePod("db-1").Injected().Warm().Protected().Deleting()), []string{"db-1"}},
		"failed by the pod garbage collector": {MakeSnapshot(MakePod("db-1").Running().Protected().FailedByGC("DeletionByPodGC")), nil},
		"ended and let go already":            {MakeSnapshot(MakePod("db-1").Running().Deleting().Ended()), nil},
		"runs":                                {MakeSnapshot(MakePod("db-1").Running().Protected()), nil},
		"stops":                               {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting()), nil},
		"its barrier may be opened":           {MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm().ChosenBy("gone").Deleting()), nil},
		"ended, and another picks it":         {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()).Other("other", "db"), nil},
		"ended, and another is beside":        {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()).Other("other", "cache"), []string{"db-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []handoff.Step
			for _, name := range tc.want {
				want = append(want, handoff.ConfirmGone{}, strip(name))
			}
			if diff := cmp.Diff(want, handoff.Orphans(tc.snapshot.Snapshot)); diff != "" {
				t.Errorf("orphans (-want +got):\n%s", diff)
			}
		})
	}
}
