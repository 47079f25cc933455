// Package search visits every world that a small model of a protocol can reach. Only tests import it.
package search

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// Model is a model of a protocol, of the pods and of their faults. Equal worlds behave in the same way.
type Model[W comparable] interface {
	// Actions calls then with each action that is possible in the world.
	Actions(w *W, then func(Action))
	// Do executes the action. It panics with a Violation if the action breaks a guarantee.
	Do(w *W, a Action)
	// Describe describes the action that changed before into after.
	Describe(before, after *W, a Action) string
	// Reduce makes worlds equal that behave in the same way. It returns false if the search leaves the world out.
	Reduce(w *W) bool
}

// Action is an action by the number of its kind. The kind gives A and B a meaning.
type Action struct{ Kind, A, B uint8 }

// Violation is a broken guarantee. Models panic with it.
type Violation string

// Broken returns the Violation with which act panics, or "".
func Broken(act func()) (broken string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case Violation:
			broken = string(r)
		default:
			panic(r)
		}
	}()
	act()
	return ""
}

// Search visits every world that is reachable from Start, in breadth-first order.
type Search[W comparable] struct {
	Model Model[W]
	Start W
	// Check returns what is wrong with a world, or "".
	Check func(W) string
	// Depth is the number of actions that lead to the last worlds.
	Depth int

	// visited has the fingerprints of the visited worlds. With ten million worlds, the probability of a collision is
	// one in 400,000.
	visited map[uint64]struct{}
	seed    maphash.Seed
	// from has, for each world by its number, the action that first reached it.
	from []origin
	// here are the worlds of the current depth. there are the worlds of the next depth.
	here, there []W
	broken      string
	at          uint32
}

// origin is a world, by its number, and an action in that world.
type origin struct {
	world uint32
	Action
}

// Run returns what is wrong with the first world that breaks a guarantee or that Check rejects, or "".
func (s *Search[W]) Run() (broken string) {
	s.visited, s.seed = map[uint64]struct{}{}, maphash.MakeSeed()
	s.add(s.Start, origin{})
	for first := uint32(0); len(s.there) > 0; s.Depth++ {
		s.here, s.there = s.there, s.here[:0]
		for i := range s.here {
			if s.visit(&s.here[i], first+uint32(i)); s.broken != "" {
				return s.broken
			}
		}
		first += uint32(len(s.here))
	}
	return ""
}

// visit checks a world, and adds the worlds that its actions reach.
func (s *Search[W]) visit(w *W, number uint32) {
	if s.broken, s.at = s.Check(*w), number; s.broken != "" {
		return
	}
	s.Model.Actions(w, func(a Action) {
		if s.broken != "" {
			return
		}
		after, from := *w, origin{number, a}
		if s.broken = Broken(func() { s.Model.Do(&after, a) }); s.broken != "" {
			s.at = uint32(len(s.from))
			s.from = append(s.from, from)
			return
		}
		if s.Model.Reduce(&after) {
			s.add(after, from)
		}
	})
}

func (s *Search[W]) add(w W, from origin) {
	fingerprint := maphash.Comparable(s.seed, w)
	if _, ok := s.visited[fingerprint]; ok {
		return
	}
	s.visited[fingerprint] = struct{}{}
	s.there, s.from = append(s.there, w), append(s.from, from)
}

// States returns the number of visited worlds.
func (s *Search[W]) States() int { return len(s.from) }

// Trace returns the actions that led to the world that Run rejected, one per line.
func (s *Search[W]) Trace() string {
	var path []Action
	for i := s.at; i != 0; i = s.from[i].world {
		path = append(path, s.from[i].Action)
	}
	var lines []string
	w := s.Start
	for _, a := range slices.Backward(path) {
		before := w
		broken := Broken(func() { s.Model.Do(&w, a) })
		line := fmt.Sprintf("%2d. %s", len(lines)+1, s.Model.Describe(&before, &w, a))
		if broken != "" {
			line += ": " + broken
		}
		lines = append(lines, line)
		s.Model.Reduce(&w)
	}
	return strings.Join(lines, "\n")
}
