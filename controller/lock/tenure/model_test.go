package tenure_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// The model is a small world around the real Decide and its steps. It has an API server, kubelets, a StatefulSet controller
// that replaces pods, and controllers that crash or act late. The search visits all states of a small world.

const (
	maxSlots       = 3
	maxNodes       = 2
	maxControllers = 2
)

// world is the actual state and the state that the API server stores. Equal worlds behave in the same way.
type world struct {
	record record
	// attested is the pod of which a person attests the termination.
	attested id
	pods     [maxSlots]podState
	// left are processes of pods whose objects were removed, on nodes that do not answer.
	left        [maxSlots]orphans
	nodes       [maxNodes]nodeState
	lease       leaseState
	controllers [maxControllers]controllerState
	// deletions and faults are the numbers of deletions of pods, and of faults, that may still happen.
	deletions, faults uint8
}

// id is a pod by its number, from 1, and its incarnation. 0: no pod.
type id struct{ pod, life uint8 }

// record is the stored record, or the record that a controller read.
type record struct {
	writer id
	epoch  uint8
	// from is the old writer of a change that is in progress.
	from id
}

type leaseState struct {
	exists bool
	// named is true if the Lease names a pod, and fenced if that pod is fenced.
	named, fenced bool
	// writer is the pod that the Lease names, or named last.
	writer id
	epoch  uint8
	// revoked and writing are epochs in annotations.
	revoked, writing uint8
	// expired is true if the Lease was taken from the writer.
	expired bool
	// silent is true if the Lease has not been renewed for its duration.
	silent bool
	// held is true if no pod may get the Lease before it expires.
	held bool
}

// podState is a pod of the StatefulSet.
type podState struct {
	// life is the number of pods that had the name so far. 0: no pod was created yet.
	life uint8
	// gone is true while no object of the name exists.
	gone, deleting, noGrace, finalizer bool
	role                               role
	began, ended                       uint8
	ready                              bool
	// reported is true if the kubelet reported the end of all processes.
	reported bool
	// over is true if all processes have ended.
	over bool
	// tenured is true if the pod has had the label of a writer.
	tenured bool
	gateState
}

// gateState is the state of the gate of a fenced pod, which the API server does not know.
type gateState struct {
	// term is the epoch for which the gate may start the writer, and writes is the epoch of the writer that runs. 0: none.
	term, writes uint8
	// done is the last epoch for which the gate starts no writer any more.
	done uint8
}

func (p *podState) exists() bool { return p.life > 0 && !p.gone }

// orphans are processes of a removed pod. They are tenured if the pod has had the label of a writer.
type orphans struct {
	tenured bool
	gateState
}

type role uint8

const (
	noRole role = iota
	readerRole
	writerRole
)

type nodeState struct{ cut, notReady bool }

type stage uint8

const (
	idleStage stage = iota
	// At readStage, the controller has read the lock. At planStage, it has read everything and decided.
	readStage
	planStage
)

// controllerState is the state of a controller between two of its reads and writes.
type controllerState struct {
	stage stage
	read  record
	// attested is part of what the controller read.
	attested id
	// The objects that another client has written since the controller read or wrote them.
	staleRecord, staleLease bool
	stalePods               uint8
	plan                    uint32
	done                    uint8
}

// planState is the result of a decision. Equal results are stored once.
type planState struct {
	steps  []tenure.Step
	status record
}

// view is the input of a decision.
type view struct {
	record   record
	attested id
	pods     [maxSlots]podState
	nodes    [maxNodes]nodeState
	lease    leaseState
}

// model has the rules by which a world changes.
type model struct {
	fencing            v1.LockFencing
	slots, controllers int
	mutation           mutation

	plans   []planState
	planIDs map[string]uint32
	decided map[view]uint32
}

