package handoff_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func queueStandby(name string) *PodWrapper {
	return fencedStandby(name).GateProbe().Queues().With(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(30)) })
}

func queueHolder() *PodWrapper {
	return queueStandby("db-1").Holding().Annotation(v1.ChosenByAnnotation, "stfs-uid")
}

// DeletedFor has the pod terminate since the duration, with the grace period.
func (p *PodWrapper) DeletedFor(d time.Duration, grace int64) *PodWrapper {
	p.Deleting().DeletionTimestamp.Time = now.Add(time.Duration(grace)*time.Second - d)
	p.DeletionGracePeriodSeconds = &grace
	return p
}

// Queueing sets spec.connections to Queue.
func (s *SnapshotWrapper) Queueing() *SnapshotWrapper {
	s.Singleton.Spec.Connections = v1.ConnectionsQueue
	return s
}

// During sets what the Lease says about clients while pod db-1 must stop.
func (l *LeaseWrapper) During(next, milliseconds string) *LeaseWrapper {
	l.Annotation(signal.RetireAnnotation, "db-1").Annotation(signal.NextAnnotation, next)
	if milliseconds != "" {
		l.Annotations[signal.DelayAnnotation] = milliseconds
	}
	return l
}

// receives is the step by which db-2 accepts clients while db-1 still serves for the delay. Empty next: no pod accepts clients.
func receives(next string, delay time.Duration) handoff.Step {
	step := handoff.WriteLease{Version: version, Holder: ref("db-1"), Duration: leaseDuration, Epoch: 7, Retire: uidOf("db-1"), Delay: delay}
	if next != "" {
		step.Next = uidOf(next)
	}
	return step
}

