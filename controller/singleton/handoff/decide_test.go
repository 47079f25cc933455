package handoff_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// decideCase is a snapshot and the expected plan.
type decideCase struct {
	snapshot    *SnapshotWrapper
	wantOutcome handoff.Outcome
	wantSteps   []handoff.Step
	// wantHolder is empty if no pod holds.
	wantHolder string
	wantEpoch  int64
	wantPhase  v1.Phase
	// wantMessage is a part of the message.
	wantMessage string
}

func (tc decideCase) run(t *testing.T) {
	t.Helper()
	before := tc.snapshot.Singleton.DeepCopy()
	plan := handoff.Decide(tc.snapshot.Snapshot, now)
	if plan.Outcome != tc.wantOutcome {
		t.Errorf("outcome %s, want %s", plan.Outcome, tc.wantOutcome)
	}
	if diff := cmp.Diff(tc.wantSteps, plan.Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if got := plan.Status.ActivePod; got != tc.wantHolder {
		t.Errorf("holder %q, want %q", got, tc.wantHolder)
	}
	if (plan.Status.ActivePod == "") != (plan.Status.ActivePodUID == "") {
		t.Errorf("holder %q has uid %q", plan.Status.ActivePod, plan.Status.ActivePodUID)
	}
	if plan.Status.Epoch != tc.wantEpoch {
		t.Errorf("epoch %d, want %d", plan.Status.Epoch, tc.wantEpoch)
	}
	if plan.Status.Phase != tc.wantPhase {
		t.Errorf("phase %q, want %q", plan.Status.Phase, tc.wantPhase)
	}
	if !strings.Contains(plan.Status.Message, tc.wantMessage) {
		t.Errorf("message %q, want %q in it", plan.Status.Message, tc.wantMessage)
	}
	if tc.snapshot.HolderStays() {
		wantNoRelease(t, tc.snapshot.Snapshot, plan)
	}
	if diff := cmp.Diff(before, tc.snapshot.Singleton); diff != "" {
		t.Errorf("the snapshot was changed (-before +after):\n%s", diff)
	}
}

// wantNoRelease checks that the plan signals no pod and keeps the holder.
func wantNoRelease(t *testing.T, s handoff.Snapshot, plan handoff.Plan) {
	t.Helper()
	signals := slices.ContainsFunc(plan.Steps, func(step handoff.Step) bool { _, is := step.(handoff.Signal); return is })
	if signals || plan.Status.ActivePodUID != s.Singleton.Status.ActivePodUID {
		t.Errorf("%s: pod %s holds, and the steps are %v, though the holder stays", plan.Outcome, plan.Status.ActivePod, plan.Steps)
	}
}

func runDecide(t *testing.T, cases map[string]decideCase) {
	for name, tc := range cases {
		t.Run(name, tc.run)
	}
}

func TestDecideFirstHolder(t *testing.T) {
	older := MakePod("db-1").Injected().Warm()
	younger := MakePod("db-0").Injected().Warm().Created(now)
	runDecide(t, map[string]decideCase{
		"no pods": {
			snapshot:    MakeSnapshot(),
			wantOutcome: handoff.NoPods, wantMessage: "the first pod is held until the controller releases it",
		},
		"no pod is warm": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected()),
			wantOutcome: handoff.WarmingUp, wantPhase: v1.PhaseTransitioning, wantMessage: "pod db-1 is not scheduled yet",
		},
		"a pod held by the wrapper": {
			snapshot:    MakeSnapshot(older),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
			wantMessage: "pod db-1 is released with epoch 1",
		},
		"the barrier opens after the record": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm()),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				choose("db-1"), handoff.Record{},
				handoff.OpenBarrier{Pod: ref("db-1"), ConfigMap: barrierOf("db-1"), Epoch: 1}, signalOf("db-1", 1),
			},
		},
		"containers that share a barrier open it once": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Container(barrier("helper", barrierOf("db-1"))).Injected().Warm()),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				choose("db-1"), handoff.Record{},
				handoff.OpenBarrier{Pod: ref("db-1"), ConfigMap: barrierOf("db-1"), Epoch: 1}, signalOf("db-1", 1),
			},
		},
		"the oldest standby of one revision is next": {
			snapshot:    MakeSnapshot(younger, older),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"of two standbys of one age, the first by name is next": {
			snapshot:    MakeSnapshot(MakePod("db-2").Injected().Warm(), older),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"a standby of the newest revision is next, although it is younger": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm().Revision(9), MakePod("db-0").Injected().Warm().Created(now).Revision(10)),
			wantOutcome: handoff.Released, wantHolder: "db-0", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-0"), handoff.Record{}, signalOf("db-0", 1)},
		},
		"a standby has no revision if its owner is of another group": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm().Revision(9), MakePod("db-0").Injected().Warm().Created(now).Revision(10).OwnersOf("example.com/v1")),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"a warm standby of an older revision is next if no other standby is warm": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm().Revision(1), MakePod("db-2").Injected().Revision(2)),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"the oldest standby is next, although a lost record may name a younger standby": {
			snapshot:    MakeSnapshot(MakePod("db-0").Injected().Warm().Created(now).Protected(), older),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Unprotect{Pod: ref("db-0"), Version: version}, protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"the first holder of a recreated singleton, after another pod terminated": {
			snapshot:    MakeSnapshot(MakePod("db-0").Injected().Signalled(40).Running().Ended(), older),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 41, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 41), handoff.Unprotect{Pod: ref("db-0")}},
		},
		"another singleton may be about to signal its standby": {
			snapshot:    MakeSnapshot(MakePod("db-0").InjectedFor("old").Warm().Protected(), older),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Unprotect{Pod: ref("db-0"), Version: version}, protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"no pod is warm, and the last pod with an epoch has terminated": {
			snapshot:    MakeSnapshot(MakePod("db-0").Injected().Signalled(40).Running().Ended(), MakePod("db-1").Injected()),
			wantOutcome: handoff.WarmingUp, wantEpoch: 40, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, handoff.Unprotect{Pod: ref("db-0")}},
		},
		"a terminating pod is not released": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm().Deleting()),
			wantOutcome: handoff.NoPods,
		},
		"a terminated pod is not released": {
			snapshot:    MakeSnapshot(rejected(MakePod("db-1").Injected().Warm())),
			wantOutcome: handoff.NoPods,
		},
		"a terminated pod is not released, although it may have been signalled": {
			snapshot:    MakeSnapshot(rejected(MakePod("db-1").Injected().Warm().Annotation(signal.Annotation, "go!"))),
			wantOutcome: handoff.NoPods, wantMessage: "all pods that match the selector are terminating or have terminated",
		},
		"a pod that the selector does not match is not released": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm().Label("app", "other")),
			wantOutcome: handoff.NoPods,
		},
		"a pod that was injected for another singleton is not released": {
			snapshot:    MakeSnapshot(MakePod("db-1").InjectedFor("old").Warm()),
			wantOutcome: handoff.NoPods, wantMessage: "pod db-1 is held for StatefulSingleton prod/old and is never released by this one: delete the pod",
		},
		"a pod without an owner": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm()).NoNode(node2),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
	})
}

