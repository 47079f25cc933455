package handoff_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

const leaseDuration = 15 * time.Second

// Fencing sets spec.fencing to Lease, and the Lease of the singleton.
func (s *SnapshotWrapper) Fencing(lease leases.Observed) *SnapshotWrapper {
	s.Singleton.Spec.Fencing, s.Singleton.Spec.LeaseDurationSeconds = v1.FencingLease, new(int32(leaseDuration.Seconds()))
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

// Proof sets the last holder and the proof in the record.
func (s *SnapshotWrapper) Proof(pod string, proof v1.Proof) *SnapshotWrapper {
	t := s.Singleton.Status.LastTransition
	t.FromUID, t.Proof = uidOf(pod), proof
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

// releasesFenced expects that a fenced pod without the finalizer is released, and then the other steps.
func releasesFenced(pod string, epoch int64, then ...handoff.Step) expected {
	return holds(pod, epoch, handoff.Released, append([]handoff.Step{choose(pod), record, nameInLease(pod, epoch), signalOf(pod, epoch)}, then...)...)
}

func TestDecideReleaseByLease(t *testing.T) {
	standby := fencedStandby("db-2").Warm()
	ended := func(standby *PodWrapper, lease leases.Observed) *SnapshotWrapper {
		return MakeSnapshot(standby).Ended(v1.CauseDeletion).Fencing(lease)
	}
	runDecide(t, map[string]decideCase{
		"the Lease is created before it is needed": {MakeSnapshot().Fencing(leases.Observed{}), nobody(0, handoff.NoPods, handoff.WriteLease{})},
		"a standby waits for the Lease": {
			MakeSnapshot(standby).Fencing(leases.Observed{}),
			nobody(0, handoff.WarmingUp, handoff.WriteLease{}).says("pod db-2 waits until Lease statefulsingleton-db exists"),
		},
		"the Lease names the pod after the record": {MakeSnapshot(standby).Fencing(MakeLease().Silent(time.Hour)), releasesFenced("db-2", 1)},
		"the release of a pod without fencing changes the Lease too": {
			ended(warm("db-2"), MakeLease().Transitions(7).Silent(time.Hour)),
			holds("db-2", 8, handoff.Released, protectStandby("db-2"), record, handoff.WriteLease{Version: version, Holder: ref("db-2"), Epoch: 8}, signalOf("db-2", 8)),
		},
		"without fencing there is no Lease": {MakeSnapshot(warm("db-2")).Ended(v1.CauseDeletion), releases("db-2", 8)},
		"the epoch grows beyond that of the Lease": {
			MakeSnapshot(standby).Fencing(MakeLease().Transitions(40).Silent(time.Hour)), releasesFenced("db-2", 41),
		},
		"no pod is released while the Lease names a pod that does not exist": {
			ended(standby, leaseOf("db-1", 7).Silent(leaseDuration-1)), nobody(7, handoff.LeaseHeld).says("names pod db-1, which does not exist"),
		},
		"a Lease that never expires is not taken from a pod that does not exist": {
			ended(standby, leaseOf("db-1", 7).NeverExpires().Silent(time.Hour)), nobody(7, handoff.LeaseHeld).failed().says("Then delete StatefulSingleton db and create it again"),
		},
		"a Lease that names the last holder blocks nothing after the kubelet's report": {
			ended(standby, leaseOf("db-1", 7).NeverExpires().Silent(0)).Proof("db-1", v1.ProofKubeletReported), releasesFenced("db-2", 8),
		},
		"a Lease that names the last holder blocks if the pod was never signalled": {
			ended(standby, leaseOf("db-1", 7).Silent(0)).Proof("db-1", v1.ProofNeverSignalled), nobody(7, handoff.LeaseHeld),
		},
		"the Lease of a pod that does not exist expires": {
			ended(standby, leaseOf("db-1", 7).Silent(leaseDuration)), nobody(7, handoff.LeaseTaken, takeLease("db-1", 7)),
		},
		"a pod that the Lease names may run, although it was not signalled": {
			MakeSnapshot(fencedStandby("db-1").Warm(), standby).Fencing(leaseOf("db-1", 7).Silent(0)), adopts("db-1", 8),
		},
	})
}

func TestDecideFencedHolder(t *testing.T) {
	holder := func() *PodWrapper {
		return fencedStandby("db-1").Holding().Annotation(v1.ChosenByAnnotation, "stfs-uid")
	}
	standby := fencedStandby("db-2").Warm().ChosenBy("stfs-uid")
	with := func(db1 *PodWrapper, lease leases.Observed) *SnapshotWrapper {
		return MakeSnapshot(db1, standby).Holder("db-1").Fencing(lease)
	}
	running := func(silent time.Duration) *SnapshotWrapper { return with(holder(), leaseOf("db-1", 7).Silent(silent)) }
	stopping := func(lease *LeaseWrapper) *SnapshotWrapper { return with(holder().Deleting(), lease.Silent(0)) }
	neverExpires := func() *PodWrapper { return holder().NeverExpires() }
	longer := leaseOf("db-1", 7)
	longer.Spec.LeaseDurationSeconds = new(int32(30))
	released := func(then handoff.Step) expected {
		return holds("db-2", 8, handoff.Released, record, nameInLease("db-2", 8), signalOf("db-2", 8), then)
	}
	runDecide(t, map[string]decideCase{
		"a holder that renews the Lease stays": {running(leaseDuration - 1), keeps(handoff.HolderReady)},
		"a holder that has not renewed the Lease loses it": {
			running(leaseDuration),
			keeps(handoff.LeaseTaken, takeLease("db-1", 7)).says("pod db-1 has not renewed Lease statefulsingleton-db for 15s"),
		},
		"a holder whose Lease never expires stays": {
			MakeSnapshot(neverExpires(), standby).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(time.Hour)), keeps(handoff.HolderReady),
		},
		"a longer duration in the Lease counts": {with(holder(), longer.Silent(leaseDuration)), keeps(handoff.HolderReady)},
		"a holder without fencing does not lose the Lease": {
			with(MakePod("db-1").Injected().Revision(1).Holding(), leaseOf("db-1", 7).Silent(time.Hour)), keeps(handoff.HolderReady),
		},
		"an expired Lease is a proof":                {with(holder(), leaseOf("", 7).Annotation(signal.ExpiredAnnotation, "db-1").Silent(0)), released(demote("db-1"))},
		"a released Lease is a proof":                {stopping(leaseOf("", 7)), released(unprotect("db-1"))},
		"an older epoch in the Lease proves nothing": {stopping(leaseOf("", 6)), keeps(handoff.HolderStopping)},
		"a Lease that was taken from another pod proves nothing": {
			stopping(leaseOf("", 7).Annotation(signal.ExpiredAnnotation, "db-0")), keeps(handoff.HolderStopping),
		},
		"the Lease of another singleton proves nothing": {
			with(holder().Deleting(), leaseOf("", 7).OwnedBy("other-uid").Silent(time.Hour)), keeps(handoff.HolderStopping),
		},
		"a terminating holder retires": {stopping(leaseOf("db-1", 7)), keeps(handoff.HolderStopping, retireInLease("db-1", 7))},
		"a retired holder is awaited":  {stopping(leaseOf("db-1", 7).Annotation(signal.RetireAnnotation, "db-1")), keeps(handoff.HolderStopping)},
		"a rollout retires the holder after its ReplicaSet is scaled down": {
			MakeSnapshot(holder(), fencedStandby("db-2").Revision(2).Warm().ChosenBy("stfs-uid")).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)),
			keeps(handoff.Retiring, retire("db-v1"), retireInLease("db-1", 7)),
		},
		"a holder is named again after its Lease was deleted": {
			with(holder(), MakeLease().Silent(0)), keeps(handoff.Released, record, nameInLease("db-1", 7), signalOf("db-1", 7)),
		},
		"the Lease also loses the name of an earlier holder": {
			MakeSnapshot(neverExpires().Deleting().Ended()).Holder("db-1").Fencing(leaseOf("db-0", 6).NeverExpires().Silent(0)).Proof("db-0", v1.ProofKubeletReported),
			nobody(7, handoff.HolderEnded, record, takeLease("db-0", 6), unprotect("db-1")),
		},
		"without a standby, the Lease loses the name of a holder that has terminated": {
			MakeSnapshot(holder().Deleting().Ended()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)),
			nobody(7, handoff.HolderEnded, record, takeLease("db-1", 7), unprotect("db-1")),
		},
		"a controller that stopped after Record names the new holder": {
			MakeSnapshot(fencedStandby("db-0").Holding().Deleting().SignalledAt(6, now), standby).Chosen("db-2").Fencing(leaseOf("", 6).Silent(0)),
			holds("db-2", 7, handoff.Released, record, nameInLease("db-2", 7), signalOf("db-2", 7), unprotect("db-0")),
		},
	})
}

