package handoff_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// runDrain also checks the budget and the conditions about drains. The holder is db-1.
func runDrain(t *testing.T, cases map[string]decideCase) {
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.run(t)
			plan := handoff.Decide(tc.snapshot.Snapshot, now)
			conditions, wantBudget := plan.Status.Conditions, tc.want.blocked == "BudgetInPlace"
			blocked := meta.FindStatusCondition(conditions, v1.ConditionEvictionBlocked)
			if blocked == nil || blocked.Reason != tc.want.blocked || (blocked.Status == "True") != wantBudget || plan.Budget != wantBudget {
				t.Errorf("budget %t, condition EvictionBlocked %v, want reason %s", plan.Budget, blocked, tc.want.blocked)
			}
			if got := meta.IsStatusConditionTrue(conditions, v1.ConditionDraining); got != tc.want.drained {
				t.Errorf("condition Draining %t, want %t", got, tc.want.drained)
			}
			if tc.want.requeue != 0 && plan.Requeue != tc.want.requeue {
				t.Errorf("requeue after %s, want %s", plan.Requeue, tc.want.requeue)
			}
		})
	}
}

// rolled are the steps that roll the Deployment to replace db-1.
var rolled = []handoff.Step{handoff.Roll{Deployment: "db", UID: uidOf("db"), Version: version, Replaces: ref("db-1")}}

// holding returns pod db-1 of revision 1, which holds on node-1.
func holding() *PodWrapper { return holder().Revision(1) }

// next returns pod db-2 of revision 2, which is warm on the node.
func next(node string) *PodWrapper { return MakePod("db-2").Revision(2).Injected().Warm().On(node) }

// spare returns pod db-2 of revision 1, which is warm on the node.
func spare(node string) *PodWrapper { return MakePod("db-2").Revision(1).Injected().Warm().On(node) }

// drained returns a snapshot in which the node of holder db-1 is cordoned.
func drained(pods ...*PodWrapper) *SnapshotWrapper {
	return MakeSnapshot(pods...).Holder("db-1").Cordon(node1)
}