func TestDecideAdoption(t *testing.T) {
	plain := func(name string) *PodWrapper { return MakePod(name).Ready() }
	standby := MakePod("db-2").Injected().Warm()
	protect := func(name string, holder bool) handoff.Protect { return handoff.Protect{Pod: ref(name), Holder: holder} }
	runDecide(t, map[string]decideCase{
		"a pod ran before the singleton existed": {
			snapshot:    MakeSnapshot(plain("db-1"), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
			wantMessage: "pod db-1 already runs and becomes the holder",
		},
		"a pod that is not held has not started yet": {
			snapshot:    MakeSnapshot(MakePod("db-1"), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"a terminating pod cannot receive a finalizer": {
			snapshot:    MakeSnapshot(plain("db-1").Deleting(), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}},
		},
		"two pods ran before": {
			snapshot:    MakeSnapshot(plain("db-0"), plain("db-1"), standby),
			wantOutcome: handoff.SeveralRun, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{protect("db-0", false), protect("db-1", false)},
			wantMessage: "pods db-0, db-1 are not held, and no record names the holder: no pod is released until only one pod is left. " +
				"Find out which pod to keep, for example from the logs of the application. Then delete each other pod: kubectl delete -n prod pod <name>",
		},
		"two pods ran before, and one is terminating on a node that does not answer": {
			snapshot: MakeSnapshot(plain("db-0").On(node2).Protected().Deleting(), plain("db-1").Protected(), standby).
				Node(node2, corev1.ConditionUnknown),
			wantOutcome: handoff.SeveralRun, wantPhase: v1.PhaseTransitioning,
			wantMessage: "Pod db-0 is terminating, but its node node-2 does not answer",
		},
		"two pods ran before, and a standby may be about to be signalled": {
			snapshot:    MakeSnapshot(plain("db-0").Protected(), plain("db-1").Protected(), MakePod("db-2").Injected().Warm().Protected()),
			wantOutcome: handoff.SeveralRun, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{handoff.Unprotect{Pod: ref("db-2"), Version: version}},
		},
		"two pods ran before, and one is terminating": {
			snapshot:    MakeSnapshot(plain("db-0").Protected().Deleting(), plain("db-1"), standby),
			wantOutcome: handoff.SeveralRun, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false)},
		},
		"two pods ran before, and one is terminating and cannot receive a finalizer": {
			snapshot:    MakeSnapshot(plain("db-0"), plain("db-1").Deleting(), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{protect("db-0", false), handoff.Record{}},
			wantMessage: "pod db-1 already runs and becomes the holder",
		},
		"two pods ran before, both are terminating, and one cannot receive a finalizer": {
			snapshot:    MakeSnapshot(plain("db-0").Protected().Deleting(), plain("db-1").Deleting(), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}},
		},
		"two pods ran before, one cannot receive a finalizer, and another singleton selects it": {
			snapshot:    MakeSnapshot(plain("db-0"), plain("db-1").Deleting()).Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{protect("db-0", false)},
		},
		"two pods ran before, and one has terminated": {
			snapshot:    MakeSnapshot(plain("db-0").Protected().Deleting().Ended(), plain("db-1"), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true), handoff.Unprotect{Pod: ref("db-0")}},
		},
		"a pod ran before and has terminated": {
			snapshot:    MakeSnapshot(plain("db-1").Ended(), standby),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 1)},
		},
		"another pod runs beside the holder": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), plain("db-0")).Holder("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps:   []handoff.Step{protect("db-0", false)},
			wantMessage: "pod db-0 is not held",
		},
		"another pod runs beside a holder that was not signalled": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm(), plain("db-0")).Chosen("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{protect("db-0", false)},
		},
		"another pod runs, and the holder has terminated": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Deleting().Ended(), plain("db-0"), standby).Holder("db-1"),
			wantOutcome: handoff.HolderEnded, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{protect("db-0", false), handoff.Record{}, handoff.Unprotect{Pod: ref("db-1")}},
			wantMessage: "pod db-1 has terminated, and pod db-0 already runs",
		},
		"another pod runs, and the holder is lost and attested": {
			snapshot:    MakeSnapshot(plain("db-0").Protected(), standby).Holder("db-1").Attest("db-1-uid"),
			wantOutcome: handoff.HolderEnded, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{handoff.Record{}},
			wantMessage: "pod db-1 has terminated, and pod db-0 already runs",
		},
		"another pod runs, the holder has terminated, and another singleton selects the pod": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Deleting().Ended(), plain("db-0").Protected()).Holder("db-1").Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{handoff.Record{}, handoff.Unprotect{Pod: ref("db-1")}},
		},
		"two other pods run, and the holder has terminated": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Deleting().Ended(), plain("db-0").Protected(), plain("db-3").Protected(), standby).Holder("db-1"),
			wantOutcome: handoff.SeveralRun, wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{handoff.Record{}, handoff.Unprotect{Pod: ref("db-1")}},
		},
		"a pod is signalled, and the record is lost": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Signalled(40).Ready(), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 40, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, protect("db-1", true)},
		},
		"a deleted singleton may have opened the barrier": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().ChosenBy("gone").Warm(), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, protect("db-1", true)},
		},
		"a deleted singleton may have opened the barrier of a pod beside the holder": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), MakePod("db-2").Barrier().Injected().ChosenBy("gone").Warm()).Holder("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantMessage: "Another StatefulSingleton, which may have been deleted, may have released pod db-2. Keep pod db-1, which is the holder, and run: kubectl delete -n prod pod db-2",
		},
		"a pod is signalled with an older epoch than the record has": {
			snapshot:    MakeSnapshot(MakePod("db-2").Injected().Signalled(3).Ready()).Ended(v1.CauseDeletion),
			wantOutcome: handoff.Adopted, wantHolder: "db-2", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, protect("db-2", true)},
		},
		"a copy of the holder waits at the open barrier": {
			snapshot: MakeSnapshot(MakePod("db-1").Barrier().Injected().Holding(), MakePod("db-2").CopiedFrom("db-1").Injected().Warm()).
				Holder("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps:   []handoff.Step{protect("db-2", false)},
			wantMessage: "pod db-2 is not held",
		},
		"a copy of the recorded pod, before the signal": {
			snapshot: MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm().Protected(), MakePod("db-2").CopiedFrom("db-1").Injected().Warm()).
				Chosen("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{protect("db-2", false)},
		},
		"a copy of a standby would start at the same time": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm(), MakePod("db-2").CopiedFrom("db-1").Injected()),
			wantOutcome: handoff.WarmingUp, wantPhase: v1.PhaseFailed,
			wantMessage: "pod db-1 waits for the same ConfigMap as pod db-2, and both would start at the same time",
		},
		"the singleton names a native sidecar that is not held": {
			snapshot:    MakeSnapshot(openSidecar("db-1"), standby).Containers("app", "proxy"),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the singleton names a native sidecar of a pod beside the holder that is not held": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), openSidecar("db-2")).Holder("db-1").Containers("app", "proxy"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps:   []handoff.Step{protect("db-2", false)},
			wantMessage: "pod db-2 is not held",
		},
		"the singleton does not name the native sidecar that is not held": {
			snapshot:    MakeSnapshot(openSidecar("db-1")).Containers("app"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"two pods are signalled": {
			snapshot:    MakeSnapshot(MakePod("db-0").Injected().Signalled(3).Ready(), MakePod("db-1").Injected().Signalled(4).Ready(), standby),
			wantOutcome: handoff.SeveralRun, wantEpoch: 4, wantPhase: v1.PhaseFailed,
		},
		"one container of an injected pod is not held": {
			snapshot:    MakeSnapshot(openHelper("db-1"), standby),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the singleton does not name the container that is not held": {
			snapshot:    MakeSnapshot(openHelper("db-1")).Containers("app"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 1)},
		},
		"the singleton names an init container that ran before": {
			snapshot:    MakeSnapshot(openInit("db-1")).HoldInit(),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the singleton names an init container that ran before in a pod beside the holder": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), openInit("db-2")).Holder("db-1").HoldInit(),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{protect("db-2", false)},
			wantMessage: "Nothing holds container seed of pod db-2, which was created before spec.holdInitContainers named the container. " +
				"Keep pod db-1, which is the holder, and run: kubectl delete -n prod pod db-2",
		},
		"the singleton names a container that ran before in a pod beside the holder": {
			snapshot:    MakeSnapshot(openHelper("db-2"), MakePod("db-1").Injected().Holding(), plain("db-3").Protected()).Holder("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantSteps: []handoff.Step{protect("db-2", false)},
			wantMessage: "Nothing holds container helper of pod db-2, which was created before spec.containers named the container. " +
				"Keep pod db-1, which is the holder, and run: kubectl delete -n prod pod db-2 db-3",
		},
		"a pod runs, and a lost record may name the standby": {
			snapshot:    MakeSnapshot(plain("db-1"), MakePod("db-2").Injected().Warm().Protected()),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Unprotect{Pod: ref("db-2"), Version: version}, protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"a later variable overrides the barrier, and the kubelet has reported nothing": {
			snapshot:    MakeSnapshot(overruled("db-1").State("app", waiting("ContainerCreating", ""))),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the ConfigMap of the barrier is optional": {
			snapshot:    MakeSnapshot(optional("db-1")),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"another subcommand of the gate is in front of the command": {
			snapshot:    MakeSnapshot(commanded("db-1", signal.GatePath, "started", "--", "/bin/db")),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the wrapper has flags": {
			snapshot:    MakeSnapshot(commanded("db-1", signal.GatePath, "wrap", "--help", "/bin/db")),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the wrapper is another program": {
			snapshot:    MakeSnapshot(commanded("db-1", "/bin/gate", "wrap", "--", "/bin/db")),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"the pod has the wrapper, and no policy injected the pod": {
			snapshot:    MakeSnapshot(commanded("db-1", signal.GatePath, "wrap", "--", "/bin/db").Annotation(v1.InjectedAnnotation, "")),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"no container of an injected pod is held": {
			snapshot:    MakeSnapshot(commanded("db-1", "/bin/db")).Containers("other"),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
		"a later variable overrides the barrier": {
			snapshot:    MakeSnapshot(overruled("db-1")),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protect("db-1", false), handoff.Record{}, protect("db-1", true)},
		},
	})
}

// One of two running pods is terminating and cannot receive a finalizer. After the object is removed, the other pod is
// not adopted, because nothing proves that the removed pod has terminated.
func TestDecideMissesRemovedPod(t *testing.T) {
	other, standby := MakePod("db-0").Ready().Protected(), MakePod("db-2").Injected().Warm()
	adopted := handoff.Decide(MakeSnapshot(other, MakePod("db-1").Ready().Deleting(), standby).Snapshot, now)
	gone := MakeSnapshot(other, standby)
	gone.Singleton.Status = adopted.Status
	decideCase{
		snapshot: gone, wantOutcome: handoff.HolderLost, wantHolder: "db-1", wantEpoch: 1, wantPhase: v1.PhaseFailed,
		wantMessage: "pod db-1 was removed, and nothing proves that its processes have ended",
	}.run(t)
}

// overruled returns a pod whose barrier has no effect. The last variable of a name overrides the others.
func overruled(name string) *PodWrapper {
	p := MakePod(name).Barrier().Injected().Running()
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: signal.EpochEnv, Value: "1"})
	return p
}

// optional returns a pod whose barrier has no effect, because its ConfigMap is optional.
func optional(name string) *PodWrapper {
	p := MakePod(name).Barrier().Injected().Warm()
	p.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Optional = new(true)
	return p.State("app", waiting("ContainerCreating", ""))
}

// commanded returns an injected pod with the given command instead of the command that the policy sets.
func commanded(name string, command ...string) *PodWrapper {
	p := MakePod(name).Injected().Warm()
	p.Spec.Containers[0].Command = command
	return p
}

func TestDecideHolderAlive(t *testing.T) {
	started := func() *PodWrapper { return MakePod("db-1").GateProbe().Injected().Signalled(7).Running() }
	runDecide(t, map[string]decideCase{
		"the holder is Ready": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding()).Holder("db-1"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-1 is the holder with epoch 7",
		},
		"the holder is Ready, and a foreign pod waits": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), MakePod("db-2").InjectedFor("old").Warm()).Holder("db-1"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-2 is held for StatefulSingleton prod/old",
		},
		"the controller stopped between the record and the signal": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm()).Chosen("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				choose("db-1"), handoff.Record{},
				handoff.OpenBarrier{Pod: ref("db-1"), ConfigMap: barrierOf("db-1"), Epoch: 7}, signalOf("db-1", 7),
			},
		},
		"the controller stopped between the record and the signal of a pod with a barrier": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().ChosenBy("stfs-uid").Warm()).Chosen("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				handoff.Record{}, handoff.OpenBarrier{Pod: ref("db-1"), ConfigMap: barrierOf("db-1"), Epoch: 7}, signalOf("db-1", 7),
			},
		},
		"the pod was just signalled, and the kubelet has not reported the start": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().SignalledAt(7, now.Add(-time.Second)).Warm()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}},
		},
		"somebody deleted the ConfigMap of the barrier after the nudge": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().Signalled(7).Annotation(v1.NudgeAnnotation, "7").Warm()).Holder("db-1"),
			wantOutcome: handoff.HolderNotReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{
				handoff.MarkReady{Pod: ref("db-1")}, handoff.OpenBarrier{Pod: ref("db-1"), ConfigMap: barrierOf("db-1"), Epoch: 7},
			},
		},
		"somebody deleted the ConfigMap of the barrier": {
			snapshot:    MakeSnapshot(MakePod("db-1").Barrier().Injected().Signalled(7).Warm()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				handoff.MarkReady{Pod: ref("db-1")}, handoff.OpenBarrier{Pod: ref("db-1"), ConfigMap: barrierOf("db-1"), Epoch: 7}, handoff.Nudge{Pod: ref("db-1"), Epoch: 7},
			},
			wantMessage: "pod db-1 is the holder and has not been Ready yet: the kubelet has not created the container behind the open barrier yet",
		},
		"somebody removed the signal, and the readiness gate is True": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Warm().Protected().Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "")).Chosen("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, signalOf("db-1", 7)},
		},
		"the sidecar of the signalled pod crashes": {
			snapshot: MakeSnapshot(MakePod("db-1").GateProbe().Injected().Signalled(7).Annotation(v1.NudgeAnnotation, "7").Warm().
				State(v1.SidecarName, waiting("CrashLoopBackOff", "back-off 10s"))).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}},
			wantMessage: "pod db-1 is the holder and has not been Ready yet: init container status-sidecar waits: CrashLoopBackOff: back-off 10s",
		},
		"the holder is unready because its sidecar crashes": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().Holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", "").
				State(v1.SidecarName, terminated(1))).Holder("db-1"),
			wantOutcome: handoff.HolderNotReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-1 is the holder and is not Ready: init container status-sidecar ended: Error, exit code 1",
		},
		"the application of the holder failed, and its sidecar ended afterwards": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().Holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", "").
				State(v1.SidecarName, terminated(0)).State("app", terminated(1))).Holder("db-1"),
			wantOutcome: handoff.HolderNotReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-1 is the holder and is not Ready: container app ended: Error, exit code 1",
		},
		"the signal is for another pod": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-0-uid","epoch":7}`).Warm()).Chosen("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 7)},
		},
		"the signal cannot be parsed": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Annotation(signal.Annotation, "true").Warm()).Chosen("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-1"), handoff.Record{}, signalOf("db-1", 7)},
		},
		"somebody removed the finalizer": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().
				Annotation(signal.Annotation, `{"uid":"db-1-uid","epoch":7}`).Ready()).Holder("db-1"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{handoff.Protect{Pod: ref("db-1"), Holder: true}},
		},
		"the main process has started": {
			snapshot:    MakeSnapshot(started()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}},
		},
		"an adopted pod has only one held container": {
			snapshot:    MakeSnapshot(openHelper("db-1").Protected()).Holder("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, signalOf("db-1", 7)},
		},
		"the main process has not started, and somebody set the readiness gate to False": {
			snapshot:    MakeSnapshot(MakePod("db-1").GateProbe().Injected().Signalled(7).Warm()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}, handoff.Nudge{Pod: ref("db-1"), Epoch: 7}},
			wantMessage: "pod db-1 is the holder and has not been Ready yet: container app is running and not ready",
		},
		"the kubelet probes the started main process again only after a period": {
			snapshot:    MakeSnapshot(MakePod("db-1").Readiness(10).Injected().SignalledAt(7, now.Add(-time.Second)).Running()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}, handoff.Nudge{Pod: ref("db-1"), Epoch: 7}},
		},
		"the main process has just started": {
			snapshot:    MakeSnapshot(MakePod("db-1").Readiness(10).Injected().SignalledAt(7, now.Add(-999*time.Millisecond)).Running()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}},
		},
		"the next readiness probe is in a second": {
			snapshot:    MakeSnapshot(MakePod("db-1").Readiness(1).Injected().SignalledAt(7, now.Add(-4999*time.Millisecond)).Running()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}},
		},
		"the kubelet probes the holder every second, and may have missed the signal": {
			snapshot:    MakeSnapshot(MakePod("db-1").Readiness(1).Injected().SignalledAt(7, now.Add(-5*time.Second)).Running()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}, handoff.Nudge{Pod: ref("db-1"), Epoch: 7}},
		},
		"the holder was nudged before": {
			snapshot:    MakeSnapshot(MakePod("db-1").Readiness(10).Injected().Signalled(7).Annotation(v1.NudgeAnnotation, "7").Running()).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}},
		},
		"one of two main processes has started": {
			snapshot: MakeSnapshot(MakePod("db-1").GateProbe().Container(corev1.Container{Name: "helper", Command: []string{"/helper"}}).Injected().
				Signalled(7).Running().State("helper", waiting("ContainerCreating", ""))).Chosen("db-1"),
			wantOutcome: handoff.Starting, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.MarkReady{Pod: ref("db-1")}, handoff.Nudge{Pod: ref("db-1"), Epoch: 7}},
		},
		"the holder is unready": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", "no answer")).Holder("db-1"),
			wantOutcome: handoff.HolderNotReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-1 is the holder and is not Ready: no answer",
		},
		"the node does not answer": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().Holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), MakePod("db-2").Injected().Warm().On(node2)).
				Holder("db-1").Node(node1, corev1.ConditionUnknown, corev1.TaintNodeUnreachable),
			wantOutcome: handoff.HolderNotReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "its node node-1 does not answer: the pod may still run there, so no other pod is released; pod db-2 is warm and would take over. If node node-1 is off, run: kubectl taint node node-1",
			wantSteps:   []handoff.Step{protectStandby("db-2")},
		},
		"a spare of the same revision": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Revision(2), MakePod("db-2").Injected().Warm().Revision(2)).Holder("db-1"),
			wantSteps:   []handoff.Step{protectStandby("db-2")},
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-1 is the holder with epoch 7; pod db-2 is warm and would take over",
		},
		"the singleton names the init containers only now": {
			snapshot:    MakeSnapshot(openInit("db-1").Holding()).Holder("db-1").HoldInit(),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
		"a spare whose init container is held": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().Holding(),
				heldInit("db-2").Warm().State("migrate", running()).State("app", waiting("PodInitializing", ""))).Holder("db-1").HoldInit(),
			wantSteps:   []handoff.Step{protectStandby("db-2")},
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-2 is warm and would take over",
		},
		"a spare that can't be scheduled": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().Holding().Revision(2), MakePod("db-2").Injected().Revision(2).
				Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/2 nodes are available")).Holder("db-1"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-1 is the holder with epoch 7; no standby is warm: pod db-2 can't be scheduled: 0/2 nodes are available",
		},
		"a spare whose readiness gate is open": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), MakePod("db-2").Injected().Probed().Warm().OpenGate(v1.ReadyReasonStandby)).Holder("db-1"),
			wantSteps:   []handoff.Step{protectStandby("db-2")},
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "pod db-2 is warm and would take over",
		},
		"a pod with the readiness gate of a released pod": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding(), MakePod("db-2").Injected().Probed().Warm().Protected().OpenGate(v1.ReadyReasonHolds)).Holder("db-1"),
			wantOutcome: handoff.SeveralRun, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
		},
		"a standby of an older revision": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Revision(10), MakePod("db-2").Injected().Warm().Revision(9)).Holder("db-1"),
			wantSteps:   []handoff.Step{protectStandby("db-2")},
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
	})
}

