package handoff_test

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"
)

var deep = flag.Bool("deep", false, "have TestSearch visit larger worlds, too")

// searches are the small worlds that TestSearch visits completely.
var searches = map[string]struct {
	pods []podKind
	// created is the number of pods that exist at the start.
	created, nodes, controllers, faults int
	wishes, deep                        bool
}{
	"two controllers, two nodes, one fault":  {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 2, controllers: 2, faults: 1},
	"two nodes, two faults":                  {pods: []podKind{wrapperPod, wrapperPod}, created: 1, nodes: 2, controllers: 1, faults: 2},
	"three faults":                           {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 1, controllers: 1, faults: 3},
	"three pods, two nodes, one fault":       {pods: []podKind{wrapperPod, barrierPod, wrapperPod}, created: 1, nodes: 2, controllers: 1, faults: 1},
	"one pod ran before, two controllers":    {pods: []podKind{barePod, wrapperPod}, created: 1, nodes: 2, controllers: 2, faults: 1},
	"one pod ran before, two faults":         {pods: []podKind{barePod, barrierPod, wrapperPod}, created: 1, nodes: 1, controllers: 1, faults: 2},
	"two pods ran before":                    {pods: []podKind{barePod, barePod, wrapperPod}, created: 2, nodes: 2, controllers: 1, faults: 2},
	"a drain and a handover, one fault":      {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 2, controllers: 1, faults: 1, wishes: true},
	"three pods, two nodes, two controllers": {pods: []podKind{wrapperPod, barrierPod, wrapperPod}, created: 1, nodes: 2, controllers: 2},
	"three pods, two controllers, one fault": {pods: []podKind{wrapperPod, barrierPod, wrapperPod}, created: 1, nodes: 1, controllers: 2, faults: 1, deep: true},
	"three pods, two faults":                 {pods: []podKind{wrapperPod, barrierPod, wrapperPod}, created: 1, nodes: 1, controllers: 1, faults: 2, deep: true},
	"two controllers, two faults":            {pods: []podKind{wrapperPod, wrapperPod}, created: 1, nodes: 1, controllers: 2, faults: 2, deep: true},
	"three pods, two nodes, two faults":      {pods: []podKind{wrapperPod, barrierPod, wrapperPod}, created: 1, nodes: 2, controllers: 1, faults: 2, deep: true},
	"two nodes, three faults":                {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 2, controllers: 1, faults: 3, deep: true},
	"fencing is turned on, two controllers":  {pods: []podKind{wrapperPod, fencedPod}, created: 1, nodes: 1, controllers: 2},
	"fencing is turned off, two controllers": {pods: []podKind{fencedPod, wrapperPod}, created: 1, nodes: 1, controllers: 2},
	"two fenced pods":                        {pods: []podKind{fencedPod, fencedPod}, created: 1, nodes: 1, controllers: 1, faults: 1},
	"two fenced pods, two controllers":       {pods: []podKind{fencedPod, fencedPod}, created: 1, nodes: 1, controllers: 2},
	"two fenced pods, two faults":            {pods: []podKind{fencedPod, fencedPod}, created: 1, nodes: 1, controllers: 1, faults: 2, deep: true},
	"two fenced pods, two nodes":             {pods: []podKind{fencedPod, fencedPod}, created: 1, nodes: 2, controllers: 1, faults: 1},
	"three fenced pods":                      {pods: []podKind{fencedPod, fencedPod, fencedPod}, created: 1, nodes: 1, controllers: 1},
	"four faults":                            {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 1, controllers: 1, faults: 4, deep: true},
}

// search visits every reachable world, in breadth-first order.
type search struct {
	*model
	start world
	// visited has the fingerprints of the visited worlds. With ten million worlds, the probability of a collision is
	// one in 400,000.
	visited map[uint64]struct{}
	seed    maphash.Seed
	// from has, for each world by its number, the action that first reached it.
	from []origin
	// here are the worlds of the current depth. there are the worlds of the next depth.
	here, there []world
	depth       int
}

// origin is a world, by its number, and an action in that world.
type origin struct {
	world uint32
	kind  actionKind
	a, b  uint8
}

// explore visits every world that is reachable from start. It returns the first violation and the number of its world,
// or "".
func (s *search) explore(check func(world) string) (broken string, at uint32) {
	s.visited, s.seed = map[uint64]struct{}{}, maphash.MakeSeed()
	s.add(s.start, origin{})
	for first := 0; len(s.there) > 0; s.depth++ {
		s.here, s.there = s.there, s.here[:0]
		here := first
		first += len(s.here)
		for i := range s.here {
			w := &s.here[i]
			if broken := check(*w); broken != "" {
				return broken, uint32(here + i)
			}
			s.next(w, func(kind actionKind, a, b uint8) {
				if broken != "" {
					return
				}
				after := *w
				from := origin{uint32(here + i), kind, a, b}
				if broken = s.try(&after, kind, a, b); broken != "" {
					at = uint32(len(s.from))
					s.from = append(s.from, from)
					return
				}
				s.canonical(&after)
				s.add(after, from)
			})
			if broken != "" {
				return broken, at
			}
		}
	}
	return "", 0
}

func (s *search) try(w *world, kind actionKind, a, b uint8) (broken string) {
	defer recoverViolation(&broken)
	s.do(w, kind, a, b)
	return ""
}

func recoverViolation(broken *string) {
	switch r := recover().(type) {
	case nil:
	case violation:
		*broken = string(r)
	default:
		panic(r)
	}
}

func (s *search) add(w world, from origin) {
	fingerprint := maphash.Comparable(s.seed, w)
	if _, ok := s.visited[fingerprint]; ok {
		return
	}
	s.visited[fingerprint] = struct{}{}
	s.there, s.from = append(s.there, w), append(s.from, from)
}

// TestSearch visits every reachable world of each search. Two main processes never run at the same time. After faults
// stop, each world reaches a holder.
func TestSearch(t *testing.T) {
	for name, tc := range searches {
		if tc.deep && !*deep {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel(tc.pods, tc.nodes, tc.controllers)
			m.wishes = tc.wishes
			s := &search{model: m, start: m.start(tc.created, tc.faults)}
			began := time.Now()
			broken, at := s.explore(newSettler(m).check)
			if broken != "" {
				t.Fatalf("%s:\n%s", broken, s.trace(at))
			}
			t.Logf("%d states, depth %d, %d different decisions, %s", len(s.from), s.depth, len(m.plans)-1, time.Since(began).Round(time.Second/10))
		})
	}
}

// trace returns the actions that led to the world, one per line.
func (s *search) trace(at uint32) string {
	var path []origin
	for i := at; i != 0; i = s.from[i].world {
		path = append(path, s.from[i])
	}
	var lines []string
	w := s.start
	for _, o := range slices.Backward(path) {
		before := w
		broken := s.try(&w, o.kind, o.a, o.b)
		if broken == "" {
			broken = s.describe(&before, &w, o.kind, o.a, o.b)
		}
		lines = append(lines, fmt.Sprintf("%2d. %s", len(lines)+1, broken))
		s.canonical(&w)
	}
	return strings.Join(lines, "\n")
}