// If the holder's Deployment can create a second pod, evictions wait. A drain then replaces the holder.
func TestDecideDrain(t *testing.T) {
	pending := func() *PodWrapper {
		return MakePod("db-2").Revision(2).Injected().Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/2 nodes are available")
	}
	maintenance := func(effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: "maintenance", Value: "now", Effect: effect}
	}
	isReady := func(s *SnapshotWrapper) decideCase {
		return decideCase{s, keeps(handoff.HolderReady)}
	}
	rolls := func(s *SnapshotWrapper, message string) decideCase {
		return decideCase{s, keeps(handoff.Rolling, rolled...).draining().says(message)}
	}
	retires := keeps(handoff.Retiring, protectStandby("db-2"), retire("db-v1")).draining()
	runDrain(t, map[string]decideCase{
		"no drain":                 isReady(MakeSnapshot(holding()).Holder("db-1")),
		"another node is cordoned": isReady(MakeSnapshot(holding()).Holder("db-1").Cordon(node2)),
		"the node does not answer": isReady(MakeSnapshot(holding()).Holder("db-1").Node(node1, corev1.ConditionUnknown).Cordon(node1)),
		"the node does not exist":  isReady(MakeSnapshot(holding()).Holder("db-1").NoNode(node1)),
		"a taint PreferNoSchedule": isReady(MakeSnapshot(holding()).Holder("db-1").Taint(node1, maintenance(corev1.TaintEffectPreferNoSchedule))),
		"a taint of a node that was unreachable": isReady(MakeSnapshot(holding()).Holder("db-1").
			Taint(node1, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})),
		"a taint of a node that is off": isReady(MakeSnapshot(holding()).Holder("db-1").
			Taint(node1, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})),
		"a taint that the pod tolerates": isReady(MakeSnapshot(holding().Tolerating(corev1.Toleration{Key: "maintenance", Operator: corev1.TolerationOpExists})).
			Holder("db-1").Taint(node1, maintenance(corev1.TaintEffectNoExecute))),
		"the node is cordoned": rolls(drained(holding()), "Deployment db is rolled, and the pod that takes over from pod db-1 does not exist yet; node node-1 is cordoned: "+
			"evictions of the holder are blocked until another pod is warm, at most until 2026-01-02T03:09:05Z"),
		"a taint NoSchedule": rolls(MakeSnapshot(holding()).Holder("db-1").Taint(node1, maintenance(corev1.TaintEffectNoSchedule)), "node node-1 has taint maintenance=now:NoSchedule"),
		"a taint NoExecute":  rolls(MakeSnapshot(holding()).Holder("db-1").Taint(node1, maintenance(corev1.TaintEffectNoExecute)), "maintenance=now:NoExecute"),
		"the pod tolerates the taint for a limited time": rolls(MakeSnapshot(holding().Tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(60))})).
			Holder("db-1").Taint(node1, maintenance(corev1.TaintEffectNoExecute)), ""),
		"the node is cordoned, and the holder is unready":  rolls(drained(holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", "")), ""),
		"the node is cordoned, and spec.handoff is Manual": rolls(drained(holding()).Manual(), ""),
		"the node is cordoned, and the budget exists":      rolls(drained(holding()).Budgeted(), ""),
		"the spare is on the same node":                    rolls(drained(holding(), spare(node1).Protected()).Deployment(2), ""),
		"the spare is not warm":                            rolls(drained(holding(), MakePod("db-2").Revision(1).Injected()).Deployment(2), ""),
		"the spare is warm on another node": {
			drained(holding(), spare(node2).Protected()).Deployment(2),
			keeps(handoff.HolderReady).evictions("StandbyWaits").draining().says("an eviction hands over to pod db-2, which is warm on node node-2"),
		},
		"the Deployment was rolled before": {
			drained(holding()).Rolled("db-1").DrainedFor(time.Minute), keeps(handoff.Rolling).draining().says("at most until 2026-01-02T03:08:05Z"),
		},
		"the Deployment was rolled for an earlier holder":       rolls(drained(holding()).Rolled("db-0"), ""),
		"a rollout is under way":                                {drained(holding()).RevisionOfDeployment("2"), keeps(handoff.Rolling).draining()},
		"the holder has the current revision of the Deployment": rolls(drained(holding()).RevisionOfDeployment("1"), ""),
		"the next pod is not warm": {
			drained(holding(), pending()).DrainedFor(298 * time.Second),
			keeps(handoff.StandbyNotWarm).draining().requeues(2 * time.Second).
				says("pod db-2 can't be scheduled: 0/2 nodes are available; pod db-1 keeps running until pod db-2 is warm; node node-1 is " +
					"cordoned: evictions of the holder are blocked"),
		},
		"the next pod is not warm before the deadline": {
			drained(holding(), pending()).Budgeted().DrainedFor(300*time.Second).Since(v1.PhaseTransitioning, 300*time.Second),
			keeps(handoff.StandbyNotWarm).failed().evictions("DrainTimedOut").draining().
				says("an eviction stops the holder at once, because no pod was warm on another node within maxTransitionTime (300s)"),
		},
		"the node is uncordoned after the deadline": {
			MakeSnapshot(holding(), pending()).Holder("db-1").DrainedFor(time.Hour), keeps(handoff.StandbyNotWarm),
		},
		"the next pod is warm on the drained node": {
			drained(holding(), next(node1).Protected()),
			keeps(handoff.StandbyNotWarm).draining().
				says("pod db-2 is warm, but node node-1 is cordoned; pod db-1 keeps running until a pod is warm on another node"),
		},
		"the next pod is warm on the drained node, after the deadline": {
			drained(holding(), next(node1)).DrainedFor(300 * time.Second), retires.evictions("DrainTimedOut"),
		},
		"the next pod is warm on another node": {drained(holding(), next(node2)), retires},
		"one next pod is warm on another node, and one on the drained node": {
			drained(holding(), MakePod("db-0").Revision(2).Injected().Warm(), next(node2)).Deployment(2), retires,
		},
		"the next pod is warm on another node, and spec.handoff is Manual": {drained(holding(), next(node2)).Manual(), retires},
		"the next pod waits for the volume of the holder": {
			drained(holding().Claim("data"), pending().Claim("data").Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable",
				"node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")).Claim("data", corev1.ReadWriteOncePod),
			keeps(handoff.RetiringCold, retire("db-v1")).draining(),
		},
	})
}