func TestDecideRollout(t *testing.T) {
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding().Revision(1) }
	standby := MakePod("db-2").Injected().Warm().Revision(2)
	retire := []handoff.Step{protectStandby("db-2"), handoff.Retire{ReplicaSet: "db-v1"}}
	runDecide(t, map[string]decideCase{
		"the new pod is warm": {
			snapshot:    MakeSnapshot(holder(), standby).Holder("db-1"),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: retire,
		},
		"the ReplicaSet is scaled to zero already": {
			snapshot:    MakeSnapshot(holder(), MakePod("db-2").Injected().Warm().Revision(2).Protected()).Holder("db-1").ReplicaSet("db-v1", 0),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
		},
		"the new pod is not warm, and the holder keeps running": {
			snapshot: MakeSnapshot(holder(), MakePod("db-2").Injected().Revision(2).Warm().
				State("app", waiting("ImagePullBackOff", "no such image"))).Holder("db-1"),
			wantOutcome: handoff.StandbyNotWarm, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantMessage: "pod db-2 container app waits: ImagePullBackOff: no such image; pod db-1 keeps running until pod db-2 is warm",
		},
		"the younger of two new pods is warm": {
			snapshot: MakeSnapshot(holder(), MakePod("db-3").Injected().Revision(2).Created(now.Add(-2*time.Hour)).
				Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/2 nodes are available"), standby).Holder("db-1"),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: retire,
		},
		"no pod is released before a crash-looping holder has terminated": {
			snapshot:    MakeSnapshot(holder().State("app", waiting("CrashLoopBackOff", "")).Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), standby).Holder("db-1"),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: retire,
		},
		"an adopted holder": {
			snapshot:    MakeSnapshot(MakePod("db-1").Protected().Ready().Revision(1), standby).Holder("db-1"),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: retire,
		},
		"the holder is terminating": {
			snapshot:    MakeSnapshot(holder().Deleting(), standby).Holder("db-1").ReplicaSet("db-v1", 0),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantMessage: "pod db-1 is terminating; the next pod is released once the kubelet reports that the pod has terminated",
		},
		"the holder has terminated": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), standby).Holder("db-1").ReplicaSet("db-v1", 0),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 8), handoff.Unprotect{Pod: ref("db-1")}},
		},
		"the holder has terminated, and the readiness gate of the new pod is open": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), MakePod("db-2").Injected().Probed().Warm().Revision(2).Protected().OpenGate(v1.ReadyReasonStandby)).Holder("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, signalOf("db-2", 8), handoff.Unprotect{Pod: ref("db-1")}},
		},
		"the holder has terminated, and the probes of the new pod fail until its release": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), MakePod("db-2").Injected().Probed().Warm().Revision(2)).Holder("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 8), handoff.Unprotect{Pod: ref("db-1")}},
		},
		"the holder has terminated, and the new pod waits at a barrier": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), MakePod("db-2").Barrier().Injected().Warm().Revision(2)).Holder("db-1"),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				choose("db-2"), handoff.Record{},
				handoff.OpenBarrier{Pod: ref("db-2"), ConfigMap: barrierOf("db-2"), Epoch: 8}, signalOf("db-2", 8),
				handoff.Unprotect{Pod: ref("db-1")},
			},
		},
		"the holder has terminated, and the new pod is not warm": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), MakePod("db-2").Injected().Revision(2)).Holder("db-1"),
			wantOutcome: handoff.HolderEnded, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps:   []handoff.Step{handoff.Record{}, handoff.Unprotect{Pod: ref("db-1")}},
			wantMessage: "pod db-1 has terminated, and no standby is warm yet",
		},
		"after a rollback, the standby has the older template and a new revision": {
			snapshot:    MakeSnapshot(MakePod("db-2").Injected().Holding().Revision(2), MakePod("db-3").Injected().Warm().Revision(3)).Holder("db-2"),
			wantOutcome: handoff.Retiring, wantHolder: "db-2", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-3"), handoff.Retire{ReplicaSet: "db-v2"}},
		},
		"the controller stopped before it removed the finalizer of the old holder": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), MakePod("db-2").Injected().Signalled(7).Ready().Revision(2)).Holder("db-2"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-2", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{handoff.Unprotect{Pod: ref("db-1")}},
		},
		"the controller stopped after it recorded the new holder": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), standby).Ended(v1.CauseRollout),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 8), handoff.Unprotect{Pod: ref("db-1")}},
		},
		"a bare ReplicaSet has no revisions": {
			snapshot:    MakeSnapshot(holder(), standby).Holder("db-1").BareReplicaSet("db-v1", 1).BareReplicaSet("db-v2", 1),
			wantSteps:   []handoff.Step{protectStandby("db-2")},
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
	})
}

