package handoff_test

import (
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// The model of the Lease and of the sidecars that renew it. Time is abstract: an action says that a whole duration has
// passed since a controller saw the last renewal. The terms of all pods have ended then, unless the Lease never expires.

// maxExpiries is the number of durations without a renewal that a controller may see. Otherwise the number of handoffs,
// and of worlds, would be infinite.
const maxExpiries = 2

// leaseState is the stored Lease.
type leaseState struct {
	exists bool
	// life is the singleton that owns the Lease.
	life uint8
	// holder, expired, retire and next are numbers of pods, from 1.
	holder, expired, retire, next uint8
	epoch                         uint8
	// started is the epoch with which a pod has reported that its main process runs.
	started uint8
}

func (l leaseState) describe(create bool) string {
	pod := func(n uint8) string {
		if n == 0 {
			return "no pod"
		}
		return "pod " + podName(int(n)-1)
	}
	if create {
		return "anew, without a holder"
	}
	return fmt.Sprintf("for %s with epoch %d (expired: %s, retire: %s, next: %s)", pod(l.holder), l.epoch, pod(l.expired), pod(l.retire), pod(l.next))
}

// fences returns true if the model has pods with fencing.
func (m *model) fences() bool { return slices.Contains(m.pods, fencedPod) }

// wroteLease marks the Lease as stale for all controllers except the writer. by is the controller that wrote, or -1.
// moved is true if the write changed the holder or was a renewal.
func (w *world) wroteLease(by int, moved bool) {
	for c := range w.controllers {
		s := &w.controllers[c]
		s.staleLease = c != by && (s.staleLease || s.stage == planStage)
		if moved {
			s.sawLease, s.silent = false, false
		}
	}
}

// writeLease executes a step of a controller, and returns true if it succeeded.
func (m *model) writeLease(w *world, c int, s step) bool {
	if s.create {
		if w.lease.exists || !w.singleton.exists {
			return false
		}
		w.lease = leaseState{exists: true, life: w.singleton.life}
		w.wroteLease(c, true)
		return true
	}
	if !w.lease.exists || w.controllers[c].staleLease || w.lease.life != w.singleton.life {
		return false
	}
	moved := w.lease.holder != s.lease.holder || w.lease.epoch != s.lease.epoch
	life, started := w.lease.life, w.lease.started
	w.lease = s.lease
	w.lease.exists, w.lease.life, w.lease.started = true, life, started
	w.wroteLease(c, moved)
	return true
}

// reachesLease returns true if the sidecar of the pod runs and reaches the API server.
func (w *world) reachesLease(i int) bool {
	p := &w.pods[i]
	return p.kind == fencedPod && p.node > 0 && w.nodes[p.node-1].connected() && p.runs != noProcess && w.lease.exists
}

// renewalMatters returns true if a controller could notice another renewal.
func (w *world) renewalMatters() bool {
	return slices.ContainsFunc(w.controllers[:], func(s controllerState) bool {
		return s.sawLease || s.stage == planStage && !s.staleLease
	})
}

// named returns true if the Lease names the pod. reaches returns true if its sidecar runs and reaches the API server.
func (a at) named() bool   { return a.w.lease.holder == uint8(a.i)+1 }
func (a at) reaches() bool { return a.w.reachesLease(a.i) }

// release releases the Lease.
func (a at) release() {
	a.p.term, a.w.lease.holder = a.m.mutation.restartRetired, 0
	a.w.wroteLease(-1, true)
}

// sidecarActions are the actions of sidecars, in the order in which a sidecar executes them after faults stopped.
var sidecarActions = []action{
	{text: "pod %s renews the Lease", on: toPod, can: func(a at) bool {
		return a.reaches() && a.named() && a.p.runs != endedProcess && (!a.p.term || a.w.renewalMatters())
	}, do: func(a at) {
		a.p.term = true
		a.w.wroteLease(-1, !a.m.mutation.missRenewals)
	}},
	{text: "pod %s stores that it must not start again", on: toPod, can: func(a at) bool {
		return a.reaches() && a.w.lease.retire == uint8(a.i)+1 && !a.p.retired
	}, do: func(a at) {
		a.p.retired = !a.m.mutation.restartRetired
		if a.m.mutation.restartRetired && a.p.runs != mainProcess {
			a.release()
		}
	}},
	{text: "pod %s releases the Lease", on: toPod, can: func(a at) bool {
		return a.reaches() && a.named() && a.p.retired && (a.p.runs != mainProcess || a.m.mutation.releaseRunning)
	}, do: at.release},
	{text: "pod %s stops its main process, because it has not renewed the Lease", on: toPod, can: func(a at) bool {
		knows := !a.named() && a.reaches() || !a.reaches() && !a.m.never
		return a.p.kind == fencedPod && a.p.term && a.p.runs != endedProcess && knows
	}, do: func(a at) { a.w.endTerm(a.i) }},
	{text: "pod %s accepts clients, and is Ready", on: toPod, can: func(a at) bool {
		return a.m.queues && a.reaches() && a.w.lease.next == uint8(a.i)+1 && !a.named() && !a.p.receives &&
			a.p.runs == heldProcess && a.p.reported == heldProcess && a.p.exists()
	}, do: func(a at) {
		a.p.receives = true
		a.w.wrote(a.i, -1)
	}},
	{text: "pod %s reports that its main process runs", on: toPod, can: func(a at) bool {
		return a.m.queues && a.reaches() && a.named() && a.p.runs == mainProcess && a.w.lease.started != a.w.lease.epoch
	}, do: func(a at) {
		a.w.lease.started = a.w.lease.epoch
		a.w.wroteLease(-1, true)
	}},
}

// expires returns true if the controller can see that a whole duration has passed without a renewal. renewed returns true if the
// holder renews the Lease meanwhile, unless its sidecar stands still.
func (a at) expires() bool { return a.c.sawLease && !a.c.silent && a.w.expiries > 0 }

func (a at) renewed() bool {
	h := int(a.w.lease.holder) - 1
	return h >= 0 && a.w.reachesLease(h) && a.w.pods[h].runs != endedProcess
}

func (a at) expire() {
	a.c.silent = true
	a.w.expiries--
	for pod := range a.w.pods {
		late := a.m.mutation.stopLate || a.m.mutation.delayLate && a.w.pods[pod].deleting && a.w.lease.retire == uint8(pod)+1
		if !late && !a.m.never {
			a.w.endTerm(pod)
		}
	}
}

func (a at) deleteLease() {
	a.w.lease = leaseState{}
	a.w.wroteLease(-1, true)
}

var (
	expireLease = action{
		text: "controller %s has seen no renewal for a whole duration", on: toController,
		can: func(a at) bool { return a.expires() && !a.renewed() }, do: at.expire,
	}
	collectLease = action{
		text: "the garbage collector deletes the Lease of the deleted singleton",
		can:  func(a at) bool { return a.w.lease.exists && a.w.lease.life != a.w.singleton.life }, do: at.deleteLease,
	}
)

// leaseActions are the other actions on the Lease.
var leaseActions = []action{
	expireLease, collectLease,
	{text: "pod %s sees that the Lease names it, or starts for that", on: toPod, can: func(a at) bool {
		return (a.m.mutation.startUnrenewed || a.m.mutation.blindRenewal) &&
			(a.reaches() && a.named() && !a.p.sawNamed || a.p.sawNamed && !a.p.term && a.p.runs != endedProcess)
	}, do: func(a at) {
		if a.p.term, a.p.sawNamed = a.p.sawNamed, !a.p.sawNamed; a.p.term && a.m.mutation.blindRenewal {
			a.w.lease.holder = uint8(a.i) + 1
			a.w.wroteLease(-1, true)
		}
	}},
	{
		text: "the sidecar stands still, and controller %s has seen no renewal for a whole duration", on: toController, fault: true,
		can: func(a at) bool { return a.expires() && a.renewed() }, do: at.expire,
	},
	{text: "a person deletes the Lease", fault: true, can: func(a at) bool { return a.w.lease.exists }, do: func(a at) {
		a.w.excused = true
		a.deleteLease()
	}},
}

// endTerm is the gate, which kills a main process whose term has ended.
func (w *world) endTerm(i int) {
	p := &w.pods[i]
	if p.kind == fencedPod && p.term && p.runs == mainProcess {
		p.runs = crashedProcess
	}
	p.term = false
}

// leaseOf converts the Lease of the view to the API object.
func (m *model) leaseOf(v view) leases.Observed {
	if !v.lease.exists {
		return leases.Observed{}
	}
	name := func(n uint8) string {
		if n == 0 {
			return ""
		}
		return podName(int(n) - 1)
	}
	lease := MakeLease().Transitions(int32(v.lease.epoch)).OwnedBy(lifeUID(v.lease.life)).Holder(name(v.lease.holder)).
		Annotation(signal.ExpiredAnnotation, name(v.lease.expired)).Annotation(signal.RetireAnnotation, name(v.lease.retire))
	if m.queues {
		lease.Annotation(signal.NextAnnotation, name(v.lease.next)).Reports(int64(v.lease.started))
	}
	if m.never && !m.mutation.expireNever {
		lease.NeverExpires()
	}
	if v.silent {
		return lease.Silent(time.Hour)
	}
	return lease.Silent(0)
}

// afterRelease returns the plan for the same view after the holder has released the Lease.
func (m *model) afterRelease(v view) (then uint32, released leaseState) {
	before := m.snapshot(v)
	v.lease.holder, v.lease.retire, v.silent = 0, v.lease.holder, false
	if _, ok := before.AfterRelease(m.leaseOf(v).Object); !ok {
		return 0, leaseState{}
	}
	return m.decide(v), v.lease
}

func leaseStep(s handoff.WriteLease) step {
	return step{do: writeLeaseStep, create: s.Version == "", lease: leaseState{
		holder: numberOf(s.Holder.UID), epoch: uint8(s.Epoch), expired: numberOf(s.Expired), retire: numberOf(s.Retire), next: numberOf(s.Next),
	}}
}

// sidecar is the sidecar of a pod after faults stopped.
func (s *settler) sidecar(w *world, i int) {
	for _, is := range sidecarActions {
		if a := s.at(w, toPod, i, 0); is.can(a) {
			is.do(a)
		}
	}
}

// settleLease lets a duration pass if no sidecar renews the Lease, and has the garbage collector do its work.
func (s *settler) settleLease(w *world) {
	for range 2 {
		for _, is := range []*action{&expireLease, &collectLease} {
			if a := s.at(w, is.on, 0, 0); is.can(a) {
				is.do(a)
			}
		}
	}
}

// awaitsNewPod returns true if the controller waits for a pod that the rolled Deployment creates. The model has no
// further pods.
func (s *settler) awaitsNewPod(w *world) bool {
	c := *w
	s.advance(&c, 0)
	return s.plans[s.decide(s.look(&c, &c.controllers[0]))].rolls
}

// LeaseWrapper builds the Lease of singleton db.
type LeaseWrapper struct{ coordinationv1.Lease }

// MakeLease returns a Lease that named no pod yet.
func MakeLease() *LeaseWrapper {
	return &LeaseWrapper{coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: signal.LeaseName("db"), UID: "lease-uid", ResourceVersion: version, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: "db", UID: "stfs-uid", Controller: new(true)}},
		},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0)), LeaseDurationSeconds: new(int32(15))},
	}}
}