// If no other pod can be warm before the holder stops, evictions do not wait.
func TestDecideDrainWithoutSurge(t *testing.T) {
	surge := appsv1.RollingUpdateDeploymentStrategyType
	plain := func(s *SnapshotWrapper, reason, message string) decideCase {
		return decideCase{s.Cordon(node1), keeps(handoff.HolderReady).evictions(reason).draining().says(message)}
	}
	one := func() *SnapshotWrapper { return MakeSnapshot(holding()).Holder("db-1").Budgeted() }
	owned := func(kind string) *SnapshotWrapper {
		return MakeSnapshot(MakePod("db-1").OwnedBy(kind, "db").Injected().Holding()).Holder("db-1")
	}
	const atOnce = "node node-1 is cordoned: an eviction stops the holder at once, because "
	deleted := one()
	deleted.Deployments[uidOf("db")].DeletionTimestamp = new(metav1.NewTime(now))
	runDrain(t, map[string]decideCase{
		"spec.drain is Evict":                 {one().DrainPolicy(v1.DrainEvict).Cordon(node1), keeps(handoff.HolderReady).evictions("DrainIsEvict")},
		"a StatefulSet":                       plain(owned("StatefulSet").StatefulSet("db", 1, ""), "CannotSurge", atOnce+"pod db-1 belongs to StatefulSet db, and not to a Deployment"),
		"a bare ReplicaSet":                   plain(owned("ReplicaSet").BareReplicaSet("db", 1), "CannotSurge", atOnce+"pod db-1 belongs to ReplicaSet db, and not to a Deployment"),
		"a bare pod":                          plain(MakeSnapshot(holder()).Holder("db-1"), "CannotSurge", atOnce+"pod db-1 belongs to no Deployment"),
		"Recreate":                            plain(one().Strategy(appsv1.RecreateDeploymentStrategyType, "25%", "25%"), "CannotSurge", "Deployment db has strategy Recreate"),
		"maxSurge is 0":                       plain(one().Strategy(surge, "0", "1"), "CannotSurge", "Deployment db has maxSurge 0"),
		"maxSurge is 0%":                      plain(one().Strategy(surge, "0%", "1"), "CannotSurge", "Deployment db has maxSurge 0"),
		"maxUnavailable stops the holder too": plain(one().Strategy(surge, "1", "100%"), "CannotSurge", "its maxUnavailable is not below its replicas"),
		"the Deployment is paused":            plain(one().Paused(), "CannotSurge", "Deployment db is paused"),
		"the holder tolerates cordoned nodes": plain(MakeSnapshot(holding().Tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})).Holder("db-1").Budgeted(), "CannotSurge",
			atOnce+"the holder tolerates cordoned nodes, and the next pod could be scheduled to the same node"),
		"another budget covers the holder": {
			one().Budget("theirs").Cordon(node1),
			keeps(handoff.Rolling, rolled...).evictions("OtherBudget").draining().
				says("PodDisruptionBudget theirs exists, and the controller creates none beside it"),
		},
		"another budget has the name": {
			MakeSnapshot(holding().Label("app", "other")).Holder("db-1").Budget("statefulsingleton-db").Cordon(node1),
			keeps(handoff.Rolling, rolled...).evictions("OtherBudget").draining().
				says("PodDisruptionBudget statefulsingleton-db exists, and the controller"),
		},
		"the budget is no longer needed": {one().Deployment(0), keeps(handoff.HolderReady).evictions("CannotSurge")},
		"the Deployment is deleted":      plain(deleted, "CannotSurge", "Deployment db is being deleted or has no replicas"),
		"another budget covers other pods": {
			MakeSnapshot(holding().Label("app", "other")).Holder("db-1").Budget("theirs"), keeps(handoff.HolderReady),
		},
		"maxSurge is in percent": {MakeSnapshot(holding()).Holder("db-1").Strategy(surge, "25%", "25%"), keeps(handoff.HolderReady)},
	})
}

