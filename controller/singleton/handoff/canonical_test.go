package handoff_test

import (
	"cmp"
	"slices"
)

// canonical makes worlds equal if they behave in the same way. canonical sorts nodes and controllers, and clears state
// that no later action reads.
func (m *model) canonical(w *world) {
	for i := range w.pods {
		p := &w.pods[i]
		if p.kind > overPod && p.gone && (p.runs == endedProcess || p.node == 0) {
			*p = podState{kind: overPod, epoch: p.epoch, gone: p.epoch > 0, signal: p.epoch > 0 && p.signal}
		}
		if p.runs == endedProcess {
			p.known, p.seenSignal, p.seenGoing, p.seenGone, p.configMap, p.mayOpen = false, false, false, false, false, false
		}
		p.configMap = p.configMap && p.kind == barrierPod
		p.term, p.sawNamed = p.term && p.runs != endedProcess, p.sawNamed && p.runs != endedProcess
		p.receives = p.receives && p.runs == heldProcess && p.reported == heldProcess && p.exists()
		p.noted = p.noted && p.removedUnseen() && p.runs != endedProcess
	}
	for i := range m.controllers {
		m.forget(&w.controllers[i])
	}
	slices.SortFunc(w.controllers[:m.controllers], compareControllers)
	if m.nodes == 2 && nodesSwapped(w) {
		w.nodes[0], w.nodes[1] = w.nodes[1], w.nodes[0]
		for i := range w.pods {
			if p := &w.pods[i]; p.node > 0 {
				p.node = 3 - p.node
			}
		}
	}
}

// forget clears what the remaining steps of the controller do not read.
func (m *model) forget(c *controllerState) {
	plan := m.nextPlan(*c)
	if plan == nil {
		return
	}
	c.staleLease = c.staleLease && slices.ContainsFunc(plan.steps[c.done:], func(s step) bool { return s.do == writeLeaseStep })
	asked, cas := uint8(0), false
	for _, s := range plan.steps[c.done:] {
		if s.conditional {
			asked |= 1 << s.pod
		}
		cas = cas || s.do == recordStep || s.do == takeAttestationStep || s.do == finishStep || s.do == unprotectStep || s.do == demoteStep
	}
	c.stalePods &= asked
	c.staleSingleton = c.staleSingleton && (cas || c.notes > 0)
}

func compareControllers(a, b controllerState) int {
	return cmp.Or(cmp.Compare(a.stage, b.stage), cmp.Compare(a.plan, b.plan), cmp.Compare(a.done, b.done),
		cmp.Compare(a.stalePods, b.stalePods), compareBools(a.staleSingleton, b.staleSingleton), cmp.Compare(a.cached, b.cached), cmp.Compare(a.notes, b.notes),
		cmp.Compare(a.read.holder, b.read.holder), compareBools(a.read.signalled, b.read.signalled), cmp.Compare(a.read.life, b.read.life), compareBools(a.staleLease, b.staleLease), compareBools(a.sawLease, b.sawLease), compareBools(a.silent, b.silent))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// nodesSwapped returns true if the two nodes are not in canonical order. In canonical order, the first pod with a node
// is on the first node.
func nodesSwapped(w *world) bool {
	for i := range w.pods {
		if w.pods[i].node > 0 {
			return w.pods[i].node == 2
		}
	}
	a, b := w.nodes[0], w.nodes[1]
	return cmp.Or(compareBools(a.off, b.off), compareBools(a.cut, b.cut), compareBools(a.notReady, b.notReady),
		compareBools(a.outOfService, b.outOfService), compareBools(a.deleted, b.deleted)) > 0
}