func TestDecideStatefulSet(t *testing.T) {
	pod := func(uid, revision string) *PodWrapper {
		return MakePod("db-0").UID(uidOf(uid)).OwnedBy("StatefulSet", "db").Label("controller-revision-hash", revision).Injected()
	}
	spare := func(name, revision string) *PodWrapper {
		return MakePod(name).OwnedBy("StatefulSet", "db").Label("controller-revision-hash", revision).Injected()
	}
	holder := pod("db-0", "v1").Holding()
	reborn := pod("reborn", "v2").Warm()
	rebornRef := handoff.PodRef{Name: "db-0", UID: uidOf("reborn")}
	released := []handoff.Step{
		handoff.Protect{Pod: rebornRef, Version: version}, handoff.Record{},
		handoff.Signal{Pod: rebornRef, Version: version, Signal: signal.Signal{UID: "reborn-uid", Epoch: 8}},
	}
	runDecide(t, map[string]decideCase{
		"the holder has terminated, and its object is removed": {
			snapshot:    MakeSnapshot(holder.Deleting().Ended()).Holder("db-0").StatefulSet("db", 1, "v2"),
			wantOutcome: handoff.HolderEnded, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, handoff.Unprotect{Pod: ref("db-0")}},
		},
		"the next pod has the same name": {
			snapshot:    MakeSnapshot(reborn).Ended(v1.CauseRollout).StatefulSet("db", 1, "v2"),
			wantOutcome: handoff.Released, wantHolder: "db-0", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: released,
		},
		"the next pod has the same name, and nothing proves that the holder has terminated": {
			snapshot:    MakeSnapshot(reborn).Holder("db-0").StatefulSet("db", 1, "v2"),
			wantOutcome: handoff.HolderLost, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseFailed,
		},
		"a spare of the newer revision waits to take over": {
			snapshot:    MakeSnapshot(pod("db-0", "v1").Holding(), spare("db-1", "v2").Warm()).Holder("db-0").StatefulSet("db", 2, "v2"),
			wantOutcome: handoff.AwaitingHandover, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{protectStandby("db-1")},
			wantMessage: "pod db-1 is warm and has a newer revision than pod db-0, and their StatefulSet continues only after pod db-1 is Ready. " +
				"To have it take over, run: kubectl delete -n prod pod db-0",
		},
		"a spare of the newer revision, and the holder fails": {
			snapshot: MakeSnapshot(pod("db-0", "v1").Holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), spare("db-1", "v2").Warm()).
				Holder("db-0").StatefulSet("db", 2, "v2"),
			wantOutcome: handoff.AwaitingHandover, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{protectStandby("db-1")},
		},
		"a spare of the newer revision, and the holder's node does not answer": {
			snapshot: MakeSnapshot(pod("db-0", "v1").Holding().Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), spare("db-1", "v2").Warm().On(node2)).
				Holder("db-0").StatefulSet("db", 2, "v2").Node(node1, corev1.ConditionUnknown),
			wantOutcome: handoff.HolderNotReady, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps:   []handoff.Step{protectStandby("db-1")},
			wantMessage: "its node node-1 does not answer",
		},
		"a spare of the newer revision that is not warm": {
			snapshot:    MakeSnapshot(pod("db-0", "v1").Holding(), spare("db-1", "v2")).Holder("db-0").StatefulSet("db", 2, "v2"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "no standby is warm: pod db-1 is not scheduled yet",
		},
		"a spare of the same revision": {
			snapshot:    MakeSnapshot(pod("db-0", "v2").Holding(), spare("db-1", "v2").Warm()).Holder("db-0").StatefulSet("db", 2, "v2"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{protectStandby("db-1")},
		},
		"a spare of another StatefulSet": {
			snapshot: MakeSnapshot(pod("db-0", "v1").Holding(), spare("db-1", "v2").OwnedBy("StatefulSet", "other").Warm()).Holder("db-0").
				StatefulSet("db", 1, "v2").StatefulSet("other", 1, "v2"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-0", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantSteps: []handoff.Step{protectStandby("db-1")},
		},
		"of two spares, the spare of the newer revision is next, although it is younger": {
			snapshot:    MakeSnapshot(spare("db-1", "v1").Warm(), spare("db-2", "v2").Warm().Created(now)).Ended(v1.CauseDeletion).StatefulSet("db", 3, "v2"),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 8)},
		},
		"the next pod does not exist yet": {
			snapshot:    MakeSnapshot().Ended(v1.CauseRollout).StatefulSet("db", 1, "v2"),
			wantOutcome: handoff.AwaitingPod, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantMessage: "pod db-1 has terminated, and the next pod does not exist yet",
		},
		"the StatefulSet is scaled to zero": {
			snapshot:    MakeSnapshot().Ended(v1.CauseScaleDown),
			wantOutcome: handoff.NoPods, wantEpoch: 7,
		},
		"the StatefulSet is scaled up again": {
			snapshot:    MakeSnapshot(reborn).Ended(v1.CauseScaleDown).StatefulSet("db", 1, "v2"),
			wantOutcome: handoff.Released, wantHolder: "db-0", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: released,
		},
	})
}

