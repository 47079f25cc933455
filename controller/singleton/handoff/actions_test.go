package handoff_test

import (
	"fmt"
	"slices"
)

// actionKind is an action of one actor on a pod, a node or a controller. Traces consist of actionKind numbers.
type actionKind uint8

const (
	// Actions that happen without a fault, in any order.
	bindAction actionKind = iota
	seeAction
	actAction
	reportAction
	noticeAction
	scaleAction
	collectAction
	controllerAction
	createAction
	recreateAction
	backAction
	seeLeaseAction
	renewAction
	obeyAction
	releaseAction
	endTermAction
	expireAction
	collectLeaseAction
	// Faults and actions of people.
	deleteAction
	forceAction
	evictAction
	pressureAction
	crashAction
	cutAction
	powerAction
	deleteNodeAction
	taintAction
	attestAction
	deleteSingletonAction
	eraseSingletonAction
	stripAction
	dieAction
	deleteLeaseAction
	freezeAction
	actionKinds
)

// firstFault is the first action that counts against world.faults.
const firstFault = deleteAction

var actionTexts = [actionKinds]string{
	bindAction:            "the scheduler binds pod %s to node-%d",
	seeAction:             "the kubelet of pod %s learns how its object is",
	actAction:             "the kubelet of pod %s does what it takes to be wanted",
	reportAction:          "the kubelet of pod %s reports",
	noticeAction:          "the node controller notices how node %s is",
	scaleAction:           "the ReplicaSet, scaled to zero, deletes pod %s",
	collectAction:         "the pod garbage collector fails and forces away pod %s",
	controllerAction:      "controller %s",
	createAction:          "pod %s is created, of revision %d",
	recreateAction:        "a person makes the singleton anew",
	backAction:            "node %s is back",
	deleteAction:          "a person deletes pod %s",
	forceAction:           "a person forces pod %s away",
	evictAction:           "pod %s is evicted through the API",
	pressureAction:        "the kubelet evicts pod %s",
	crashAction:           "the main process of pod %s crashes",
	cutAction:             "node %s is cut off",
	powerAction:           "node %s loses power",
	deleteNodeAction:      "a person deletes node %s",
	taintAction:           "a person marks node %s as out of service",
	attestAction:          "a person attests that pod %s has stopped for good",
	deleteSingletonAction: "a person deletes the singleton",
	eraseSingletonAction:  "a person erases the singleton, finalizer and all",
	stripAction:           "a person takes the finalizer off pod %s",
	dieAction:             "controller %s dies",
	seeLeaseAction:        "pod %s sees that the Lease names it, or starts for that",
	renewAction:           "pod %s renews the Lease",
	obeyAction:            "pod %s stores that it must not start again",
	releaseAction:         "pod %s releases the Lease",
	endTermAction:         "pod %s stops its main process, because it has not renewed the Lease",
	expireAction:          "controller %s has seen no renewal for a whole duration",
	collectLeaseAction:    "the garbage collector deletes the Lease of the deleted singleton",
	deleteLeaseAction:     "a person deletes the Lease",
	freezeAction:          "the sidecar stands still, and controller %s has seen no renewal for a whole duration",
}

// next calls then with each action that is possible in the world.
func (m *model) next(w *world, then func(actionKind, uint8, uint8)) {
	for i := range w.pods {
		if w.pods[i].kind > overPod {
			m.nextOfPod(w, i, then)
		}
	}
	for i := range m.nodes {
		m.nextOfNode(w, i, then)
	}
	for i := range m.controllers {
		c := &w.controllers[i]
		if c.stage != idleStage || w.singleton.exists || w.stuck() {
			then(controllerAction, uint8(i), 0)
		}
		if c.stage != idleStage && w.faults > 0 {
			then(dieAction, uint8(i), 0)
		}
	}
	m.nextOfLease(w, then)
	m.nextOfWorkload(w, then)
}

func (m *model) nextOfWorkload(w *world, then func(actionKind, uint8, uint8)) {
	for i, kind := range m.pods {
		if w.pods[i].kind != noPod {
			continue
		}
		for r := w.revision; int(r) <= m.revisions && r <= w.revision+1; r++ {
			if kind != barePod && w.retired&(1<<r) == 0 && w.singleton.exists && !w.singleton.deleting {
				then(createAction, uint8(i), r)
			}
		}
		break
	}
	switch s := &w.singleton; {
	case !s.exists:
		then(recreateAction, 0, 0)
	case w.faults > 0 && !w.lost():
		if !s.deleting {
			then(deleteSingletonAction, 0, 0)
		}
		then(eraseSingletonAction, 0, 0)
	}
}

