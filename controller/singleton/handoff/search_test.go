package handoff_test

import (
	"flag"
	"testing"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
)

var deep = flag.Bool("deep", false, "have TestSearch visit larger worlds, too")

// searches are the small worlds that TestSearch visits completely.
var searches = map[string]struct {
	pods []podKind
	// created is the number of pods that exist at the start.
	created, nodes, controllers, faults int
	wishes, deep, never, queues, pauses bool
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
	"the Lease never expires":                {pods: twoFenced, created: 1, nodes: 2, controllers: 1, faults: 1, never: true},
	"it never expires, two controllers":      {pods: twoFenced, created: 1, nodes: 1, controllers: 2, never: true},
	"handoffs are paused":                    {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 1, controllers: 1, faults: 2, pauses: true},
	"two pods that queue clients":            {pods: twoFenced, created: 1, nodes: 1, controllers: 1, faults: 1, queues: true},
	"they queue clients, two controllers":    {pods: twoFenced, created: 1, nodes: 1, controllers: 2, queues: true},
	"four faults":                            {pods: []podKind{wrapperPod, barrierPod}, created: 1, nodes: 1, controllers: 1, faults: 4, deep: true},
}

func (m *model) Reduce(w *world) bool {
	m.canonical(w)
	return true
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
			m.wishes, m.never, m.queues, m.pauses = tc.wishes, tc.never, tc.queues, tc.pauses
			s := search.Search[world]{Model: m, Start: m.start(tc.created, tc.faults), Check: newSettler(m).check}
			if broken := s.Run(); broken != "" {
				t.Fatalf("%s:\n%s", broken, s.Trace())
			}
			t.Logf("%d states, depth %d, %d different decisions", s.States(), s.Depth, len(m.plans)-1)
		})
	}
}