// mutation is a deliberate error in the protocol.
type mutation struct {
	// see changes the input of Decide, and plan changes the steps.
	see  func(*view)
	plan func([]tenure.Step) []tenure.Step
	// With blindRecord, blindLabels and blindLease, writes ignore the writes of other clients.
	blindRecord, blindLabels, blindLease bool
	// lockStays: nobody replaces the lock.
	lockStays bool
}

func newModel(fencing v1.LockFencing, slots, controllers int) *model {
	return &model{fencing: fencing, slots: slots, controllers: controllers, plans: []planState{{}}, planIDs: map[string]uint32{}, decided: map[view]uint32{}}
}

// start returns a world in which all pods of the StatefulSet are Ready. The pods are on alternating nodes.
func (m *model) start(deletions, faults int) world {
	w := world{deletions: uint8(deletions), faults: uint8(faults)}
	for i := range m.slots {
		w.pods[i] = newPod(1)
	}
	return w
}

// newPod returns a pod that Kyverno has labelled as a reader.
func newPod(life uint8) podState { return podState{life: life, role: readerRole, ready: true} }

func nodeOf(slot int) int { return slot % maxNodes }

func podName(slot int) string { return fmt.Sprintf("db-%d", slot) }

// ref returns what the API server knows about the pod.
func (p id) ref() tenure.PodRef {
	return tenure.PodRef{Name: podName(int(p.pod) - 1), UID: types.UID(fmt.Sprintf("%d-%d", p.pod-1, p.life))}
}

// idOf returns the pod with the UID.
func idOf(uid types.UID) id {
	slot, life, _ := strings.Cut(string(uid), "-")
	n, _ := strconv.Atoi(slot)
	l, _ := strconv.Atoi(life)
	return id{uint8(n) + 1, uint8(l)}
}

// others calls mark with the controllers that have read something, except the one that wrote. by is that controller, or -1.
func (w *world) others(by int, mark func(*controllerState)) {
	for c := range w.controllers {
		if s := &w.controllers[c]; c != by && s.stage != idleStage {
			mark(s)
		}
	}
}

// wrote marks the pod as stale for the other controllers.
func (w *world) wrote(slot, by int) {
	w.others(by, func(s *controllerState) {
		if s.stage == planStage {
			s.stalePods |= 1 << slot
		}
	})
	p := &w.pods[slot]
	if p.deleting && p.noGrace && !p.finalizer {
		w.left[slot].tenured = w.left[slot].tenured || p.tenured && !p.over
		if !p.over {
			w.left[slot].gateState = p.gateState
		}
		*p = podState{life: p.life, gone: true}
	}
}

func (w *world) wroteRecord(by int) {
	w.others(by, func(s *controllerState) { s.staleRecord = true })
}

func (w *world) wroteLease(by int) {
	w.others(by, func(s *controllerState) { s.staleLease = s.staleLease || s.stage == planStage })
}

// latestEpoch returns the latest epoch of the record and of all pods.
func (w *world) latestEpoch() uint8 {
	last := w.record.epoch
	for i := range w.pods {
		last = max(last, w.pods[i].began, w.pods[i].ended)
	}
	return last
}

// action is something that can happen to a pod, to a node, to a controller or to the lock.
type action struct {
	name string
	to   target
	when condition
	// can returns true if the action can happen, and do executes it.
	can func(at) bool
	do  func(at)
}

type target uint8

const (
	toController target = iota
	toPod
	toNode
	toLock
)

// condition says when an action is possible at all: always, if a fault may still happen, with the fencing Lease, or both.
type condition uint8

const (
	always condition = 0
	fault  condition = 1 << iota
	fenced
)

// at is the place of an action.
type at struct {
	m    *model
	w    *world
	slot int
	p    *podState
	node *nodeState
	l    *leaseState
}

// wrote marks the pod as written by a client that is no controller.
func (a at) wrote() { a.w.wrote(a.slot, -1) }

// holds returns true if the Lease names the pod, which exists. reaches returns true if the pod also reaches the API server.
func (a at) holds() bool {
	return a.p.exists() && a.l.named && a.l.fenced && a.l.writer == id{uint8(a.slot) + 1, a.p.life}
}

