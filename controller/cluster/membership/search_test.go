package membership_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
)

var deep = flag.Bool("deep", false, "visit larger worlds too")

// setting is a small world.
type setting struct {
	// replicas and target are the old and the new number of replicas. The target can also be unscaled or deleted.
	replicas, target, controllers, deletions, faults int
	state                                            v1.ReplacementState
	// empty is true if no pod exists yet. Otherwise all pods are Ready, on alternating nodes.
	empty bool
	// also are more faults that can happen.
	also []actionKind
	deep bool
}

// searches are the worlds that TestSearch visits completely.
var searches = map[string]setting{
	"the first pods":           {replicas: 2, empty: true, target: unscaled, controllers: 2},
	"the first pod, faults":    {replicas: 1, empty: true, target: unscaled, controllers: 2, faults: 1},
	"a replacement":            {replicas: 1, target: unscaled, controllers: 2, deletions: 1, faults: 1},
	"two replacements":         {replicas: 2, target: unscaled, controllers: 1, deletions: 2, faults: 1},
	"a fresh replacement":      {replicas: 1, target: unscaled, controllers: 1, deletions: 2, faults: 2, state: v1.ReplacementFresh},
	"a lost pod":               {replicas: 2, target: unscaled, controllers: 1, faults: 2},
	"scaled down":              {replicas: 2, target: 1, controllers: 1, deletions: 1, faults: 1},
	"scaled up":                {replicas: 1, target: 2, controllers: 1, deletions: 1, faults: 1},
	"deleted":                  {replicas: 2, target: deleted, controllers: 1, deletions: 1, faults: 1},
	"a deleted claim":          {replicas: 1, target: unscaled, controllers: 1, deletions: 2, faults: 2, also: []actionKind{endClaimAction}},
	"the first claim, deleted": {replicas: 2, empty: true, target: unscaled, controllers: 1, faults: 1, also: []actionKind{endClaimAction, rejectAction}},
	"rejected writes":          {replicas: 2, target: 1, controllers: 1, deletions: 1, faults: 1, also: []actionKind{rejectAction}},
	"uninstalled, installed":   {replicas: 1, target: unscaled, controllers: 1, deletions: 1, faults: 2, also: []actionKind{uninstallAction}},
	"a lost status":            {replicas: 1, target: unscaled, controllers: 1, deletions: 2, faults: 2, also: []actionKind{keepAction, loseStatusAction}},
	"a forged pod":             {replicas: 1, target: unscaled, controllers: 1, deletions: 1, faults: 1, also: []actionKind{forgeAction}},
	"a forged pod, scaled":     {replicas: 2, target: 1, controllers: 1, faults: 1, also: []actionKind{forgeAction}},
	"forged pods, deleted":     {replicas: 1, target: deleted, controllers: 1, faults: 2, also: []actionKind{forgeAction}},
	"two forged pods":          {replicas: 1, target: unscaled, controllers: 1, deletions: 1, faults: 2, also: []actionKind{forgeAction}, deep: true},
	"forged, scaled, deleted":  {replicas: 2, target: 1, controllers: 1, deletions: 1, faults: 1, also: []actionKind{forgeAction}, deep: true},
	"scaled, two controllers":  {replicas: 2, target: 1, controllers: 2, faults: 1, deep: true},
	"deleted, two controllers": {replicas: 1, target: deleted, controllers: 2, deletions: 1, faults: 1, deep: true},
	"a lost pod, more faults":  {replicas: 2, target: unscaled, controllers: 1, deletions: 1, faults: 3, deep: true},
	"a lost status, two pods":  {replicas: 2, target: unscaled, controllers: 1, deletions: 1, faults: 2, also: []actionKind{keepAction, loseStatusAction}, deep: true},
	"two pods, all at once":    {replicas: 2, target: unscaled, controllers: 2, deletions: 1, faults: 1, deep: true},
}

func (m *model) Actions(w *world, then func(search.Action)) {
	for kind := range actionKinds {
		for slot := range maxNames {
			if m.enabled(w, kind, slot) {
				then(search.Action{Kind: uint8(kind), A: uint8(slot)})
			}
		}
	}
}

func (m *model) Do(w *world, a search.Action) { m.do(w, actionKind(a.Kind), int(a.A)) }