// stuck returns true if only the finalizer keeps the object of a terminating pod. Controllers then look at the pods of
// a deleted singleton.
func (w *world) stuck() bool {
	return slices.ContainsFunc(w.pods[:], func(p podState) bool { return p.exists() && p.deleting && p.finalizer })
}

// lost returns true if only the record is left of a pod that may run. The guarantee does not cover a person who erases
// the singleton in this state.
func (w *world) lost() bool {
	h := w.singleton.holder
	return h > 0 && w.pods[h-1].gone && w.pods[h-1].mayRun()
}

func (m *model) nextOfNode(w *world, i int, then func(actionKind, uint8, uint8)) {
	n, id := &w.nodes[i], uint8(i)
	if n.notReady == n.connected() && !n.deleted {
		then(noticeAction, id, 0)
	}
	if n.off || n.cut {
		then(backAction, id, 0)
	}
	if w.faults == 0 {
		return
	}
	if n.connected() {
		then(cutAction, id, 0)
	}
	if !n.off {
		then(powerAction, id, 0)
	}
	if !n.connected() && !n.deleted {
		then(deleteNodeAction, id, 0)
	}
	if n.off && !n.deleted && !n.outOfService {
		then(taintAction, id, 0)
	}
}

func (m *model) nextOfPod(w *world, i int, then func(actionKind, uint8, uint8)) {
	p, id := &w.pods[i], uint8(i)
	if p.exists() && p.node == 0 && !p.deleting {
		for n := range m.nodes {
			if node := &w.nodes[n]; !node.notReady && !node.outOfService && !node.deleted {
				then(bindAction, id, uint8(n))
			}
		}
	}
	if p.exists() && w.retired&(1<<p.revision) != 0 && !p.deleting {
		then(scaleAction, id, 0)
	}
	if p.node > 0 {
		m.nextOfKubelet(w, i, then)
	}
	if w.faults == 0 {
		return
	}
	if p.exists() && !p.deleting {
		then(deleteAction, id, 0)
	}
	if p.forcible() {
		then(forceAction, id, 0)
	}
	if p.exists() && (!p.deleting || p.phase == failedPhase && !p.unmarked) {
		then(evictAction, id, 0)
	}
	if p.known && p.runs != endedProcess && !p.seenGoing && !w.nodes[p.node-1].off {
		then(pressureAction, id, 0)
	}
	if p.runs == mainProcess {
		then(crashAction, id, 0)
	}
	if w.singleton.exists && w.singleton.attested != id+1 && w.attestable(i) {
		then(attestAction, id, 0)
	}
	if p.exists() && p.finalizer && w.singleton.holder == id+1 {
		then(stripAction, id, 0)
	}
}

func (m *model) nextOfKubelet(w *world, i int, then func(actionKind, uint8, uint8)) {
	p, id, n := &w.pods[i], uint8(i), &w.nodes[w.pods[i].node-1]
	if n.deleted && p.exists() && (p.phase == livePhase || !p.noGrace) && p.missed() {
		then(collectAction, id, 0)
	}
	if n.connected() && p.runs != endedProcess && p.news() {
		then(seeAction, id, 0)
	}
	if !n.off && p.runs != endedProcess && (p.seenGone || p.seenGoing || p.known && p.runs != mainProcess && (p.runs != heldProcess || w.open(i))) {
		then(actAction, id, 0)
	}
	if n.connected() && !p.gone && (p.known || p.runs == endedProcess) && p.unreported() {
		then(reportAction, id, 0)
	}
}

