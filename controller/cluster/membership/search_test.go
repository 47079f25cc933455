package membership_test

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
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

// search visits every reachable world, in breadth-first order.
type search struct {
	*model
	visited map[uint64]struct{}
	seed    maphash.Seed
	from    []origin
	// here are the worlds of the current depth. there are the worlds of the next depth.
	here, there []world
	depth       int
	// onlyGuarantee is true if a world in which the StatefulCluster does not get its pods is no violation.
	onlyGuarantee bool
}

// origin is a world, by its number, and an action in that world.
type origin struct {
	world uint32
	kind  actionKind
	slot  uint8
}

// explore visits every world that is reachable from start. It returns the first violation and the number of its world,
// or "".
func (s *search) explore(start world) (broken string, at uint32) {
	s.visited, s.seed = map[uint64]struct{}{}, maphash.MakeSeed()
	s.add(start, origin{})
	for first := 0; len(s.there) > 0; s.depth++ {
		s.here, s.there = s.there, nil
		here := first
		first += len(s.here)
		for i := range s.here {
			w := &s.here[i]
			if stuck := s.settle(*w); stuck != "" {
				return stuck, uint32(here + i)
			}
			for kind := range actionKinds {
				for slot := range maxNames {
					if !s.enabled(w, kind, slot) {
						continue
					}
					after, o := *w, origin{uint32(here + i), kind, uint8(slot)}
					if broken := s.try(&after, kind, slot); broken != "" {
						s.from = append(s.from, o)
						return broken, uint32(len(s.from) - 1)
					}
					s.add(after, o)
				}
			}
		}
	}
	return "", 0
}

func (s *search) try(w *world, kind actionKind, slot int) (broken string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			broken = string(r)
		default:
			panic(r)
		}
	}()
	s.do(w, kind, slot)
	return ""
}

func (s *search) add(w world, from origin) {
	if w.record.next == tooMany {
		return
	}
	fingerprint := maphash.Comparable(s.seed, w)
	if _, ok := s.visited[fingerprint]; ok {
		return
	}
	s.visited[fingerprint] = struct{}{}
	s.there, s.from = append(s.there, w), append(s.from, from)
}

// settle lets everything that is not a fault happen until nothing changes. It returns a text if the pods are not those that the
// StatefulCluster should have then.
func (s *search) settle(w world) string {
	for i := range w.nodes {
		if w.nodes[i].cut && !w.nodes[i].off {
			s.do(&w, healAction, i)
		}
	}
	w.controllers, w.faults, w.deletions = [maxControllers]controllerState{}, 0, 0
	for range 60 {
		before := w
		for kind := deliverAction; kind < actionKinds; kind++ {
			for slot := range maxNames {
				if !s.enabled(&w, kind, slot) {
					continue
				}
				if broken := s.try(&w, kind, slot); broken != "" {
					return broken
				}
			}
		}
		for range 12 {
			if broken := s.try(&w, advanceAction, 0); broken != "" {
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
	if s.onlyGuarantee {
		return ""
	}
	return s.wrong(&w)
}

// remains is part of the text about a pod that should not exist.
const remains = "remains"

// wrong returns what is wrong with a settled world, or "".
func (s *search) wrong(w *world) string {
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
			s := &search{model: newModel(tc)}
			start := s.start()
			if broken, at := s.explore(start); broken != "" {
				t.Fatalf("%s:\n%s", broken, s.trace(start, at))
			}
			t.Logf("%d states, depth %d, %d different decisions", len(s.from), s.depth, len(s.plans)-1)
		})
	}
}

// trace returns the actions that led to the world, one per line.
func (s *search) trace(w world, at uint32) string {
	var path []origin
	for i := at; i != 0; i = s.from[i].world {
		path = append(path, s.from[i])
	}
	var lines []string
	for _, o := range slices.Backward(path) {
		line := fmt.Sprintf("%2d. %s %d", len(lines)+1, actionNames[o.kind], o.slot)
		if c := w.controllers[o.slot%maxControllers]; o.kind == advanceAction && c.stage == planStage {
			line += fmt.Sprintf(": %T%+[1]v", s.plans[c.plan].steps[c.done])
		}
		if broken := s.try(&w, o.kind, int(o.slot)); broken != "" {
			line += ": " + broken
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
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
			s := &search{model: newModel(tc.setting)}
			s.mutation, s.onlyGuarantee = tc.mutation, tc.want != remains
			start := s.start()
			broken, at := s.explore(start)
			if !strings.Contains(broken, tc.want) || broken == "" {
				t.Fatalf("the search found %q, want %q", broken, tc.want)
			}
			t.Log(s.trace(start, at))
		})
	}
}
