package handoff_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// node3 is the node that cannot start pods in these tests.
const node3 = "node-3"

// nodeProblems are the reasons why node3 cannot start a pod, and the message for each reason.
var nodeProblems = map[string]struct {
	happen  func(*SnapshotWrapper)
	message string
}{
	"the node does not answer":    {func(s *SnapshotWrapper) { s.Node(node3, corev1.ConditionUnknown) }, "its node node-3 does not answer"},
	"the node is not Ready":       {func(s *SnapshotWrapper) { s.Node(node3, corev1.ConditionFalse) }, "its node node-3 does not answer"},
	"the node does not exist":     {func(s *SnapshotWrapper) { s.NoNode(node3) }, "its node node-3 does not exist"},
	"the node has not been Ready": {func(s *SnapshotWrapper) { s.Node(node3, ""); s.CachedNodes[node3].Status.Conditions = nil }, "its node node-3 does not answer"},
}

const adviceReplace = "A ReplicaSet replaces pod db-2 after its deletion, by default 5 minutes after its node stopped answering. A StatefulSet replaces the pod only after its removal. " +
	"To delete it now, run: kubectl delete -n prod pod db-2 --wait=false"

// A standby on a node that cannot start it is not warm. The holder is not stopped for this standby, and the standby is
// not released. A warm standby on a Ready node takes over.
func TestDecidePassesOverStandbysOnUnreachableNodes(t *testing.T) {
	// Pod db-2 is on node3, and db-3 is on a Ready node. Without node3, the older standby would be first.
	dead := func(revision int) *PodWrapper { return MakePod("db-2").Revision(revision).Injected().Warm().On(node3) }
	healthy := func(revision int) *PodWrapper { return MakePod("db-3").Revision(revision).Injected().Warm().On(node2) }
	gone := func() *PodWrapper { return holding().Deleting().Ended() }
	rolledTo := func(name string) []handoff.Step {
		return []handoff.Step{protectStandby(name), retire("db-v1")}
	}
	released := func(name string) []handoff.Step {
		return []handoff.Step{protectStandby(name), record, signalOf(name, 8), unprotect("db-1")}
	}

	for name, tc := range map[string]struct {
		holder   func() *PodWrapper
		revision int
		change   func(*SnapshotWrapper)
		// want is the outcome with db-3. wantWithout is the outcome without db-3.
		want, wantWithout       handoff.Outcome
		wantSteps, withoutSteps []handoff.Step
		wantMessage             string
	}{
		"rollout": {
			holder: holding, revision: 2, want: handoff.Retiring, wantSteps: rolledTo("db-3"), wantWithout: handoff.StandbyNotWarm,
			wantMessage: "; pod db-1 keeps running until pod db-2 is warm. " + adviceReplace,
		},
		"rollout, and the other standby is on a cordoned node": {
			holder: holding, revision: 2, change: func(s *SnapshotWrapper) { s.Cordon(node2) },
			want: handoff.Retiring, wantSteps: rolledTo("db-3"), wantWithout: handoff.StandbyNotWarm,
		},
		"handover": {
			holder: holding, revision: 2, change: func(s *SnapshotWrapper) { s.Manual().Handover("now") },
			want: handoff.Retiring, wantSteps: rolledTo("db-3"), wantWithout: handoff.StandbyNotWarm,
			wantMessage: "; pod db-1 keeps running until pod db-2 is warm. " + adviceReplace,
		},
		"drain": {
			holder: holding, revision: 2, change: func(s *SnapshotWrapper) { s.Cordon(node1) },
			want: handoff.Retiring, wantSteps: rolledTo("db-3"), wantWithout: handoff.StandbyNotWarm,
			wantMessage: "; pod db-1 keeps running until pod db-2 is warm; node node-1 is cordoned: evictions of the holder are blocked",
		},
		"drain, after the deadline": {
			holder: holding, revision: 2, change: func(s *SnapshotWrapper) { s.Cordon(node1).DrainedFor(time.Hour) },
			want: handoff.Retiring, wantSteps: rolledTo("db-3"), wantWithout: handoff.StandbyNotWarm,
		},
		"drain with a spare": {
			holder: holding, revision: 1, change: func(s *SnapshotWrapper) { s.Deployment(3).Cordon(node1) },
			want: handoff.HolderReady, wantSteps: []handoff.Step{protectStandby("db-3")}, wantWithout: handoff.Rolling, withoutSteps: rolled,
		},
		"the other standby is on a cordoned node": {
			holder: gone, revision: 1, change: func(s *SnapshotWrapper) { s.Cordon(node2) },
			want: handoff.Released, wantSteps: released("db-3"), wantWithout: handoff.HolderEnded,
			withoutSteps: []handoff.Step{record, unprotect("db-1")},
		},
		"unplanned termination": {
			holder: gone, revision: 1, want: handoff.Released, wantSteps: released("db-3"), wantWithout: handoff.HolderEnded,
			withoutSteps: []handoff.Step{record, unprotect("db-1")},
			wantMessage:  "no standby is warm yet",
		},
	} {
		for problem, node := range nodeProblems {
			for order, age := range map[string]time.Duration{"dead first": time.Hour, "healthy first": -time.Hour} {
				t.Run(name+"/"+problem+"/"+order, func(t *testing.T) {
					see := func(pods ...*PodWrapper) *SnapshotWrapper {
						s := MakeSnapshot(pods...).Holder("db-1")
						if node.happen(s); tc.change != nil {
							tc.change(s)
						}
						return s
					}
					wantPlan := func(plan handoff.Plan, outcome handoff.Outcome, steps []handoff.Step) {
						t.Helper()
						if plan.Outcome != outcome {
							t.Errorf("outcome %s (%s), want %s", plan.Outcome, plan.Status.Message, outcome)
						}
						if diff := cmp.Diff(steps, plan.Steps); diff != "" {
							t.Errorf("steps (-want +got):\n%s", diff)
						}
					}
					old := healthy(tc.revision).Created(now.Add(-2 * time.Hour))
					pods := []*PodWrapper{tc.holder(), dead(tc.revision).Created(now.Add(-2*time.Hour - age)), old}
					wantPlan(handoff.Decide(see(pods...).Snapshot, now), tc.want, tc.wantSteps)

					// Without db-3, the holder stays or nobody is released, and the message says why.
					plan := handoff.Decide(see(pods[:2]...).Snapshot, now)
					wantPlan(plan, tc.wantWithout, tc.withoutSteps)
					if message := plan.Status.Message; !strings.Contains(message, tc.wantMessage) ||
						tc.wantWithout == handoff.StandbyNotWarm && !strings.Contains(message, "pod db-2 can't start: "+node.message) {
						t.Errorf("message %q, want %q in it", message, tc.wantMessage)
					}
				})
			}
		}
	}
}

