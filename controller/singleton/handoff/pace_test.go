package handoff_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
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
	wrapper := func() *PodWrapper { return MakePod("db-2").Injected().Warm() }
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
	}{
		"the standby was just written":                    {written(started(wrapper()), 0), 3 * time.Second},
		"the standby was written a second ago":            {written(started(wrapper()), time.Hour, time.Second, time.Minute), 2 * time.Second},
		"the standby was written before the quiet period": {written(started(wrapper()), 3*time.Second), 0},
		"the standby waits at the barrier":                {written(started(MakePod("db-2").Barrier().Injected().Warm()), time.Second), 2 * time.Second},
		"the standby is written repeatedly":               {written(startedAgo(wrapper(), 14*time.Second), 0), time.Second},
		"the standby started long ago":                    {written(startedAgo(wrapper(), 15*time.Second), 0), 0},
		"the clock of the standby's node is ahead":        {written(startedAgo(wrapper(), -time.Minute), 0), 0},
		"one container of the standby started later": {
			written(startedAgo(wrapper(), time.Minute).State("app", startedAgo(wrapper(), 2*time.Second).Status.InitContainerStatuses[0].State), 0), 3 * time.Second,
		},
		"the time of the last write is unknown": {wrapper(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(MakePod("db-1").Injected().Holding().Revision(1), tc.standby.Revision(2)).Holder("db-1")
			plan := handoff.Decide(s.Snapshot, now)
			wantSteps := []handoff.Step{protectStandby("db-2")}
			if name == "the standby waits at the barrier" {
				wantSteps[0] = choose("db-2")
			}
			wantRequeue := tc.wantWait
			if tc.wantWait == 0 {
				wantSteps, wantRequeue = append(wantSteps, handoff.Retire{ReplicaSet: "db-v1"}), time.Second
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

// The status write can wait while a handoff takes the expected time. The status is written at once if a person must
// know about it or if the record changes.
func TestDecideDelaysExpectedStatus(t *testing.T) {
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding().Revision(1) }
	standby := func(age time.Duration) *PodWrapper {
		return MakePod("db-2").Injected().Revision(2).On(node1).Created(now.Add(-age))
	}
	starting := func(ago time.Duration) *SnapshotWrapper {
		given := signal.Signal{UID: "db-1-uid", Epoch: 7, Time: now.Add(-ago)}
		s := MakeSnapshot(MakePod("db-1").Injected().Warm().Annotation(signal.Annotation, given.String()).Protected()).Holder("db-1")
		s.Singleton.Status.LastTransition.Ready, s.Singleton.Status.LastTransition.Signalled = nil, nil
		s.Singleton.Status.LastTransition.GapMilliseconds = nil
		return s
	}
	started := func() *SnapshotWrapper {
		s := starting(time.Second)
		s.Pods = []corev1.Pod{*MakePod("db-1").Barrier().Injected().Signalled(7).Running().Obj()}
		return s
	}
	retired := MakeSnapshot(holder(), standby(time.Hour).Warm().Protected()).Holder("db-1").ReplicaSet("db-v1", 0)
	copies := MakePod("db-3").Barrier().Injected().Revision(2).CopiedFrom("db-2").Created(now)
	for name, tc := range map[string]struct {
		snapshot          *SnapshotWrapper
		wantOutcome       handoff.Outcome
		wantStatusCanWait bool
		wantRequeue       time.Duration
	}{
		"the standby is new":                    {MakeSnapshot(holder(), standby(time.Second)).Holder("db-1"), handoff.StandbyNotWarm, true, 4 * time.Second},
		"the standby takes longer than typical": {MakeSnapshot(holder(), standby(5*time.Second)).Holder("db-1"), handoff.StandbyNotWarm, false, 5 * time.Second},
		"the standby can never become warm": {
			MakeSnapshot(holder(), MakePod("db-2").Barrier().Injected().Revision(2).Created(now), copies).Holder("db-1"), handoff.StandbyNotWarm, false, 5 * time.Second,
		},
		"the ReplicaSet is just being scaled to zero":                         {MakeSnapshot(holder(), standby(time.Hour).Warm()).Holder("db-1"), handoff.Retiring, true, time.Second},
		"the ReplicaSet is scaled to zero, and the holder is not terminating": {retired, handoff.Retiring, false, 5 * time.Second},
		"the holder is terminating":                                           {MakeSnapshot(holder().AskedToStop(time.Second), standby(time.Hour).Warm()).Holder("db-1"), handoff.HolderStopping, true, 3 * time.Second},
		"the holder takes longer to stop than typical":                        {MakeSnapshot(holder().AskedToStop(4*time.Second), standby(time.Hour).Warm()).Holder("db-1"), handoff.HolderStopping, false, 5 * time.Second},
		"the holder is terminating on a lost node": {
			MakeSnapshot(holder().AskedToStop(time.Second)).Holder("db-1").Node("node-1", corev1.ConditionUnknown), handoff.HolderStopping, false, 5 * time.Second,
		},
		"the holder is Failed, and nothing proves the termination": {
			MakeSnapshot(rejected(holder().AskedToStop(time.Second))).Holder("db-1"), handoff.HolderStopping, false, 5 * time.Second,
		},
		"the holder was just released":                  {starting(time.Second), handoff.Starting, true, 4 * time.Second},
		"the holder takes longer to start than typical": {starting(5 * time.Second), handoff.Starting, false, 5 * time.Second},
		"the holder has started and is not Ready yet":   {started(), handoff.Starting, false, 5 * time.Second},
		"the record changes":                            {MakeSnapshot(standby(time.Second).Warm()), handoff.Released, false, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			// The status already has the conditions about drains.
			tc.snapshot.Singleton.Status.Conditions = handoff.Decide(tc.snapshot.Snapshot, now).Status.Conditions
			plan := handoff.Decide(tc.snapshot.Snapshot, now)
			if plan.Outcome != tc.wantOutcome || plan.StatusCanWait != tc.wantStatusCanWait || plan.Requeue != tc.wantRequeue {
				t.Errorf("outcome %s, status can wait %t, requeue after %s, want %s, %t, %s", plan.Outcome, plan.StatusCanWait, plan.Requeue, tc.wantOutcome, tc.wantStatusCanWait, tc.wantRequeue)
			}
		})
	}
}

// An older pod has a signal with an epoch that is not recorded. The epoch is recorded first.
func TestDecideReportsEpoch(t *testing.T) {
	ended := MakePod("db-0").Injected().Signalled(9).Deleting().Ended()
	s := MakeSnapshot(ended, MakePod("db-1").Injected().Holding().Revision(1), MakePod("db-2").Injected().Revision(2).On(node1).Created(now)).Holder("db-1")
	s.Singleton.Status.Conditions = handoff.Decide(s.Snapshot, now).Status.Conditions // the status already has the conditions
	plan := handoff.Decide(s.Snapshot, now)
	if !slices.Contains(plan.Steps, handoff.Step(handoff.Record{})) || plan.StatusCanWait || plan.Status.Epoch != 9 {
		t.Errorf("steps %v, status can wait %t, epoch %d, want a record of epoch 9", plan.Steps, plan.StatusCanWait, plan.Status.Epoch)
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
			holder := MakePod("db-1").Injected().Holding().Revision(1).AskedToStop(tc.asked)
			s := MakeSnapshot(holder, MakePod("db-2").Injected().Revision(2).Warm().Created(now.Add(-tc.created))).Holder("db-1")
			plan := handoff.Decide(s.Snapshot, now)
			if ago := now.Sub(plan.Status.TransitionTimestamp.Time); ago != tc.wantAgo {
				t.Errorf("it began %s ago, want %s", ago, tc.wantAgo)
			}
		})
	}
}
