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
	snapshot *SnapshotWrapper
	want     expected
}

// expected is what a plan must be.
type expected struct {
	outcome handoff.Outcome
	steps   []handoff.Step
	// holder is empty if no pod holds.
	holder string
	epoch  int64
	phase  v1.Phase
	// message is a part of the message.
	message string
	// blocked is the reason of condition EvictionBlocked. drained is true if condition Draining must be True. requeue is
	// not checked if it is 0. Only runDrain checks these.
	blocked string
	drained bool
	requeue time.Duration
}

// holds expects that the pod holds with the epoch.
func holds(pod string, epoch int64, outcome handoff.Outcome, steps ...handoff.Step) expected {
	phase := v1.PhaseTransitioning
	switch {
	case outcome == handoff.NoPods:
		phase = ""
	case outcome.Settled():
		phase = v1.PhaseRunning
	}
	return expected{outcome: outcome, steps: steps, holder: pod, epoch: epoch, phase: phase, blocked: "BudgetInPlace"}
}

// keeps expects that db-1 holds with epoch 7, as before.
func keeps(outcome handoff.Outcome, steps ...handoff.Step) expected {
	return holds("db-1", 7, outcome, steps...)
}

// nobody expects that no pod holds.
func nobody(epoch int64, outcome handoff.Outcome, steps ...handoff.Step) expected {
	return holds("", epoch, outcome, steps...)
}

// releases expects that a standby without the finalizer is released, and then the other steps.
func releases(pod string, epoch int64, then ...handoff.Step) expected {
	return holds(pod, epoch, handoff.Released, append([]handoff.Step{protectStandby(pod), record, signalOf(pod, epoch)}, then...)...)
}

// adopts expects that a running pod without the finalizer is adopted.
func adopts(pod string, epoch int64) expected {
	return holds(pod, epoch, handoff.Adopted, protect(pod, false), record, protect(pod, true))
}

func (e expected) failed() expected                      { e.phase = v1.PhaseFailed; return e }
func (e expected) says(message string) expected          { e.message = message; return e }
func (e expected) evictions(reason string) expected      { e.blocked = reason; return e }
func (e expected) draining() expected                    { e.drained = true; return e }
func (e expected) requeues(after time.Duration) expected { e.requeue = after; return e }

func (tc decideCase) run(t *testing.T) {
	t.Helper()
	before := tc.snapshot.Singleton.DeepCopy()
	plan := handoff.Decide(tc.snapshot.Snapshot, now)
	if plan.Outcome != tc.want.outcome || plan.Status.Phase != tc.want.phase {
		t.Errorf("outcome %s in phase %q, want %s in phase %q", plan.Outcome, plan.Status.Phase, tc.want.outcome, tc.want.phase)
	}
	if diff := cmp.Diff(tc.want.steps, plan.Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	got := plan.Status
	if got.ActivePod != tc.want.holder || (got.ActivePod == "") != (got.ActivePodUID == "") || got.Epoch != tc.want.epoch {
		t.Errorf("holder %q with uid %q and epoch %d, want %q with epoch %d", got.ActivePod, got.ActivePodUID, got.Epoch, tc.want.holder, tc.want.epoch)
	}
	if !strings.Contains(got.Message, tc.want.message) {
		t.Errorf("message %q, want %q in it", got.Message, tc.want.message)
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
	older := warm("db-1")
	younger := warm("db-0").Created(now)
	runDecide(t, map[string]decideCase{
		"no pods":                   {MakeSnapshot(), nobody(0, handoff.NoPods).says("the first pod is held until the controller releases it")},
		"no pod is warm":            {MakeSnapshot(MakePod("db-1").Injected()), nobody(0, handoff.WarmingUp).says("pod db-1 is not scheduled yet")},
		"a pod held by the wrapper": {MakeSnapshot(older), releases("db-1", 1).says("pod db-1 is released with epoch 1")},
		"the barrier opens after the record": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm()),
			holds("db-1", 1, handoff.Released, choose("db-1"), record, openBarrier("db-1", 1), signalOf("db-1", 1)),
		},
		"containers that share a barrier open it once": {
			MakeSnapshot(MakePod("db-1").Barrier().Container(barrier("helper", barrierOf("db-1"))).Injected().Warm()),
			holds("db-1", 1, handoff.Released, choose("db-1"), record, openBarrier("db-1", 1), signalOf("db-1", 1)),
		},
		"the oldest standby of one revision is next":            {MakeSnapshot(younger, older), releases("db-1", 1)},
		"of two standbys of one age, the first by name is next": {MakeSnapshot(warm("db-2"), older), releases("db-1", 1)},
		"a standby of the newest revision is next, although it is younger": {
			MakeSnapshot(warm("db-1").Revision(9), warm("db-0").Created(now).Revision(10)), releases("db-0", 1),
		},
		"a standby has no revision if its owner is of another group": {
			MakeSnapshot(warm("db-1").Revision(9), warm("db-0").Created(now).Revision(10).With(func(p *corev1.Pod) {
				p.OwnerReferences[0].APIVersion = "example.com/v1"
			})), releases("db-1", 1),
		},
		"a warm standby of an older revision is next if no other standby is warm": {
			MakeSnapshot(warm("db-1").Revision(1), MakePod("db-2").Injected().Revision(2)), releases("db-1", 1),
		},
		"the oldest standby is next, although a lost record may name a younger standby": {
			MakeSnapshot(warm("db-0").Created(now).Protected(), older),
			holds("db-1", 1, handoff.Released, forgo("db-0"), protectStandby("db-1"), record, signalOf("db-1", 1)),
		},
		"the first holder of a recreated singleton, after another pod terminated": {
			MakeSnapshot(MakePod("db-0").Injected().Signalled(40).Running().Ended(), older), releases("db-1", 41, unprotect("db-0")),
		},
		"another singleton may be about to signal its standby": {
			MakeSnapshot(MakePod("db-0").InjectedFor("old").Warm().Protected(), older),
			holds("db-1", 1, handoff.Released, forgo("db-0"), protectStandby("db-1"), record, signalOf("db-1", 1)),
		},
		"no pod is warm, and the last pod with an epoch has terminated": {
			MakeSnapshot(MakePod("db-0").Injected().Signalled(40).Running().Ended(), MakePod("db-1").Injected()),
			nobody(40, handoff.WarmingUp, record, unprotect("db-0")),
		},
		"a terminating pod is not released": {MakeSnapshot(warm("db-1").Deleting()), nobody(0, handoff.NoPods)},
		"a terminated pod is not released":  {MakeSnapshot(rejected(warm("db-1"))), nobody(0, handoff.NoPods)},
		"a terminated pod is not released, although it may have been signalled": {
			MakeSnapshot(rejected(warm("db-1").Annotation(signal.Annotation, "go!"))),
			nobody(0, handoff.NoPods).says("all pods that match the selector are terminating or have terminated"),
		},
		"a pod that the selector does not match is not released": {MakeSnapshot(warm("db-1").Label("app", "other")), nobody(0, handoff.NoPods)},
		"a pod that was injected for another singleton is not released": {
			MakeSnapshot(MakePod("db-1").InjectedFor("old").Warm()),
			nobody(0, handoff.NoPods).says("pod db-1 is held for StatefulSingleton prod/old and is never released by this one: delete the pod"),
		},
		"a pod without an owner": {MakeSnapshot(warm("db-1")).NoNode(node2), releases("db-1", 1)},
	})
}

