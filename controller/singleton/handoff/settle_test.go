package handoff_test

import "github.com/statefulsingleton/statefulsingleton/controller/internal/search"

// settler checks that a world reaches a holder after faults stop.
type settler struct {
	*model
	// settled has the worlds without further faults that reach a holder.
	settled map[world]bool
}

func newSettler(m *model) *settler { return &settler{m, map[world]bool{}} }

// check stops all faults in the world. Nodes come back, controllers finish their steps, and a person follows the
// message. It returns the problem with the outcome, or "".
func (s *settler) check(w world) (wrong string) {
	if broken := search.Broken(func() { wrong = s.settle(w) }); broken != "" {
		return broken
	}
	return wrong
}

func (s *settler) settle(w world) string {
	w.faults = 0
	for i := range s.nodes {
		w.nodes[i] = nodeState{}
	}
	for c := range s.controllers {
		for w.controllers[c].busy() {
			s.advance(&w, c)
		}
	}
	if !w.singleton.exists {
		w.recreate()
	}
	for i := range s.pods {
		if p := &w.pods[i]; p.kind > overPod && p.node > 0 && p.runs != endedProcess {
			s.kubelet(&w, i)
		}
	}
	w.expiries = maxExpiries
	var passed []world
	for range 30 {
		s.canonical(&w)
		if s.settled[w] {
			break
		}
		passed = append(passed, w)
		if s.holds(&w) || s.awaitsNewPod(&w) {
			break
		}
		if len(passed) == 30 {
			return nobodyHolds
		}
		if helped := s.round(&w); helped && !w.excused {
			return needPerson
		}
	}
	for _, w := range passed {
		s.settled[w] = true
	}
	return ""
}

// round executes all pending actions of each actor once. It returns true if a person had to help.
func (s *settler) round(w *world) (helped bool) {
	if !w.singleton.exists {
		w.recreate()
	}
	for i := range s.pods {
		p := &w.pods[i]
		if p.exists() && w.retired&(1<<p.revision) != 0 && !p.deleting {
			w.delete(i, false)
		}
		if p.exists() && p.node == 0 && !p.deleting {
			p.node = 1
			w.wrote(i, -1)
		}
		if p.kind > overPod && p.node > 0 {
			s.kubelet(w, i)
		}
	}
	s.settleLease(w)
	several := s.reconcile(w)
	if several {
		helped = s.deleteWhatIsTooMuch(w)
	}
	for i := range s.pods {
		p := &w.pods[i]
		stuck := p.kind == overPod && w.singleton.holder == uint8(i+1) ||
			p.exists() && p.runs == endedProcess && p.phase == failedPhase && p.finalizer
		if stuck && w.singleton.attested != uint8(i+1) {
			w.attest(i)
			return true
		}
	}
	return helped
}

func (s *settler) kubelet(w *world, i int) {
	w.see(i)
	if p := &w.pods[i]; p.kind == fencedPod {
		s.sidecar(w, i)
	}
	w.act(i)
	if p := &w.pods[i]; p.exists() && p.unreported() {
		w.report(i)
	}
}

// reconcile runs one controller, and returns true if its plan asks a person to delete pods.
func (s *settler) reconcile(w *world) (several bool) {
	s.advance(w, 0)
	several = s.plans[s.decide(s.look(w, &w.controllers[0]))].several
	for w.controllers[0].busy() {
		s.advance(w, 0)
	}
	return several
}

// deleteWhatIsTooMuch follows the message: it deletes a running pod that is not the holder. Without a holder, one
// running pod stays.
func (s *settler) deleteWhatIsTooMuch(w *world) bool {
	keep := int(w.singleton.holder) - 1
	for i := range s.pods {
		p := &w.pods[i]
		chosenElsewhere := p.chosenBy > 0 && p.chosenBy != w.singleton.life
		if !p.exists() || !p.mayRun() && !chosenElsewhere || p.deleting || i == keep {
			continue
		}
		if keep < 0 {
			keep = i
			continue
		}
		w.delete(i, false)
		return true
	}
	return false
}

// holds returns true if the recorded holder runs, or if no pod can run.
func (s *settler) holds(w *world) bool {
	wanted := false
	for i := range w.pods {
		p := &w.pods[i]
		wanted = wanted || p.exists() && !p.going()
		if p.runs == mainProcess && !(w.singleton.holder == uint8(i+1) && p.exists() && !p.going()) {
			return false
		}
	}
	h := w.singleton.holder
	return !wanted && w.singleton.exists && !w.singleton.deleting || h > 0 && w.pods[h-1].runs == mainProcess
}
