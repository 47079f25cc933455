package handoff_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// strip returns the step that removes the finalizer of the pod in the version that was read.
func strip(name string) handoff.RemoveFinalizer {
	return handoff.RemoveFinalizer{Pod: ref(name), Version: version}
}

// A deleted singleton first removes the finalizers of its pods, each in the version that was read. The singleton is
// removed only after no pod is left to wait for. A running pod keeps its finalizer if another singleton selects the pod.
func TestFinalize(t *testing.T) {
	finish := handoff.Finish{Version: version}
	unchoose := handoff.RemoveFinalizer{Pod: ref("db-2"), Version: version, Unchoose: true}
	stripped, kept := []handoff.Step{strip("db-1"), finish}, []handoff.Step{finish}
	held := func() *SnapshotWrapper { return MakeSnapshot(holder()).Holder("db-1") }
	bothDeleted := held().Other("other", "db")
	bothDeleted.Others[0].DeletionTimestamp = new(metav1.NewTime(now))
	for name, tc := range map[string]struct {
		snapshot    *SnapshotWrapper
		want        []handoff.Step
		wantMessage string
	}{
		"no pods":                              {snapshot: MakeSnapshot(), want: []handoff.Step{finish}},
		"a holder":                             {snapshot: held(), want: stripped},
		"a standby":                            {snapshot: MakeSnapshot(warm("db-1")), want: []handoff.Step{finish}},
		"a standby with the finalizer":         {snapshot: MakeSnapshot(warm("db-1").Protected()), want: stripped},
		"the holder has terminated":            {snapshot: MakeSnapshot(holder().Deleting().Ended()).Holder("db-1"), want: stripped},
		"another singleton selects the holder": {snapshot: held().Other("other", "db"), want: kept},
		"another singleton selects the holder, and is being deleted":     {snapshot: bothDeleted, want: stripped},
		"another singleton selects other pods":                           {snapshot: held().Other("other", "cache"), want: stripped},
		"another singleton selects a pod that runs and is not held":      {snapshot: MakeSnapshot(MakePod("db-1").Running().Protected()).Other("other", "db"), want: kept},
		"another singleton selects a pod that a late signal may release": {snapshot: MakeSnapshot(warm("db-1").Protected()).Other("other", "db"), want: stripped},
		"another singleton selects the holder, which has terminated":     {snapshot: MakeSnapshot(holder().Ended()).Holder("db-1").Other("other", "db"), want: stripped},
		"the holder is terminating": {
			snapshot: MakeSnapshot(holder().Deleting(), warm("db-2").Protected()).Holder("db-1"), want: []handoff.Step{strip("db-2")},
			wantMessage: "the StatefulSingleton is removed once pod db-1 has terminated: the pod is terminating",
		},
		"the pod garbage collector set phase Failed, and the pod is not terminating": {
			snapshot:    MakeSnapshot(holder().FailedByGC("DeletionByPodGC")).Holder("db-1"),
			wantMessage: "the pod is terminating, but it is Failed without a report that every held container has ended",
		},
		"the holder is lost":              {snapshot: MakeSnapshot().Holder("db-1"), wantMessage: "the StatefulSingleton is removed once there is a proof that its holder has terminated"},
		"the holder is lost and attested": {snapshot: MakeSnapshot().Holder("db-1").Attest("db-1-uid"), want: []handoff.Step{finish}},
		"a standby with chosen-by is not recorded": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().ChosenBy("stfs-uid").Warm()), want: []handoff.Step{unchoose, finish},
		},
		"a standby with chosen-by and without the finalizer is not recorded": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().Annotation(v1.ChosenByAnnotation, "stfs-uid").Warm()), want: []handoff.Step{unchoose, finish},
		},
		"a pod with chosen-by is recorded": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().ChosenBy("stfs-uid").Warm()).Chosen("db-2"), want: []handoff.Step{strip("db-2"), finish},
		},
		"another singleton chose the standby": {
			snapshot: MakeSnapshot(MakePod("db-2").Barrier().Injected().ChosenBy("gone").Warm()), want: []handoff.Step{strip("db-2"), finish},
		},
	} {
		t.Run(name, func(t *testing.T) {
			steps, _, message := handoff.Finalize(tc.snapshot.Snapshot, now)
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
		"the holder has terminated":                            {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()), []string{"db-1"}},
		"never signalled":                                      {MakeSnapshot(warm("db-1").Protected().Deleting()), []string{"db-1"}},
		"failed by the pod garbage collector":                  {MakeSnapshot(MakePod("db-1").Running().Protected().FailedByGC("DeletionByPodGC")), nil},
		"terminated, without the finalizer":                    {MakeSnapshot(MakePod("db-1").Running().Deleting().Ended()), nil},
		"running":                                              {MakeSnapshot(MakePod("db-1").Running().Protected()), nil},
		"terminating":                                          {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting()), nil},
		"its barrier may be opened":                            {MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm().ChosenBy("gone").Deleting()), nil},
		"terminated, and another singleton selects the pod":    {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()).Other("other", "db"), nil},
		"terminated, and another singleton selects other pods": {MakeSnapshot(MakePod("db-1").Running().Protected().Deleting().Ended()).Other("other", "cache"), []string{"db-1"}},
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
