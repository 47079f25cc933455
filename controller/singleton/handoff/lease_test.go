package handoff_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

const leaseDuration = 15 * time.Second

// Fencing sets spec.fencing to Lease, and the Lease of the singleton.
func (s *SnapshotWrapper) Fencing(lease leases.Observed) *SnapshotWrapper {
	s.Singleton.Spec.Fencing, s.Singleton.Spec.LeaseDurationSeconds = v1.FencingLease, int32(leaseDuration.Seconds())
	s.Lease = lease
	return s
}

// Lost records that db-1, the holder of epoch 7, lost the Lease ago.
func (s *SnapshotWrapper) Lost(ago time.Duration) *SnapshotWrapper {
	s.Ended(v1.CauseExpiry)
	t := s.Singleton.Status.LastTransition
	t.FromUID, t.Proof, t.Terminated = uidOf("db-1"), v1.ProofLeaseExpired, microTime(now.Add(-ago))
	return s
}

func fencedStandby(name string) *PodWrapper { return MakePod(name).Injected().Fenced().Revision(1) }

// leaseOf returns the Lease with the epoch that names the pod and was just renewed. Empty: it names no pod.
func leaseOf(pod string, epoch int32) *LeaseWrapper {
	return MakeLease().Transitions(epoch).Holder(pod)
}

func nameInLease(pod string, epoch int64) handoff.Step {
	return handoff.WriteLease{Version: version, Holder: ref(pod), Duration: leaseDuration, Epoch: epoch}
}

func retireInLease(pod string, epoch int64) handoff.Step {
	return handoff.WriteLease{Version: version, Holder: ref(pod), Duration: leaseDuration, Epoch: epoch, Retire: uidOf(pod)}
}

func takeLease(pod string, epoch int64) handoff.Step {
	return handoff.WriteLease{Version: version, Epoch: epoch, Expired: uidOf(pod)}
}

func TestDecideReleaseByLease(t *testing.T) {
	standby := fencedStandby("db-2").Warm()
	runDecide(t, map[string]decideCase{
		"the Lease is created before it is needed": {
			snapshot:    MakeSnapshot().Fencing(leases.Observed{}),
			wantOutcome: handoff.NoPods, wantSteps: []handoff.Step{handoff.WriteLease{}},
		},
		"a standby waits for the Lease": {
			snapshot:    MakeSnapshot(standby).Fencing(leases.Observed{}),
			wantOutcome: handoff.WarmingUp, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.WriteLease{}}, wantMessage: "pod db-2 waits until Lease statefulsingleton-db exists",
		},
		"the Lease names the pod after the record": {
			snapshot:    MakeSnapshot(standby).Fencing(MakeLease().Silent(time.Hour)),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 1, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{choose("db-2"), handoff.Record{}, nameInLease("db-2", 1), signalOf("db-2", 1)},
		},
		"the release of a pod without fencing changes the Lease too": {
			snapshot:    MakeSnapshot(MakePod("db-2").Injected().Warm()).Ended(v1.CauseDeletion).Fencing(MakeLease().Transitions(7).Silent(time.Hour)),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{
				protectStandby("db-2"), handoff.Record{}, handoff.WriteLease{Version: version, Holder: ref("db-2"), Epoch: 8}, signalOf("db-2", 8),
			},
		},
		"without fencing there is no Lease": {
			snapshot:    MakeSnapshot(MakePod("db-2").Injected().Warm()).Ended(v1.CauseDeletion),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 8)},
		},
		"the epoch grows beyond that of the Lease": {
			snapshot:    MakeSnapshot(standby).Fencing(MakeLease().Transitions(40).Silent(time.Hour)),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 41, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{choose("db-2"), handoff.Record{}, nameInLease("db-2", 41), signalOf("db-2", 41)},
		},
		"no pod is released while the Lease names a pod that does not exist": {
			snapshot:    MakeSnapshot(standby).Ended(v1.CauseDeletion).Fencing(leaseOf("db-1", 7).Silent(leaseDuration - 1)),
			wantOutcome: handoff.LeaseHeld, wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantMessage: "names pod db-1, which does not exist",
		},
		"the Lease of a pod that does not exist expires": {
			snapshot:    MakeSnapshot(standby).Ended(v1.CauseDeletion).Fencing(leaseOf("db-1", 7).Silent(leaseDuration)),
			wantOutcome: handoff.LeaseTaken, wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: []handoff.Step{takeLease("db-1", 7)},
		},
		"a pod that the Lease names may run, although it was not signalled": {
			snapshot:    MakeSnapshot(fencedStandby("db-1").Warm(), standby).Fencing(leaseOf("db-1", 7).Silent(0)),
			wantOutcome: handoff.Adopted, wantHolder: "db-1", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Protect{Pod: ref("db-1")}, handoff.Record{}, handoff.Protect{Pod: ref("db-1"), Holder: true}},
		},
	})
}