func TestDecideOverlap(t *testing.T) {
	const message = ": no pod is released while two StatefulSingletons select the same pod. Delete one of the two"
	standby := MakePod("db-2").Injected().Warm()
	chosen := MakePod("db-1").Injected().Warm()
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	protect := handoff.Protect{Pod: ref("db-1")}
	runDecide(t, map[string]decideCase{
		"another singleton selects other pods": {
			snapshot:    MakeSnapshot(holder()).Holder("db-1").Other("web", "web"),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
		"no pod is released": {
			snapshot:    MakeSnapshot(chosen).Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantPhase: v1.PhaseFailed, wantMessage: message,
		},
		"no pod is adopted, but the running pod receives the finalizer": {
			snapshot:    MakeSnapshot(MakePod("db-1").Ready(), standby).Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantPhase: v1.PhaseFailed, wantMessage: message,
			wantSteps: []handoff.Step{protect},
		},
		"the recorded pod is not signalled": {
			snapshot:    MakeSnapshot(chosen).Chosen("db-1").Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed, wantMessage: message,
		},
		"no standby takes over": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended(), standby).Holder("db-1").Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantEpoch: 7, wantPhase: v1.PhaseFailed, wantMessage: message,
			wantSteps: []handoff.Step{handoff.Record{}, handoff.Unprotect{Pod: ref("db-1")}},
		},
		"no pod is released while the pod of the other singleton is terminating": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Signalled(3).Ready().Label("tier", "old").Deleting(), standby).OtherSelecting("db2", "tier", "old"),
			wantOutcome: handoff.Overlapping, wantEpoch: 3, wantPhase: v1.PhaseFailed, wantMessage: message,
		},
		"no rollout continues, and the holder keeps running": {
			snapshot:    MakeSnapshot(holder().Revision(1), MakePod("db-2").Injected().Warm().Revision(2)).Holder("db-1").Other("db2", "db"),
			wantOutcome: handoff.Overlapping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed, wantMessage: message,
		},
	})
}