func (a at) reaches() bool { return a.holds() && !a.node.cut && !a.p.over }

// advanceAction is the index of the only action of a controller that is no fault.
const advanceAction = 0

var actions = [...]action{
	{"controller", toController, always, func(at) bool { return true }, func(a at) { a.m.advance(a.w, a.slot) }},
	{"crash of controller", toController, fault, func(a at) bool { return a.w.controllers[a.slot].stage != idleStage }, func(a at) {
		a.w.controllers[a.slot] = controllerState{}
	}},
	{"deletion of", toPod, always, func(a at) bool { return a.p.exists() && !a.p.deleting && a.w.deletions > 0 }, func(a at) {
		a.w.deletions--
		a.p.deleting = true
		a.wrote()
	}},
	{"force deletion of", toPod, fault, func(a at) bool { return a.p.exists() && a.p.deleting && !a.p.noGrace }, func(a at) {
		a.p.noGrace = true
		a.wrote()
	}},
	{"end of the processes of", toPod, always, func(a at) bool { return a.p.exists() && a.p.deleting && !a.p.over && !a.node.cut }, func(a at) {
		a.p.over, a.p.ready, a.p.gateState = true, false, gateState{}
	}},
	{"report of the kubelet about", toPod, always, func(a at) bool { return a.p.exists() && a.p.over && !a.p.reported && !a.node.cut }, func(a at) {
		a.p.reported, a.p.noGrace = true, true
		a.wrote()
	}},
	{"creation of", toPod, always, func(a at) bool { return a.p.gone }, func(a at) {
		*a.p = newPod(a.p.life + 1)
		a.wrote()
	}},
	{"attestation of the writer", toLock, always, func(a at) bool { // true, and needed
		r := a.w.record.writer
		return a.m.fencing == v1.LockFencingTermination && a.w.attested == id{} && r.pod > 0 && a.w.podOf(r) == nil && !a.w.left[r.pod-1].tenured
	}, func(a at) {
		a.w.attested = a.w.record.writer
		a.w.wroteRecord(-1)
	}},
	{"renewal of the Lease by", toPod, fenced, func(a at) bool {
		return a.reaches() && (a.l.silent || a.p.term < a.l.epoch && a.p.done < a.l.epoch)
	}, func(a at) {
		if a.l.silent = false; a.p.done < a.l.epoch {
			a.p.term = a.l.epoch
			a.m.checkEpoch(a.w, a.slot)
		}
		a.w.wroteLease(-1)
	}},
	{"start of the writer in", toPod, fenced, func(a at) bool { return a.p.exists() && !a.p.over && a.p.writes == 0 && a.p.term > a.p.done }, func(a at) {
		a.p.writes = a.p.term
		a.m.checkWriters(a.w)
	}},
	{"report of the writer in", toPod, fenced, func(a at) bool { return a.reaches() && a.p.writes == a.l.epoch && a.l.writing != a.l.epoch }, func(a at) {
		a.l.writing = a.l.epoch
		a.w.wroteLease(-1)
	}},
	{"end of the writer in", toPod, fenced, func(a at) bool {
		told := a.reaches() && (a.l.revoked >= a.p.writes || a.l.epoch != a.p.writes)
		return a.p.writes > 0 && (a.p.deleting || told || a.p.exists() && !a.node.cut && !a.holds())
	}, at.demote},
	{"release of the Lease by", toPod, fenced, func(a at) bool {
		return a.reaches() && a.p.writes == 0 && (a.l.revoked >= a.l.epoch || a.p.done >= a.l.epoch || a.p.deleting)
	}, func(a at) {
		a.p.done, a.p.term, a.l.named, a.l.silent = max(a.p.done, a.l.epoch), 0, false, false
		a.w.wroteLease(-1)
	}},
	{"expiry of the Lease of", toPod, fenced, func(a at) bool {
		return a.l.exists && max(1, int(a.l.writer.pod)) == a.slot+1 && !a.l.silent && !a.reaches()
	}, at.silence},
	{"change of Ready of", toPod, always, func(a at) bool {
		return a.p.exists() && !a.p.deleting && (a.p.ready && a.w.faults > 0 || !a.p.ready && !a.node.notReady && !a.node.cut)
	}, func(a at) {
		if a.p.ready {
			a.w.faults--
		}
		a.p.ready = !a.p.ready
		a.wrote()
	}},
	{"failure of the writer in", toPod, fault | fenced, func(a at) bool { return a.p.writes > 0 }, at.demote},
	{"delayed renewals of", toPod, fault | fenced, func(a at) bool { return a.holds() && !a.l.silent }, at.silence},
	{"cut of node", toNode, fault, func(a at) bool { return !a.node.cut }, func(a at) { a.node.cut = true }},
	{"node controller for node", toNode, always, func(a at) bool { return a.node.notReady != a.node.cut }, func(a at) {
		a.node.notReady = a.node.cut
		for i := range a.m.slots {
			if p := &a.w.pods[i]; nodeOf(i) == a.slot && p.exists() && p.ready {
				p.ready = false
				a.w.wrote(i, -1)
			}
		}
	}},
	{"repair of node", toNode, always, func(a at) bool { return a.node.cut }, func(a at) { a.w.heal(a.slot) }},
	{"loss of the status", toLock, fault, func(a at) bool { return a.w.record != record{} }, func(a at) { a.w.wipe() }},
	// Without the fencing Lease, the labels and annotations of pods have what the Lease has.
	{"deletion and creation of the lock", toLock, fault | fenced, func(a at) bool { return a.l.exists && !a.m.mutation.lockStays }, func(a at) {
		a.w.replace()
	}},
}