func TestDecideReception(t *testing.T) {
	serving := func() *LeaseWrapper { return leaseOf("db-1", 7).Reports(7) }
	standby := func() *PodWrapper { return queueStandby("db-2").Warm().ChosenBy("stfs-uid") }
	ready := func() *PodWrapper { return standby().Condition(corev1.PodReady, corev1.ConditionTrue, "", "") }
	with := func(lease *LeaseWrapper, pods ...*PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(pods...).Holder("db-1").Fencing(lease.Silent(0)).Queueing().ReplicaSet("db-v1", 1).Deployment(1)
	}
	deleted := func(ago time.Duration, grace int64) *PodWrapper { return queueHolder().DeletedFor(ago, grace) }
	stops := func(steps ...handoff.Step) expected { return keeps(handoff.HolderStopping, steps...) }
	none := with(serving(), deleted(time.Second, 30), standby())
	none.Singleton.Spec.ShutdownDelaySeconds = new(int32(0))
	longDelay := func(s *SnapshotWrapper) *SnapshotWrapper {
		s.Singleton.Spec.ShutdownDelaySeconds = new(int32(10))
		return s
	}
	starting := with(leaseOf("db-1", 7).Reports(6), queueHolder())
	starting.Singleton.Status.LastTransition.Ready = nil
	waitsForClaim := queueStandby("db-2").Claim("data").Condition(corev1.PodScheduled, corev1.ConditionFalse, "", "ReadWriteOncePod")
	runDecide(t, map[string]decideCase{
		"a rollout": {
			with(serving(), queueHolder(), standby().Revision(2)).ReplicaSet("db-v2", 1),
			keeps(handoff.Retiring, retire("db-v1"), receives("db-2", 6200*time.Millisecond)),
		},
		"a deletion":                        {with(serving(), deleted(0, 30), standby()), stops(receives("db-2", 6200*time.Millisecond))},
		"a deletion that was seen late":     {with(serving(), deleted(12*time.Second, 30), standby()), stops(receives("db-2", 3*time.Second))},
		"a deletion in the future":          {with(serving(), deleted(-time.Second, 30), standby()), stops(receives("db-2", 6200*time.Millisecond))},
		"a deletion without a grace period": {with(serving(), deleted(0, 0), standby()), stops(receives("db-2", 0))},
		"the standby is not Ready yet":      {with(serving().During("db-2", "5000"), deleted(4*time.Second, 30), standby()), stops()},
		"the standby is Ready":              {with(serving().During("db-2", "5000"), deleted(time.Second, 30), ready()), stops(receives("db-2", 1200*time.Millisecond))},
		"the standby is Ready late":         {with(serving().During("db-2", "5000"), deleted(14*time.Second, 30), ready()), stops(receives("db-2", time.Second))},
		"a long delay, and the standby is Ready": {
			longDelay(with(serving().During("db-2", "12000"), deleted(time.Second, 60), ready())), stops(receives("db-2", 10200*time.Millisecond)),
		},
		"the standby has been Ready": {with(serving().During("db-2", "1200"), deleted(9*time.Second, 30), ready()), stops()},
		"the standby is not Ready any more": {
			with(serving().During("db-2", "1200"), deleted(2*time.Second, 30), standby()), stops(receives("db-2", 6200*time.Millisecond)),
		},
		"the standby is not Ready any more, and little time is left": {
			with(serving().During("db-2", "1200"), deleted(14*time.Second, 30), standby()), stops(),
		},
		"the standby was Ready before":         {with(serving(), deleted(0, 30), ready()), stops(receives("db-2", 1200*time.Millisecond))},
		"a deletion with a short grace period": {with(serving(), deleted(0, 2), ready()), stops(receives("db-2", time.Second))},
		"a deletion with a shorter grace period follows": {
			with(serving().During("db-2", "1200"), deleted(0, 2), ready()), stops(receives("db-2", time.Second)),
		},
		"the standby was demoted before": {
			with(serving().During("db-2", "5000"), deleted(4*time.Second, 30), standby().Condition(v1.ReadyCondition, corev1.ConditionFalse, "", "")),
			stops(handoff.MarkReady{Pod: ref("db-2")}),
		},
		"the older standby is warm again": {
			with(serving().During("db-3", "1200"), deleted(2*time.Second, 30), standby(), queueStandby("db-3").Warm().ChosenBy("stfs-uid").Condition(corev1.PodReady, corev1.ConditionTrue, "", "")),
			stops(),
		},
		"the sidecar of the standby that receives restarts": {
			with(serving().During("db-2", "5000"), deleted(time.Second, 30), queueStandby("db-2")), stops(),
		},
		"the sidecar of the standby that receives restarts, and another is warm": {
			with(serving().During("db-2", "1200"), deleted(time.Second, 30), queueStandby("db-2"), queueStandby("db-3").Warm().ChosenBy("stfs-uid")),
			stops(receives("db-3", 6200*time.Millisecond)),
		},
		"the sidecar of the standby that receives restarts when the holder ends": {
			with(serving().During("db-2", "1200"), deleted(time.Second, 30).Ended(), queueStandby("db-2")),
			nobody(7, handoff.HolderEnded, record, handoff.WriteLease{Version: version, Epoch: 7, Expired: uidOf("db-1"), Next: uidOf("db-2")}, unprotect("db-1")),
		},
		"a holder that stops just after its start does not know its ports": {
			with(leaseOf("db-1", 7).During("db-2", "5000"), deleted(time.Second, 30), standby()), stops(),
		},
		"no delay is wanted":                       {none, stops(receives("db-2", 0))},
		"there is no standby yet":                  {with(serving(), deleted(0, 30)), stops(receives("", 5*time.Second))},
		"there is no standby yet, and little time": {with(serving(), deleted(0, 4)), stops(receives("", 2*time.Second))},
		"a standby warms up": {
			with(serving().During("", "5000"), deleted(4*time.Second, 30), queueStandby("db-2")), stops(receives("", 11*time.Second)),
		},
		"a standby still warms up": {with(serving().During("", "11000"), deleted(6*time.Second, 30), queueStandby("db-2")), stops()},
		"a standby became warm": {
			with(serving().During("", "15000"), deleted(4*time.Second, 30), standby()), stops(receives("db-2", 6200*time.Millisecond)),
		},
		"a standby became warm too late": {
			with(serving().During("", "15000"), deleted(14*time.Second, 30), standby()), stops(receives("db-2", time.Second)),
		},
		"no standby can become warm before": {
			with(serving(), deleted(0, 30).Claim("data"), waitsForClaim).Claim("data", corev1.ReadWriteOncePod), stops(receives("", 0)),
		},
		"no pod follows":                     {with(serving(), deleted(0, 30)).Deployment(0).ReplicaSet("db-v1", 0), stops(receives("", 0))},
		"it is not known how to queue":       {with(leaseOf("db-1", 7), deleted(0, 30), standby()), stops(receives("", 0))},
		"the standby cannot queue":           {with(serving(), deleted(0, 30), fencedStandby("db-2").Warm().ChosenBy("stfs-uid")), stops(receives("", 0))},
		"the holder was not made for queues": {with(serving(), fencedStandby("db-1").Holding().DeletedFor(0, 30), standby()), stops(receives("", 0))},
		"a standby that does not run next closes": {
			with(serving().During("db-2", "1200"), deleted(0, 30), ready(), queueStandby("db-3").Warm().Condition(corev1.PodReady, corev1.ConditionTrue, "", "")),
			stops(demote("db-3")),
		},
		"Services send nothing to a holder whose end its kubelet has not reported": {
			with(leaseOf("", 7), deleted(time.Second, 30), standby()),
			holds("db-2", 8, handoff.Released, record, nameInLease("db-2", 8), signalOf("db-2", 8), handoff.Demote{Pod: ref("db-1")}),
		},
		"the holder released the Lease before it is deleted": {
			with(leaseOf("", 7), queueHolder(), standby()),
			holds("db-2", 8, handoff.Released, record, nameInLease("db-2", 8), signalOf("db-2", 8), unprotect("db-1")),
		},
		"the kubelet has reported the end of the holder": {
			with(leaseOf("", 7), deleted(time.Second, 30).Ended(), standby()),
			holds("db-2", 8, handoff.Released, record, nameInLease("db-2", 8), signalOf("db-2", 8), unprotect("db-1")),
		},
		"a holder that is Ready has not started": {
			starting, keeps(handoff.Starting).says("clients can connect, and its main processes have not started yet"),
		},
		"a holder has started": {with(serving(), queueHolder()), keeps(handoff.HolderReady)},
	})
}