// Between two holders the budget stays as it is, unless spec.drain is Evict. Handoffs do not write it.
func TestDecideKeepsTheBudget(t *testing.T) {
	standby := MakePod("db-2").Revision(2).Injected()
	for name, s := range map[string]func() *SnapshotWrapper{
		"the holder is terminating": func() *SnapshotWrapper { return MakeSnapshot(holding().Deleting()).Holder("db-1") },
		"a standby takes over":      func() *SnapshotWrapper { return MakeSnapshot(holding().Deleting().Ended(), next(node2)).Holder("db-1") },
		"there is no holder":        func() *SnapshotWrapper { return MakeSnapshot(standby).Ended(v1.CauseDeletion) },
		"no pods exist":             func() *SnapshotWrapper { return MakeSnapshot() },
		"the holder is lost":        func() *SnapshotWrapper { return MakeSnapshot(standby).Holder("db-1") },
	} {
		t.Run(name, func(t *testing.T) {
			if handoff.Decide(s().Snapshot, now).Budget {
				t.Error("a budget comes where none was")
			}
			if !handoff.Decide(s().Budgeted().Snapshot, now).Budget {
				t.Error("the budget goes")
			}
			if handoff.Decide(s().Budgeted().DrainPolicy(v1.DrainEvict).Snapshot, now).Budget {
				t.Error("the budget stays though nobody wants it")
			}
		})
	}
}

