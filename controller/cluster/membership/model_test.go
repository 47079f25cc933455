package membership_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
)

// The model is a small world around the real Decide and its steps. It has an API server, kubelets, a scheduler, and controllers
// that crash or act late. The search visits all states of a small world.

const (
	maxNames       = 5
	maxNodes       = 2
	maxControllers = 2
)

// world is the actual state and the state that the API server stores. Equal worlds behave in the same way.
type world struct {
	record record
	// attested is the pod of which a person attests the termination.
	attested attested
	pods     [maxNames]podState
	// left are processes of pods whose objects were removed.
	left [maxNames]process
	// ran are the names of pods that a scheduler has bound, as a bit mask. claims are the claims that exist, and ending those that
	// are being deleted.
	ran, claims, ending uint8
	nodes               [maxNodes]nodeState
	controllers         [maxControllers]controllerState
	// delayed is a write that the network delays: a plan and the number of its step. 0: none.
	delayed     uint32
	delayedStep uint8
	replicas    uint8
	// deletions and faults are the numbers of deletions of pods, and of faults, that may still happen.
	deletions, faults uint8
	// scales is true if replicas may still change.
	scales bool
	// deleting is true if the StatefulCluster is being deleted. gone is true if it was removed.
	deleting, gone, deletes bool
	// lost is true if the status was lost. The names of removed pods can then be used again.
	lost bool
}

// record is the stored record, or the record that a controller read. A member has the number of its name as its index.
type record struct {
	next    uint8
	members [maxNames]memberState
	// released are the claims that are deleted, as a bit mask.
	released uint8
}

// memberState is a member. Its claim is the number in the name of the claim, from 1. 0: none.
type memberState struct {
	state       byte
	life, claim uint8
}

// attested is a pod by its number, from 1, and its incarnation. 0: no attestation.
type attested struct{ pod, life uint8 }

// process is the process of a pod whose object was removed. Its claim is a number, from 1. 0: none.
type process struct{ claim, node uint8 }

// podState is the pod with the name of a member. Its claim is a number, from 1.
type podState struct {
	life, claim, node                                         uint8
	exists, gated, bound, deleting, noGrace, finalizer, ready bool
	// kept is true if another finalizer keeps the object.
	kept bool
	// forged is true if a user created the pod with the label of the StatefulCluster, the claim of its first member, and an owner
	// with its UID and another kind.
	forged bool
	// reported is true if the kubelet reported the end of all processes. over is true if they have ended.
	reported, over bool
}

type nodeState struct{ cut, notReady, off, outOfService bool }

type stage uint8

const (
	idleStage stage = iota
	// At readStage, the controller has read the record. At planStage, it has read everything and decided.
	readStage
	planStage
)

// controllerState is the state of a controller between two of its reads and writes.
type controllerState struct {
	stage    stage
	read     record
	attested attested
	replicas uint8
	deleting bool
	// stale is true if another client wrote the StatefulCluster since the controller read or wrote it.
	stale bool
	plan  uint32
	done  uint8
}

// planState is the result of a decision. Equal results are stored once.
type planState struct {
	steps    []membership.Step
	status   record
	finished bool
}

// view is the input of a decision.
type view struct {
	record   record
	attested attested
	pods     [maxNames]podState
	claims   uint8
	ending   uint8
	nodes    [maxNodes]nodeState
	replicas uint8
	deleting bool
}

// model has the rules by which a world changes.
type model struct {
	setting
	mutation mutation
	// onlyGuarantee is true if a world in which the StatefulCluster does not get its pods is no violation.
	onlyGuarantee bool

	plans   []planState
	planIDs map[string]uint32
	decided map[view]uint32
}

// mutation is a deliberate error in the protocol.
type mutation struct {
	// see changes the input of Decide. plan changes the steps, and record the new record.
	see    func(*view)
	plan   func([]membership.Step) []membership.Step
	record func(*record)
	// With blindRecord, Record ignores the writes of other clients. Without gates, new pods can be scheduled at once.
	blindRecord, withoutGates bool
}

func newModel(of setting) *model {
	return &model{setting: of, plans: []planState{{}}, planIDs: map[string]uint32{}, decided: map[view]uint32{}}
}