func (l *LeaseWrapper) Transitions(epoch int32) *LeaseWrapper {
	l.Spec.LeaseTransitions = &epoch
	return l
}

func (l *LeaseWrapper) OwnedBy(uid types.UID) *LeaseWrapper { l.OwnerReferences[0].UID = uid; return l }

func (l *LeaseWrapper) UID(uid types.UID) *LeaseWrapper { l.ObjectMeta.UID = uid; return l }

// NeverExpires is a Lease whose holder never has to renew it again.
func (l *LeaseWrapper) NeverExpires() *LeaseWrapper {
	l.Spec.LeaseDurationSeconds = new(int32(signal.NeverExpires))
	return l
}

// Holder names the pod. Empty: no pod.
func (l *LeaseWrapper) Holder(pod string) *LeaseWrapper {
	if l.Spec.HolderIdentity = nil; pod != "" {
		l.Spec.HolderIdentity = new(signal.HolderIdentity(pod, string(uidOf(pod))))
		l.Spec.AcquireTime, l.Spec.RenewTime = microTime(now.Add(-time.Hour)), microTime(now)
	}
	return l
}

// Annotation sets an annotation to the UID of the pod. Empty: it removes the annotation.
func (l *LeaseWrapper) Annotation(key, pod string) *LeaseWrapper {
	if delete(l.Annotations, key); pod != "" {
		l.Annotations[key] = string(uidOf(pod))
	}
	return l
}

// Reports is the report of the holder that its main process has started with the epoch, and listens. 0: there is none.
func (l *LeaseWrapper) Reports(epoch int64) *LeaseWrapper {
	if epoch > 0 {
		l.Annotations[signal.QueueAnnotation] = signal.QueueReport{Epoch: epoch, Ports: map[uint16]string{8080: "Dual"}}.String()
	}
	return l
}

// Silent returns the Lease for a Snapshot. The controller has seen no renewal for the duration.
func (l *LeaseWrapper) Silent(d time.Duration) leases.Observed {
	return leases.Observed{Object: &l.Lease, Silent: d}
}
