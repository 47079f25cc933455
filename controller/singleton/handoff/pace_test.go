package handoff_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// startedAgo returns the pod with a sidecar that started this long ago by the clock of its node.
func startedAgo(p *PodWrapper, d time.Duration) *PodWrapper {
	return p.Report(corev1.ContainerStatus{Name: v1.SidecarName, Started: new(true), State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-d))},
	}})
}

// A rollout waits until the kubelet has finished its work on a standby that has just become warm. Then db-1 is asked to
// stop.
func TestDecideWaitsForQuietStandby(t *testing.T) {
	wrapper := func() *PodWrapper { return warm("db-2") }
	written := func(p *PodWrapper, ago ...time.Duration) *PodWrapper {
		for _, d := range ago {
			p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Time: new(metav1.NewTime(now.Add(-d)))})
		}
		return p
	}
	started := func(p *PodWrapper) *PodWrapper { return startedAgo(p, 10*time.Second) }
	for name, tc := range map[string]struct {
		standby *PodWrapper
		// wantWait is the remaining time to wait. It is 0 if db-1 is asked to stop at once.
		wantWait time.Duration
		chosen   bool
	}{
		"the standby was just written":                    {written(started(wrapper()), 0), 3 * time.Second, false},
		"the standby was written a second ago":            {written(started(wrapper()), time.Hour, time.Second, time.Minute), 2 * time.Second, false},
		"the standby was written before the quiet period": {written(started(wrapper()), 3*time.Second), 0, false},
		"the standby waits at the barrier":                {written(started(MakePod("db-2").Barrier().Injected().Warm()), time.Second), 2 * time.Second, true},
		"a fenced standby was just written":               {written(started(wrapper().Fenced()), 0), 0, true},
		"the standby is written repeatedly":               {written(startedAgo(wrapper(), 14*time.Second), 0), time.Second, false},
		"the standby started long ago":                    {written(startedAgo(wrapper(), 15*time.Second), 0), 0, false},
		"the clock of the standby's node is ahead":        {written(startedAgo(wrapper(), -time.Minute), 0), 0, false},
		"one container of the standby started later": {
			written(startedAgo(wrapper(), time.Minute).State("app", startedAgo(wrapper(), 2*time.Second).Status.InitContainerStatuses[0].State), 0), 3 * time.Second, false,
		},
		"the time of the last write is unknown": {wrapper(), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(holding(), tc.standby.Revision(2)).Holder("db-1")
			s.Lease = MakeLease().Silent(0)
			plan := handoff.Decide(s.Snapshot, now)
			wantSteps := []handoff.Step{protectStandby("db-2")}
			if tc.chosen {
				wantSteps[0] = choose("db-2")
			}
			wantRequeue := tc.wantWait
			if tc.wantWait == 0 {
				wantSteps, wantRequeue = append(wantSteps, handoff.Retire{ReplicaSet: "db-v1"}), 5*time.Second
			}
			if diff := cmp.Diff(wantSteps, plan.Steps); diff != "" || plan.Outcome != handoff.Retiring {
				t.Errorf("outcome %s, steps (-want +got):\n%s", plan.Outcome, diff)
			}
			if plan.Requeue != wantRequeue {
				t.Errorf("requeue after %s, want %s", plan.Requeue, wantRequeue)
			}
		})
	}
}

// An older pod has a signal with an epoch that is not recorded. The epoch is recorded first.
func TestDecideReportsEpoch(t *testing.T) {
	ended := MakePod("db-0").Injected().Signalled(9).Deleting().Ended()
	s := MakeSnapshot(ended, holding(), MakePod("db-2").Injected().Revision(2).On(node1).Created(now)).Holder("db-1")
	s.Singleton.Status.Conditions = handoff.Decide(s.Snapshot, now).Status.Conditions // the status already has the conditions
	plan := handoff.Decide(s.Snapshot, now)
	if !slices.Contains(plan.Steps, handoff.Step(handoff.Record{})) || plan.Status.Epoch != 9 {
		t.Errorf("steps %v, epoch %d, want a record of epoch 9", plan.Steps, plan.Status.Epoch)
	}
}

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

// If no status reports the handoff yet, the handoff began when the new pod was created or when the holder was asked to
// stop.
func TestDecideDatesHandoff(t *testing.T) {
	const long = time.Minute
	for name, tc := range map[string]struct{ created, asked, wantAgo time.Duration }{
		"the handoff just began":            {0, 0, 0},
		"no status reports the handoff yet": {20 * time.Second, 2 * time.Second, 20 * time.Second},
		"the new pod is old":                {long, 0, 0},
		"the deletion of the holder was requested after the new pod was created":  {long, 2 * time.Second, 2 * time.Second},
		"the deletion of the holder was requested before the new pod was created": {0, 2 * time.Second, 2 * time.Second},
		"the deletion of the holder was requested long ago":                       {long, long, 0},
	} {
		t.Run(name, func(t *testing.T) {
			holder := holding().With(func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(now.Add(30*time.Second-tc.asked))), new(int64(30))
			})
			s := MakeSnapshot(holder, MakePod("db-2").Injected().Revision(2).Warm().Created(now.Add(-tc.created))).Holder("db-1")
			plan := handoff.Decide(s.Snapshot, now)
			if ago := now.Sub(plan.Status.TransitionTimestamp.Time); ago != tc.wantAgo {
				t.Errorf("it began %s ago, want %s", ago, tc.wantAgo)
			}
		})
	}
}