func TestDecideReportsTheQueue(t *testing.T) {
	reports := func(report signal.QueueReport) *LeaseWrapper {
		lease := leaseOf("db-1", 7)
		lease.Annotations[signal.QueueAnnotation] = report.String()
		return lease
	}
	known := map[uint16]string{80: "Dual"}
	for name, tc := range map[string]struct {
		lease      *LeaseWrapper
		holder     *PodWrapper
		want       string
		wantReason string
	}{
		"ports are known":          {reports(signal.QueueReport{Epoch: 7, Ports: known}), queueHolder(), "True", "PortsKnown"},
		"a queue was handed over":  {reports(signal.QueueReport{Epoch: 7, Reason: "HandedOver", Ports: known}), queueHolder(), "True", "PortsKnown"},
		"clients were lost":        {reports(signal.QueueReport{Epoch: 7, Reason: "OtherUser", Message: "It did.", Ports: known}), queueHolder(), "False", "OtherUser"},
		"no port is known":         {reports(signal.QueueReport{Epoch: 7}), queueHolder(), "False", "PortsUnknown"},
		"no port is known yet":     {reports(signal.QueueReport{Epoch: 7}), queueHolder().Annotation("starts", ""), "", ""},
		"the pod cannot queue":     {leaseOf("db-1", 7), fencedStandby("db-1").Holding(), "False", "NotPrepared"},
		"the holder has not begun": {reports(signal.QueueReport{Epoch: 6, Ports: known}), queueHolder(), "", ""},
		"the report is not for us": {leaseOf("db-1", 7), queueHolder(), "", ""},
		"the report is not a report": {func() *LeaseWrapper {
			lease := leaseOf("db-1", 7)
			lease.Annotations[signal.QueueAnnotation] = "[]"
			return lease
		}(), queueHolder(), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(tc.holder).Holder("db-1").Fencing(tc.lease.Silent(0)).Queueing()
			if _, starts := tc.holder.Annotations["starts"]; starts {
				s.Singleton.Status.LastTransition.Signalled = microTime(now.Add(-time.Second))
			}
			plan := handoff.Decide(s.Snapshot, now)
			got := meta.FindStatusCondition(plan.Status.Conditions, v1.ConditionConnectionsQueued)
			switch {
			case got == nil && tc.want != "":
				t.Fatal("there is no condition")
			case got != nil && (string(got.Status) != tc.want || got.Reason != tc.wantReason):
				t.Errorf("condition %s %s, want %s %s", got.Status, got.Reason, tc.want, tc.wantReason)
			}
		})
	}
}
