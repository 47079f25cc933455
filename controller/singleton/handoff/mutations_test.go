package handoff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
)

const (
	twoRun      = " starts while "
	wrongEpoch  = " is released with epoch "
	needPerson  = "a person must help, although no fault requires it"
	nobodyHolds = "nobody holds once faults stopped"
	// The status says that a main process runs before it has started.
	readyTooEarly = " counts as ready before it starts"
)

var twoFenced = []podKind{fencedPod, fencedPod}

// mutations are errors in the protocol, and the violation that the search must find for each.
var mutations = map[string]struct {
	mutation
	// pods are two pods with the wrapper if they are not set.
	pods []podKind
	// created, nodes and controllers are at least 1.
	created, nodes, controllers, faults int
	never, queues, pauses               bool
	// wantBroken is twoRun or wrongEpoch if it is empty.
	wantBroken string
}{
	// Errors that the previous operator makes.
	"a crash-looping holder counts as terminated": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.reported == crashedProcess })}, faults: 1, wantBroken: twoRun,
	},
	"pods that ran before the singleton existed are ignored": {
		mutation: mutation{see: eachPod(func(p *podState) {
			if p.kind == barePod {
				*p = podState{}
			}
		})}, pods: []podKind{barePod, wrapperPod}, wantBroken: twoRun,
	},
	"a removed holder counts as terminated": {
		mutation: mutation{see: func(v *view) {
			if h := v.singleton.holder; h > 0 && v.pods[h-1].kind == noPod {
				v.singleton.attested = h
			}
		}}, faults: 2, wantBroken: twoRun,
	},

	"a terminating pod without the finalizer is not recorded first": {
		mutation: mutation{see: eachPod(func(p *podState) { p.finalizer = p.finalizer || p.deleting })},
		pods:     []podKind{barePod, barePod, wrapperPod}, created: 2, faults: 2, wantBroken: twoRun,
	},

	// Facts that prove nothing.
	"a terminating pod counts as terminated": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.deleting })}, faults: 1, wantBroken: twoRun,
	},
	"a Failed pod counts as terminated": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.phase == failedPhase })}, faults: 2, wantBroken: twoRun,
	},
	"a terminating pod with a terminated container counts as terminated": {
		mutation: mutation{see: countAsDead(func(p *podState) bool { return p.deleting && p.reported == crashedProcess })}, faults: 2, wantBroken: twoRun,
	},
	"an unreachable node counts as off": {
		mutation: mutation{see: func(v *view) {
			for i := range v.nodes {
				v.nodes[i].outOfService = v.nodes[i].notReady
			}
		}}, faults: 2, wantBroken: twoRun,
	},
	"a terminating pod without the finalizer counts as never started": {
		mutation: mutation{see: eachPod(func(p *podState) {
			if !p.finalizer && p.deleting && p.kind != barePod {
				p.signal, p.role, p.gate = false, false, closedGate
			}
		})}, faults: 3, wantBroken: twoRun,
	},

	// Writes in a different order.
	"Signal comes before Record": {mutation: mutation{plan: move(recordStep, signalStep)}, controllers: 2, faults: 1, wantBroken: twoRun},
	"OpenBarrier comes before Record": {
		mutation: mutation{plan: move(openBarrierStep, recordStep)}, pods: []podKind{barrierPod, barrierPod}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"the pod has no annotation chosen-by": {
		mutation: mutation{see: eachPod(func(p *podState) { p.chosenBy = 0 })}, pods: []podKind{barrierPod, barrierPod}, faults: 2, wantBroken: twoRun,
	},
	"Protect comes after Record":    {mutation: mutation{plan: move(recordStep, protectStep)}, faults: 2, wantBroken: needPerson},
	"Unprotect comes before Record": {mutation: mutation{plan: move(unprotectStep, recordStep)}, faults: 2, wantBroken: needPerson},
	"a pause keeps the next pod from starting": {
		mutation: mutation{see: func(v *view) {
			for i := range v.pods {
				if v.singleton.paused && v.singleton.holder != uint8(i+1) {
					v.pods[i] = podState{}
				}
			}
		}}, pauses: true, faults: 1, wantBroken: nobodyHolds,
	},

	// Writes that are left out, or that ignore the writes of other clients.
	"pods receive no finalizer":                  {mutation: mutation{noFinalizer: true}, faults: 1, wantBroken: needPerson},
	"Record is not a compare-and-swap":           {mutation: mutation{blindRecord: true}, controllers: 2, wantBroken: twoRun},
	"Signal ignores the writes of other clients": {mutation: mutation{blindSignal: true}, controllers: 2, faults: 1, wantBroken: twoRun},
	"other standbys keep the finalizer while there is no record": {
		mutation: mutation{plan: without(unprotectStep, func(_ *planState, s step) bool { return s.conditional })}, controllers: 2, faults: 1, wantBroken: twoRun,
	},
	"controllers read pods from a cache": {mutation: mutation{cached: true}, controllers: 2, faults: 1, wantBroken: twoRun},
	"the deletion of a singleton ignores other writes when it removes a finalizer": {
		mutation: mutation{plan: unconditionally(stripStep)}, pods: []podKind{barePod, wrapperPod}, faults: 2, wantBroken: twoRun,
	},
	"the deletion of a singleton ignores that a pod was removed": {
		mutation: mutation{blindStrip: true}, pods: []podKind{barePod, wrapperPod}, faults: 3, wantBroken: twoRun,
	},
	"the deletion of a singleton removes the finalizer of terminating pods": {
		mutation: mutation{see: func(v *view) {
			for i := range v.pods {
				v.pods[i].deleting = v.pods[i].deleting && !v.singleton.deleting
			}
		}}, faults: 2, wantBroken: twoRun,
	},

	// Errors of the sidecar.
	"a pod starts because it saw that the Lease names it":  {pods: twoFenced, mutation: mutation{startUnrenewed: true}, faults: 1},
	"a pod that released the Lease starts again":           {pods: twoFenced, mutation: mutation{restartRetired: true}, faults: 1},
	"a pod renews the Lease that names another pod":        {pods: twoFenced, mutation: mutation{blindRenewal: true}, faults: 1},
	"a pod releases the Lease while its main process runs": {pods: twoFenced, mutation: mutation{releaseRunning: true}, faults: 1},
	"a pod runs longer than the Lease is valid":            {pods: twoFenced, mutation: mutation{stopLate: true}, faults: 1},

	"a pod delays its stop beyond the Lease": {pods: twoFenced, mutation: mutation{delayLate: true}, queues: true, faults: 1},

	// Facts that prove nothing.
	"a pod that is Ready runs its main process": {
		pods: twoFenced, mutation: mutation{see: func(v *view) { v.lease.started = v.lease.epoch }}, queues: true, wantBroken: readyTooEarly,
	},
	"a controller decides as if the holder had released the Lease": {pods: twoFenced, mutation: mutation{expectRelease: true}},
	"a Lease has expired without a duration of silence":            {pods: twoFenced, mutation: mutation{see: func(v *view) { v.silent = true }}},
	"a controller does not notice renewals":                        {pods: twoFenced, mutation: mutation{missRenewals: true}, nodes: 2, faults: 1},
	"a Lease that never expires has expired":                       {pods: twoFenced, mutation: mutation{expireNever: true}, never: true, nodes: 2, faults: 1},
	"a pod that is not fenced has lost the Lease": {
		mutation: mutation{see: eachPod(func(p *podState) {
			if p.kind == wrapperPod {
				p.kind = fencedPod
			}
		})}, pods: []podKind{wrapperPod, fencedPod},
	},
	"a Lease that was created again counts as released": {
		pods: twoFenced, mutation: mutation{see: func(v *view) {
			if v.lease.exists && v.lease.epoch == 0 {
				v.lease.epoch = v.singleton.epoch
			}
		}}, faults: 1,
	},
	"a pod on an unreachable node has lost the Lease": {
		pods: twoFenced, mutation: mutation{see: countAsReleased(func(v *view, p *podState) bool { return p.node > 0 && v.nodes[p.node-1].notReady })}, nodes: 2, faults: 1,
	},
	"a terminating pod has released the Lease": {pods: twoFenced, mutation: mutation{see: countAsReleased(func(_ *view, p *podState) bool { return p.deleting })}, faults: 1},
	"a retired pod has released the Lease": {
		pods: twoFenced, mutation: mutation{see: countAsReleased(func(v *view, _ *podState) bool { return v.lease.retire == v.lease.holder })}, faults: 1,
	},

	// Writes of fenced pods in a different order, or that ignore the writes of other clients.
	"the Lease names a pod before Record":              {pods: twoFenced, mutation: mutation{plan: move(writeLeaseStep, recordStep)}, controllers: 2},
	"Record of a fenced pod is not a compare-and-swap": {pods: twoFenced, mutation: mutation{blindRecord: true}, controllers: 2},
	"a fenced pod has no annotation chosen-by":         {pods: twoFenced, mutation: mutation{see: eachPod(func(p *podState) { p.chosenBy = 0 })}, faults: 1},
}