func TestDecideAdoption(t *testing.T) {
	plain := func(name string) *PodWrapper { return MakePod(name).Ready() }
	standby := warm("db-2")
	runDecide(t, map[string]decideCase{
		"a pod ran before the singleton existed": {
			MakeSnapshot(plain("db-1"), standby), adopts("db-1", 1).says("pod db-1 already runs and becomes the holder"),
		},
		"a pod that is not held has not started yet":   {MakeSnapshot(MakePod("db-1"), standby), adopts("db-1", 1)},
		"a terminating pod cannot receive a finalizer": {MakeSnapshot(plain("db-1").Deleting(), standby), holds("db-1", 1, handoff.Adopted, record)},
		"two pods ran before": {
			MakeSnapshot(plain("db-0"), plain("db-1"), standby),
			nobody(0, handoff.SeveralRun, protect("db-0", false), protect("db-1", false)).failed().
				says("pods db-0, db-1 are not held, and no record names the holder: no pod is released until only one pod is left. Find out " +
					"which pod to keep, for example from the logs of the application. Then delete each other pod: kubectl delete -n prod pod " +
					"<name>"),
		},
		"two pods ran before, and one is terminating on a node that does not answer": {
			MakeSnapshot(plain("db-0").On(node2).Protected().Deleting(), plain("db-1").Protected(), standby).Node(node2, corev1.ConditionUnknown),
			nobody(0, handoff.SeveralRun).says("Pod db-0 is terminating, but its node node-2 does not answer"),
		},
		"two pods ran before, and a standby may be about to be signalled": {
			MakeSnapshot(plain("db-0").Protected(), plain("db-1").Protected(), warm("db-2").Protected()),
			nobody(0, handoff.SeveralRun, forgo("db-2")).failed(),
		},
		"two pods ran before, and one is terminating": {
			MakeSnapshot(plain("db-0").Protected().Deleting(), plain("db-1"), standby), nobody(0, handoff.SeveralRun, protect("db-1", false)),
		},
		"two pods ran before, and one is terminating and cannot receive a finalizer": {
			MakeSnapshot(plain("db-0"), plain("db-1").Deleting(), standby),
			holds("db-1", 1, handoff.Adopted, protect("db-0", false), record).says("pod db-1 already runs and becomes the holder"),
		},
		"two pods ran before, both are terminating, and one cannot receive a finalizer": {
			MakeSnapshot(plain("db-0").Protected().Deleting(), plain("db-1").Deleting(), standby), holds("db-1", 1, handoff.Adopted, record),
		},
		"two pods ran before, one cannot receive a finalizer, and another singleton selects it": {
			MakeSnapshot(plain("db-0"), plain("db-1").Deleting()).Other("db2", "db"), nobody(0, handoff.Overlapping, protect("db-0", false)).failed(),
		},
		"two pods ran before, and one has terminated": {
			MakeSnapshot(plain("db-0").Protected().Deleting().Ended(), plain("db-1"), standby),
			holds("db-1", 1, handoff.Adopted, protect("db-1", false), record, protect("db-1", true), unprotect("db-0")),
		},
		"a pod ran before and has terminated": {MakeSnapshot(plain("db-1").Ended(), standby), releases("db-2", 1)},
		"another pod runs beside the holder": {
			MakeSnapshot(holder(), plain("db-0")).Holder("db-1"),
			keeps(handoff.SeveralRun, protect("db-0", false)).failed().says("pod db-0 is not held"),
		},
		"another pod runs beside a holder that was not signalled": {
			MakeSnapshot(warm("db-1"), plain("db-0")).Chosen("db-1"), keeps(handoff.SeveralRun, protect("db-0", false)).failed(),
		},
		"another pod runs, and the holder is terminating": {
			MakeSnapshot(holder().Deleting(), plain("db-0")).Holder("db-1"), keeps(handoff.HolderStopping, protect("db-0", false)),
		},
		"another pod runs, and the holder is lost": {
			MakeSnapshot(plain("db-0")).Holder("db-1"), keeps(handoff.HolderLost, protect("db-0", false)).failed(),
		},
		"another pod runs, and the holder has terminated": {
			MakeSnapshot(holder().Deleting().Ended(), plain("db-0"), standby).Holder("db-1"),
			nobody(7, handoff.HolderEnded, protect("db-0", false), record, unprotect("db-1")).
				says("pod db-1 has terminated, and pod db-0 already runs"),
		},
		"another pod runs, and the holder is lost and attested": {
			MakeSnapshot(plain("db-0").Protected(), standby).Holder("db-1").Attest("db-1-uid"),
			nobody(7, handoff.HolderEnded, record).says("pod db-1 has terminated, and pod db-0 already runs"),
		},
		"another pod runs, the holder has terminated, and another singleton selects the pod": {
			MakeSnapshot(holder().Deleting().Ended(), plain("db-0").Protected()).Holder("db-1").Other("db2", "db"),
			nobody(7, handoff.Overlapping, record, unprotect("db-1")).failed(),
		},
		"two other pods run, and the holder has terminated": {
			MakeSnapshot(holder().Deleting().Ended(), plain("db-0").Protected(), plain("db-3").Protected(), standby).Holder("db-1"),
			nobody(7, handoff.SeveralRun, record, unprotect("db-1")).failed(),
		},
		"a pod is signalled, and the record is lost": {
			MakeSnapshot(MakePod("db-1").Injected().Signalled(40).Ready(), standby),
			holds("db-1", 40, handoff.Adopted, record, protect("db-1", true)),
		},
		"a deleted singleton may have opened the barrier": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().ChosenBy("gone").Warm(), standby),
			holds("db-1", 1, handoff.Adopted, record, protect("db-1", true)),
		},
		"a deleted singleton may have opened the barrier of a pod beside the holder": {
			MakeSnapshot(holder(), MakePod("db-2").Barrier().Injected().ChosenBy("gone").Warm()).Holder("db-1"),
			keeps(handoff.SeveralRun).failed().
				says("Another StatefulSingleton, which may have been deleted, may have released pod db-2. Keep pod db-1, which is the holder, " +
					"and run: kubectl delete -n prod pod db-2"),
		},
		"a pod is signalled with an older epoch than the record has": {
			MakeSnapshot(MakePod("db-2").Injected().Signalled(3).Ready()).Ended(v1.CauseDeletion),
			holds("db-2", 7, handoff.Adopted, record, protect("db-2", true)),
		},
		"a copy of the holder waits at the open barrier": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().Holding(), MakePod("db-2").CopiedFrom("db-1").Injected().Warm()).Holder("db-1"),
			keeps(handoff.SeveralRun, protect("db-2", false)).failed().says("pod db-2 is not held"),
		},
		"a copy of the recorded pod, before the signal": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm().Protected(), MakePod("db-2").CopiedFrom("db-1").Injected().Warm()).
				Chosen("db-1"),
			keeps(handoff.SeveralRun, protect("db-2", false)).failed(),
		},
		"a copy of a standby would start at the same time": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm(), MakePod("db-2").CopiedFrom("db-1").Injected()),
			nobody(0, handoff.WarmingUp).failed().says("pod db-1 waits for the same ConfigMap as pod db-2, and both would start at the same time"),
		},
		"the singleton names a native sidecar that is not held": {
			MakeSnapshot(openSidecar("db-1"), standby).Containers("app", "proxy"), adopts("db-1", 1),
		},
		"the singleton names a native sidecar of a pod beside the holder that is not held": {
			MakeSnapshot(holder(), openSidecar("db-2")).Holder("db-1").Containers("app", "proxy"),
			keeps(handoff.SeveralRun, protect("db-2", false)).failed().says("pod db-2 is not held"),
		},
		"the singleton does not name the native sidecar that is not held": {MakeSnapshot(openSidecar("db-1")).Containers("app"), releases("db-1", 1)},
		"two pods are signalled": {
			MakeSnapshot(MakePod("db-0").Injected().Signalled(3).Ready(), MakePod("db-1").Injected().Signalled(4).Ready(), standby),
			nobody(4, handoff.SeveralRun).failed(),
		},
		"one container of an injected pod is not held":               {MakeSnapshot(openHelper("db-1"), standby), adopts("db-1", 1)},
		"the singleton does not name the container that is not held": {MakeSnapshot(openHelper("db-1")).Containers("app"), releases("db-1", 1)},
		"the singleton names an init container that ran before":      {MakeSnapshot(openInit("db-1")).HoldInit(), adopts("db-1", 1)},
		"the singleton names an init container that ran before in a pod beside the holder": {
			MakeSnapshot(holder(), openInit("db-2")).Holder("db-1").HoldInit(),
			keeps(handoff.SeveralRun, protect("db-2", false)).failed().
				says("Nothing holds container seed of pod db-2, which was created before spec.holdInitContainers named the container. Keep pod " +
					"db-1, which is the holder, and run: kubectl delete -n prod pod db-2"),
		},
		"the singleton names a container that ran before in a pod beside the holder": {
			MakeSnapshot(openHelper("db-2"), holder(), plain("db-3").Protected()).Holder("db-1"),
			keeps(handoff.SeveralRun, protect("db-2", false)).failed().
				says("Nothing holds container helper of pod db-2, which was created before spec.containers named the container. Keep pod db-1, " +
					"which is the holder, and run: kubectl delete -n prod pod db-2 db-3"),
		},
		"a pod runs, and a lost record may name the standby": {
			MakeSnapshot(plain("db-1"), warm("db-2").Protected()),
			holds("db-1", 1, handoff.Adopted, forgo("db-2"), protect("db-1", false), record, protect("db-1", true)),
		},
		"a later variable overrides the barrier, and the kubelet has reported nothing": {
			MakeSnapshot(overruled("db-1").State("app", waiting("ContainerCreating", ""))), adopts("db-1", 1),
		},
		"the ConfigMap of the barrier is optional": {MakeSnapshot(optional("db-1")), adopts("db-1", 1)},
		"another subcommand of the gate is in front of the command": {
			MakeSnapshot(commanded("db-1", signal.GatePath, "started", "--", "/bin/db")), adopts("db-1", 1),
		},
		"the wrapper has flags":          {MakeSnapshot(commanded("db-1", signal.GatePath, "wrap", "--help", "/bin/db")), adopts("db-1", 1)},
		"the wrapper is another program": {MakeSnapshot(commanded("db-1", "/bin/gate", "wrap", "--", "/bin/db")), adopts("db-1", 1)},
		"the pod has the wrapper, and no policy injected the pod": {
			MakeSnapshot(commanded("db-1", signal.GatePath, "wrap", "--", "/bin/db").Annotation(v1.InjectedAnnotation, "")), adopts("db-1", 1),
		},
		"no container of an injected pod is held": {MakeSnapshot(commanded("db-1", "/bin/db")).Containers("other"), adopts("db-1", 1)},
		"a later variable overrides the barrier":  {MakeSnapshot(overruled("db-1")), adopts("db-1", 1)},
	})
}