// heal repairs a node. The kubelet ends processes whose pod was removed.
func (w *world) heal(node int) {
	w.nodes[node] = nodeState{}
	for i := range w.left {
		if nodeOf(i) == node {
			w.left[i] = orphans{}
		}
	}
}

func (a at) demote() { a.p.done, a.p.term, a.p.writes = max(a.p.done, a.p.writes), 0, 0 }

// silence makes the Lease silent. The gate has ended the writer in time. A gate of a removed pod has, too. Nobody has renewed a deleted
// Lease since.
func (a at) silence() {
	for i := range a.m.slots {
		if i == a.slot || !a.l.named && a.l.epoch == 0 {
			a.w.pods[i].expire()
			a.w.left[i].expire()
		}
	}
	a.l.silent = true
}

func (m *model) at(w *world, slot int) at {
	return at{m, w, slot, &w.pods[slot], &w.nodes[nodeOf(slot)], &w.lease}
}

// enabled returns true if the action can happen.
func (m *model) enabled(w *world, kind, slot int) bool {
	a := &actions[kind]
	return slot < [...]int{m.controllers, m.slots, maxNodes, 1}[a.to] && (a.when&fault == 0 || w.faults > 0) &&
		(a.when&fenced == 0 || m.fencing == v1.LockFencingLease) && a.can(m.at(w, slot))
}

// do executes an action.
func (m *model) do(w *world, kind, slot int) {
	a := &actions[kind]
	if a.when&fault != 0 {
		w.faults--
	}
	a.do(m.at(w, slot))
}

// expire ends the term of a gate.
func (g *gateState) expire() { g.done, g.term, g.writes = max(g.done, g.writes), 0, 0 }

// checkEpoch panics if another pod, or a process of a removed pod that may still write, has had the epoch of the pod's term or a
// later one.
func (m *model) checkEpoch(w *world, slot int) {
	for i := range m.slots {
		last := max(w.left[i].term, w.left[i].writes)
		if p := &w.pods[i]; i != slot {
			last = max(last, p.term, p.writes, p.done)
		}
		if epoch := w.pods[slot].term; last >= epoch {
			panic(search.Violation(fmt.Sprintf("%s gets epoch %d, and %s had epoch %d", podName(slot), epoch, podName(i), last)))
		}
	}
}

