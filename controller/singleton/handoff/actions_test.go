package handoff_test

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
)

// action is something that one actor does to a pod, a node, a controller or the singleton. Traces consist of the numbers of actions.
type action struct {
	// text describes the action. It has a verb for each name of its place.
	text string
	on   place
	// fault is true if the action counts against world.faults: a fault, or an action of a person.
	fault bool
	// can returns true if the action can happen, and do executes it. do panics with a violation if the action breaks a guarantee.
	can func(at) bool
	do  func(at)
}

// place is what an action happens to.
type place uint8

const (
	inWorld place = iota
	toController
	toNode
	// A pod that is over is no place.
	toPod
	toBoundPod
	// toPodAndNode is each pod with each node. toNewPod is the next pod with each revision that it can have.
	toPodAndNode
	toNewPod
	places
)

// at is where an action happens.
type at struct {
	m *model
	w *world
	// i is the number of the controller, the node or the pod. with is the number of the node of toPodAndNode, or the revision of toNewPod.
	i    int
	with uint8
	c    *controllerState
	// n is the node, also that of a bound pod.
	n *nodeState
	p *podState
}

// each calls then with each instance of each place.
func (m *model) each(w *world, then func(on place, i int, with uint8)) {
	then(inWorld, 0, 0)
	for i := range m.controllers {
		then(toController, i, 0)
	}
	for i := range m.nodes {
		then(toNode, i, 0)
	}
	for i := range w.pods {
		p := &w.pods[i]
		if p.kind <= overPod {
			continue
		}
		then(toPod, i, 0)
		if p.node > 0 {
			then(toBoundPod, i, 0)
		}
		for n := range m.nodes {
			then(toPodAndNode, i, uint8(n))
		}
	}
	if i := slices.IndexFunc(w.pods[:len(m.pods)], func(p podState) bool { return p.kind == noPod }); i >= 0 {
		for r := w.revision; int(r) <= m.revisions && r <= w.revision+1; r++ {
			then(toNewPod, i, r)
		}
	}
}

func (m *model) at(w *world, on place, i int, with uint8) at {
	a := at{m: m, w: w, i: i, with: with}
	switch on {
	case toController:
		a.c = &w.controllers[i]
	case toNode:
		a.n = &w.nodes[i]
	case toPodAndNode:
		a.p, a.n = &w.pods[i], &w.nodes[with]
	case toBoundPod:
		a.p, a.n = &w.pods[i], &w.nodes[w.pods[i].node-1]
	case toPod, toNewPod:
		a.p = &w.pods[i]
	}
	return a
}

// wrote marks the pod as written by a client that is no controller.
func (a at) wrote() { a.w.wrote(a.i, -1) }

// controllerAction and actAction are the numbers of the actions that Describe describes by their effect.
const (
	controllerAction = iota
	actAction
)