// countAsDead changes the selected pods: the kubelet appears to have ended them.
func countAsDead(which func(*podState) bool) func(*view) {
	return eachPod(func(p *podState) {
		if which(p) {
			p.reported, p.phase = endedProcess, endedPhase
		}
	})
}

// countAsReleased makes the holder of the Lease appear to have released it.
func countAsReleased(which func(*view, *podState) bool) func(*view) {
	return func(v *view) {
		if h := v.lease.holder; h > 0 && which(v, &v.pods[h-1]) {
			v.lease.holder = 0
		}
	}
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
			m := newModel(tc.pods, max(1, tc.nodes), max(1, tc.controllers))
			m.mutation, m.never, m.queues, m.pauses = tc.mutation, tc.never, tc.queues, tc.pauses
			ways := []string{tc.wantBroken}
			if tc.wantBroken == "" {
				ways = []string{twoRun, wrongEpoch}
			}
			wantBroken(t, m, m.start(max(1, tc.created), tc.faults), ways...)
		})
	}
}

// wantBroken searches until a guarantee is broken, in one of the ways.
func wantBroken(t *testing.T, m *model, start world, ways ...string) {
	t.Helper()
	s := search.Search[world]{Model: m, Start: start, Check: newSettler(m).check}
	if slices.Contains(ways, twoRun) {
		s.Check = func(world) string { return "" } // the model checks each start on its own
	}
	broken := s.Run()
	if !slices.ContainsFunc(ways, func(way string) bool { return strings.Contains(broken, way) }) {
		t.Fatalf("broken: %q, want one of %q in it; %d states", broken, ways, s.States())
	}
	t.Logf("after %d states: %s:\n%s", s.States(), broken, s.Trace())
}