// start returns the world at the beginning.
func (m *model) start() world {
	w := world{
		replicas: uint8(m.replicas), deletions: uint8(m.deletions), faults: uint8(m.faults), scales: m.target >= 0, deletes: m.target == deleted,
	}
	if m.empty {
		return w
	}
	for i := range m.replicas {
		w.pods[i] = podState{life: 1, claim: uint8(i) + 1, node: uint8(i % maxNodes), exists: true, bound: true, finalizer: true, ready: true}
		w.record.members[i] = memberState{'A', 1, uint8(i) + 1}
		w.claims |= 1 << i
		w.ran |= 1 << i
	}
	w.record.next = uint8(m.replicas)
	return w
}

const (
	// unscaled is a target without a change of replicas. With deleted, the StatefulCluster is deleted.
	unscaled = -1
	deleted  = -2
)

func podName(i int) string { return fmt.Sprintf("coder-%d", i) }

func uidOf(i, life int) types.UID { return types.UID(fmt.Sprintf("%d-%d", i, life)) }

// number returns the number at the end of a name, or of a UID.
func number(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	return n
}

// slotOf returns the number in the name of a pod, and its incarnation.
func slotOf(ref membership.Ref) (slot int, life uint8) {
	return number(ref.Name), uint8(number(string(ref.UID)))
}

// wrote removes the object of the pod if nothing keeps it.
func (w *world) wrote(i int) {
	if p := &w.pods[i]; p.deleting && p.noGrace && !p.finalizer && !p.kept {
		if p.bound && !p.over && !p.forged {
			w.left[i] = process{p.claim, p.node}
		}
		*p = podState{life: p.life}
	}
}

// wroteRecord makes the reads of the other controllers stale. by is the controller that wrote, or -1.
func (w *world) wroteRecord(by int) {
	for c := range w.controllers {
		w.controllers[c].stale = w.controllers[c].stale || c != by && w.controllers[c].stage != idleStage
	}
}

// actionKind is the kind of an action. Its slot is a pod, a node or a controller.
type actionKind uint8

const (
	advanceAction actionKind = iota
	crashAction
	delayAction
	deliverAction
	bindAction
	readyAction
	stopAction
	orphanAction
	reportAction
	attestAction
	taintAction
	evictAction
	collectAction
	deleteAction
	forceAction
	stripAction
	cutAction
	offAction
	notReadyAction
	healAction
	scaleAction
	deleteClusterAction
	removeClaimAction
	unkeepAction
	endForgedAction
	// The actions from here on are faults that only some settings have.
	endClaimAction
	rejectAction
	uninstallAction
	keepAction
	loseStatusAction
	forgeAction
	actionKinds
)

var actionNames = [...]string{"controller", "crash of controller", "delay of the next write of controller", "delivery of the delayed write", "scheduling of pod", "start of pod",
	"end of the processes of pod", "end of the processes of the removed pod", "report of the kubelet about pod", "attestation of pod", "out-of-service taint for node", "eviction of pod", "garbage collection of pod", "deletion of pod", "force deletion of pod", "removal of the finalizer of pod",
	"cut of node", "power loss of node", "node controller for node", "repair of node", "change of replicas", "deletion of the StatefulCluster",
	"removal of claim", "removal of another finalizer of pod", "deletion of the forged pod", "deletion of claim", "rejection of the next write of controller", "uninstallation for pod", "another finalizer for pod", "loss of the status", "forging of pod"}

// costsFault returns true if the action is a fault.
func costsFault(kind actionKind) bool {
	switch kind {
	case crashAction, delayAction, forceAction, stripAction, cutAction, offAction:
		return true
	}
	return kind >= endClaimAction
}