func TestDecideFencedHolder(t *testing.T) {
	holder := func() *PodWrapper {
		return fencedStandby("db-1").Holding().Annotation(v1.ChosenByAnnotation, "stfs-uid")
	}
	standby := fencedStandby("db-2").Warm().ChosenBy("stfs-uid")
	unprotect := handoff.Unprotect{Pod: ref("db-1")}
	release := []handoff.Step{handoff.Record{}, nameInLease("db-2", 8), signalOf("db-2", 8)}
	runDecide(t, map[string]decideCase{
		"a holder that renews the Lease stays": {
			snapshot:    MakeSnapshot(holder(), standby).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(leaseDuration - 1)),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
		"a holder that has not renewed the Lease loses it": {
			snapshot:    MakeSnapshot(holder(), standby).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(leaseDuration)),
			wantOutcome: handoff.LeaseTaken, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{takeLease("db-1", 7)}, wantMessage: "pod db-1 has not renewed Lease statefulsingleton-db for 15s",
		},
		"a longer duration in the Lease counts": {
			snapshot: MakeSnapshot(holder(), standby).Holder("db-1").Fencing(func() leases.Observed {
				lease := leaseOf("db-1", 7)
				lease.Spec.LeaseDurationSeconds = new(int32(30))
				return lease.Silent(leaseDuration)
			}()),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
		"a holder without fencing does not lose the Lease": {
			snapshot: MakeSnapshot(MakePod("db-1").Injected().Revision(1).Holding(), standby).Holder("db-1").Fencing(
				leaseOf("db-1", 7).Silent(time.Hour)),
			wantOutcome: handoff.HolderReady, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseRunning,
		},
		"an expired Lease is a proof": {
			snapshot: MakeSnapshot(holder(), standby).Holder("db-1").Fencing(
				leaseOf("", 7).Annotation(signal.ExpiredAnnotation, "db-1").Silent(0)),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: append(release[:3:3], handoff.Demote{Pod: ref("db-1"), Version: version}),
		},
		"a released Lease is a proof": {
			snapshot:    MakeSnapshot(holder().Deleting(), standby).Holder("db-1").Fencing(leaseOf("", 7).Silent(0)),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: append(release[:3:3], unprotect),
		},
		"an older epoch in the Lease proves nothing": {
			snapshot:    MakeSnapshot(holder().Deleting(), standby).Holder("db-1").Fencing(leaseOf("", 6).Silent(0)),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
		},
		"a Lease that was taken from another pod proves nothing": {
			snapshot: MakeSnapshot(holder().Deleting(), standby).Holder("db-1").Fencing(
				leaseOf("", 7).Annotation(signal.ExpiredAnnotation, "db-0").Silent(0)),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
		},
		"the Lease of another singleton proves nothing": {
			snapshot:    MakeSnapshot(holder().Deleting(), standby).Holder("db-1").Fencing(leaseOf("", 7).OwnedBy("other-uid").Silent(time.Hour)),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
		},
		"a terminating holder retires": {
			snapshot:    MakeSnapshot(holder().Deleting(), standby).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{retireInLease("db-1", 7)},
		},
		"a retired holder is awaited": {
			snapshot: MakeSnapshot(holder().Deleting(), standby).Holder("db-1").Fencing(
				leaseOf("db-1", 7).Annotation(signal.RetireAnnotation, "db-1").Silent(0)),
			wantOutcome: handoff.HolderStopping, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
		},
		"a rollout retires the holder after its ReplicaSet is scaled down": {
			snapshot:    MakeSnapshot(holder(), fencedStandby("db-2").Revision(2).Warm().ChosenBy("stfs-uid")).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)),
			wantOutcome: handoff.Retiring, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Retire{ReplicaSet: "db-v1"}, retireInLease("db-1", 7)},
		},
		"a holder is named again after its Lease was deleted": {
			snapshot:    MakeSnapshot(holder(), standby).Holder("db-1").Fencing(MakeLease().Silent(0)),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, nameInLease("db-1", 7), signalOf("db-1", 7)},
		},
		"without a standby, the Lease loses the name of a holder that has terminated": {
			snapshot:    MakeSnapshot(holder().Deleting().Ended()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)),
			wantOutcome: handoff.HolderEnded, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, takeLease("db-1", 7), unprotect},
		},
		"a controller that stopped after Record names the new holder": {
			snapshot: MakeSnapshot(fencedStandby("db-0").Holding().Deleting().SignalledAt(6, now), standby).Chosen("db-2").Fencing(
				leaseOf("", 6).Silent(0)),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{handoff.Record{}, nameInLease("db-2", 7), signalOf("db-2", 7), handoff.Unprotect{Pod: ref("db-0")}},
		},
	})
}