// checkWriters panics if the writers of two pods run.
func (m *model) checkWriters(w *world) {
	var writers []string
	for i := range m.slots {
		if w.pods[i].writes > 0 {
			writers = append(writers, podName(i))
		}
		if w.left[i].writes > 0 {
			writers = append(writers, "the removed "+podName(i))
		}
	}
	if len(writers) > 1 {
		panic(search.Violation(fmt.Sprintf("%s write at the same time", strings.Join(writers, " and "))))
	}
}

// advance executes the next read, decision or write of a controller.
func (m *model) advance(w *world, c int) {
	s := &w.controllers[c]
	switch s.stage {
	case idleStage:
		*s = controllerState{stage: readStage, read: w.record, attested: w.attested}
	case readStage:
		v := view{record: s.read, attested: s.attested, lease: w.lease}
		for i, n := range w.nodes {
			v.nodes[i].notReady = n.notReady
		}
		for i, p := range w.pods {
			p.over, p.tenured, p.gateState = false, false, gateState{}
			v.pods[i] = p
		}
		if m.mutation.see != nil {
			m.mutation.see(&v)
		}
		*s = controllerState{stage: planStage, staleRecord: s.staleRecord, plan: m.decide(v)}
		m.finish(w, c)
	case planStage:
		next := m.plans[s.plan].steps[s.done]
		s.done++
		if !m.write(w, c, next) {
			*s = controllerState{}
			return
		}
		m.finish(w, c)
	}
}

// finish resets a controller that has no steps left.
func (m *model) finish(w *world, c int) {
	if s := &w.controllers[c]; int(s.done) == len(m.plans[s.plan].steps) {
		m.writeStatus(w, c)
		*s = controllerState{}
	}
}

// writeStatus writes the status of a plan without Record, if the lock is as it was read. It has the change that began.
func (m *model) writeStatus(w *world, c int) {
	s, plan := &w.controllers[c], &m.plans[w.controllers[c].plan]
	if s.staleRecord || plan.status == w.record || slices.Contains(plan.steps, tenure.Step(tenure.Record{})) {
		return
	}
	w.record = plan.status
	w.wroteRecord(c)
}

// wipe loses the status.
func (w *world) wipe() {
	w.record = record{}
	w.wroteRecord(-1)
}

// replace deletes the lock without its finalizer, and creates the lock again. The garbage collector deletes the Lease.
func (w *world) replace() {
	w.attested, w.lease = id{}, leaseState{}
	w.wipe()
	w.wroteLease(-1)
}