// enabled returns true if the action can happen.
func (m *model) enabled(w *world, kind actionKind, slot int) bool {
	if costsFault(kind) && w.faults == 0 || kind >= endClaimAction && !slices.Contains(m.also, kind) {
		return false
	}
	switch kind {
	case advanceAction:
		return slot < m.controllers
	case crashAction:
		return slot < m.controllers && w.controllers[slot].stage != idleStage
	case delayAction:
		if slot >= m.controllers || w.delayed != 0 || w.controllers[slot].stage != planStage {
			return false
		}
		s := &w.controllers[slot]
		return !m.isRecord(s) // another controller that acts late has the same effect
	case rejectAction:
		return slot < m.controllers && w.controllers[slot].stage == planStage && !m.isRecord(&w.controllers[slot])
	case deliverAction:
		return slot == 0 && w.delayed != 0
	case scaleAction:
		return slot == 0 && w.scales
	case loseStatusAction:
		return slot == 0 && w.record.next > 0
	case deleteClusterAction:
		return slot == 0 && w.deletes
	case taintAction, cutAction, offAction, notReadyAction, healAction:
		if slot >= maxNodes {
			return false
		}
		switch n := w.nodes[slot]; kind {
		case taintAction:
			return n.off && n.notReady && !n.outOfService
		case notReadyAction:
			return n.cut && !n.notReady
		case healAction:
			return n.cut && !n.off
		case offAction:
			return !n.off && !w.nodes[1-slot].off
		default:
			return !n.cut
		}
	}
	if slot >= maxNames {
		return false
	}
	p := &w.pods[slot]
	cut := w.nodes[p.node].cut
	switch kind {
	case endClaimAction:
		return w.claims&^w.ending&(1<<slot) != 0
	case removeClaimAction: // a claim stays while the object of a scheduled pod has it
		return w.ending&(1<<slot) != 0 && !slices.ContainsFunc(w.pods[:], func(p podState) bool { return p.exists && p.bound && int(p.claim) == slot+1 })
	case bindAction:
		return p.exists && !p.gated && !p.bound && !p.deleting && w.claims&^w.ending&(1<<(p.claim-1)) != 0 && (!w.nodes[0].notReady || !w.nodes[1].notReady)
	case readyAction:
		return p.exists && p.bound && !p.deleting && !p.over && !p.ready && !cut
	case stopAction:
		return p.exists && p.bound && p.deleting && !p.over && !cut
	case orphanAction: // the kubelet ends processes whose pod was removed
		return w.left[slot] != process{} && !w.nodes[w.left[slot].node].cut
	case reportAction:
		return p.exists && p.over && !p.reported && !cut
	case attestAction:
		r := w.record.members[slot]
		return r.life > 0 && (!p.exists || p.life != r.life) && w.left[slot] == process{} && w.attested == attested{} // true, and needed
	case evictAction:
		return p.exists && p.bound && !p.deleting && w.nodes[p.node].notReady
	case collectAction:
		return p.exists && p.bound && p.deleting && !p.noGrace && w.nodes[p.node].outOfService
	case deleteAction:
		return p.exists && !p.deleting && w.deletions > 0
	case forceAction:
		return p.exists && p.deleting && !p.noGrace
	case stripAction:
		return p.exists && p.deleting && p.finalizer
	case uninstallAction:
		return p.exists && p.bound && p.finalizer
	case keepAction:
		return p.exists && !p.deleting && !p.kept
	case unkeepAction:
		return p.kept
	case forgeAction:
		return !p.exists && w.claims&1 != 0
	case endForgedAction:
		return p.exists && p.forged && !p.deleting
	}
	return false
}

// isRecord returns true if the next write of the controller is Record.
func (m *model) isRecord(s *controllerState) bool {
	_, is := m.plans[s.plan].steps[s.done].(membership.Record)
	return is
}

// do executes an action.
func (m *model) do(w *world, kind actionKind, slot int) {
	if costsFault(kind) {
		w.faults--
	}
	switch kind {
	case advanceAction:
		m.advance(w, slot)
	case crashAction:
		w.controllers[slot] = controllerState{}
	case delayAction:
		w.delayed, w.delayedStep = w.controllers[slot].plan, w.controllers[slot].done
		w.controllers[slot] = controllerState{}
	case deliverAction:
		step := m.plans[w.delayed].steps[w.delayedStep]
		w.delayed, w.delayedStep = 0, 0
		m.write(w, -1, step)
	case scaleAction:
		w.replicas, w.scales = uint8(m.target), false
		w.wroteRecord(-1)
	case deleteClusterAction:
		w.deleting, w.deletes = true, false
		w.wroteRecord(-1)
	case loseStatusAction:
		w.record, w.lost = record{}, true
		w.wroteRecord(-1)
	case endClaimAction:
		w.ending |= 1 << slot
	case removeClaimAction:
		w.claims, w.ending = w.claims&^(1<<slot), w.ending&^(1<<slot)
	case rejectAction: // of one write: the controller continues with the next one
		w.controllers[slot].done++
		m.finish(w, slot)
	case cutAction:
		w.nodes[slot].cut = true
	case offAction:
		w.nodes[slot].cut, w.nodes[slot].off = true, true
		m.endProcesses(w, slot)
	case notReadyAction:
		w.nodes[slot].notReady = true
		for i := range w.pods {
			if p := &w.pods[i]; p.exists && p.bound && int(p.node) == slot {
				p.ready = false
			}
		}
	case healAction:
		w.nodes[slot] = nodeState{}
	case taintAction:
		w.nodes[slot].outOfService = true
	default:
		m.doPod(w, kind, slot)
	}
}