func TestDecideLostNode(t *testing.T) {
	// The node of the pod still appears Ready.
	lost := func() *PodWrapper { return fencedStandby("db-1").Running() }
	lease := leaseOf("", 7).Annotation(signal.ExpiredAnnotation, "db-1").Silent(0)
	roll := handoff.Roll{Deployment: "db", UID: uidOf("db"), Version: version, Replaces: ref("db-1")}
	runDecide(t, map[string]decideCase{
		"another standby is next, although it is younger": {
			snapshot:    MakeSnapshot(lost(), fencedStandby("db-2").Warm().Created(now)).Lost(time.Second).Fencing(lease),
			wantOutcome: handoff.Released, wantHolder: "db-2", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{choose("db-2"), handoff.Record{}, nameInLease("db-2", 8), signalOf("db-2", 8)},
		},
		"a pod without other standbys is replaced": {
			snapshot:    MakeSnapshot(lost()).Lost(time.Second).Fencing(lease),
			wantOutcome: handoff.Rolling, wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: []handoff.Step{roll},
		},
		"a pod is replaced if the other standby is on a lost node too": {
			snapshot:    MakeSnapshot(lost(), fencedStandby("db-2").Warm().On(node3)).Node(node3, corev1.ConditionUnknown).Lost(time.Second).Fencing(lease),
			wantOutcome: handoff.Rolling, wantEpoch: 7, wantPhase: v1.PhaseTransitioning, wantSteps: []handoff.Step{roll},
		},
		"a pod that is replaced waits for the next pod": {
			snapshot:    MakeSnapshot(lost(), fencedStandby("db-2").Revision(2)).Lost(time.Second).Fencing(lease),
			wantOutcome: handoff.WarmingUp, wantEpoch: 7, wantPhase: v1.PhaseTransitioning,
		},
		"a pod that cannot be replaced becomes the holder again": {
			snapshot:    MakeSnapshot(lost()).DrainPolicy(v1.DrainEvict).Lost(time.Second).Fencing(lease),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{choose("db-1"), handoff.Record{}, nameInLease("db-1", 8), signalOf("db-1", 8)},
		},
		"a pod that tolerates unreachable nodes is not replaced": {
			snapshot: MakeSnapshot(func() *PodWrapper {
				pod := lost()
				pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
				return pod
			}()).Lost(time.Second).Fencing(lease),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{choose("db-1"), handoff.Record{}, nameInLease("db-1", 8), signalOf("db-1", 8)},
		},
		"after a minute on a Ready node, a pod can be next again": {
			snapshot:    MakeSnapshot(lost(), fencedStandby("db-2")).Lost(time.Minute).Fencing(lease),
			wantOutcome: handoff.Released, wantHolder: "db-1", wantEpoch: 8, wantPhase: v1.PhaseTransitioning,
			wantSteps: []handoff.Step{choose("db-1"), handoff.Record{}, nameInLease("db-1", 8), signalOf("db-1", 8)},
		},
	})
}