// One of two running pods is terminating and cannot receive a finalizer. After the object is removed, the other pod is
// not adopted, because nothing proves that the removed pod has terminated.
func TestDecideMissesRemovedPod(t *testing.T) {
	other, standby := MakePod("db-0").Ready().Protected(), warm("db-2")
	adopted := handoff.Decide(MakeSnapshot(other, MakePod("db-1").Ready().Deleting(), standby).Snapshot, now)
	gone := MakeSnapshot(other, standby)
	gone.Singleton.Status = adopted.Status
	decideCase{gone, holds("db-1", 1, handoff.HolderLost).failed().says("pod db-1 was removed, and nothing proves that its processes have ended")}.run(t)
}

// overruled returns a pod whose barrier has no effect. The last variable of a name overrides the others.
func overruled(name string) *PodWrapper {
	return MakePod(name).Barrier().Injected().Running().With(func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: signal.EpochEnv, Value: "1"})
	})
}

// optional returns a pod whose barrier has no effect, because its ConfigMap is optional.
func optional(name string) *PodWrapper {
	return MakePod(name).Barrier().Injected().Warm().State("app", waiting("ContainerCreating", "")).With(func(p *corev1.Pod) {
		p.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Optional = new(true)
	})
}

// commanded returns an injected pod with the given command instead of the command that the policy sets.
func commanded(name string, command ...string) *PodWrapper {
	return MakePod(name).Injected().Warm().With(func(p *corev1.Pod) { p.Spec.Containers[0].Command = command })
}