func (m *model) Describe(before, _ *world, a search.Action) string {
	text := fmt.Sprintf("%s %d", actionNames[a.Kind], a.A)
	if c := before.controllers[a.A%maxControllers]; actionKind(a.Kind) == advanceAction && c.stage == planStage {
		text += fmt.Sprintf(": %T%+[1]v", m.plans[c.plan].steps[c.done])
	}
	return text
}

func (m *model) Reduce(w *world) bool { return w.record.next != tooMany }

// settle lets everything that is not a fault happen until nothing changes. It returns a text if the pods are not those that the
// StatefulCluster should have then.
func (m *model) settle(w world) string {
	for i := range w.nodes {
		if w.nodes[i].cut && !w.nodes[i].off {
			m.do(&w, healAction, i)
		}
	}
	w.controllers, w.faults, w.deletions = [maxControllers]controllerState{}, 0, 0
	for range 60 {
		before := w
		for kind := deliverAction; kind < actionKinds; kind++ {
			for slot := range maxNames {
				if !m.enabled(&w, kind, slot) {
					continue
				}
				if broken := search.Broken(func() { m.do(&w, kind, slot) }); broken != "" {
					return broken
				}
			}
		}
		for range 12 {
			if broken := search.Broken(func() { m.do(&w, advanceAction, 0) }); broken != "" {
				return broken
			}
			if w.record.next == tooMany {
				return ""
			}
		}
		if w == before && w.controllers[0].stage == idleStage {
			break
		}
	}
	if m.onlyGuarantee {
		return ""
	}
	return m.wrong(&w)
}

// remains is part of the text about a pod that should not exist.
const remains = "remains"

// wrong returns what is wrong with a settled world, or "".
func (m *model) wrong(w *world) string {
	ready := 0
	for i := range w.pods {
		p, r := &w.pods[i], w.record.members[i]
		switch {
		case p.exists && r.state == 'A' && r.life == p.life && p.ready && p.finalizer:
			ready++
		case p.exists || r.state != 0:
			return fmt.Sprintf("pod %s %s: %+v", podName(i), remains, *w)
		}
	}
	want := int(w.replicas)
	if w.deleting {
		want = 0
	}
	if ready != want || w.deleting && !w.gone || w.record.released != 0 {
		return fmt.Sprintf("%d pods are Ready, want %d: %+v", ready, want, *w)
	}
	return ""
}

// TestSearch visits every reachable world of each search. No two pods run with one name or one claim. After faults stop, the
// StatefulCluster has the pods that it should have.
func TestSearch(t *testing.T) {
	for name, tc := range searches {
		if tc.deep && !*deep {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel(tc)
			s := search.Search[world]{Model: m, Start: m.start(), Check: m.settle}
			if broken := s.Run(); broken != "" {
				t.Fatalf("%s:\n%s", broken, s.Trace())
			}
			t.Logf("%d states, depth %d, %d different decisions", s.States(), s.Depth, len(m.plans)-1)
		})
	}
}

