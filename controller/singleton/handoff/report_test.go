package handoff_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func TestDecideReportsConditions(t *testing.T) {
	standby := warm("db-2")
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		// wantTrue is the only condition that is True. wantReason is the reason of all three conditions.
		wantTrue, wantReason string
	}{
		"no pod is expected":  {MakeSnapshot(), v1.ConditionReady, "NoPods"},
		"the holder is Ready": {MakeSnapshot(holder()).Holder("db-1"), v1.ConditionReady, "HolderReady"},
		"the holder is unready": {
			MakeSnapshot(holder().Condition(corev1.PodReady, corev1.ConditionFalse, "", "")).Holder("db-1"), "", "HolderNotReady",
		},
		"the holder is terminating":        {MakeSnapshot(holder().Deleting()).Holder("db-1"), v1.ConditionReconciling, "HolderStopping"},
		"a standby is released":            {MakeSnapshot(standby), v1.ConditionReconciling, "Released"},
		"the holder is lost":               {MakeSnapshot(standby).Holder("db-1"), v1.ConditionStalled, "HolderLost"},
		"the handoff takes too long":       {MakeSnapshot(holder().Deleting()).Holder("db-1").Since(v1.PhaseTransitioning, 300*time.Second), v1.ConditionStalled, "HolderStopping"},
		"the handoff still takes too long": {MakeSnapshot(MakePod("db-1").Injected()).Since(v1.PhaseFailed, time.Hour), v1.ConditionStalled, "WarmingUp"},
	} {
		t.Run(name, func(t *testing.T) {
			status := handoff.Decide(tc.snapshot.Snapshot, now).Status
			var want []metav1.Condition
			for _, kind := range []string{v1.ConditionReady, v1.ConditionReconciling, v1.ConditionStalled} {
				c := metav1.Condition{
					Type: kind, Status: metav1.ConditionFalse, Reason: tc.wantReason, Message: status.Message,
					ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(now),
				}
				if kind == tc.wantTrue {
					c.Status = metav1.ConditionTrue
				}
				want = append(want, c)
			}
			got := slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool {
				return c.Type == v1.ConditionEvictionBlocked || c.Type == v1.ConditionWarm
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if status.ObservedGeneration != 3 {
				t.Errorf("observedGeneration %d, want 3", status.ObservedGeneration)
			}
		})
	}
}

// The node and the barrier are those of the recorded holder. They stay if its object does not exist.
func TestDecideReportsWhereTheHolderRuns(t *testing.T) {
	pod := func() *PodWrapper { return MakePod("db-1").Barrier().Injected().Holding() }
	for name, tc := range map[string]struct {
		snapshot                *SnapshotWrapper
		wantNode, wantConfigMap string
	}{
		"a holder with a barrier":  {MakeSnapshot(pod()).Holder("db-1"), node1, barrierOf("db-1")},
		"a holder without barrier": {MakeSnapshot(holder()).Holder("db-1"), node1, ""},
		"the holder is lost":       {MakeSnapshot().Holder("db-1"), "before", "before"},
		"the holder has ended":     {MakeSnapshot(pod().Deleting().Ended()).Holder("db-1"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.snapshot.Singleton.Status.ActiveNode, tc.snapshot.Singleton.Status.ActiveBarrier = "before", "before"
			status := handoff.Decide(tc.snapshot.Snapshot, now).Status
			if status.ActiveNode != tc.wantNode || status.ActiveBarrier != tc.wantConfigMap {
				t.Errorf("node %q, barrier %q, want %q and %q", status.ActiveNode, status.ActiveBarrier, tc.wantNode, tc.wantConfigMap)
			}
		})
	}
}