func TestDecideHandover(t *testing.T) {
	asked := func(pods ...*PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(pods...).Holder("db-1").Handover("now")
	}
	retires := func(s *SnapshotWrapper) decideCase {
		return decideCase{s, keeps(handoff.Retiring, protectStandby("db-2"), retire("db-v1"))}
	}
	rolls := func(s *SnapshotWrapper) decideCase {
		return decideCase{s, keeps(handoff.Rolling, rolled...).says("Deployment db is rolled")}
	}
	waits := func(s *SnapshotWrapper, message string) decideCase {
		return decideCase{s, keeps(handoff.AwaitingHandover).requeues(5 * time.Minute).says(message)}
	}
	refuses := func(s *SnapshotWrapper, why string) decideCase {
		return decideCase{
			s,
			keeps(handoff.HolderReady).evictions("CannotSurge").
				says("annotation apps.statefulsingleton.com/handover=now is ignored: " + why + ", so no pod can be warm before the holder stops. To replace the holder anyway, run: kubectl delete -n prod pod db-1"),
		}
	}
	rwop := func(pod *PodWrapper) *PodWrapper {
		return pod.Claim("data").Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "ReadWriteOncePod")
	}
	runDrain(t, map[string]decideCase{
		"a first request":                                  rolls(asked(holding())),
		"a new request":                                    rolls(asked(holding()).HandedOver("before")),
		"a request, and spec.handoff is Manual":            rolls(asked(holding()).Manual()),
		"a request, and a spare exists":                    rolls(asked(holding(), MakePod("db-2").Revision(1).Injected().Warm().On(node2).Protected()).Deployment(2)),
		"the Deployment was rolled before":                 {asked(holding()).Rolled("db-1"), keeps(handoff.Rolling)},
		"a request that was handled":                       {asked(holding()).HandedOver("now"), keeps(handoff.HolderReady)},
		"an empty request":                                 {asked(holding()).Handover(""), keeps(handoff.HolderReady)},
		"the next pod is warm":                             retires(asked(holding(), next(node2))),
		"the next pod is warm, and spec.handoff is Manual": retires(asked(holding(), next(node2)).Manual()),
		"a rollout waits for a request":                    waits(MakeSnapshot(holding(), next(node2).Protected()).Holder("db-1").Manual(), `pod db-2 is warm. spec.handoff is Manual: pod db-2 takes over from pod db-1 only when you request the handoff. Run: kubectl annotate -n prod stfs db apps.statefulsingleton.com/handover="$(date +%s)" --overwrite`),
		"a rollout waits after a request was handled":      waits(asked(holding(), next(node2).Protected()).Manual().HandedOver("now"), ""),
		"a rollout waits for a request, and spec.drain is Evict": {
			MakeSnapshot(holding(), next(node2).Protected()).Holder("db-1").Manual().DrainPolicy(v1.DrainEvict).Cordon(node1),
			keeps(handoff.AwaitingHandover).evictions("DrainIsEvict"),
		},
		"a cold rollout waits for a request": waits(MakeSnapshot(holding().Claim("data"), rwop(MakePod("db-2").Revision(2).Injected())).
			Claim("data", corev1.ReadWriteOncePod).Holder("db-1").Manual(), "pod db-2 can only warm up after pod db-1 has terminated, because claim data is ReadWriteOncePod. spec.handoff is Manual: pod db-2 takes over"),
		"the next pod of a rollout is not warm": {
			MakeSnapshot(holding(), MakePod("db-2").Revision(2).Injected()).Holder("db-1").Manual(), keeps(handoff.StandbyNotWarm),
		},
		"Recreate": refuses(asked(holding()).Strategy(appsv1.RecreateDeploymentStrategyType, "1", "0"), "Deployment db has strategy Recreate"),
		"a StatefulSet": refuses(MakeSnapshot(MakePod("db-1").OwnedBy("StatefulSet", "db").Injected().Holding()).Holder("db-1").StatefulSet("db", 1, "").Handover("now"),
			"pod db-1 belongs to StatefulSet db, and not to a Deployment"),
	})
}

// While spec.paused is true, no handoff begins. A holder that ends is still replaced.
func TestDecidePaused(t *testing.T) {
	paused := func(s *SnapshotWrapper) *SnapshotWrapper {
		s.Singleton.Spec.Paused = true
		return s
	}
	withSpare := func() *SnapshotWrapper { return drained(holding(), spare(node2).Protected()).Deployment(2) }
	waits := keeps(handoff.Paused).says("pod db-2 takes over from pod db-1 only when spec.paused is false")
	runDrain(t, map[string]decideCase{
		"a rollout":               {paused(MakeSnapshot(holding(), next(node2).Protected()).Holder("db-1")), waits},
		"a rollout and a request": {paused(MakeSnapshot(holding(), next(node2).Protected()).Holder("db-1").Handover("now").Manual()), waits},
		"a rollout, and the holder is not Ready": {
			paused(MakeSnapshot(holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), next(node2).Protected()).Holder("db-1")),
			keeps(handoff.Paused).says("pod db-1 is not Ready"),
		},
		"a rollout, and the node of the holder is lost": {
			paused(MakeSnapshot(holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), next(node2).Protected()).
				Holder("db-1").Node(node1, corev1.ConditionUnknown)),
			keeps(handoff.Paused).says("node node-1 of pod db-1 does not answer"),
		},
		"a rollout that is not warm": {paused(MakeSnapshot(holding(), MakePod("db-2").Revision(2).Injected()).Holder("db-1")), keeps(handoff.StandbyNotWarm)},
		"a rollout, and a drain":     {paused(drained(holding(), next(node2).Protected())), waits.draining()},
		"a request":                  {paused(MakeSnapshot(holding()).Holder("db-1").Handover("now")), keeps(handoff.HolderReady)},
		"a drain":                    {paused(drained(holding())), keeps(handoff.HolderReady).draining().says("blocked while spec.paused is true, at most until 2026-01-02T03:09:05Z")},
		"a drain with a spare":       {paused(withSpare()), keeps(handoff.HolderReady).draining()},
		"a drain with a spare, late": {paused(withSpare().DrainedFor(300 * time.Second)), keeps(handoff.HolderReady).evictions("StandbyWaits").draining()},
		"a drain, late":              {paused(drained(holding()).DrainedFor(300 * time.Second)), keeps(handoff.HolderReady).evictions("DrainTimedOut").draining()},
	})
	runDecide(t, map[string]decideCase{
		"a deletion":                  {paused(MakeSnapshot(holding().Deleting(), next(node2).Protected()).Holder("db-1")), keeps(handoff.HolderStopping)},
		"the holder ends":             {paused(MakeSnapshot(holding().Deleting().Ended(), next(node2).Protected()).Holder("db-1")), holds("db-2", 8, handoff.Released, record, signalOf("db-2", 8), unprotect("db-1"))},
		"there has not been a holder": {paused(MakeSnapshot(warm("db-1"))), releases("db-1", 1)},
	})
}