var actions = slices.Concat([]action{
	{text: "controller %s", on: toController, can: func(a at) bool {
		return a.c.stage != idleStage || a.w.singleton.exists || a.w.stuck()
	}, do: func(a at) { a.m.advance(a.w, a.i) }},
	{text: "the kubelet of pod %s", on: toBoundPod, can: func(a at) bool {
		p := a.p
		return !a.n.off && p.runs != endedProcess &&
			(p.seenGone || p.seenGoing || p.known && p.runs != mainProcess && (p.runs != heldProcess || a.w.open(a.i)))
	}, do: func(a at) { a.w.act(a.i) }},
	{text: "the kubelet of pod %s learns how its object is", on: toBoundPod, can: func(a at) bool {
		return a.n.connected() && a.p.runs != endedProcess && a.p.news()
	}, do: func(a at) { a.w.see(a.i) }},
	{text: "the kubelet of pod %s reports", on: toBoundPod, can: func(a at) bool {
		return a.n.connected() && !a.p.gone && (a.p.known || a.p.runs == endedProcess) && a.p.unreported()
	}, do: func(a at) { a.w.report(a.i) }},
	{text: "the scheduler binds pod %s to %s", on: toPodAndNode, can: func(a at) bool {
		return a.p.exists() && a.p.node == 0 && !a.p.deleting && !a.n.notReady && !a.n.outOfService && !a.n.deleted
	}, do: func(a at) {
		a.p.node = a.with + 1
		a.wrote()
	}},
	{text: "the node controller notices how %s is", on: toNode, can: func(a at) bool { return a.n.notReady == a.n.connected() && !a.n.deleted }, do: func(a at) {
		a.n.notReady = !a.n.connected()
	}},
	{text: "%s is back", on: toNode, can: func(a at) bool { return a.n.off || a.n.cut }, do: func(a at) { *a.n = nodeState{notReady: a.n.notReady} }},
	{text: "the ReplicaSet, scaled to zero, deletes pod %s", on: toPod, can: func(a at) bool {
		return a.p.exists() && a.w.retired&(1<<a.p.revision) != 0 && !a.p.deleting
	}, do: func(a at) { a.w.delete(a.i, false) }},
	{text: "the pod garbage collector fails and forces away pod %s", on: toBoundPod, can: func(a at) bool {
		return a.n.deleted && a.p.exists() && (a.p.phase == livePhase || !a.p.noGrace) && a.p.missed()
	}, do: func(a at) { a.w.collect(a.i) }},
	{text: "pod %s is created, of revision %s", on: toNewPod, can: func(a at) bool {
		return a.m.pods[a.i] != barePod && a.w.retired&(1<<a.with) == 0 && a.w.singleton.exists && !a.w.singleton.deleting
	}, do: func(a at) { *a.p, a.w.revision = a.m.newPod(a.i, a.with), a.with }},
	{text: "a person makes the singleton anew", can: func(a at) bool { return !a.w.singleton.exists }, do: func(a at) { a.w.recreate() }},

	// Faults and actions of people.
	{text: "a person deletes pod %s", on: toPod, fault: true, can: func(a at) bool { return a.p.exists() && !a.p.deleting }, do: func(a at) {
		a.w.delete(a.i, false)
	}},
	{text: "a person forces pod %s away", on: toPod, fault: true, can: func(a at) bool { return a.p.forcible() }, do: func(a at) { a.w.delete(a.i, true) }},
	{text: "pod %s is evicted through the API", on: toPod, fault: true, can: func(a at) bool {
		return a.p.exists() && (!a.p.deleting || a.p.phase == failedPhase && !a.p.unmarked)
	}, do: func(a at) {
		a.p.unmarked = a.p.phase == failedPhase
		a.w.delete(a.i, false)
	}},
	{text: "the kubelet evicts pod %s", on: toBoundPod, fault: true, can: func(a at) bool {
		return a.p.known && a.p.runs != endedProcess && !a.p.seenGoing && !a.n.off
	}, do: func(a at) { a.p.seenGoing = true }},
	{text: "the main process of pod %s crashes", on: toPod, fault: true, can: func(a at) bool { return a.p.runs == mainProcess }, do: func(a at) {
		a.p.runs = crashedProcess
		a.p.term = a.p.term && !a.m.never // a restarted container waits for a renewal
	}},
	{text: "a person attests that pod %s has stopped for good", on: toPod, fault: true, can: func(a at) bool {
		return a.w.singleton.exists && a.w.singleton.attested != uint8(a.i)+1 && a.w.attestable(a.i)
	}, do: func(a at) {
		a.w.attest(a.i)
		a.w.excused = true
	}},
	{text: "a person takes the finalizer off pod %s", on: toPod, fault: true, can: func(a at) bool {
		return a.p.exists() && a.p.finalizer && a.w.singleton.holder == uint8(a.i)+1
	}, do: func(a at) {
		a.p.finalizer, a.w.excused = false, true
		a.wrote()
	}},
	{text: "%s is cut off", on: toNode, fault: true, can: func(a at) bool { return a.n.connected() }, do: func(a at) { a.n.cut = true }},
	{text: "%s loses power", on: toNode, fault: true, can: func(a at) bool { return !a.n.off }, do: func(a at) { a.w.powerOff(a.i) }},
	{text: "a person deletes %s", on: toNode, fault: true, can: func(a at) bool { return !a.n.connected() && !a.n.deleted }, do: func(a at) {
		a.n.deleted, a.w.excused = true, true
	}},
	{text: "a person marks %s as out of service", on: toNode, fault: true, can: func(a at) bool {
		return a.n.off && !a.n.deleted && !a.n.outOfService
	}, do: func(a at) { a.n.outOfService, a.w.excused = true, true }},
	{text: "a person deletes the singleton", fault: true, can: func(a at) bool {
		return a.w.singleton.exists && !a.w.singleton.deleting && !a.w.lost()
	}, do: func(a at) {
		a.w.singleton.deleting, a.w.excused = true, true
		a.w.forgetNotes()
		a.w.wroteSingleton(-1)
	}},
	{text: "a person pauses or resumes handoffs", fault: true, can: func(a at) bool { return a.m.pauses && a.w.singleton.exists }, do: func(a at) {
		a.w.singleton.paused = !a.w.singleton.paused
		a.w.wroteSingleton(-1)
	}},
	{text: "a person erases the singleton, finalizer and all", fault: true, can: func(a at) bool { return a.w.singleton.exists && !a.w.lost() }, do: func(a at) {
		a.w.singleton, a.w.excused = singletonState{}, true
		a.w.forgetNotes()
		a.w.wroteSingleton(-1)
	}},
	{text: "controller %s dies", on: toController, fault: true, can: func(a at) bool { return a.c.stage != idleStage }, do: func(a at) {
		*a.c = controllerState{}
	}},
}, sidecarActions, leaseActions)