// A holder is not stopped to free a volume for a standby whose node cannot start it.
func TestDecideGoesColdForNoUnreachableNode(t *testing.T) {
	attaching := MakePod("db-2").Revision(2).Injected().Claim("data").On(node3).State("app", waiting("ContainerCreating", ""))
	for name, handoffPolicy := range map[string]v1.HandoffPolicy{"automatic": "", "manual": v1.HandoffManual} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(holding().Claim("data"), attaching).Holder("db-1").Claim("data", corev1.ReadWriteOnce).Node(node3, corev1.ConditionUnknown)
			s.Singleton.Spec.Handoff = handoffPolicy
			plan := handoff.Decide(s.Snapshot, now)
			if plan.Outcome != handoff.StandbyNotWarm || len(plan.Steps) > 0 || !strings.Contains(plan.Status.Message, "its node node-3 does not answer") {
				t.Errorf("outcome %s, steps %v, message %q", plan.Outcome, plan.Steps, plan.Status.Message)
			}
		})
	}
}

// Before a signal, a standby on a node that is not Ready is not released. After a signal, no other pod starts.
func TestDecideReleasesOnUnreachableNode(t *testing.T) {
	const taint = "If node node-3 is off, run: kubectl taint node node-3 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
	unreachable := func(s *SnapshotWrapper) *SnapshotWrapper { return s.Node(node3, corev1.ConditionUnknown) }
	chosen := func() *PodWrapper { return warm("db-2").On(node3).Protected() }
	atBarrier := func() *PodWrapper { return MakePod("db-2").Barrier().Injected().Warm().On(node3).ChosenBy("stfs-uid") }
	spare := func() *PodWrapper { return warm("db-3").On(node2).Protected() }
	releasedAtBarrier := []handoff.Step{
		record, openBarrier("db-2", 7), signalOf("db-2", 7),
	}
	runDecide(t, map[string]decideCase{
		"no other pod exists": {
			unreachable(MakeSnapshot(warm("db-2").On(node3))),
			nobody(0, handoff.WarmingUp).says("pod db-2 can't start: its node node-3 does not answer. " + adviceReplace),
		},
		"the node is Ready in the cache, which may lag": {
			cacheLags(unreachable(MakeSnapshot(chosen())).Chosen("db-2")), holds("db-2", 7, handoff.Released, record, signalOf("db-2", 7)),
		},
		"recorded": {
			unreachable(MakeSnapshot(chosen(), spare()).Chosen("db-2")),
			holds("db-2", 7, handoff.WarmingUp).
				says("pod db-2 is the holder with epoch 7 and is not signalled, because its node node-3 does not answer. " + adviceReplace),
		},
		"recorded, and somebody removed the finalizer": {
			unreachable(MakeSnapshot(warm("db-2").On(node3)).Chosen("db-2")), holds("db-2", 7, handoff.WarmingUp, protectStandby("db-2")),
		},
		"recorded and terminating": {
			unreachable(MakeSnapshot(chosen().Deleting(), spare()).Chosen("db-2")),
			holds("db-3", 8, handoff.Released, record, signalOf("db-3", 8), unprotect("db-2")),
		},
		"recorded, and its barrier may be open": {
			unreachable(MakeSnapshot(atBarrier()).Chosen("db-2")), holds("db-2", 7, handoff.Released, releasedAtBarrier...),
		},
		"recorded as signalled, and somebody removed the signal": {
			unreachable(MakeSnapshot(chosen()).Holder("db-2")), holds("db-2", 7, handoff.Released, record, signalOf("db-2", 7)),
		},
		"recorded, and another pod runs": {
			unreachable(MakeSnapshot(chosen(), MakePod("db-0").Ready().Protected()).Chosen("db-2")), holds("db-2", 7, handoff.SeveralRun).failed(),
		},
		"signalled": {
			unreachable(MakeSnapshot(chosen().Signalled(7).Annotation(v1.NudgeAnnotation, "7"), spare()).Chosen("db-2")),
			holds("db-2", 7, handoff.Starting, markReady("db-2")).
				says("pod db-2 is the holder with epoch 7 and has not been Ready yet, and its node node-3 does not answer: the pod may start there, so no other pod is released; pod db-3 is warm and would take over. " + taint),
		},
		"signalled, and the node does not exist": {
			MakeSnapshot(chosen().Signalled(7).Annotation(v1.NudgeAnnotation, "7")).Chosen("db-2"),
			holds("db-2", 7, handoff.Starting, markReady("db-2")).
				says("and its node node-3 does not exist: the pod may start there, so no other pod is released. If you have made sure that the " +
					"processes of pod db-2 have ended, run: kubectl delete -n prod pod db-2 --wait=false && kubectl annotate -n prod stfs db " +
					"apps.statefulsingleton.com/attest-terminated=db-2-uid --overwrite"),
		},
		"just signalled": {
			unreachable(MakeSnapshot(chosen().Signalled(7).Annotation(v1.NudgeAnnotation, "7").
				Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "")).Chosen("db-2")),
			holds("db-2", 7, handoff.Starting).says(taint),
		},
	})
}