func TestDecideLostNode(t *testing.T) {
	// The node of db-1 still appears Ready.
	lost := func(ago time.Duration, pods ...*PodWrapper) *SnapshotWrapper {
		lease := leaseOf("", 7).Annotation(signal.ExpiredAnnotation, "db-1").Silent(0)
		return MakeSnapshot(append([]*PodWrapper{fencedStandby("db-1").Running()}, pods...)...).Lost(ago).Fencing(lease)
	}
	tolerant := lost(time.Second)
	tolerant.Pods[0].Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	roll := handoff.Roll{Deployment: "db", UID: uidOf("db"), Version: version, Replaces: ref("db-1")}
	younger := fencedStandby("db-2").Warm().Created(now)
	runDecide(t, map[string]decideCase{
		"another standby is next, although it is younger":                        {lost(time.Second, younger), releasesFenced("db-2", 8)},
		"another standby is next, although the node has been Ready for a minute": {lost(time.Minute, younger), releasesFenced("db-2", 8)},
		"a pod without other standbys is replaced":                               {lost(time.Second), nobody(7, handoff.Rolling, roll)},
		"a pod is replaced if the other standby is on a lost node too": {
			lost(time.Second, fencedStandby("db-2").Warm().On(node3)).Node(node3, corev1.ConditionUnknown), nobody(7, handoff.Rolling, roll),
		},
		"a pod that is replaced waits for the next pod":           {lost(time.Second, fencedStandby("db-2").Revision(2)), nobody(7, handoff.WarmingUp)},
		"a pod that cannot be replaced becomes the holder again":  {lost(time.Second).DrainPolicy(v1.DrainEvict), releasesFenced("db-1", 8)},
		"a pod that tolerates unreachable nodes is not replaced":  {tolerant, releasesFenced("db-1", 8)},
		"after a minute on a Ready node, a pod can be next again": {lost(time.Minute, fencedStandby("db-2")), releasesFenced("db-1", 8)},
	})
}