func TestDecideKeepsOtherConditions(t *testing.T) {
	s := MakeSnapshot(holder()).Holder("db-1")
	before := metav1.NewTime(now.Add(-time.Hour))
	s.Singleton.Status.Conditions = []metav1.Condition{
		{Type: v1.ConditionPolicyInstalled, Status: metav1.ConditionTrue, LastTransitionTime: before},
		{Type: v1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: before},
	}
	got := handoff.Decide(s.Snapshot, now).Status.Conditions
	want := s.Singleton.Status.Conditions
	if diff := cmp.Diff(want, got[:2], cmpopts.IgnoreFields(metav1.Condition{}, "Reason", "Message", "ObservedGeneration")); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

// If nothing proves that a stopping holder has terminated, the phase becomes Failed after maxTransitionTime. The
// standby is never released.
func TestDecideBoundsPatience(t *testing.T) {
	for name, tc := range map[string]struct {
		phase       v1.Phase
		since       time.Duration
		wantPhase   v1.Phase
		wantBegan   time.Time
		wantRequeue time.Duration
	}{
		"the handoff has just begun":     {v1.PhaseRunning, time.Hour, v1.PhaseTransitioning, now, 5 * time.Second},
		"the handoff began a while ago":  {v1.PhaseTransitioning, time.Minute, v1.PhaseTransitioning, now.Add(-time.Minute), 5 * time.Second},
		"two seconds are left":           {v1.PhaseTransitioning, 298 * time.Second, v1.PhaseTransitioning, now.Add(-298 * time.Second), 2 * time.Second},
		"maxTransitionTime ends":         {v1.PhaseTransitioning, 300 * time.Second, v1.PhaseFailed, now.Add(-300 * time.Second), 5 * time.Second},
		"maxTransitionTime ended before": {v1.PhaseFailed, time.Hour, v1.PhaseFailed, now.Add(-time.Hour), 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(holder().Deleting(), warm("db-2"))
			plan := handoff.Decide(s.Holder("db-1").Since(tc.phase, tc.since).Snapshot, now)
			if plan.Status.ActivePod != "db-1" || len(plan.Steps) > 0 {
				t.Errorf("holder %s, steps %v, want db-1 and none", plan.Status.ActivePod, plan.Steps)
			}
			if plan.Status.Phase != tc.wantPhase || plan.Requeue != tc.wantRequeue {
				t.Errorf("phase %s, requeue after %s, want %s after %s", plan.Status.Phase, plan.Requeue, tc.wantPhase, tc.wantRequeue)
			}
			if got := plan.Status.TransitionTimestamp; !got.Time.Equal(tc.wantBegan) {
				t.Errorf("the handoff began at %s, want %s", got, tc.wantBegan)
			}
			const late = "the handoff takes longer than maxTransitionTime (5m0s): pod db-1 is terminating"
			if failed := tc.wantPhase == v1.PhaseFailed; strings.HasPrefix(plan.Status.Message, late) != failed {
				t.Errorf("message %q", plan.Status.Message)
			}
		})
	}
}

func TestDecideRequeue(t *testing.T) {
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     time.Duration
	}{
		"settled": {MakeSnapshot(holder()).Holder("db-1"), 5 * time.Minute},
		"a spare may become warm soon": {
			MakeSnapshot(holder(), MakePod("db-2").Injected().Created(now.Add(-time.Second))).Holder("db-1"), 4 * time.Second,
		},
		"a spare takes longer than typical to become warm": {MakeSnapshot(holder(), MakePod("db-2").Injected()).Holder("db-1"), 5 * time.Minute},
		"the holder starts on a lost node, and is nudged before a spare typically becomes warm": {
			MakeSnapshot(MakePod("db-1").Injected().Protected().Warm().SignalledAt(7, now.Add(-time.Second)), MakePod("db-2").Injected().Created(now.Add(-500*time.Millisecond))).
				Chosen("db-1").Node(node1, corev1.ConditionUnknown), 4 * time.Second,
		},
		"no pods": {MakeSnapshot(), 5 * time.Minute},
		"handoff": {MakeSnapshot(MakePod("db-1").Injected()), 5 * time.Second},
		"the record has no holder, and the next decision follows at once": {
			MakeSnapshot(holder().Deleting().Ended()).Holder("db-1"), time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := handoff.Decide(tc.snapshot.Snapshot, now).Requeue; got != tc.want {
				t.Errorf("requeue after %s, want %s", got, tc.want)
			}
		})
	}
}