// cacheLags makes the cache show every node as Ready.
func cacheLags(s *SnapshotWrapper) *SnapshotWrapper {
	for name, node := range s.CachedNodes {
		ready := node.DeepCopy()
		ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		s.CachedNodes[name] = ready
	}
	return s
}

// The status reports a spare on a node that does not answer while the holder serves.
func TestDecideReportsUnreachableSpare(t *testing.T) {
	spare := MakePod("db-2").Revision(1).Injected().Warm().On(node3)
	s := MakeSnapshot(holding(), spare).Holder("db-1").Node(node3, corev1.ConditionUnknown).
		Strategy(appsv1.RollingUpdateDeploymentStrategyType, "1", "0")
	plan := handoff.Decide(s.Snapshot, now)
	const want = "; no standby is warm: pod db-2 can't start: its node node-3 does not answer. " + adviceReplace
	if plan.Outcome != handoff.HolderReady || !strings.HasSuffix(plan.Status.Message, want) {
		t.Errorf("outcome %s, message %q, want HolderReady and %q", plan.Outcome, plan.Status.Message, want)
	}
	if got := handoff.Classify(s.Snapshot)[1].WaitsFor; got != "can't start: its node node-3 does not answer" {
		t.Errorf("WaitsFor of the standby is %q", got)
	}
}