// write executes one step of a controller, and returns true if the step succeeded.
func (m *model) write(w *world, c int, step tenure.Step) bool {
	s := &w.controllers[c]
	switch step := step.(type) {
	case tenure.Record:
		if s.staleRecord && !m.mutation.blindRecord {
			return false
		}
		if status := m.plans[s.plan].status; status != w.record { // an update without a change keeps the version
			w.record = status
			w.wroteRecord(c)
		}
		return true
	case tenure.Confirm:
		return !s.staleRecord
	case tenure.TakeAttestation:
		if a := w.attested; a.pod > 0 && step.UID == a.ref().UID {
			w.attested = id{}
			w.wroteRecord(c)
		}
		return true
	case tenure.CreateLease:
		if w.lease.exists {
			return false
		}
		w.lease = leaseState{exists: true, held: step.Held > 0}
		w.wroteLease(c)
		return true
	case tenure.WriteLease:
		if s.staleLease && !m.mutation.blindLease {
			return false
		}
		l := leaseState{exists: true, named: step.Holder != "", fenced: strings.Contains(step.Holder, "_"), epoch: uint8(step.Epoch)}
		l.writer = idOf(step.Writer)
		l.revoked, l.expired, l.writing = uint8(step.Revoked), step.Expired != "", w.lease.writing
		l.silent = w.lease.silent && l.named && l.epoch == w.lease.epoch
		w.lease = l
		w.wroteLease(c)
		return true
	case tenure.MarkTenure:
		return m.onPod(w, c, step.Pod, true, func(_ int, p *podState) { p.began = uint8(step.Epoch) })
	case tenure.LabelWriter:
		return m.onPod(w, c, step.Pod, true, func(slot int, p *podState) {
			p.role, p.began = writerRole, uint8(step.Epoch)
			p.tenured = true
			m.check(w, slot)
		})
	case tenure.LabelReader:
		return m.onPod(w, c, step.Pod, true, func(_ int, p *podState) {
			p.role = readerRole
			if step.Ends > 0 {
				p.ended = uint8(step.Ends)
			}
		})
	case tenure.Protect:
		if p := w.podOf(idOf(step.Pod.UID)); p != nil && p.deleting && !p.finalizer {
			return false // a terminating pod cannot receive a finalizer
		}
		return m.onPod(w, c, step.Pod, true, func(_ int, p *podState) { p.finalizer = true })
	case tenure.Unprotect:
		if w.podOf(idOf(step.Pod.UID)) == nil {
			return true
		}
		return m.onPod(w, c, step.Pod, true, func(_ int, p *podState) { p.finalizer = false })
	case tenure.Delete:
		m.onPod(w, c, step.Pod, false, func(_ int, p *podState) { p.deleting = true })
		return true
	}
	panic(fmt.Sprintf("no such step: %T", step))
}

// onPod changes a pod, unless it has another UID or was written since the controller read it.
func (m *model) onPod(w *world, c int, ref tenure.PodRef, conditional bool, change func(int, *podState)) bool {
	is := idOf(ref.UID)
	slot := int(is.pod) - 1
	p, s := w.podOf(is), &w.controllers[c]
	if p == nil || conditional && s.stalePods&(1<<slot) != 0 && !m.mutation.blindLabels {
		return false
	}
	change(slot, p)
	w.wrote(slot, c)
	return true
}

// podOf returns the pod, or nil if it does not exist.
func (w *world) podOf(is id) *podState {
	if p := &w.pods[is.pod-1]; p.exists() && p.life == is.life {
		return p
	}
	return nil
}

// check panics if the new writer is not the only one.
func (m *model) check(w *world, slot int) {
	for i := range m.slots {
		other := &w.pods[i]
		if i != slot && other.exists() && other.role == writerRole {
			panic(search.Violation(fmt.Sprintf("%s gets the label while %s has it", podName(slot), podName(i))))
		}
		if m.fencing != v1.LockFencingTermination {
			continue
		}
		if w.left[i].tenured || i != slot && other.exists() && other.tenured && !other.over {
			panic(search.Violation(fmt.Sprintf("%s gets a tenure while the processes of %s run", podName(slot), podName(i))))
		}
	}
}

// decide returns the number of the plan for a view.
func (m *model) decide(v view) uint32 {
	if id, ok := m.decided[v]; ok {
		return id
	}
	plan := tenure.Decide(m.snapshot(v), epochStart.Add(10*time.Second))
	p := planState{steps: plan.Steps, status: recordOf(&plan.Status)}
	if m.mutation.plan != nil {
		p.steps = m.mutation.plan(p.steps)
	}
	key := fmt.Sprintf("%+v", p.status)
	for _, step := range p.steps {
		key += fmt.Sprintf(" %T%+v", step, step)
	}
	id, ok := m.planIDs[key]
	if !ok {
		id = uint32(len(m.plans))
		m.plans, m.planIDs[key] = append(m.plans, p), id
	}
	m.decided[v] = id
	return id
}

// epochStart is when each change of the writer began. All decisions come ten seconds later, when the delay after a failed start
// is over, and a writer still has time to start. No other rule about tenures depends on time in this model.
var epochStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func recordOf(s *v1.StatefulSetLockStatus) (r record) {
	r.epoch = uint8(s.Epoch)
	if s.WriterPodUID != "" {
		r.writer = idOf(s.WriterPodUID)
	}
	if t := s.LastTransition; t != nil && t.To == "" && t.From != "" {
		r.from = idOf(t.FromUID)
	}
	return r
}

