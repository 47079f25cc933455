package handoff_test

import (
	"testing"

	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// An administrator may raise the epoch, for example after a restore. Decide continues from the raised epoch.
func TestDecideContinuesFromRaisedEpoch(t *testing.T) {
	const raised = 1041
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     int64
	}{
		"there was no holder":       {MakeSnapshot(next(node2)), raised + 1},
		"a pod runs already":        {MakeSnapshot(MakePod("db-1").Revision(1).Running()), raised + 1},
		"a pod is the holder":       {MakeSnapshot(holding()).Holder("db-1"), raised},
		"the holder has terminated": {MakeSnapshot(holding().Deleting().Ended(), next(node2)).Holder("db-1"), raised + 1},
	} {
		t.Run(name, func(t *testing.T) {
			tc.snapshot.Singleton.Status.Epoch = raised
			if got := handoff.Decide(tc.snapshot.Snapshot, now).Status.Epoch; got != tc.want {
				t.Errorf("epoch %d, want %d", got, tc.want)
			}
		})
	}
}