// actionsOn are the numbers of the actions of each place.
var actionsOn = func() (on [places][]int) {
	for kind := range actions {
		on[actions[kind].on] = append(on[actions[kind].on], kind)
	}
	return on
}()

func (m *model) Actions(w *world, then func(search.Action)) {
	m.each(w, func(on place, i int, with uint8) {
		a := m.at(w, on, i, with)
		for _, kind := range actionsOn[on] {
			if is := &actions[kind]; (!is.fault || w.faults > 0) && is.can(a) {
				then(search.Action{Kind: uint8(kind), A: uint8(i), B: with})
			}
		}
	})
}

func (m *model) Do(w *world, a search.Action) {
	is := &actions[a.Kind]
	if is.fault {
		w.faults--
	}
	is.do(m.at(w, is.on, int(a.A), a.B))
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

// recreate creates the singleton again.
func (w *world) recreate() {
	w.lives++
	w.singleton = singletonState{exists: true, life: w.lives}
	for i := range w.pods {
		if p := &w.pods[i]; !p.signal {
			p.epoch = 0
		}
	}
	w.wroteSingleton(-1)
}

func (m *model) Describe(before, after *world, a search.Action) string {
	is, i := &actions[a.Kind], int(a.A)
	var names []any
	switch is.on {
	case toController:
		names = []any{string('A' + rune(i))}
	case toNode:
		names = []any{nodeName(i)}
	case toPod, toBoundPod:
		names = []any{podName(i)}
	case toPodAndNode:
		names = []any{podName(i), nodeName(int(a.B))}
	case toNewPod:
		names = []any{podName(i), strconv.Itoa(int(a.B))}
	}
	text := fmt.Sprintf(is.text, names...)
	switch a.Kind {
	case controllerAction:
		text += " " + m.describeController(before, after, i)
	case actAction:
		text += " " + describeProcess(before.pods[i].runs, after.pods[i].runs)
	}
	return text
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