// endProcesses ends all processes on a node.
func (m *model) endProcesses(w *world, node int) {
	for i := range w.pods {
		if p := &w.pods[i]; p.exists && p.bound && int(p.node) == node {
			p.over = true
		}
		if int(w.left[i].node) == node {
			w.left[i] = process{}
		}
	}
}

// doPod executes an action on a pod.
func (m *model) doPod(w *world, kind actionKind, slot int) {
	p := &w.pods[slot]
	switch kind {
	case bindAction:
		p.node = uint8(slot % maxNodes)
		if w.nodes[p.node].notReady {
			p.node = 1 - p.node
		}
		p.bound, p.over = true, w.nodes[p.node].off
		m.check(w, slot)
	case readyAction:
		p.ready = true
	case stopAction:
		p.over, p.ready = true, false
	case orphanAction:
		w.left[slot] = process{}
	case reportAction:
		p.reported, p.noGrace, p.ready = true, p.deleting, false
	case attestAction:
		w.attested = attested{uint8(slot) + 1, w.record.members[slot].life}
		w.wroteRecord(-1)
	case deleteAction:
		w.deletions--
		w.deletePod(slot)
	case evictAction:
		w.deletePod(slot)
	case forceAction, collectAction:
		p.noGrace = true
	case stripAction, uninstallAction:
		p.finalizer = false
	case keepAction, unkeepAction:
		p.kept = kind == keepAction
	case forgeAction: // on a node, because a user can also bind the pod
		node := uint8(slot % maxNodes)
		*p = podState{life: p.life + 1, claim: 1, node: node, exists: true, bound: true, over: w.nodes[node].off, forged: true}
	case endForgedAction:
		w.deletePod(slot)
	}
	w.wrote(slot)
}

// deletePod deletes a pod. The grace period of a pod without a node, or of a pod that has ended, is 0.
func (w *world) deletePod(slot int) {
	p := &w.pods[slot]
	p.deleting, p.ready = true, false
	p.noGrace = p.noGrace || !p.bound || p.reported
}

// check panics if another pod runs with the claim of the pod that was just scheduled, or if a pod with its name has run. A forged pod
// can begin to use a claim at any time: checkUses checks what each decision does about the forged pods that it saw.
func (m *model) check(w *world, slot int) {
	if w.ran&(1<<slot) != 0 && !w.lost {
		panic(search.Violation(fmt.Sprintf("two pods run with the name %s", podName(slot))))
	}
	w.ran |= 1 << slot
	claim := w.pods[slot].claim
	for i := range w.pods {
		if other := &w.pods[i]; i != slot && other.exists && !other.forged && other.bound && !other.over && other.claim == claim || w.left[i].claim == claim {
			panic(search.Violation(fmt.Sprintf("%s starts with the claim of %s, which runs", podName(slot), podName(i))))
		}
	}
}