func TestDecideHolderAlive(t *testing.T) {
	unready := func() *PodWrapper { return holder().Condition(corev1.PodReady, corev1.ConditionFalse, "", "") }
	// starts is the case of a pod that was signalled and whose record does not say so yet. The other steps follow.
	starts := func(pod *PodWrapper, then ...handoff.Step) decideCase {
		return decideCase{MakeSnapshot(pod).Chosen("db-1"), keeps(handoff.Starting, append([]handoff.Step{markReady("db-1")}, then...)...)}
	}
	// probed is a pod with a readiness probe whose main process started when the pod was signalled.
	probed := func(period int32, ago time.Duration) *PodWrapper {
		return MakePod("db-1").Readiness(period).Injected().SignalledAt(7, now.Add(-ago)).Running()
	}
	spare := func(pod *PodWrapper) *SnapshotWrapper { return MakeSnapshot(holder(), pod).Holder("db-1") }
	saying := func(tc decideCase, message string) decideCase { return decideCase{tc.snapshot, tc.want.says(message)} }
	runDecide(t, map[string]decideCase{
		"the holder is Ready": {MakeSnapshot(holder()).Holder("db-1"), keeps(handoff.HolderReady).says("pod db-1 is the holder with epoch 7")},
		"the holder is Ready, and a foreign pod waits": {
			MakeSnapshot(holder(), MakePod("db-2").InjectedFor("old").Warm()).Holder("db-1"),
			keeps(handoff.HolderReady).says("pod db-2 is held for StatefulSingleton prod/old"),
		},
		"the controller stopped between the record and the signal": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().Warm()).Chosen("db-1"),
			keeps(handoff.Released, choose("db-1"), record, openBarrier("db-1", 7), signalOf("db-1", 7)),
		},
		"the controller stopped between the record and the signal of a pod with a barrier": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().ChosenBy("stfs-uid").Warm()).Chosen("db-1"),
			keeps(handoff.Released, record, openBarrier("db-1", 7), signalOf("db-1", 7)),
		},
		"the pod was just signalled, and the kubelet has not reported the start": starts(
			MakePod("db-1").Barrier().Injected().SignalledAt(7, now.Add(-time.Second)).Warm()),
		"somebody deleted the ConfigMap of the barrier after the nudge": {
			MakeSnapshot(MakePod("db-1").Barrier().Injected().Signalled(7).Annotation(v1.NudgeAnnotation, "7").Warm()).Holder("db-1"),
			keeps(handoff.HolderNotReady, markReady("db-1"), openBarrier("db-1", 7)),
		},
		"somebody deleted the ConfigMap of the barrier": saying(
			starts(MakePod("db-1").Barrier().Injected().Signalled(7).Warm(), openBarrier("db-1", 7), nudge("db-1", 7)),
			"pod db-1 is the holder and has not been Ready yet: the kubelet has not created the container behind the open barrier yet"),
		"somebody removed the signal, and the readiness gate is True": {
			MakeSnapshot(warm("db-1").Protected().Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "")).Chosen("db-1"),
			keeps(handoff.Released, record, signalOf("db-1", 7)),
		},
		"the sidecar of the signalled pod crashes": saying(
			starts(MakePod("db-1").GateProbe().Injected().Signalled(7).Annotation(v1.NudgeAnnotation, "7").Warm().
				State(v1.SidecarName, waiting("CrashLoopBackOff", "back-off 10s"))),
			"pod db-1 is the holder and has not been Ready yet: init container status-sidecar waits: CrashLoopBackOff: back-off 10s"),
		"the holder is unready because its sidecar crashes": {
			MakeSnapshot(unready().State(v1.SidecarName, terminated(1))).Holder("db-1"),
			keeps(handoff.HolderNotReady).says("pod db-1 is the holder and is not Ready: init container status-sidecar ended: Error, exit code 1"),
		},
		"the application of the holder failed, and its sidecar ended afterwards": {
			MakeSnapshot(unready().State(v1.SidecarName, terminated(0)).State("app", terminated(1))).Holder("db-1"),
			keeps(handoff.HolderNotReady).says("pod db-1 is the holder and is not Ready: container app ended: Error, exit code 1"),
		},
		"the signal is for another pod": {
			MakeSnapshot(MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-0-uid","epoch":7}`).Warm()).Chosen("db-1"),
			releases("db-1", 7),
		},
		"the signal cannot be parsed": {
			MakeSnapshot(MakePod("db-1").Injected().Annotation(signal.Annotation, "true").Warm()).Chosen("db-1"), releases("db-1", 7),
		},
		"somebody removed the finalizer": {
			MakeSnapshot(MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-1-uid","epoch":7}`).Ready()).Holder("db-1"),
			keeps(handoff.HolderReady, protect("db-1", true)),
		},
		"the main process has started": starts(MakePod("db-1").GateProbe().Injected().Signalled(7).Running()),
		"an adopted pod has only one held container": {
			MakeSnapshot(openHelper("db-1").Protected()).Holder("db-1"), keeps(handoff.Released, record, signalOf("db-1", 7)),
		},
		"the main process has not started, and somebody set the readiness gate to False": saying(
			starts(MakePod("db-1").GateProbe().Injected().Signalled(7).Warm(), nudge("db-1", 7)),
			"pod db-1 is the holder and has not been Ready yet: container app is running and not ready"),
		"the kubelet probes the started main process again only after a period":      starts(probed(10, time.Second), nudge("db-1", 7)),
		"the main process has just started":                                          starts(probed(10, 999*time.Millisecond)),
		"the next readiness probe is in a second":                                    starts(probed(1, 4999*time.Millisecond)),
		"the kubelet probes the holder every second, and may have missed the signal": starts(probed(1, 5*time.Second), nudge("db-1", 7)),
		"the holder was nudged before":                                               starts(probed(10, time.Minute).Annotation(v1.NudgeAnnotation, "7")),
		"one of two main processes has started": starts(
			MakePod("db-1").GateProbe().Container(corev1.Container{Name: "helper", Command: []string{"/helper"}}).Injected().
				Signalled(7).Running().State("helper", waiting("ContainerCreating", "")), nudge("db-1", 7)),
		"the holder is unready": {
			MakeSnapshot(holder().Condition(corev1.PodReady, corev1.ConditionFalse, "", "no answer")).Holder("db-1"),
			keeps(handoff.HolderNotReady).says("pod db-1 is the holder and is not Ready: no answer"),
		},
		"the node does not answer": {
			MakeSnapshot(unready(), warm("db-2").On(node2)).Holder("db-1").Node(node1, corev1.ConditionUnknown, corev1.TaintNodeUnreachable),
			keeps(handoff.HolderNotReady, protectStandby("db-2")).
				says("its node node-1 does not answer: the pod may still run there, so no other pod is released; pod db-2 is warm and would take " +
					"over. If node node-1 is off, run: kubectl taint node node-1"),
		},
		"a spare of the same revision": {
			MakeSnapshot(holder().Revision(2), warm("db-2").Revision(2)).Holder("db-1"),
			keeps(handoff.HolderReady, protectStandby("db-2")).says("pod db-1 is the holder with epoch 7; pod db-2 is warm and would take over"),
		},
		"the singleton names the init containers only now": {
			MakeSnapshot(openInit("db-1").Holding()).Holder("db-1").HoldInit(), keeps(handoff.HolderReady),
		},
		"a spare whose init container is held": {
			spare(heldInit("db-2").Warm().State("migrate", running()).State("app", waiting("PodInitializing", ""))).HoldInit(),
			keeps(handoff.HolderReady, protectStandby("db-2")).says("pod db-2 is warm and would take over"),
		},
		"a spare that can't be scheduled": {
			MakeSnapshot(holder().Revision(2), MakePod("db-2").Injected().Revision(2).
				Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/2 nodes are available")).Holder("db-1"),
			keeps(handoff.HolderReady).
				says("pod db-1 is the holder with epoch 7; no standby is warm: pod db-2 can't be scheduled: 0/2 nodes are available"),
		},
		"a spare whose readiness gate is open": {
			spare(MakePod("db-2").Injected().Probed().Warm().OpenGate(v1.ReadyReasonStandby)),
			keeps(handoff.HolderReady, protectStandby("db-2")).says("pod db-2 is warm and would take over"),
		},
		"a pod with the readiness gate of a released pod": {
			spare(MakePod("db-2").Injected().Probed().Warm().Protected().OpenGate(v1.ReadyReasonHolds)), keeps(handoff.SeveralRun).failed(),
		},
		"a standby of an older revision": {
			MakeSnapshot(holder().Revision(10), warm("db-2").Revision(9)).Holder("db-1"), keeps(handoff.HolderReady, protectStandby("db-2")),
		},
	})
}

