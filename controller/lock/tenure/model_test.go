package tenure_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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
	attested attested
	pods     [maxSlots]podState
	// left are processes of pods whose objects were removed, on nodes that do not answer.
	left        [maxSlots]orphans
	nodes       [maxNodes]nodeState
	lease       leaseState
	controllers [maxControllers]controllerState
	// deletions and faults are the numbers of deletions of pods, and of faults, that may still happen.
	deletions, faults uint8
}

// record is the stored record, or the record that a controller read.
type record struct {
	// writer is the number of the recorded pod, from 1, and life is its incarnation.
	writer, life, epoch uint8
	// from and fromLife are the old writer of a change that is in progress, from 1.
	from, fromLife uint8
}

// attested is a pod by its number, from 1, and its incarnation. 0: no attestation.
type attested struct{ pod, life uint8 }

type leaseState struct {
	exists bool
	// named is true if the Lease names a pod, and fenced if that pod is fenced.
	named, fenced bool
	// writer is the number of the pod that the Lease names, or named last, from 1, and life is its incarnation.
	writer, life, epoch uint8
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
	attested attested
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
	attested attested
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

func uidOf(slot, life int) types.UID { return types.UID(fmt.Sprintf("%d-%d", slot, life)) }

// wrote marks the pod as stale for all controllers except the writer. by is the controller that wrote, or -1.
func (w *world) wrote(slot, by int) {
	for c := range w.controllers {
		if c != by && w.controllers[c].stage == planStage {
			w.controllers[c].stalePods |= 1 << slot
		}
	}
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
	for c := range w.controllers {
		w.controllers[c].staleRecord = w.controllers[c].staleRecord || c != by && w.controllers[c].stage != idleStage
	}
}

func (w *world) wroteLease(by int) {
	for c := range w.controllers {
		w.controllers[c].staleLease = w.controllers[c].staleLease || c != by && w.controllers[c].stage == planStage
	}
}

// latestEpoch returns the latest epoch of the record and of all pods.
func (w *world) latestEpoch() uint8 {
	last := w.record.epoch
	for i := range w.pods {
		last = max(last, w.pods[i].began, w.pods[i].ended)
	}
	return last
}

// actionKind is the kind of an action. Its slot is a pod, a node or a controller.
type actionKind uint8

const (
	advanceAction actionKind = iota
	crashAction
	deleteAction
	forceAction
	stopAction
	reportAction
	recreateAction
	attestAction
	renewAction
	promoteAction
	writingAction
	demoteAction
	releaseAction
	silenceAction
	readyAction
	failAction
	delayAction
	cutAction
	notReadyAction
	healAction
	wipeAction
	replaceAction
	actionKinds
)

var actionNames = [...]string{"controller", "crash of controller", "deletion of", "force deletion of", "end of the processes of", "report of the kubelet about",
	"creation of", "attestation of the writer",
	"renewal of the Lease by", "start of the writer in", "report of the writer in", "end of the writer in", "release of the Lease by", "expiry of the Lease of",
	"change of Ready of", "failure of the writer in", "delayed renewals of", "cut of node", "node controller for node", "repair of node", "loss of the status", "deletion and creation of the lock"}

// enabled returns true if the action can happen.
func (m *model) enabled(w *world, kind actionKind, slot int) bool {
	if kind == advanceAction {
		return slot < m.controllers
	}
	if kind == crashAction {
		return slot < m.controllers && w.controllers[slot].stage != idleStage && w.faults > 0
	}
	if kind == wipeAction {
		return slot == 0 && w.faults > 0 && w.record != record{}
	}
	if kind == replaceAction { // otherwise the labels and annotations of pods have what the Lease has
		return slot == 0 && w.faults > 0 && w.lease.exists && m.fencing == v1.LockFencingLease && !m.mutation.lockStays
	}
	if kind == attestAction { // true, and needed
		writer := int(w.record.writer) - 1
		return slot == 0 && m.fencing == v1.LockFencingTermination && w.attested == attested{} && writer >= 0 && m.podOf(w, tenure.PodRef{
			Name: podName(writer), UID: uidOf(writer, int(w.record.life)),
		}) == nil && !w.left[writer].tenured
	}
	if kind >= cutAction {
		if slot >= maxNodes {
			return false
		}
		n := w.nodes[slot]
		switch kind {
		case cutAction:
			return !n.cut && w.faults > 0
		case notReadyAction:
			return n.notReady != n.cut
		}
		return n.cut
	}
	if slot >= m.slots {
		return false
	}
	p, cut := &w.pods[slot], w.nodes[nodeOf(slot)].cut
	if renewAction <= kind && kind <= silenceAction || kind == failAction || kind == delayAction {
		return m.fencing == v1.LockFencingLease && m.gateCan(w, kind, slot)
	}
	switch kind {
	case deleteAction:
		return p.exists() && !p.deleting && w.deletions > 0
	case forceAction:
		return p.exists() && p.deleting && !p.noGrace && w.faults > 0
	case stopAction:
		return p.exists() && p.deleting && !p.over && !cut
	case reportAction:
		return p.exists() && p.over && !p.reported && !cut
	case recreateAction:
		return p.gone
	case readyAction:
		return p.exists() && !p.deleting && (p.ready && w.faults > 0 || !p.ready && !w.nodes[nodeOf(slot)].notReady && !cut)
	}
	return false
}

// holds returns true if the Lease names the pod, which exists.
func (w *world) holds(slot int) bool {
	p, l := &w.pods[slot], &w.lease
	return p.exists() && l.named && l.fenced && int(l.writer) == slot+1 && l.life == p.life
}

// gateCan returns true if an action of a gate or of a sidecar can happen.
func (m *model) gateCan(w *world, kind actionKind, slot int) bool {
	p, l := &w.pods[slot], &w.lease
	reaches := w.holds(slot) && !w.nodes[nodeOf(slot)].cut && !p.over // the pod reaches the API server
	switch kind {
	case renewAction:
		return reaches && (l.silent || p.term < l.epoch && p.done < l.epoch)
	case promoteAction:
		return p.exists() && !p.over && p.writes == 0 && p.term > p.done
	case writingAction:
		return reaches && p.writes == l.epoch && l.writing != l.epoch
	case demoteAction:
		return p.writes > 0 && (p.deleting || reaches && (l.revoked >= p.writes || l.epoch != p.writes) || p.exists() && !w.nodes[nodeOf(slot)].cut && !w.holds(slot))
	case releaseAction:
		return reaches && p.writes == 0 && (l.revoked >= l.epoch || p.done >= l.epoch || p.deleting)
	case silenceAction:
		return l.exists && max(1, int(l.writer)) == slot+1 && !l.silent && !reaches
	case failAction:
		return p.writes > 0 && w.faults > 0
	case delayAction:
		return w.holds(slot) && !l.silent && w.faults > 0
	}
	return false
}

// gateDoes executes an action of a gate or of a sidecar.
func (m *model) gateDoes(w *world, kind actionKind, slot int) {
	p, l := &w.pods[slot], &w.lease
	switch kind {
	case renewAction:
		if l.silent = false; p.done < l.epoch {
			p.term = l.epoch
			m.checkEpoch(w, slot)
		}
		w.wroteLease(-1)
	case promoteAction:
		p.writes = p.term
		m.checkWriters(w)
	case writingAction:
		l.writing = l.epoch
		w.wroteLease(-1)
	case demoteAction, failAction:
		p.done, p.term, p.writes = max(p.done, p.writes), 0, 0
	case releaseAction:
		p.done, p.term, l.named, l.silent = max(p.done, l.epoch), 0, false, false
		w.wroteLease(-1)
	case silenceAction, delayAction:
		// The gate has ended the writer in time. A gate of a removed pod has, too. Nobody has renewed a deleted Lease since.
		for i := range m.slots {
			if i == slot || !l.named && l.epoch == 0 {
				w.pods[i].expire()
				w.left[i].expire()
			}
		}
		l.silent = true
	}
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

// do executes an action.
func (m *model) do(w *world, kind actionKind, slot int) {
	if kind == wipeAction || kind == replaceAction || kind == crashAction || kind == failAction || kind == delayAction || kind == forceAction || kind == cutAction || kind == readyAction && w.pods[slot].ready {
		w.faults--
	}
	switch kind {
	case renewAction, promoteAction, writingAction, demoteAction, releaseAction, silenceAction, failAction, delayAction:
		m.gateDoes(w, kind, slot)
	case advanceAction:
		m.advance(w, slot)
	case wipeAction:
		w.wipe()
	case replaceAction:
		w.replace()
	case crashAction:
		w.controllers[slot] = controllerState{}
	case deleteAction:
		w.deletions--
		w.pods[slot].deleting = true
		w.wrote(slot, -1)
	case forceAction:
		w.pods[slot].noGrace = true
		w.wrote(slot, -1)
	case stopAction:
		w.pods[slot].over, w.pods[slot].ready, w.pods[slot].gateState = true, false, gateState{}
	case reportAction:
		w.pods[slot].reported, w.pods[slot].noGrace = true, true
		w.wrote(slot, -1)
	case recreateAction:
		w.pods[slot] = newPod(w.pods[slot].life + 1)
		w.wrote(slot, -1)
	case attestAction:
		w.attested = attested{w.record.writer, w.record.life}
		w.wroteRecord(-1)
	case readyAction:
		w.pods[slot].ready = !w.pods[slot].ready
		w.wrote(slot, -1)
	case cutAction:
		w.nodes[slot].cut = true
	case healAction:
		w.nodes[slot] = nodeState{}
		for i := range m.slots {
			if nodeOf(i) == slot { // the kubelet ends processes whose pod was removed
				w.left[i] = orphans{}
			}
		}
	case notReadyAction:
		w.nodes[slot].notReady = w.nodes[slot].cut
		for i := range m.slots {
			if p := &w.pods[i]; nodeOf(i) == slot && p.exists() && p.ready {
				p.ready = false
				w.wrote(i, -1)
			}
		}
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
	w.attested, w.lease = attested{}, leaseState{}
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
		if a := w.attested; a.pod > 0 && step.UID == uidOf(int(a.pod)-1, int(a.life)) {
			w.attested = attested{}
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
		slot, life, _ := strings.Cut(string(step.Writer), "-")
		l := leaseState{exists: true, named: step.Holder != "", fenced: strings.Contains(step.Holder, "_"), epoch: uint8(step.Epoch)}
		l.writer, l.life = number(slot)+1, number(life)
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
		if p := m.podOf(w, step.Pod); p != nil && p.deleting && !p.finalizer {
			return false // a terminating pod cannot receive a finalizer
		}
		return m.onPod(w, c, step.Pod, true, func(_ int, p *podState) { p.finalizer = true })
	case tenure.Unprotect:
		if m.podOf(w, step.Pod) == nil {
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
	number, _ := slotOf(ref.Name + "_" + string(ref.UID))
	slot := int(number) - 1
	p, s := m.podOf(w, ref), &w.controllers[c]
	if p == nil || conditional && s.stalePods&(1<<slot) != 0 && !m.mutation.blindLabels {
		return false
	}
	change(slot, p)
	w.wrote(slot, c)
	return true
}

// podOf returns the pod, or nil if no pod has the UID.
func (m *model) podOf(w *world, ref tenure.PodRef) *podState {
	number, life := slotOf(ref.Name + "_" + string(ref.UID))
	if p := &w.pods[number-1]; p.exists() && p.life == life {
		return p
	}
	return nil
}

// slotOf returns the number of the pod with the holder identity, from 1, and its incarnation if the identity has one.
func slotOf(identity string) (slot, life uint8) {
	name, uid, _ := strings.Cut(identity, "_")
	if name == "" {
		return 0, 0
	}
	_, of, _ := strings.Cut(uid, "-")
	return number(strings.TrimPrefix(name, "db-")) + 1, number(of)
}

func number(text string) uint8 {
	n, _ := strconv.Atoi(text)
	return uint8(n)
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
		r.writer, r.life = slotOf(s.WriterPod + "_" + string(s.WriterPodUID))
	}
	if t := s.LastTransition; t != nil && t.To == "" && t.From != "" {
		r.from, r.fromLife = slotOf(t.From + "_" + string(t.FromUID))
	}
	return r
}

// snapshot returns the Snapshot of a view.
func (m *model) snapshot(v view) tenure.Snapshot {
	lock := &v1.StatefulSetLock{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-lock", UID: "lock"},
		Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 15, Fencing: m.fencing},
	}
	lock.Status.Epoch = int64(v.record.epoch)
	if n := int(v.record.writer); n > 0 {
		lock.Status.WriterPod, lock.Status.WriterPodUID = podName(n-1), uidOf(n-1, int(v.record.life))
	}
	if v.attested.pod > 0 {
		lock.Annotations = map[string]string{v1.AttestAnnotation: string(uidOf(int(v.attested.pod)-1, int(v.attested.life)))}
	}
	start := metav1.NewMicroTime(epochStart)
	if n := int(v.record.from); n > 0 {
		lock.Status.LastTransition = &v1.TenureTransition{From: podName(n - 1), FromUID: uidOf(n-1, int(v.record.fromLife)), Cause: v1.TenureDeletion, Started: &start}
	} else if v.record.writer > 0 {
		lock.Status.LastTransition = &v1.TenureTransition{To: lock.Status.WriterPod, Cause: v1.TenureCreated, Started: &start}
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db", UID: "set"}}
	s := tenure.Snapshot{Lock: lock, StatefulSet: set, Nodes: map[string]*corev1.Node{}}
	for i, n := range v.nodes {
		name := fmt.Sprintf("node%d", i+1)
		ready := corev1.ConditionTrue
		if n.notReady {
			ready = corev1.ConditionUnknown
		}
		s.Nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	for i := range v.pods {
		if p := &v.pods[i]; p.exists() {
			pod := modelPod(i, p, set)
			if m.fencing == v1.LockFencingLease {
				pod.Fenced()
			}
			if p.reported {
				pod.Terminated()
			}
			s.Pods = append(s.Pods, *pod.Obj())
		}
	}
	if v.lease.exists {
		s.Lease.Object = modelLease(&v.lease, lock)
		if v.lease.silent {
			s.Lease.Silent = time.Hour
		}
	}
	return s
}

func modelPod(slot int, p *podState, set *appsv1.StatefulSet) *PodWrapper {
	pod := MakePod(podName(slot)).UID(uidOf(slot, int(p.life))).ControlledBy(set).Node(fmt.Sprintf("node%d", nodeOf(slot)+1)).Ready(p.ready)
	if p.role == writerRole {
		pod.Role(v1.StsRoleWriter)
	}
	pod.Tenure(int64(p.began), int64(p.ended))
	if p.finalizer {
		pod.Protected()
	}
	if p.deleting {
		pod.Terminating()
	}
	return pod
}

func modelLease(l *leaseState, lock *v1.StatefulSetLock) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lock.Namespace, Name: lock.Spec.LeaseName, ResourceVersion: "1", Labels: map[string]string{v1.LockLabel: lock.Name}, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "StatefulSetLock", Name: lock.Name, UID: lock.UID, Controller: new(true),
		}}},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32(l.epoch)), LeaseDurationSeconds: new(int32(15))},
	}
	if l.held || l.writer > 0 {
		lease.Spec.RenewTime = new(metav1.NewMicroTime(epochStart))
	}
	if l.writer == 0 {
		return lease
	}
	name, uid := podName(int(l.writer)-1), string(uidOf(int(l.writer)-1, int(l.life)))
	lease.Annotations = map[string]string{
		signal.WriterAnnotation: uid, signal.RevokedAnnotation: strconv.Itoa(int(l.revoked)), signal.WritingAnnotation: strconv.Itoa(int(l.writing)),
	}
	if l.expired {
		lease.Annotations[signal.ExpiredAnnotation] = uid
	}
	switch {
	case l.named && l.fenced:
		lease.Spec.HolderIdentity = new(signal.HolderIdentity(name, uid))
	case l.named:
		lease.Spec.HolderIdentity = &name
	}
	return lease
}
