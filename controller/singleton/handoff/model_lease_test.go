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
// passed since a controller saw the last renewal. The terms of all pods have ended then.

// maxExpiries is the number of durations without a renewal that a controller may see. Otherwise the number of handoffs,
// and of worlds, would be infinite.
const maxExpiries = 2

// leaseState is the stored Lease.
type leaseState struct {
	exists bool
	// life is the singleton that owns the Lease.
	life uint8
	// holder, expired and retire are numbers of pods, from 1.
	holder, expired, retire uint8
	epoch                   uint8
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
	return fmt.Sprintf("for %s with epoch %d (expired: %s, retire: %s)", pod(l.holder), l.epoch, pod(l.expired), pod(l.retire))
}

// fencingMutation is a deliberate error in the fencing.
type fencingMutation struct {
	// With startUnrenewed, a pod starts although it only saw that the Lease names it.
	startUnrenewed bool
	// With stopLate, a pod runs longer than the Lease is valid. With missRenewals, a controller does not notice renewals.
	stopLate, missRenewals bool
	// With blindRenewal, the renewal of a pod that saw itself named replaces the name of another pod.
	blindRenewal bool
	// With restartRetired, a pod releases the Lease and may start its main process again. With releaseRunning, it releases
	// the Lease before its main process has ended.
	restartRetired, releaseRunning bool
	// With expectRelease, a controller that waits for the release of the Lease decides as if the holder had released it.
	expectRelease bool
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
	life := w.lease.life
	w.lease = s.lease
	w.lease.exists, w.lease.life = true, life
	w.wroteLease(c, moved)
	return true
}

// reachesLease returns true if the sidecar of the pod runs and reaches the API server.
func (w *world) reachesLease(i int) bool {
	p := &w.pods[i]
	return p.kind == fencedPod && p.node > 0 && w.nodes[p.node-1].connected() && p.runs != noProcess && w.lease.exists
}

// nextOfLease calls then with each action of sidecars and on the Lease that is possible in the world.
func (m *model) nextOfLease(w *world, then func(actionKind, uint8, uint8)) {
	for i := range w.pods {
		p, id := &w.pods[i], uint8(i)
		if p.kind != fencedPod {
			continue
		}
		named, reaches := w.lease.holder == id+1, w.reachesLease(i)
		if (m.mutation.startUnrenewed || m.mutation.blindRenewal) && (reaches && named && !p.sawNamed || p.sawNamed && !p.term && p.runs != endedProcess) {
			then(seeLeaseAction, id, 0)
		}
		if reaches && named && p.runs != endedProcess && (!p.term || w.renewalMatters()) {
			then(renewAction, id, 0)
		}
		if reaches && w.lease.retire == id+1 && !p.retired {
			then(obeyAction, id, 0)
		}
		if reaches && named && p.retired && (p.runs != mainProcess || m.mutation.releaseRunning) {
			then(releaseAction, id, 0)
		}
		if p.term && p.runs != endedProcess && (!named || !reaches) {
			then(endTermAction, id, 0)
		}
	}
	for c := range m.controllers {
		s := &w.controllers[c]
		if !s.sawLease || s.silent || w.expiries == 0 {
			continue
		}
		if h := w.lease.holder; h == 0 || !w.reachesLease(int(h)-1) || w.pods[h-1].runs == endedProcess {
			then(expireAction, uint8(c), 0)
		} else if w.faults > 0 {
			then(freezeAction, uint8(c), 0)
		}
	}
	if w.lease.exists && w.lease.life != w.singleton.life {
		then(collectLeaseAction, 0, 0)
	}
	if w.lease.exists && w.faults > 0 {
		then(deleteLeaseAction, 0, 0)
	}
}

// renewalMatters returns true if a controller could notice another renewal.
func (w *world) renewalMatters() bool {
	return slices.ContainsFunc(w.controllers[:], func(s controllerState) bool {
		return s.sawLease || s.stage == planStage && !s.staleLease
	})
}

func (m *model) doToLease(w *world, kind actionKind, i int) {
	p := &w.pods[i]
	switch kind {
	case seeLeaseAction:
		if p.term, p.sawNamed = p.sawNamed, !p.sawNamed; p.term && m.mutation.blindRenewal {
			w.lease.holder = uint8(i) + 1
			w.wroteLease(-1, true)
		}
	case renewAction:
		p.term = true
		w.wroteLease(-1, !m.mutation.missRenewals)
	case obeyAction:
		p.retired = !m.mutation.restartRetired
		if m.mutation.restartRetired && p.runs != mainProcess {
			m.doToLease(w, releaseAction, i)
		}
	case releaseAction:
		p.term, w.lease.holder = m.mutation.restartRetired, 0
		w.wroteLease(-1, true)
	case endTermAction:
		w.endTerm(i)
	case expireAction, freezeAction:
		w.controllers[i].silent = true
		w.expiries--
		for pod := range w.pods {
			if !m.mutation.stopLate {
				w.endTerm(pod)
			}
		}
	case collectLeaseAction, deleteLeaseAction:
		w.excused = w.excused || kind == deleteLeaseAction
		w.lease = leaseState{}
		w.wroteLease(-1, true)
	}
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
	if v.silent {
		return lease.Silent(time.Minute)
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
		holder: numberOf(s.Holder.UID), epoch: uint8(s.Epoch), expired: numberOf(s.Expired), retire: numberOf(s.Retire),
	}}
}

// sidecar is the sidecar of a pod after faults stopped.
func (s *settler) sidecar(w *world, i int) {
	s.nextOfLease(w, func(kind actionKind, a, b uint8) {
		if int(a) == i && kind >= renewAction && kind <= endTermAction {
			s.doToLease(w, kind, i)
		}
	})
}

// settleLease lets a duration pass if no sidecar renews the Lease, and has the garbage collector do its work.
func (s *settler) settleLease(w *world) {
	for range 2 {
		s.nextOfLease(w, func(kind actionKind, a, b uint8) {
			if kind == expireAction && a == 0 || kind == collectLeaseAction {
				s.doToLease(w, kind, int(a))
			}
		})
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

// Silent returns the Lease for a Snapshot. The controller has seen no renewal for the duration.
func (l *LeaseWrapper) Silent(d time.Duration) leases.Observed {
	return leases.Observed{Object: &l.Lease, Silent: d}
}