func TestDecideProtectsUnrecordedPods(t *testing.T) {
	unrecorded := MakePod("db-0").Ready()
	protect := []handoff.Step{handoff.Protect{Pod: ref("db-0")}}
	runDecide(t, map[string]decideCase{
		"the holder is terminating": {
			snapshot:    MakeSnapshot(MakePod("db-1").Injected().Holding().Deleting(), unrecorded).Holder("db-1"),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: protect,
		},
		"the holder is lost": {
			snapshot:    MakeSnapshot(unrecorded).Holder("db-1"),
			wantOutcome: handoff.HolderLost, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed, wantSteps: protect,
		},
	})
}

func TestDecideHelpsIfBlocked(t *testing.T) {
	const attest = "kubectl annotate -n prod stfs db apps.statefulsingleton.com/attest-terminated=db-1-uid --overwrite"
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	stopping := func(s *SnapshotWrapper, message string) decideCase {
		return decideCase{
			snapshot: s.Holder("db-1"), wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7,
			wantPhase: v1.PhaseTransitioning, wantMessage: message,
		}
	}
	overdue := holder().Deleting()
	overdue.DeletionTimestamp.Time = now.Add(-6 * time.Second)
	runDecide(t, map[string]decideCase{
		"the holder is lost": {
			snapshot:    MakeSnapshot(MakePod("db-2").Injected().Warm()).Holder("db-1"),
			wantOutcome: handoff.HolderLost, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseFailed,
			wantMessage: "nothing proves that its processes have ended: somebody removed its finalizer, or it never had one. Make sure that the processes have ended, then run: " + attest,
		},
		"the node does not answer": stopping(
			MakeSnapshot(holder().Deleting()).Node(node1, corev1.ConditionUnknown),
			"If node node-1 is off, run: kubectl taint node node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute; if you have made sure that the processes of pod db-1 have ended, run: "+attest),
		"the node does not exist": stopping(
			MakeSnapshot(holder().Deleting()).NoNode(node1), "its node node-1 does not exist any more, and nothing proves that the pod has ended: if you have made sure that the processes of pod db-1 have ended, run: "+attest),
		"the kubelet reported a phase and no container states": stopping(
			MakeSnapshot(rejected(holder().Deleting())), "it is Failed without a report that every held container has ended: "),
		"the kubelet could not locate a container": stopping(
			MakeSnapshot(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), ContainerID: "cri://1"})),
			"its kubelet could not locate container app (ContainerStatusUnknown), and nothing proves that the container has ended. Look for its processes on node node-1; if you have made sure that the processes of pod db-1 have ended, run: "+attest),
		"the kubelet could not locate a container, and kills the remaining processes": stopping(
			MakeSnapshot(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: waiting("ContainerCreating", ""), LastTerminationState: unknown()})),
			"its kubelet could not locate container app. The kubelet kills the remaining processes of the pod, and then reports that the pod has terminated"),
		"the grace period is over": stopping(
			MakeSnapshot(overdue), "its grace period ended at 2026-01-02T03:03:59Z: check the kubelet of node node-1"),
		"the holder is Failed and not terminating": {
			snapshot:    MakeSnapshot(MakePod("db-1").Protected().Ready().Phase(corev1.PodFailed)).Holder("db-1"),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantMessage: attest,
		},
		"the holder is Failed and lost its finalizer": {
			snapshot:    MakeSnapshot(MakePod("db-1").Ready().Phase(corev1.PodFailed)).Holder("db-1"),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Protect{Pod: ref("db-1"), Holder: true}},
		},
	})
}