// mutations are errors in the protocol that the search must find.
var mutations = map[string]struct {
	mutation
	setting
	want string
}{
	"Record is not a compare-and-swap": {
		mutation{blindRecord: true}, setting{replicas: 1, target: unscaled, controllers: 2, deletions: 1}, "runs",
	},
	"new pods have no scheduling gate": {
		mutation{withoutGates: true}, setting{replicas: 1, target: unscaled, controllers: 1, deletions: 2, faults: 1}, "run with the name",
	},
	"the scheduling gate is removed before the UID is recorded": {
		mutation{plan: first[membership.Ungate]}, setting{replicas: 2, empty: true, target: 1, controllers: 2, faults: 1}, "is deleted while the pod runs",
	},
	"pods are deleted without a record that they leave": {
		mutation{see: trustRecord, record: func(r *record) {
			for i := range r.members {
				if r.members[i].state == 'L' {
					r.released, r.members[i] = r.released|1<<(r.members[i].claim-1), memberState{}
				}
			}
		}}, setting{replicas: 2, target: 1, controllers: 1}, "while coder-1 runs with it",
	},
	"a terminating pod counts as terminated": {
		mutation{see: func(v *view) {
			for i := range v.pods {
				v.pods[i].reported = v.pods[i].reported || v.pods[i].deleting
			}
		}}, setting{replicas: 1, target: unscaled, controllers: 1, deletions: 1}, "while coder-0 runs with it",
	},
	"a pod on an unready node counts as terminated": {
		mutation{see: func(v *view) {
			for i := range v.nodes {
				v.nodes[i].outOfService = v.nodes[i].notReady
			}
		}}, setting{replicas: 2, target: unscaled, controllers: 1, faults: 1}, "while coder-0 runs with it",
	},
	"a removed pod counts as terminated": {
		mutation{see: func(v *view) {
			for i, r := range v.record.members {
				if r.life > 0 && !v.pods[i].exists {
					v.attested = attested{uint8(i) + 1, r.life}
				}
			}
		}}, setting{replicas: 1, target: unscaled, controllers: 1, deletions: 1, faults: 2}, "starts with the claim of",
	},
	"the successor of a lost pod gets its claims": {
		mutation{plan: untilRecord, record: func(r *record) {
			for i := range r.members {
				for j := range r.members {
					if r.members[i].state == 'X' && r.members[j].state == 'P' {
						r.members[j].claim = r.members[i].claim
					}
				}
			}
		}}, setting{replicas: 2, target: unscaled, controllers: 1, faults: 1}, "while coder-0 runs with it",
	},
	"a pod with the UID of the StatefulCluster counts as controlled, and the record alone says who uses a claim": {
		mutation{see: func(v *view) {
			for i := range v.pods {
				v.pods[i].forged = false
			}
			trustRecord(v)
		}}, setting{replicas: 2, target: unscaled, controllers: 1, faults: 1, also: []actionKind{forgeAction}}, "runs",
	},
	"a claim goes to the successor while another pod runs with it": {
		mutation{see: func(v *view) {
			for i := range v.pods {
				if v.pods[i].forged {
					v.pods[i] = podState{}
				}
			}
		}}, setting{replicas: 1, target: unscaled, controllers: 1, deletions: 1, faults: 1, also: []actionKind{forgeAction}}, "while coder-1 runs with it",
	},
	"the claims of a lost pod are deleted": {
		mutation{see: trustRecord, record: func(r *record) {
			for i := range r.members {
				if r.members[i].state == 'X' {
					r.released |= 1 << (r.members[i].claim - 1)
				}
			}
		}}, setting{replicas: 2, target: unscaled, controllers: 1, faults: 1}, "while coder-0 runs with it",
	},
	"the counter follows the members": {
		mutation{record: func(r *record) {
			r.next = 0
			for i := range r.members {
				if r.members[i].state != 0 {
					r.next = uint8(i) + 1
				}
			}
		}}, setting{replicas: 2, target: 1, controllers: 1, deletions: 1}, "run with the name",
	},
	"finalizers are never removed": {
		mutation{plan: func(steps []membership.Step) []membership.Step {
			return slices.DeleteFunc(slices.Clone(steps), func(s membership.Step) bool { _, ok := s.(membership.Unprotect); return ok })
		}}, setting{replicas: 1, target: unscaled, controllers: 1, deletions: 1}, remains,
	},
}

// trustRecord hides that a pod uses a claim, unless the record gives the claim to its member.
func trustRecord(v *view) {
	for i := range v.pods {
		if p := &v.pods[i]; p.claim > 0 && (v.record.members[i].claim != p.claim || v.record.released&(1<<(p.claim-1)) != 0) {
			p.claim = 0
		}
	}
}

// untilRecord removes all steps after Record.
func untilRecord(steps []membership.Step) []membership.Step {
	if i := slices.Index(steps, membership.Step(membership.Record{})); i >= 0 {
		return steps[:i+1]
	}
	return steps
}

// first moves all steps of a type to the beginning.
func first[S membership.Step](steps []membership.Step) []membership.Step {
	var moved, others []membership.Step
	for _, step := range steps {
		if _, ok := step.(S); ok {
			moved = append(moved, step)
		} else {
			others = append(others, step)
		}
	}
	return append(moved, others...)
}

// TestSearchFindsMutations shows that the search finds errors in the protocol.
func TestSearchFindsMutations(t *testing.T) {
	for name, tc := range mutations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel(tc.setting)
			m.mutation, m.onlyGuarantee = tc.mutation, tc.want != remains
			s := search.Search[world]{Model: m, Start: m.start(), Check: m.settle}
			broken := s.Run()
			if !strings.Contains(broken, tc.want) || broken == "" {
				t.Fatalf("the search found %q, want %q", broken, tc.want)
			}
			t.Log(s.Trace())
		})
	}
}