func TestDecideRollout(t *testing.T) {
	standby := warm("db-2").Revision(2)
	ended := func(standby *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(holding().Deleting().Ended(), standby).Holder("db-1")
	}
	retires := keeps(handoff.Retiring, protectStandby("db-2"), retire("db-v1"))
	runDecide(t, map[string]decideCase{
		"the new pod is warm": {MakeSnapshot(holding(), standby).Holder("db-1"), retires},
		"the ReplicaSet is scaled to zero already": {
			MakeSnapshot(holding(), warm("db-2").Revision(2).Protected()).Holder("db-1").ReplicaSet("db-v1", 0), keeps(handoff.Retiring),
		},
		"the new pod is not warm, and the holder keeps running": {
			MakeSnapshot(holding(), MakePod("db-2").Injected().Revision(2).Warm().
				State("app", waiting("ImagePullBackOff", "no such image"))).Holder("db-1"),
			keeps(handoff.StandbyNotWarm).
				says("pod db-2 container app waits: ImagePullBackOff: no such image; pod db-1 keeps running until pod db-2 is warm"),
		},
		"the younger of two new pods is warm": {
			MakeSnapshot(holding(), MakePod("db-3").Injected().Revision(2).Created(now.Add(-2*time.Hour)).
				Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/2 nodes are available"), standby).Holder("db-1"),
			retires,
		},
		"no pod is released before a crash-looping holder has terminated": {
			MakeSnapshot(holding().State("app", waiting("CrashLoopBackOff", "")).Condition(corev1.PodReady, corev1.ConditionFalse, "", ""), standby).
				Holder("db-1"),
			retires,
		},
		"an adopted holder": {MakeSnapshot(MakePod("db-1").Protected().Ready().Revision(1), standby).Holder("db-1"), retires},
		"the holder is terminating": {
			MakeSnapshot(holding().Deleting(), standby).Holder("db-1").ReplicaSet("db-v1", 0),
			keeps(handoff.HolderStopping).
				says("pod db-1 is terminating; the next pod is released once the kubelet reports that the pod has terminated"),
		},
		"the holder has terminated": {ended(standby).ReplicaSet("db-v1", 0), releases("db-2", 8, unprotect("db-1"))},
		"the holder has terminated, and the readiness gate of the new pod is open": {
			ended(MakePod("db-2").Injected().Probed().Warm().Revision(2).Protected().OpenGate(v1.ReadyReasonStandby)),
			holds("db-2", 8, handoff.Released, record, signalOf("db-2", 8), unprotect("db-1")),
		},
		"the holder has terminated, and the probes of the new pod fail until its release": {
			ended(MakePod("db-2").Injected().Probed().Warm().Revision(2)), releases("db-2", 8, unprotect("db-1")),
		},
		"the holder has terminated, and the new pod waits at a barrier": {
			ended(MakePod("db-2").Barrier().Injected().Warm().Revision(2)),
			holds("db-2", 8, handoff.Released, choose("db-2"), record, openBarrier("db-2", 8), signalOf("db-2", 8), unprotect("db-1")),
		},
		"the holder has terminated, and the new pod is not warm": {
			ended(MakePod("db-2").Injected().Revision(2)),
			nobody(7, handoff.HolderEnded, record, unprotect("db-1")).says("pod db-1 has terminated, and no standby is warm yet"),
		},
		"after a rollback, the standby has the older template and a new revision": {
			MakeSnapshot(MakePod("db-2").Injected().Holding().Revision(2), warm("db-3").Revision(3)).Holder("db-2"),
			holds("db-2", 7, handoff.Retiring, protectStandby("db-3"), retire("db-v2")),
		},
		"the controller stopped before it removed the finalizer of the old holder": {
			MakeSnapshot(holding().Deleting().Ended(), MakePod("db-2").Injected().Signalled(7).Ready().Revision(2)).Holder("db-2"),
			holds("db-2", 7, handoff.HolderReady, unprotect("db-1")),
		},
		"the controller stopped after it recorded the new holder": {
			MakeSnapshot(holding().Deleting().Ended(), standby).Ended(v1.CauseRollout), releases("db-2", 8, unprotect("db-1")),
		},
		"a bare ReplicaSet has no revisions": {
			MakeSnapshot(holding(), standby).Holder("db-1").BareReplicaSet("db-v1", 1).BareReplicaSet("db-v2", 1),
			keeps(handoff.HolderReady, protectStandby("db-2")),
		},
	})
}

func TestDecideStatefulSet(t *testing.T) {
	pod := func(name, revision string) *PodWrapper {
		return MakePod(name).OwnedBy("StatefulSet", "db").Label("controller-revision-hash", revision).Injected()
	}
	old := func() *PodWrapper { return pod("db-0", "v1").Holding() }
	failing := func() *PodWrapper { return old().Condition(corev1.PodReady, corev1.ConditionFalse, "", "") }
	newer := func() *PodWrapper { return pod("db-1", "v2").Warm() }
	with := func(holder, spare *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(holder, spare).Holder("db-0").StatefulSet("db", 2, "v2")
	}
	stays := func(outcome handoff.Outcome) expected { return holds("db-0", 7, outcome, protectStandby("db-1")) }
	reborn := pod("db-0", "v2").UID(uidOf("reborn")).Warm()
	rebornRef := handoff.PodRef{Name: "db-0", UID: uidOf("reborn")}
	released := holds("db-0", 8, handoff.Released, handoff.Protect{Pod: rebornRef, Version: version}, record,
		handoff.Signal{Pod: rebornRef, Version: version, Signal: signal.Signal{UID: "reborn-uid", Epoch: 8}})
	runDecide(t, map[string]decideCase{
		"the holder has terminated, and its object is removed": {
			MakeSnapshot(old().Deleting().Ended()).Holder("db-0").StatefulSet("db", 1, "v2"), nobody(7, handoff.HolderEnded, record, unprotect("db-0")),
		},
		"the next pod has the same name": {MakeSnapshot(reborn).Ended(v1.CauseRollout).StatefulSet("db", 1, "v2"), released},
		"the next pod has the same name, and nothing proves that the holder has terminated": {
			MakeSnapshot(reborn).Holder("db-0").StatefulSet("db", 1, "v2"), holds("db-0", 7, handoff.HolderLost).failed(),
		},
		"a spare of the newer revision waits to take over": {
			with(old(), newer()),
			stays(handoff.AwaitingHandover).says("pod db-1 is warm and has a newer revision than pod db-0, and their StatefulSet continues " +
				"only after pod db-1 is Ready. To have it take over, run: kubectl delete -n prod pod db-0"),
		},
		"a spare of the newer revision, and the holder fails": {with(failing(), newer()), stays(handoff.AwaitingHandover)},
		"a spare of the newer revision, and the holder's node does not answer": {
			with(failing(), newer().On(node2)).Node(node1, corev1.ConditionUnknown),
			stays(handoff.HolderNotReady).says("its node node-1 does not answer"),
		},
		"a spare of the newer revision that is not warm": {
			with(old(), pod("db-1", "v2")), holds("db-0", 7, handoff.HolderReady).says("no standby is warm: pod db-1 is not scheduled yet"),
		},
		"a spare of the same revision": {with(pod("db-0", "v2").Holding(), newer()), stays(handoff.HolderReady)},
		"a spare of another StatefulSet": {
			with(old(), newer().OwnedBy("StatefulSet", "other")).StatefulSet("other", 1, "v2"), stays(handoff.HolderReady),
		},
		"of two spares, the spare of the newer revision is next, although it is younger": {
			MakeSnapshot(pod("db-1", "v1").Warm(), pod("db-2", "v2").Warm().Created(now)).Ended(v1.CauseDeletion).StatefulSet("db", 3, "v2"),
			releases("db-2", 8),
		},
		"the next pod does not exist yet": {
			MakeSnapshot().Ended(v1.CauseRollout).StatefulSet("db", 1, "v2"),
			nobody(7, handoff.AwaitingPod).says("pod db-1 has terminated, and the next pod does not exist yet"),
		},
		"the StatefulSet is scaled to zero":  {MakeSnapshot().Ended(v1.CauseScaleDown), nobody(7, handoff.NoPods)},
		"the StatefulSet is scaled up again": {MakeSnapshot(reborn).Ended(v1.CauseScaleDown).StatefulSet("db", 1, "v2"), released},
	})
}

func TestDecideOverlap(t *testing.T) {
	const message = ": no pod is released while two StatefulSingletons select the same pod. Delete one of the two"
	standby := warm("db-2")
	chosen := warm("db-1")
	runDecide(t, map[string]decideCase{
		"another singleton selects other pods": {MakeSnapshot(holder()).Holder("db-1").Other("web", "web"), keeps(handoff.HolderReady)},
		"no pod is released":                   {MakeSnapshot(chosen).Other("db2", "db"), nobody(0, handoff.Overlapping).failed().says(message)},
		"no pod is adopted, but the running pod receives the finalizer": {
			MakeSnapshot(MakePod("db-1").Ready(), standby).Other("db2", "db"),
			nobody(0, handoff.Overlapping, protect("db-1", false)).failed().says(message),
		},
		"the recorded pod is not signalled": {
			MakeSnapshot(chosen).Chosen("db-1").Other("db2", "db"), keeps(handoff.Overlapping).failed().says(message),
		},
		"no standby takes over": {
			MakeSnapshot(holder().Deleting().Ended(), standby).Holder("db-1").Other("db2", "db"),
			nobody(7, handoff.Overlapping, record, unprotect("db-1")).failed().says(message),
		},
		"no pod is released while the pod of the other singleton is terminating": {
			MakeSnapshot(MakePod("db-1").Injected().Signalled(3).Ready().Label("tier", "old").Deleting(), standby).
				OtherSelecting("db2", "tier", "old"),
			nobody(3, handoff.Overlapping).failed().says(message),
		},
		"no rollout continues, and the holder keeps running": {
			MakeSnapshot(holder().Revision(1), warm("db-2").Revision(2)).Holder("db-1").Other("db2", "db"),
			keeps(handoff.Overlapping).failed().says(message),
		},
	})
}

func TestDecideHelpsIfBlocked(t *testing.T) {
	const attest = "kubectl annotate -n prod stfs db apps.statefulsingleton.com/attest-terminated=db-1-uid --overwrite"
	stopping := func(s *SnapshotWrapper, message string) decideCase {
		return decideCase{s.Holder("db-1"), keeps(handoff.HolderStopping).says(message)}
	}
	overdue := holder().Deleting().With(func(p *corev1.Pod) { p.DeletionTimestamp.Time = now.Add(-6 * time.Second) })
	runDecide(t, map[string]decideCase{
		"the holder is lost": {
			MakeSnapshot(warm("db-2")).Holder("db-1"),
			keeps(handoff.HolderLost).failed().
				says("nothing proves that its processes have ended: somebody removed its finalizer, or it never had one. Make sure that the processes have ended, then run: " + attest),
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
			MakeSnapshot(MakePod("db-1").Protected().Ready().Phase(corev1.PodFailed)).Holder("db-1"), keeps(handoff.HolderStopping).says(attest),
		},
		"the holder is Failed and lost its finalizer": {
			MakeSnapshot(MakePod("db-1").Ready().Phase(corev1.PodFailed)).Holder("db-1"), keeps(handoff.HolderStopping, protect("db-1", true)),
		},
	})
}

// Revisions of different Deployments are not comparable. The next holder comes from the same Deployment as the last
// holder, and the message says that a rollout of the other Deployment has no effect.
func TestDecideSeveralDeployments(t *testing.T) {
	const message = "Pods of several Deployments match spec.selector (db, other): only a rollout of the Deployment of the holder takes effect. " +
		"Delete the other Deployments, or recreate the StatefulSingleton with a selector that matches the pods of only one Deployment"
	standby := warm("db-2").Protected().Revision(2)
	foreign := func() *PodWrapper {
		return MakePod("other-1").Injected().Warm().Protected().OwnedBy("ReplicaSet", "other-v9").Created(now.Add(-2 * time.Hour))
	}
	see := func(pods ...*PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(pods...).OtherDeployment("other", "other-v9", "9").Holder("db-1")
	}
	scaledDown := see(holding(), foreign())
	scaledDown.Deployments[uidOf("other")].Spec.Replicas = new(int32(0))
	runDecide(t, map[string]decideCase{
		"the pod of the other Deployment has a higher revision": {
			see(holding(), foreign()), keeps(handoff.HolderReady).says("; pod other-1 is warm and would take over. " + message),
		},
		"a rollout": {see(holding(), foreign(), standby), keeps(handoff.Retiring, retire("db-v1")).says(message)},
		"a rollout takes effect": {
			see(holding().Deleting().Ended(), foreign(), standby),
			holds("db-2", 8, handoff.Released, record, signalOf("db-2", 8), unprotect("db-1")).says(message),
		},
		"the pod of the other Deployment is next if no other pod exists": {
			see(holding().Deleting().Ended(), foreign()), holds("other-1", 8, handoff.Released, record, signalOf("other-1", 8), unprotect("db-1")),
		},
		"without a holder, the older pod is next": {
			MakeSnapshot(foreign(), standby).OtherDeployment("other", "other-v9", "1").Ended(v1.CauseDeletion),
			holds("other-1", 8, handoff.Released, forgo("db-2"), record, signalOf("other-1", 8)).says(message),
		},
	})
	for name, s := range map[string]*SnapshotWrapper{
		"one Deployment":                                              MakeSnapshot(holding(), standby).Holder("db-1"),
		"the other Deployment is scaled to zero":                      scaledDown,
		"the pod of the other Deployment is terminating":              see(holding(), foreign().Deleting()),
		"the pod of the other Deployment has terminated":              see(holding()),
		"the selector does not match the pod of the other Deployment": see(holding(), foreign().Label("app", "other")),
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