// Revisions of different Deployments are not comparable. The next holder comes from the same Deployment as the last
// holder, and the message says that a rollout of the other Deployment has no effect.
func TestDecideSeveralDeployments(t *testing.T) {
	const message = "Pods of several Deployments match spec.selector (db, other): only a rollout of the Deployment of the holder takes effect. " +
		"Delete the other Deployments, or recreate the StatefulSingleton with a selector that matches the pods of only one Deployment"
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding().Revision(1) }
	standby := MakePod("db-2").Injected().Warm().Protected().Revision(2)
	foreign := func() *PodWrapper {
		return MakePod("other-1").Injected().Warm().Protected().OwnedBy("ReplicaSet", "other-v9").Created(now.Add(-2 * time.Hour))
	}
	see := func(pods ...*PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(pods...).OtherDeployment("other", "other-v9", "9").Holder("db-1")
	}
	scaledDown := see(holder(), foreign())
	scaledDown.Deployments[uidOf("other")].Spec.Replicas = new(int32(0))
	runDecide(t, map[string]decideCase{
		"the pod of the other Deployment has a higher revision": {
			snapshot:    see(holder(), foreign()),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
			wantMessage: "; pod other-1 is warm and would take over. " + message,
		},
		"a rollout": {
			snapshot:    see(holder(), foreign(), standby),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Retire{ReplicaSet: "db-v1"}}, wantMessage: message,
		},
		"a rollout takes effect": {
			snapshot:    see(holder().Deleting().Ended(), foreign(), standby),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, signalOf("db-2", 8), handoff.Unprotect{Pod: ref("db-1")}}, wantMessage: message,
		},
		"the pod of the other Deployment is next if no other pod exists": {
			snapshot:    see(holder().Deleting().Ended(), foreign()),
			wantOutcome: handoff.Released, wantHolder: "other-1", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, signalOf("other-1", 8), handoff.Unprotect{Pod: ref("db-1")}},
		},
		"without a holder, the older pod is next": {
			snapshot:    MakeSnapshot(foreign(), standby).OtherDeployment("other", "other-v9", "1").Ended(v1.CauseDeletion),
			wantOutcome: handoff.Released, wantHolder: "other-1", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Unprotect{Pod: ref("db-2"), Version: version}, handoff.Record{}, signalOf("other-1", 8)}, wantMessage: message,
		},
	})
	for name, s := range map[string]*SnapshotWrapper{
		"one Deployment":                                              MakeSnapshot(holder(), standby).Holder("db-1"),
		"the other Deployment is scaled to zero":                      scaledDown,
		"the pod of the other Deployment is terminating":              see(holder(), foreign().Deleting()),
		"the pod of the other Deployment has terminated":              see(holder()),
		"the selector does not match the pod of the other Deployment": see(holder(), foreign().Label("app", "other")),
	} {
		t.Run(name, func(t *testing.T) {
			if got := handoff.Decide(s.Snapshot, now).Status.Message; strings.Contains(got, "several Deployments") {
				t.Errorf("message %q", got)
			}
		})
	}
}