func TestFencedCondition(t *testing.T) {
	holder := fencedStandby("db-1").Holding()
	bare := func() *PodWrapper { return MakePod("db-1").Injected().Revision(1) }
	never := func(silent time.Duration) *SnapshotWrapper {
		return MakeSnapshot(fencedStandby("db-1").NeverExpires().Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).NeverExpires().Silent(silent))
	}
	for name, tc := range map[string]struct {
		snapshot   *SnapshotWrapper
		wantReason string
	}{
		"no fencing":                   {snapshot: MakeSnapshot(bare().Holding()).Holder("db-1")},
		"no holder":                    {snapshot: MakeSnapshot().Fencing(MakeLease().Silent(0))},
		"renewed":                      {MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(time.Second)), "LeaseRenewed"},
		"a renewal is overdue":         {MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(leaseDuration / 2)), "LeaseNotRenewed"},
		"it never expires":             {never(time.Minute), "LeaseRenewed"},
		"it is not renewed any more":   {never(5 * time.Minute), "LeaseNotRenewed"},
		"named, and not renewed since": {MakeSnapshot(holder).Holder("db-1").Fencing(leaseOf("db-1", 7).AcquiredAfterRenewal().Silent(0)), "LeaseNotRenewed"},
		"created before fencing":       {MakeSnapshot(bare().Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)), "CreatedBefore"},
		"a barrier":                    {MakeSnapshot(MakePod("db-1").Barrier().Injected().Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)), "NotWrapped"},
		"the pod shares its processes": {MakeSnapshot(bare().With(func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }).Holding()).Holder("db-1").Fencing(leaseOf("db-1", 7).Silent(0)), "SharedProcesses"},
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