func TestFencedCondition(t *testing.T) {
	holder := fencedStandby("db-1").Holding()
	bare := func() *PodWrapper { return MakePod("db-1").Injected().Revision(1) }
	for name, tc := range map[string]struct {
		snapshot   *SnapshotWrapper
		wantReason string
	}{
		"no fencing":                   {snapshot: MakeSnapshot(bare().Holding()).Holder("db-1")},
		"no holder":                    {snapshot: MakeSnapshot().Fencing(MakeLease().Silent(0))},
		"renewed":                      {MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(time.Second)), "LeaseRenewed"},
		"a renewal is overdue":         {MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(leaseDuration / 2)), "LeaseNotRenewed"},
		"named, and not renewed since": {MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).AcquiredAfterRenewal().Silent(0)), "LeaseNotRenewed"},
		"created before fencing":       {MakeSnapshot(bare().Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)), "CreatedBefore"},
		"a barrier":                    {MakeSnapshot(MakePod("db-1").Barrier().Injected().Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)), "NotWrapped"},
		"the pod shares its processes": {MakeSnapshot(bare().SharesProcesses().Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)), "SharedProcesses"},
		"fencing was turned off since": {func() *SnapshotWrapper {
			s := MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0))
			s.Singleton.Spec.Fencing = v1.FencingKubelet
			return s
		}(), "LeaseRenewed"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Snapshot, now)
			got := meta.FindStatusCondition(plan.Status.Conditions, v1.ConditionFenced)
			if (got != nil) != (tc.wantReason != "") || got != nil && got.Reason != tc.wantReason {
				t.Fatalf("condition %v, want reason %q", got, tc.wantReason)
			}
			if got != nil && (got.Status == "True") != (tc.wantReason == "LeaseRenewed") {
				t.Errorf("status %s with reason %s", got.Status, got.Reason)
			}
		})
	}
}

// AcquiredAfterRenewal says that the pod in the Lease has not renewed it since the Lease names the pod.
func (l *LeaseWrapper) AcquiredAfterRenewal() *LeaseWrapper {
	l.Spec.AcquireTime = microTime(now.Add(time.Second))
	return l
}

func (p *PodWrapper) SharesProcesses() *PodWrapper {
	p.Spec.ShareProcessNamespace = new(true)
	return p
}

// A renewal that is overdue makes the controller decide again when the Lease expires. Otherwise, no decision is due.
func TestDecideWhenTheLeaseExpires(t *testing.T) {
	for silent, want := range map[time.Duration]time.Duration{
		time.Second:       5 * time.Minute,
		leaseDuration / 2: leaseDuration - leaseDuration/2,
	} {
		plan := handoff.Decide(MakeSnapshot(fencedStandby("db-1").Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(silent)).Snapshot, now)
		if plan.Requeue != want {
			t.Errorf("silent for %s: requeue after %s, want %s", silent, plan.Requeue, want)
		}
	}
}

// Only the release of the Lease by the recorded holder allows a decision without new reads.
func TestAfterRelease(t *testing.T) {
	before := func() *LeaseWrapper { return leaseOf("db-1", 7).Annotation(signal.RetireAnnotation, "db-1") }
	after := func() *LeaseWrapper { return before().Holder("") }
	for name, tt := range map[string]struct {
		before, after *LeaseWrapper
		want          bool
	}{
		"released":                       {before(), after(), true},
		"not released":                   {before(), before(), false},
		"renewed":                        {before(), leaseOf("db-1", 7), false},
		"of another pod":                 {leaseOf("db-0", 7), after(), false},
		"of no pod":                      {after(), after(), false},
		"expired":                        {before(), after().Annotation(signal.ExpiredAnnotation, "db-1"), false},
		"with another epoch":             {before(), after().Transitions(6), false},
		"the next pod has it":            {before(), after().Transitions(8).Holder("db-2"), false},
		"of another singleton":           {before().OwnedBy("other-uid"), after().OwnedBy("other-uid"), false},
		"taken over by another":          {before(), after().OwnedBy("other-uid"), false},
		"another Lease of the same name": {before(), after().UID("other-uid"), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(fencedStandby("db-1").Holding().Deleting()).Holder("db-1").Fencing(tt.before.Silent(time.Minute))
			later := tt.after.Silent(0).Object
			got, released := s.AfterRelease(later)
			if released != tt.want {
				t.Errorf("released: %t, want %t", released, tt.want)
			}
			if released && (got.Lease.Object != later || got.Lease.Silent != 0 || s.Lease.Silent != time.Minute) {
				t.Errorf("Lease %+v, want only the copy of the Snapshot to have the later state", got.Lease)
			}
		})
	}
}