// A Job whose pod has succeeded creates no other pod. The singleton waits for no pod.
func TestDecideCompletedJob(t *testing.T) {
	pod := func() *PodWrapper { return MakePod("db-1").OwnedBy("Job", "db").Injected().Holding().Ended() }
	succeeded := func() *PodWrapper { return pod().Phase(corev1.PodSucceeded) }
	for name, tc := range map[string]struct {
		holder    *PodWrapper
		others    []*PodWrapper
		wantCause v1.Cause
		// want is the outcome of the next decision.
		want        handoff.Outcome
		wantPhase   v1.Phase
		wantMessage string
	}{
		"the pod has succeeded": {holder: succeeded(), wantCause: v1.CauseScaleDown, want: handoff.NoPods,
			wantMessage: "all pods that match the selector are terminating or have terminated; the first pod is held until the controller releases it"},
		"the pod has failed": {holder: pod(), wantCause: v1.CauseCompletion, want: handoff.AwaitingPod, wantPhase: v1.PhaseFailed},
		"the pod has succeeded, and another pod warms up": {
			holder: succeeded(), others: []*PodWrapper{MakePod("db-2").OwnedBy("Job", "db").Injected()},
			wantCause: v1.CauseCompletion, want: handoff.WarmingUp, wantPhase: v1.PhaseFailed,
		},
		"the pod belongs to no Job": {holder: succeeded().OwnedBy("Workflow", "db"), wantCause: v1.CauseCompletion, want: handoff.AwaitingPod, wantPhase: v1.PhaseFailed},
		"the pod was deleted":       {holder: succeeded().Deleting(), wantCause: v1.CauseDeletion, want: handoff.AwaitingPod, wantPhase: v1.PhaseFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(append(tc.others, tc.holder)...).Holder("db-1")
			plan := handoff.Decide(s.Snapshot, now)
			if plan.Outcome != handoff.HolderEnded || plan.Status.LastTransition.Cause != tc.wantCause {
				t.Fatalf("outcome %s, cause %s, want HolderEnded and %s", plan.Outcome, plan.Status.LastTransition.Cause, tc.wantCause)
			}
			s.Singleton.Status = plan.Status
			s.Pods[len(s.Pods)-1].Finalizers = nil
			later := handoff.Decide(s.Snapshot, now.Add(time.Hour))
			if later.Outcome != tc.want || later.Status.Phase != tc.wantPhase || !strings.Contains(later.Status.Message, tc.wantMessage) {
				t.Errorf("an hour later: outcome %s in phase %q, message %q, want %s in phase %q", later.Outcome, later.Status.Phase, later.Status.Message, tc.want, tc.wantPhase)
			}
		})
	}
}