// do executes the action. do panics with a violation if the action breaks a guarantee.
func (m *model) do(w *world, kind actionKind, a, b uint8) {
	i := int(a)
	if kind >= firstFault {
		w.faults--
	}
	switch kind {
	case bindAction:
		w.pods[i].node = b + 1
		w.wrote(i, -1)
	case seeAction:
		w.see(i)
	case actAction:
		w.act(i)
	case reportAction:
		w.report(i)
	case noticeAction:
		w.nodes[i].notReady = !w.nodes[i].connected()
	case scaleAction, deleteAction:
		w.delete(i, false)
	case forceAction:
		w.delete(i, true)
	case collectAction:
		w.collect(i)
	case controllerAction:
		m.advance(w, i)
	case createAction:
		w.pods[i], w.revision = m.newPod(i, b), b
	case recreateAction:
		w.lives++
		w.singleton = singletonState{exists: true, life: w.lives}
		for i := range w.pods {
			if p := &w.pods[i]; !p.signal {
				p.epoch = 0
			}
		}
		w.wroteSingleton(-1)
	case seeLeaseAction, renewAction, obeyAction, releaseAction, endTermAction, expireAction, collectLeaseAction, deleteLeaseAction, freezeAction:
		m.doToLease(w, kind, i)
	default:
		w.suffer(kind, i)
	}
}

func (w *world) suffer(kind actionKind, i int) {
	p, n := &w.pods[i], &w.nodes[i%maxNodes]
	switch kind {
	case evictAction:
		p.unmarked = p.phase == failedPhase
		w.delete(i, false)
	case pressureAction:
		p.seenGoing = true
	case crashAction:
		p.runs = crashedProcess
	case cutAction:
		n.cut = true
	case powerAction:
		w.powerOff(i)
	case backAction:
		*n = nodeState{notReady: n.notReady}
	case deleteNodeAction:
		n.deleted, w.excused = true, true
	case taintAction:
		n.outOfService, w.excused = true, true
	case attestAction:
		w.attest(i)
		w.excused = true
	case deleteSingletonAction:
		w.singleton.deleting, w.excused = true, true
		w.forgetNotes()
		w.wroteSingleton(-1)
	case eraseSingletonAction:
		w.singleton, w.excused = singletonState{}, true
		w.forgetNotes()
		w.wroteSingleton(-1)
	case stripAction:
		p.finalizer, w.excused = false, true
		w.wrote(i, -1)
	case dieAction:
		w.controllers[i] = controllerState{}
	}
}

// describe returns a description of the action. before is the world before the action.
func (m *model) describe(before, after *world, kind actionKind, a, b uint8) string {
	name := podName(int(a))
	switch kind {
	case noticeAction, cutAction, powerAction, backAction, deleteNodeAction, taintAction:
		return fmt.Sprintf(actionTexts[kind], nodeName(int(a)))
	case bindAction:
		return fmt.Sprintf(actionTexts[kind], name, b+1)
	case createAction:
		return fmt.Sprintf(actionTexts[kind], name, b)
	case recreateAction, deleteSingletonAction, eraseSingletonAction, collectLeaseAction, deleteLeaseAction:
		return actionTexts[kind]
	case dieAction, expireAction, freezeAction:
		return fmt.Sprintf(actionTexts[kind], string('A'+rune(a)))
	case controllerAction:
		return fmt.Sprintf(actionTexts[kind], string('A'+rune(a))) + " " + m.describeController(before, after, int(a))
	case actAction:
		return fmt.Sprintf("the kubelet of pod %s %s", name, describeProcess(before.pods[a].runs, after.pods[a].runs))
	default:
		return fmt.Sprintf(actionTexts[kind], name)
	}
}

func describeProcess(before, after process) string {
	switch {
	case after == mainProcess && before == crashedProcess:
		return "starts its main process again"
	case after == mainProcess:
		return "starts its main process"
	case after == endedProcess && before == mainProcess:
		return "stops its main process"
	case after == endedProcess:
		return "ends it"
	default:
		return "has it wait for the signal"
	}
}

func (m *model) describeController(before, after *world, c int) string {
	s := before.controllers[c]
	switch s.stage {
	case idleStage:
		return "reads the singleton"
	case readStage:
		return "reads the rest, and decides"
	}
	next := m.plans[s.plan].steps[s.done]
	text := stepNames[next.do]
	switch next.do {
	case recordStep:
		status := m.plans[s.plan].status
		text += " that there is no holder"
		if status.holder > 0 {
			text = stepNames[next.do] + " pod " + podName(int(status.holder-1)) + " as the holder"
		}
	case writeLeaseStep:
		text += " " + next.lease.describe(next.create)
	case takeAttestationStep, finishStep, confirmGoneStep:
	default:
		text += " pod " + podName(int(next.pod))
	}
	if after.controllers[c].stage == idleStage && before.singleton == after.singleton && before.pods == after.pods && before.lease == after.lease {
		text += ", and is refused or changes nothing"
	}
	return text
}