// snapshot returns the Snapshot of a view.
func (m *model) snapshot(v view) tenure.Snapshot {
	s := MakeSnapshot(m.fencing).Snapshot
	status, r := &s.Lock.Status, &v.record
	s.Lock.Spec.LeaseDurationSeconds, status.Epoch = 15, int64(r.epoch)
	if r.writer.pod > 0 {
		writer := r.writer.ref()
		status.WriterPod, status.WriterPodUID = writer.Name, writer.UID
	}
	if v.attested.pod > 0 {
		s.Lock.Annotations[v1.AttestAnnotation] = string(v.attested.ref().UID)
	}
	start := metav1.NewMicroTime(epochStart)
	if r.from.pod > 0 {
		from := r.from.ref()
		status.LastTransition = &v1.TenureTransition{From: from.Name, FromUID: from.UID, Cause: v1.TenureDeletion, Started: &start}
	} else if r.writer.pod > 0 {
		status.LastTransition = &v1.TenureTransition{To: status.WriterPod, Cause: v1.TenureCreated, Started: &start}
	}
	for i, n := range v.nodes {
		node := makeNode(i, corev1.ConditionTrue)
		if n.notReady {
			node = makeNode(i, corev1.ConditionUnknown)
		}
		s.Nodes[node.Name] = node
	}
	for i := range v.pods {
		if p := &v.pods[i]; p.exists() {
			s.Pods = append(s.Pods, *m.pod(i, p).ControlledBy(s.StatefulSet).Revision(revision).Obj())
		}
	}
	s.Lease.Object = nil
	if v.lease.exists {
		s.Lease.Object = modelLease(&v.lease, s.Lock)
		if v.lease.silent {
			s.Lease.Silent = time.Hour
		}
	}
	return s
}

func (m *model) pod(slot int, p *podState) *PodWrapper {
	ref := id{uint8(slot) + 1, p.life}.ref()
	pod := MakePod(ref.Name).UID(ref.UID).Node(fmt.Sprintf("node%d", nodeOf(slot)+1)).Ready(p.ready).Tenure(int64(p.began), int64(p.ended))
	if p.role == writerRole {
		pod.Role(v1.StsRoleWriter)
	}
	if p.finalizer {
		pod.Protected()
	}
	if p.deleting {
		pod.Terminating()
	}
	if m.fencing == v1.LockFencingLease {
		pod.Fenced()
	}
	if p.reported {
		pod.Terminated()
	}
	return pod
}

func modelLease(l *leaseState, lock *v1.StatefulSetLock) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: lock.Namespace, Name: lock.Spec.LeaseName, ResourceVersion: "1", Labels: map[string]string{v1.LockLabel: lock.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(lock, v1.GroupVersion.WithKind("StatefulSetLock"))},
		},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32(l.epoch)), LeaseDurationSeconds: new(int32(15))},
	}
	if l.held || l.writer.pod > 0 {
		lease.Spec.RenewTime = new(metav1.NewMicroTime(epochStart))
	}
	if l.writer.pod == 0 {
		return lease
	}
	writer := l.writer.ref()
	lease.Annotations = map[string]string{
		signal.WriterAnnotation: string(writer.UID), signal.RevokedAnnotation: strconv.Itoa(int(l.revoked)), signal.WritingAnnotation: strconv.Itoa(int(l.writing)),
	}
	if l.expired {
		lease.Annotations[signal.ExpiredAnnotation] = string(writer.UID)
	}
	switch {
	case l.named && l.fenced:
		lease.Spec.HolderIdentity = new(signal.HolderIdentity(writer.Name, string(writer.UID)))
	case l.named:
		lease.Spec.HolderIdentity = &writer.Name
	}
	return lease
}