// The history has the handoffs before the last one.
func TestDecideRemembers(t *testing.T) {
	dead := func() *PodWrapper { return holding().Deleting().Ended() }
	last := &v1.Transition{From: "db-0", To: "db-1", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, Signalled: microTime(now), GapMilliseconds: new(int64(300))}
	past := v1.PastHandoff{Time: microTime(now), From: "db-0", To: "db-1", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, GapMilliseconds: new(int64(300))}
	full := func() []v1.PastHandoff {
		earlier := make([]v1.PastHandoff, v1.MaxHistory)
		for i := range earlier {
			earlier[i] = v1.PastHandoff{To: fmt.Sprintf("earlier-%d", i)}
		}
		return earlier
	}
	for name, tc := range map[string]struct {
		pods   []*PodWrapper
		before []v1.PastHandoff
		want   []v1.PastHandoff
	}{
		"the holder stays":                   {[]*PodWrapper{holding()}, nil, nil},
		"another pod becomes the holder":     {[]*PodWrapper{dead(), next(node2)}, nil, []v1.PastHandoff{past}},
		"the holder ended, and no pod waits": {[]*PodWrapper{dead()}, nil, []v1.PastHandoff{past}},
		"the history is full":                {[]*PodWrapper{dead(), next(node2)}, full(), append([]v1.PastHandoff{past}, full()[:v1.MaxHistory-1]...)},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(tc.pods...).Holder("db-1")
			s.Singleton.Status.LastTransition, s.Singleton.Status.History = last.DeepCopy(), tc.before
			plan := handoff.Decide(s.Snapshot, now)
			if diff := cmp.Diff(tc.want, plan.Status.History); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
			s.Singleton.Status = plan.Status
			if diff := cmp.Diff(tc.want, handoff.Decide(s.Snapshot, now).Status.History); diff != "" {
				t.Errorf("history after another decision (-want +got):\n%s", diff)
			}
		})
	}
}