// advance executes the next read, decision or write of a controller.
func (m *model) advance(w *world, c int) {
	s := &w.controllers[c]
	if w.gone && s.stage == idleStage {
		m.release(w)
		return
	}
	switch s.stage {
	case idleStage:
		*s = controllerState{stage: readStage, read: w.record, attested: w.attested, replicas: w.replicas, deleting: w.deleting}
	case readStage:
		v := view{record: s.read, attested: s.attested, claims: w.claims, ending: w.ending, replicas: s.replicas, deleting: s.deleting}
		for i, n := range w.nodes {
			v.nodes[i] = nodeState{notReady: n.notReady, outOfService: n.outOfService}
		}
		for i, p := range w.pods {
			p.over = false
			if p.exists {
				v.pods[i] = p
			}
		}
		seen := v
		if m.mutation.see != nil {
			m.mutation.see(&seen)
		}
		*s = controllerState{stage: planStage, stale: s.stale, plan: m.decide(seen)}
		checkUses(&v, &m.plans[s.plan])
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

// release does what the controller and the garbage collector do with pods whose StatefulCluster does not exist.
func (m *model) release(w *world) {
	for i := range w.pods {
		if w.pods[i].exists {
			w.pods[i].finalizer = false
			w.deletePod(i)
			w.wrote(i)
		}
	}
}

// finish resets a controller that has no steps left. The last write of a deletion removes the StatefulCluster.
func (m *model) finish(w *world, c int) {
	s := &w.controllers[c]
	if int(s.done) < len(m.plans[s.plan].steps) {
		return
	}
	if m.plans[s.plan].finished && !s.stale {
		w.gone = true
	}
	*s = controllerState{}
}

// write executes one step of a controller, and returns true if the step succeeded. The controller of a delayed write is -1.
func (m *model) write(w *world, c int, step membership.Step) bool {
	switch step := step.(type) {
	case membership.Record:
		s := &w.controllers[c]
		if w.gone || s.stale && !m.mutation.blindRecord {
			return false
		}
		w.record = m.plans[s.plan].status
		w.wroteRecord(c)
	case membership.CreateClaim:
		claim := uint8(1) << number(step.Name)
		if w.claims&claim != 0 {
			return false
		}
		w.claims |= claim
	case membership.DeleteClaim:
		m.deleteClaim(w, number(step.Claim.Name))
	case membership.CreatePod:
		slot := number(step.Name)
		p := &w.pods[slot]
		if p.exists {
			return false
		}
		*p = podState{life: p.life + 1, claim: uint8(number(step.Claims[0].Name)) + 1, exists: true, gated: !m.mutation.withoutGates, finalizer: true}
	case membership.Protect:
		added := false
		is := m.onPod(w, step.Pod, func(_ int, p *podState) {
			added = p.finalizer || !p.deleting // the API server rejects finalizers for a terminating pod
			p.finalizer = added
		})
		return is && added
	case membership.Ungate:
		return m.onPod(w, step.Pod, func(_ int, p *podState) { p.gated = false })
	case membership.Delete:
		m.onPod(w, step.Pod, func(slot int, _ *podState) { w.deletePod(slot) })
	case membership.Unprotect:
		m.onPod(w, step.Pod, func(_ int, p *podState) { p.finalizer = false })
	case membership.TakeAttestation:
		if a := w.attested; a.pod > 0 && step.UID == uidOf(int(a.pod)-1, int(a.life)) {
			w.attested = attested{}
			w.wroteRecord(c)
		}
	default:
		panic(fmt.Sprintf("no such step: %T", step))
	}
	return true
}

// deleteClaim panics if a pod runs with the claim.
func (m *model) deleteClaim(w *world, claim int) {
	for i := range w.pods {
		if p := &w.pods[i]; p.exists && !p.forged && p.bound && !p.over && int(p.claim) == claim+1 || int(w.left[i].claim) == claim+1 {
			panic(search.Violation(fmt.Sprintf("the claim of %s is deleted while the pod runs", podName(i))))
		}
	}
	w.claims, w.ending = w.claims&^(1<<claim), w.ending&^(1<<claim)
}

// checkUses panics if a plan deletes a claim, or gives it to another pod, although a pod in the view runs with the claim. A pod that was
// let go after an attestation does not run.
func checkUses(v *view, p *planState) {
	for i := range v.pods {
		user := &v.pods[i]
		node := v.nodes[user.node]
		letGo := !user.forged && user.deleting && !user.finalizer && node.notReady && v.record.members[i].life != user.life
		if letGo || !user.exists || !user.bound || user.reported || user.deleting && node.notReady && node.outOfService {
			continue
		}
		broken := func(what string) {
			panic(search.Violation(fmt.Sprintf("the claim of %s %s while %s runs with it", podName(int(user.claim)-1), what, podName(i))))
		}
		isCarried := slices.ContainsFunc(v.record.members[:], func(r memberState) bool { return r.life > 0 && r.claim == user.claim })
		for j, r := range p.status.members {
			if isCarried && j != i && r.claim == user.claim && v.record.members[j].state == 0 && r.state == 'P' {
				broken("goes to " + podName(j))
			}
		}
		for _, step := range p.steps {
			switch step := step.(type) {
			case membership.DeleteClaim:
				if number(step.Claim.Name)+1 == int(user.claim) {
					broken("is deleted")
				}
			case membership.CreatePod:
				if number(step.Claims[0].Name)+1 == int(user.claim) {
					broken("goes to the new pod " + step.Name)
				}
			case membership.Ungate:
				if slot, _ := slotOf(step.Pod); slot != i && v.pods[slot].claim == user.claim {
					broken("goes to " + step.Pod.Name)
				}
			}
		}
	}
}

// onPod changes a pod, unless it has another UID.
func (m *model) onPod(w *world, ref membership.Ref, change func(int, *podState)) bool {
	slot, life := slotOf(ref)
	p := &w.pods[slot]
	if !p.exists || p.life != life {
		return false
	}
	change(slot, p)
	w.wrote(slot)
	return true
}

// decide returns the number of the plan for a view.
func (m *model) decide(v view) uint32 {
	if id, ok := m.decided[v]; ok {
		return id
	}
	plan, message := membership.Plan{}, "not deleted"
	if s := m.snapshot(v); v.deleting {
		plan, message = membership.Finalize(s, now)
	} else {
		plan = membership.Decide(s, now)
	}
	p := planState{steps: plan.Steps, status: recordOf(&plan.Status), finished: message == ""}
	if m.mutation.plan != nil {
		p.steps = m.mutation.plan(p.steps)
	}
	if m.mutation.record != nil {
		m.mutation.record(&p.status)
	}
	var text []string
	for _, step := range p.steps {
		text = append(text, fmt.Sprintf("%T%+[1]v", step))
	}
	key := fmt.Sprintf("%+v %v %v", p.status, p.finished, text)
	id, ok := m.planIDs[key]
	if !ok {
		id = uint32(len(m.plans))
		m.plans, m.planIDs[key] = append(m.plans, p), id
	}
	m.decided[v] = id
	return id
}

// tooMany is a counter above all worlds that the search visits.
const tooMany = maxNames + 1

func recordOf(s *v1.StatefulClusterStatus) (r record) {
	if s.Next > maxNames {
		return record{next: tooMany}
	}
	r.next = uint8(s.Next)
	for _, m := range s.Members {
		state := memberState{state: m.State[0]}
		for _, c := range m.Claims {
			state.claim = uint8(number(c.Name)) + 1
		}
		if m.State == v1.MemberLost {
			state.state = 'X'
		}
		if m.UID != "" {
			state.life = uint8(number(string(m.UID)))
		}
		r.members[number(m.Name)] = state
	}
	for _, c := range s.Released {
		if c.Policy == v1.ClaimDelete {
			r.released |= 1 << number(c.Name)
		}
	}
	return r
}

func claimName(claim uint8) string {
	if claim == 0 {
		return ""
	}
	return fmt.Sprintf("data-coder-%d", claim-1)
}

// snapshot returns the Snapshot of a view.
func (m *model) snapshot(v view) membership.Snapshot {
	s := MakeSnapshot(int32(v.replicas)).With(from(int64(v.record.next)))
	s.Cluster.Spec.Replacement = v1.ClusterReplacement{State: m.state, MaxLost: new(int32(1))}
	s.Cluster.Spec.PersistentVolumeClaimRetentionPolicy = allDeleted
	if a := v.attested; a.pod > 0 {
		s.With(attest(string(uidOf(int(a.pod)-1, int(a.life)))))
	}
	states := map[byte]v1.MemberState{'P': v1.MemberPending, 'A': v1.MemberActive, 'L': v1.MemberLeaving, 'X': v1.MemberLost}
	for i, r := range v.record.members {
		uid := types.UID("")
		if r.life > 0 {
			uid = uidOf(i, int(r.life))
		}
		if r.state != 0 {
			s.Member(podName(i), states[r.state], uid, latest, claimName(r.claim))
		}
	}
	for i, n := range v.nodes {
		name := fmt.Sprintf("node%d", i)
		s.Nodes[name] = makeNode(name, !n.notReady, n.outOfService)
	}
	for i := range maxNames {
		name := claimName(uint8(i) + 1)
		if v.claims&(1<<i) != 0 {
			s.Claim(name)
		}
		if v.claims&v.ending&(1<<i) != 0 {
			s.Claims[len(s.Claims)-1].DeletionTimestamp = new(metav1.NewTime(now))
		}
		if v.record.released&(1<<i) != 0 {
			s.Released(name)
		}
		if v.pods[i].exists {
			s.Pod(modelPod(i, &v.pods[i]))
		}
	}
	return s.Snapshot
}

func modelPod(i int, p *podState) *PodWrapper {
	pod := MakePod(podName(i)).UID(uidOf(i, int(p.life))).Claim(claimName(p.claim))
	if !p.gated {
		pod.Ungated()
	}
	if p.forged {
		pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind = "example.com/v1", "Widget"
	}
	if p.bound {
		pod.Node(fmt.Sprintf("node%d", p.node))
	}
	if p.ready {
		pod.Ready()
	}
	if p.deleting {
		pod.Terminating()
	}
	if p.reported {
		pod.Terminated()
	}
	if !p.finalizer {
		pod.Finalizers = slices.DeleteFunc(pod.Finalizers, func(f string) bool { return f == v1.MemberFinalizer })
	}
	return pod
}
