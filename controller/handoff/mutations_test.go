package handoff_test

import (
	"slices"
	"strings"
	"testing"
)

const (
	twoRun     = " starts while "
	needPerson = "a person has to help, though nothing happened that asks for one"
)

// mutations are errors in the protocol, and the violation that the search must find for each.
var mutations = map[string]struct {
	mutation
	pods                         []podKind
	created, controllers, faults int
	wantBroken                   string
}{
	// Errors that the previous operator makes.
	"a crash-looping holder counts as dead": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.reported == crashedProcess })}, faults: 1, wantBroken: twoRun,
	},
	"a pod that ran before is not seen": {
		mutation: mutation{see: eachPod(func(p *podState) {
			if p.kind == barePod {
				*p = podState{}
			}
		})}, pods: []podKind{barePod, wrapperPod}, wantBroken: twoRun,
	},
	"a holder that is gone counts as dead": {
		mutation: mutation{see: func(v *view) {
			if h := v.singleton.holder; h > 0 && v.pods[h-1].kind == noPod {
				v.singleton.word = h
			}
		}}, faults: 2, wantBroken: twoRun,
	},

	"of two that ran before, the one that takes no finalizer is not recorded": {
		mutation: mutation{see: eachPod(func(p *podState) { p.finalizer = p.finalizer || p.deleting })},
		pods:     []podKind{barePod, barePod, wrapperPod}, created: 2, faults: 2, wantBroken: twoRun,
	},

	// Facts that prove nothing.
	"deletion asked for counts as death": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.deleting })}, faults: 1, wantBroken: twoRun,
	},
	"phase Failed counts as death": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.phase == failedPhase })}, faults: 2, wantBroken: twoRun,
	},
	"an ended container counts as death, once deletion was asked for": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.deleting && p.reported == crashedProcess })}, faults: 2, wantBroken: twoRun,
	},
	"a node that does not answer counts as off": {
		mutation: mutation{see: func(v *view) {
			for i := range v.nodes {
				v.nodes[i].outOfService = v.nodes[i].notReady
			}
		}}, faults: 2, wantBroken: twoRun,
	},
	"whatever bears no finalizer never started": {
		mutation: mutation{see: eachPod(func(p *podState) {
			if !p.finalizer && p.deleting && p.kind != barePod {
				p.signal, p.role, p.gate = false, false, false
			}
		})}, faults: 3, wantBroken: twoRun,
	},

	// Writes in a different order.
	"the signal comes before the record": {
		mutation: mutation{plan: move(recordStep, signalStep)}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"the barrier is opened before the record": {
		mutation: mutation{plan: move(openBarrierStep, recordStep)}, pods: []podKind{barrierPod, barrierPod}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"nobody is told who may open the barrier": {
		mutation: mutation{see: eachPod(func(p *podState) { p.chosenBy = 0 })}, pods: []podKind{barrierPod, barrierPod}, faults: 2, wantBroken: twoRun,
	},
	"the finalizer comes after the record": {
		mutation: mutation{plan: move(recordStep, protectStep)}, faults: 2, wantBroken: needPerson,
	},
	"the old pod is let go before the record": {
		mutation: mutation{plan: move(unprotectStep, recordStep)}, faults: 2, wantBroken: needPerson,
	},

	// Writes that are left out, or that ignore the writes of other clients.
	"no finalizer": {
		mutation: mutation{noFinalizer: true}, faults: 1, wantBroken: needPerson,
	},
	"the record is no compare-and-swap": {
		mutation: mutation{blindRecord: true}, controllers: 2, wantBroken: twoRun,
	},
	"the signal takes no notice of what others wrote": {
		mutation: mutation{blindSignal: true}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"without a record, others that may have been chosen are not let go": {
		mutation: mutation{plan: without(unprotectStep, func(_ *planState, s step) bool { return s.conditional })}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"pods are read from a cache": {
		mutation: mutation{cached: true}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"a singleton that is deleted takes the finalizer off whatever others wrote": {
		mutation: mutation{plan: unconditionally(stripStep)}, pods: []podKind{barePod, wrapperPod}, faults: 2, wantBroken: twoRun,
	},
	"a singleton that is deleted goes though a pod removed meanwhile": {
		mutation: mutation{blindStrip: true}, pods: []podKind{barePod, wrapperPod}, faults: 3, wantBroken: twoRun,
	},
	"a singleton that is deleted lets go of pods that stop": {
		mutation: mutation{see: func(v *view) {
			for i := range v.pods {
				v.pods[i].deleting = v.pods[i].deleting && !v.singleton.deleting
			}
		}}, faults: 2, wantBroken: twoRun,
	},
}

// countAsDead changes the selected pods: the kubelet appears to have ended them.
func countAsDead(which func(*podState) bool) func(*view) {
	return eachPod(func(p *podState) {
		if which(p) {
			p.reported, p.phase = endedProcess, endedPhase
		}
	})
}

// eachPod changes the pods that Decide reads.
func eachPod(change func(*podState)) func(*view) {
	return func(v *view) {
		for i := range v.pods {
			if v.pods[i].kind != noPod {
				change(&v.pods[i])
			}
		}
	}
}

// move moves the plan's first step of a kind to the position of the first step of another kind.
func move(kind, to stepKind) func(*planState) {
	return func(p *planState) {
		from := slices.IndexFunc(p.steps[:], func(s step) bool { return s.do == kind })
		at := slices.IndexFunc(p.steps[:], func(s step) bool { return s.do == to })
		if from < 0 || at < 0 {
			return
		}
		s := p.steps[from]
		copy(p.steps[from:], p.steps[from+1:])
		copy(p.steps[at+1:], p.steps[at:])
		p.steps[at] = s
	}
}

// unconditionally removes the preconditions from the plan's steps of a kind.
func unconditionally(kind stepKind) func(*planState) {
	return func(p *planState) {
		for i := range p.steps {
			p.steps[i].conditional = p.steps[i].conditional && p.steps[i].do != kind
		}
	}
}

// without removes the selected steps of a kind from the plan.
func without(kind stepKind, which func(*planState, step) bool) func(*planState) {
	return func(p *planState) {
		n := 0
		for _, s := range p.steps {
			if s.do != kind || !which(p, s) {
				p.steps[n] = s
				n++
			}
		}
		clear(p.steps[n:])
	}
}

// The search finds each of the mutations. It reports a shortest sequence of actions that breaks a guarantee.
func TestSearchFindsMutations(t *testing.T) {
	for name, tc := range mutations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.pods == nil {
				tc.pods = []podKind{wrapperPod, wrapperPod}
			}
			m := newModel(tc.pods, 1, max(1, tc.controllers))
			m.mutation = tc.mutation
			s := &search{model: m, start: m.start(max(1, tc.created), tc.faults)}
			check := newSettler(m).check
			if tc.wantBroken == twoRun {
				check = func(world) string { return "" } // the model checks each start on its own
			}
			broken, at := s.explore(check)
			if broken == "" || !strings.Contains(broken, tc.wantBroken) {
				t.Fatalf("broken: %q, want %q in it; %d states", broken, tc.wantBroken, len(s.from))
			}
			t.Logf("after %d states: %s:\n%s", len(s.from), broken, s.story(at))
		})
	}
}