// An annotation value is recorded as handled when the holder changes or when the request is refused.
func TestDecideHandoverActsOnce(t *testing.T) {
	dead := func() *PodWrapper { return holding().Deleting().Ended() }
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     *v1.Handover
	}{
		"another pod becomes the holder": {MakeSnapshot(dead(), next(node2)).Holder("db-1").Handover("now"), &v1.Handover{Value: "now"}},
		"the holder has terminated":      {MakeSnapshot(dead()).Holder("db-1").Handover("now"), &v1.Handover{Value: "now"}},
		"a pod becomes the first holder": {MakeSnapshot(next(node2)).Handover("now"), &v1.Handover{Value: "now"}},
		"the holder is terminating":      {MakeSnapshot(holding().Deleting(), next(node2)).Holder("db-1").Handover("now"), nil},
		"there is no request":            {MakeSnapshot(dead(), next(node2)).Holder("db-1"), nil},
		"the request was removed":        {MakeSnapshot(dead(), next(node2)).Holder("db-1").HandedOver("before"), &v1.Handover{Value: "before"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, handoff.Decide(tc.snapshot.Snapshot, now).Status.Handover); diff != "" {
				t.Errorf("handover (-want +got):\n%s", diff)
			}
		})
	}

	s := MakeSnapshot(holding()).Holder("db-1").Handover("now").Paused()
	refused := handoff.Decide(s.Snapshot, now).Status.Handover
	if refused == nil || refused.Value != "now" || !strings.Contains(refused.Refused, "Deployment db is paused") {
		t.Fatalf("handover %v, want a refusal", refused)
	}
	s.Deployment(1).Singleton.Status.Handover = refused
	plan := handoff.Decide(s.Snapshot, now)
	if len(plan.Steps) > 0 || !strings.HasSuffix(plan.Status.Message, refused.Refused) {
		t.Errorf("steps %v and message %q, want none and the refusal", plan.Steps, plan.Status.Message)
	}
}

// A new holder has no condition Draining.
func TestDecideEndsDrain(t *testing.T) {
	s := MakeSnapshot(holding().Deleting().Ended(), next(node2)).Holder("db-1").DrainedFor(time.Minute)
	status := handoff.Decide(s.Snapshot, now).Status
	if status.ActivePod != "db-2" || status.ActiveNode != node2 || meta.FindStatusCondition(status.Conditions, v1.ConditionDraining) != nil {
		t.Errorf("holder %s on node %s, conditions %v, want db-2 on %s and no drain", status.ActivePod, status.ActiveNode, status.Conditions, node2)
	}
}

// The cause is Drain or Handover only if the holder was replaced for that reason. If the holder ended in another way,
// the cause says so.
func TestDecideNamesTheCauseOfReplacement(t *testing.T) {
	dead := func() *PodWrapper { return holding().Deleting().Ended() }
	retired := func(pod *PodWrapper) *SnapshotWrapper { return MakeSnapshot(pod).ReplicaSet("db-v1", 0).Holder("db-1") }
	evicted := func() *PodWrapper {
		return dead().Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "")
	}
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     v1.Cause
	}{
		"a drain": {retired(dead()).DrainedFor(time.Minute), v1.CauseDrain},
		"a drain that evicts the terminating holder":    {retired(evicted()).DrainedFor(time.Minute), v1.CauseDrain},
		"a drain after the deadline":                    {MakeSnapshot(evicted()).Holder("db-1").DrainedFor(time.Hour), v1.CauseEviction},
		"a drain, and the Deployment is scaled to zero": {retired(dead()).Deployment(0).DrainedFor(time.Minute), v1.CauseScaleDown},
		"a drain, and the Deployment cannot surge": {
			retired(dead()).Strategy(appsv1.RecreateDeploymentStrategyType, "1", "0").DrainedFor(time.Minute), v1.CauseRollout,
		},
		"a request": {retired(dead()).Handover("now"), v1.CauseHandover},
		"a request, and the pod terminated first": {MakeSnapshot(holding().Ended()).ReplicaSet("db-v1", 0).Holder("db-1").Handover("now"), v1.CauseCompletion},
		"a request, and somebody deleted the pod": {MakeSnapshot(dead()).Holder("db-1").Handover("now"), v1.CauseDeletion},
		"a request that was handled before":       {retired(dead()).Handover("now").HandedOver("now"), v1.CauseRollout},
	} {
		t.Run(name, func(t *testing.T) {
			if got := handoff.Decide(tc.snapshot.Snapshot, now).Status.LastTransition.Cause; got != tc.want {
				t.Errorf("cause %s, want %s", got, tc.want)
			}
		})
	}
}