// The cause of a transition says why the terminated holder ended.
func TestDecideNamesTheCause(t *testing.T) {
	dead := func() *PodWrapper { return holder().Deleting().Ended() }
	inSet := func(revision string) *PodWrapper {
		return dead().OwnedBy("StatefulSet", "db").Label("controller-revision-hash", revision)
	}
	orphan := func(kind string) *SnapshotWrapper {
		s := MakeSnapshot(dead().OwnedBy(kind, "db-v1"))
		clear(s.ReplicaSets)
		return s
	}
	completed := holder().Ended()
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     v1.Cause
	}{
		"bare pod deleted":                        {MakeSnapshot(dead()), v1.CauseDeletion},
		"the holder is removed":                   {MakeSnapshot().Attest("db-1-uid"), v1.CauseDeletion},
		"the pod completed":                       {MakeSnapshot(completed), v1.CauseCompletion},
		"evicted":                                 {MakeSnapshot(dead().Revision(1).Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "")), v1.CauseEviction},
		"a pod of a Deployment is deleted":        {MakeSnapshot(dead().Revision(1)), v1.CauseDeletion},
		"a newer revision":                        {MakeSnapshot(dead().Revision(1)).ReplicaSet("db-v1", 0), v1.CauseRollout},
		"Deployment scaled to zero":               {MakeSnapshot(dead().Revision(1)).ReplicaSet("db-v1", 0).Deployment(0), v1.CauseScaleDown},
		"ReplicaSet scaled to zero":               {MakeSnapshot(dead().Revision(1)).BareReplicaSet("db-v1", 0), v1.CauseScaleDown},
		"a pod of a bare ReplicaSet is deleted":   {MakeSnapshot(dead().Revision(1)).BareReplicaSet("db-v1", 1), v1.CauseDeletion},
		"a pod of another owner is deleted":       {MakeSnapshot(dead().Revision(1)).BareReplicaSet("db-v1", 1, controlledBy("Rollout", "db")...), v1.CauseDeletion},
		"ReplicaSet deleted":                      {orphan("ReplicaSet"), v1.CauseScaleDown},
		"StatefulSet deleted":                     {orphan("StatefulSet"), v1.CauseScaleDown},
		"a pod of a DaemonSet is deleted":         {orphan("DaemonSet"), v1.CauseDeletion},
		"a pod of a StatefulSet is deleted":       {MakeSnapshot(inSet("v1")).StatefulSet("db", 1, "v1"), v1.CauseDeletion},
		"the template of the StatefulSet changed": {MakeSnapshot(inSet("v1")).StatefulSet("db", 1, "v2"), v1.CauseRollout},
		"StatefulSet scaled to zero":              {MakeSnapshot(inSet("v1")).StatefulSet("db", 0, "v1"), v1.CauseScaleDown},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Holder("db-1").Snapshot, now)
			if got := plan.Status.LastTransition.Cause; got != tc.want {
				t.Errorf("cause %s, want %s", got, tc.want)
			}
		})
	}
}

