package singleton

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// at returns the start time of the tests plus d.
func at(d time.Duration) *metav1.MicroTime {
	return new(metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(d)))
}

// status returns the status of a singleton with the outcome.
func status(phase v1.Phase, outcome handoff.Outcome, message, active string, last *v1.Transition, standbys ...string) v1.StatefulSingletonStatus {
	s := v1.StatefulSingletonStatus{
		Phase: phase, Message: message, ActivePod: active, Epoch: 2, StandbyPods: standbys, LastTransition: last,
		Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: string(outcome), Message: message}},
	}
	if phase == v1.PhaseRunning && outcome == handoff.HolderReady {
		s.Conditions[0].Status = metav1.ConditionTrue
	}
	return s
}

// The events of a handoff have a start, the steps that take long, and an end.
func TestAnnounce(t *testing.T) {
	const (
		running, transitioning, failed = v1.PhaseRunning, v1.PhaseTransitioning, v1.PhaseFailed
		stays                          = "pod db-2 is not scheduled yet; pod db-1 keeps running until pod db-2 is warm"
		stops                          = "pod db-1 is terminating; the next pod is released once the kubelet reports that the pod has terminated"
		tooLong                        = "the handoff takes longer than maxTransitionTime (5m0s): "
		wantRolledOver                 = "Normal HandoffCompleted pod db-2 is the holder with epoch 2: cause Rollout, from pod db-1, proof KubeletReported, gap 412ms, duration 2.9s"
		wantReleased                   = "Normal HandoffStarted handoff from pod db-1 to pod db-2, cause Rollout: pod db-2 is released with epoch 2"
	)
	first := &v1.Transition{To: "db-1", Cause: v1.CauseCreated, Started: at(-time.Hour), Ready: at(-time.Hour + 3*time.Second)}
	rollout := v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, Started: at(0), Terminated: at(2 * time.Second)}
	started := rollout
	started.GapMilliseconds = new(int64(412))
	ready := started
	ready.Ready = at(2912 * time.Millisecond)
	deletion := v1.Transition{From: "db-1", Cause: v1.CauseDeletion, Proof: v1.ProofKubeletReported, Started: at(0), Terminated: at(time.Second)}
	scaleDown := v1.Transition{From: "db-1", Cause: v1.CauseScaleDown, Proof: v1.ProofKubeletReported, Started: at(0), Terminated: at(time.Second)}
	followed := v1.Transition{From: "db-2", To: "db-3", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, Started: at(0), Terminated: at(time.Minute)}

	outOfService := v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseDeletion, Proof: v1.ProofNodeOutOfService, Started: at(0), Terminated: at(time.Second)}
	attestedStarted := outOfService
	attestedStarted.GapMilliseconds = new(int64(412))

	holds := status(running, handoff.HolderReady, "pod db-1 is the holder with epoch 1", "db-1", first)
	released := status(transitioning, handoff.Released, "pod db-2 is released with epoch 2", "db-2", &rollout)
	waits := status(transitioning, handoff.Starting, "pod db-2 is the holder and has not been Ready yet: container app is not ready", "db-2", &rollout)
	rolledOver := status(running, handoff.HolderReady, "pod db-2 is the holder with epoch 2", "db-2", &ready)
	noPods := status("", handoff.NoPods, "no pod matches the selector", "", nil)

	for name, tc := range map[string]struct {
		// statuses are written one after the other. The events of the first status were sent before.
		statuses []v1.StatefulSingletonStatus
		want     []string
	}{
		"the record comes with the first status": {
			[]v1.StatefulSingletonStatus{holds, released, status(transitioning, handoff.Starting, waits.Message, "db-2", &started), rolledOver},
			[]string{wantReleased, wantRolledOver},
		},
		"a rollout": {
			[]v1.StatefulSingletonStatus{
				holds, status(transitioning, handoff.StandbyNotWarm, stays, "db-1", first, "db-2"),
				status(transitioning, handoff.HolderStopping, stops, "db-1", first, "db-2"), released, rolledOver,
			},
			[]string{"Normal HandoffStarted handoff from pod db-1 to pod db-2", "Normal StandbyNotWarm " + stays, "Normal HolderStopping " + stops, wantRolledOver},
		},
		"the start takes long": {
			[]v1.StatefulSingletonStatus{holds, released, waits, rolledOver},
			[]string{wantReleased, "Normal Starting " + waits.Message, wantRolledOver},
		},
		"a cold handoff because of a volume": {
			[]v1.StatefulSingletonStatus{holds, status(transitioning, handoff.RetiringCold, "claim data is ReadWriteOncePod", "db-1", first, "db-2")},
			[]string{"Normal HandoffStarted handoff from pod db-1 to pod db-2", "Normal RetiringCold claim data is ReadWriteOncePod"},
		},
		"a handoff that completes after maxTransitionTime": {
			[]v1.StatefulSingletonStatus{
				status(transitioning, handoff.HolderStopping, stops, "db-1", first, "db-2"),
				status(failed, handoff.HolderStopping, tooLong+stops, "db-1", first, "db-2"),
				status(failed, handoff.Released, tooLong+released.Message, "db-2", &rollout), rolledOver,
			},
			[]string{"Warning HolderStopping " + tooLong + stops, wantRolledOver},
		},
		"an expected step is reported after it takes too long": {
			[]v1.StatefulSingletonStatus{
				status(transitioning, handoff.AwaitingPod, "the pod that follows has not come yet", "", &deletion),
				status(failed, handoff.AwaitingPod, tooLong+"the pod that follows has not come yet", "", &deletion),
			},
			[]string{"Warning AwaitingPod " + tooLong + "the pod that follows has not come yet"},
		},
		"the next pod is created after the holder terminated": {
			[]v1.StatefulSingletonStatus{
				holds, status(transitioning, handoff.HolderEnded, "pod db-1 has terminated, and no standby is warm yet", "", &deletion),
				status(transitioning, handoff.AwaitingPod, "pod db-1 has terminated, and the next pod does not exist yet", "", &deletion),
				status(transitioning, handoff.WarmingUp, "pod db-2 is not scheduled yet", "", &deletion, "db-2"), released, rolledOver,
			},
			[]string{
				"Normal HandoffStarted handoff from pod db-1, cause Deletion: pod db-1 has terminated, and no standby is warm yet",
				"Normal WarmingUp pod db-2 is not scheduled yet", wantRolledOver,
			},
		},
		"the owner is scaled to zero and up again": {
			[]v1.StatefulSingletonStatus{
				holds, status(transitioning, handoff.HolderEnded, "pod db-1 has terminated, and no standby is warm yet", "", &scaleDown),
				status("", handoff.NoPods, noPods.Message, "", &scaleDown),
				status(transitioning, handoff.WarmingUp, "pod db-2 is not scheduled yet", "", &scaleDown, "db-2"),
			},
			[]string{
				"Normal HandoffStarted handoff from pod db-1, cause ScaleDown: pod db-1 has terminated, and no standby is warm yet", "Normal NoPods " + noPods.Message,
				"Normal HandoffStarted handoff to pod db-2", "Normal WarmingUp pod db-2 is not scheduled yet",
			},
		},
		"the first holder is adopted": {
			[]v1.StatefulSingletonStatus{
				noPods, status(transitioning, handoff.Adopted, "pod db-1 already runs and becomes the holder", "db-1", &v1.Transition{To: "db-1", Cause: v1.CauseAdopted, Started: at(0)}),
				status(running, handoff.HolderReady, "pod db-1 is the holder with epoch 2", "db-1", &v1.Transition{To: "db-1", Cause: v1.CauseAdopted, Started: at(0), Ready: at(time.Minute)}),
			},
			[]string{
				"Normal HandoffStarted handoff to pod db-1, cause Adopted: pod db-1 already runs and becomes the holder",
				"Normal HandoffCompleted pod db-1 is the holder with epoch 2: cause Adopted, duration 1m0s",
			},
		},
		"a person states that the node is off": {
			[]v1.StatefulSingletonStatus{
				status(transitioning, handoff.HolderStopping, stops, "db-1", first, "db-2"),
				status(transitioning, handoff.Released, released.Message, "db-2", &outOfService),
				status(transitioning, handoff.Starting, waits.Message, "db-2", &attestedStarted),
			},
			[]string{
				"Warning NodeOutOfService pod db-1 counts as terminated: its node does not answer and has the taint node.kubernetes.io/out-of-service, with which a person states that the node is off",
			},
		},
		"a rollout is rolled back": {
			[]v1.StatefulSingletonStatus{status(transitioning, handoff.StandbyNotWarm, stays, "db-1", first, "db-2"), holds},
			[]string{"Normal HolderReady pod db-1 is the holder with epoch 1"},
		},
		"a standby replaces a holder that was never Ready": {
			[]v1.StatefulSingletonStatus{
				waits, status(transitioning, handoff.StandbyNotWarm, stays, "db-2", &rollout, "db-3"),
				status(transitioning, handoff.Released, "pod db-3 is released with epoch 2", "db-3", &followed),
			},
			[]string{"Normal StandbyNotWarm " + stays, "Normal HandoffStarted handoff from pod db-2 to pod db-3, cause Rollout: pod db-3 is released with epoch 2"},
		},
		"the next rollout begins before the holder is Ready": {
			[]v1.StatefulSingletonStatus{released, status(transitioning, handoff.Retiring, "pod db-3 is warm", "db-2", &ready, "db-3")},
			[]string{wantRolledOver, "Normal HandoffStarted handoff from pod db-2 to pod db-3", "Normal Retiring pod db-3 is warm"},
		},
		"several pods run, and no handoff can begin": {
			[]v1.StatefulSingletonStatus{holds, status(failed, handoff.SeveralRun, "pod db-2 is not held", "db-1", first), holds},
			[]string{"Warning SeveralRun pod db-2 is not held", "Normal HolderReady pod db-1 is the holder with epoch 1"},
		},
		"the holder crashes": {
			[]v1.StatefulSingletonStatus{holds, status(running, handoff.HolderNotReady, "pod db-1 is the holder and is not Ready", "db-1", first), holds},
			[]string{"Warning HolderNotReady pod db-1 is the holder and is not Ready", "Normal HolderReady pod db-1 is the holder with epoch 1"},
		},
		"only the message changes": {
			[]v1.StatefulSingletonStatus{waits, status(transitioning, handoff.Starting, "another", "db-2", &rollout)}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(100)
			r := &Reconciler{Recorder: recorder, Metrics: NewMetrics(prometheus.NewRegistry(), nil)}
			for i := range tc.statuses[1:] {
				r.announce(t.Context(), &v1.StatefulSingleton{Status: tc.statuses[i]}, &v1.StatefulSingleton{Status: tc.statuses[i+1]})
			}
			close(recorder.Events)
			var got []string
			for event := range recorder.Events {
				got = append(got, event)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// An end of the protection from evictions is a warning, unless a standby waits or nobody drains the node.
func TestAnnounceDrain(t *testing.T) {
	blocked := metav1.Condition{Type: v1.ConditionEvictionBlocked, Status: metav1.ConditionTrue, Reason: "BudgetInPlace"}
	draining := metav1.Condition{Type: v1.ConditionDraining, Status: metav1.ConditionTrue}
	for _, test := range []struct {
		reason        string
		before, after []metav1.Condition
		want          string
	}{
		{handoff.StandbyWaits, []metav1.Condition{blocked, draining}, []metav1.Condition{draining}, "Normal"},
		{"DrainTimedOut", []metav1.Condition{blocked, draining}, []metav1.Condition{draining}, "Warning"},
		{"DrainTimedOut", []metav1.Condition{draining}, []metav1.Condition{draining}, "Normal"},
		{"OtherBudget", []metav1.Condition{blocked}, nil, "Normal"},
		{apply.BudgetRefused, nil, nil, "Warning"},
	} {
		recorder := events.NewFakeRecorder(100)
		unblocked := metav1.Condition{Type: v1.ConditionEvictionBlocked, Status: metav1.ConditionFalse, Reason: test.reason, Message: "why"}
		before, after := &v1.StatefulSingleton{}, &v1.StatefulSingleton{}
		before.Status.Conditions, after.Status.Conditions = test.before, append(test.after, unblocked)
		(&Reconciler{Recorder: recorder}).announceDrain(t.Context(), before, after)
		if got, want := <-recorder.Events, test.want+" "+test.reason+" why"; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
}