// Decide records the gap and the time of readiness once the new holder, db-2, reports them. Pod db-2 was signalled a
// minute ago, five seconds after db-1 terminated.
func TestDecideFollowsTheStart(t *testing.T) {
	signalledAt := now.Add(-time.Minute)
	base := v1.Transition{
		From: "db-1", To: "db-2", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported,
		Started: microTime(signalledAt.Add(-10 * time.Second)), Terminated: microTime(signalledAt.Add(-5 * time.Second)),
	}
	gap := new(int64(65_000))
	for name, tc := range map[string]struct {
		pod        *PodWrapper
		terminated *metav1.MicroTime
		wantGap    *int64
		wantReady  *metav1.MicroTime
	}{
		"gate probe, still waiting":     {MakePod("db-2").GateProbe().Injected().Signalled(7).Warm(), base.Terminated, nil, nil},
		"gate probe, started":           {MakePod("db-2").GateProbe().Injected().Signalled(7).Running(), base.Terminated, gap, nil},
		"barrier, still waiting":        {MakePod("db-2").Barrier().Injected().Signalled(7).Warm(), base.Terminated, nil, nil},
		"barrier, started":              {MakePod("db-2").Barrier().Injected().Signalled(7).Running(), base.Terminated, gap, nil},
		"readiness probe, not answered": {MakePod("db-2").Injected().Signalled(7).Running(), base.Terminated, nil, nil},
		"readiness probe, answered":     {MakePod("db-2").Injected().Signalled(7).Ready(), base.Terminated, gap, microTime(now)},
		"the first holder has no gap":   {MakePod("db-2").Injected().Signalled(7).Ready(), nil, nil, microTime(now)},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(tc.pod).Chosen("db-2").Since(v1.PhaseTransitioning, time.Minute)
			last := base
			last.Terminated = tc.terminated
			s.Singleton.Status.LastTransition = last.DeepCopy()
			plan := handoff.Decide(s.Snapshot, now)
			last.Signalled, last.GapMilliseconds, last.Ready = microTime(signalledAt), tc.wantGap, tc.wantReady
			if diff := cmp.Diff(&last, plan.Status.LastTransition); diff != "" {
				t.Errorf("transition (-want +got):\n%s", diff)
			}

			// A later decision does not change recorded times.
			s.Singleton.Status = plan.Status
			again := handoff.Decide(s.Snapshot, now.Add(time.Hour))
			if diff := cmp.Diff(plan.Status.LastTransition, again.Status.LastTransition); diff != "" {
				t.Errorf("an hour later (-first +second):\n%s", diff)
			}
		})
	}
}

func TestDecideContinuesTransition(t *testing.T) {
	standby := warm("db-2")
	ended := MakeSnapshot(standby).Ended(v1.CauseEviction)
	goesOn := ended.Singleton.Status.LastTransition.DeepCopy()
	goesOn.To = "db-2"
	began := microTime(now)
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     *v1.Transition
	}{
		"there was no holder":                 {MakeSnapshot(standby), &v1.Transition{To: "db-2", Cause: v1.CauseCreated, Started: began}},
		"the last holder was evicted":         {ended, goesOn},
		"the owner was scaled to zero before": {MakeSnapshot(standby).Ended(v1.CauseScaleDown).Since("", time.Hour), &v1.Transition{To: "db-2", Cause: v1.CauseCreated, Started: began}},
		"the last holder has ended, and the handoff has taken too long": {
			MakeSnapshot(holder().Deleting().Ended(), standby).Holder("db-1").Since(v1.PhaseFailed, time.Hour), &v1.Transition{
				From: "db-1", FromUID: uidOf("db-1"), To: "db-2", Cause: v1.CauseDeletion, Proof: v1.ProofKubeletReported,
				Started: microTime(now.Add(-time.Hour)), Terminated: began,
			},
		},
		"the last holder was adopted": {MakeSnapshot(MakePod("db-1").Ready()), &v1.Transition{To: "db-1", Cause: v1.CauseAdopted, Started: began, Signalled: began}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, handoff.Decide(tc.snapshot.Snapshot, now).Status.LastTransition); diff != "" {
				t.Errorf("transition (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecideListsStandbys(t *testing.T) {
	s := MakeSnapshot(
		MakePod("db-4").Injected().Revision(2).Created(now), MakePod("db-2").Injected().Revision(1), MakePod("db-3").Injected().Revision(2),
		holding(), MakePod("db-5").Injected().Revision(2).Deleting(),
	).Holder("db-1")
	want := []string{"db-3", "db-4", "db-2"}
	if diff := cmp.Diff(want, handoff.Decide(s.Snapshot, now).Status.StandbyPods); diff != "" {
		t.Errorf("standbys (-want +got):\n%s", diff)
	}
	released := MakeSnapshot(warm("db-1"), warm("db-2"))
	if diff := cmp.Diff([]string{"db-2"}, handoff.Decide(released.Snapshot, now).Status.StandbyPods); diff != "" {
		t.Errorf("standbys, without the released pod, (-want +got):\n%s", diff)
	}
}
