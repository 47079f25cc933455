package tenure_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
)

var deep = flag.Bool("deep", false, "visit larger worlds too")

// searches are the worlds that TestSearch visits completely.
var searches = map[string]struct {
	pods, controllers, deletions, faults int
	// only is the fencing of the world. Empty: every fencing.
	only v1.LockFencing
	deep bool
	// deepLease is deep for the fencing Lease.
	deepLease bool
}{
	"two controllers":                  {pods: 2, controllers: 2, deletions: 1},
	"two controllers with a fault":     {pods: 2, controllers: 2, deletions: 1, faults: 1, only: v1.LockFencingNone},
	"two late controllers":             {pods: 2, controllers: 2, faults: 1},
	"two controllers with more faults": {pods: 2, controllers: 2, deletions: 1, faults: 1, deep: true},
	"three pods":                       {pods: 3, controllers: 1, deletions: 1, faults: 1},
	"three pods, two controllers":      {pods: 3, controllers: 2, deletions: 1, deepLease: true},
	"the lock is replaced":             {pods: 2, controllers: 1, deletions: 1, faults: 1, only: v1.LockFencingLease},
	"the lock is replaced, and faults": {pods: 2, controllers: 1, deletions: 1, faults: 2, only: v1.LockFencingLease, deep: true},
	"three pods, more faults":          {pods: 3, controllers: 1, deletions: 2, faults: 2, deep: true},
}

// maxEpoch is the latest epoch of the worlds that the search visits.
const maxEpoch = 4

func (m *model) Actions(w *world, then func(search.Action)) {
	for kind := range actions {
		for slot := range maxSlots {
			if m.enabled(w, kind, slot) {
				then(search.Action{Kind: uint8(kind), A: uint8(slot)})
			}
		}
	}
}

func (m *model) Do(w *world, a search.Action) { m.do(w, int(a.Kind), int(a.A)) }

func (m *model) Describe(before, _ *world, a search.Action) string {
	text := fmt.Sprintf("%s %d", actions[a.Kind].name, a.A)
	if c := before.controllers[a.A%maxControllers]; a.Kind == advanceAction && c.stage == planStage {
		text += fmt.Sprintf(": %T%+[1]v", m.plans[c.plan].steps[c.done])
	}
	return text
}

// Reduce leaves out late worlds, because two controllers can overtake each other again and again.
func (m *model) Reduce(w *world) bool { return w.latestEpoch() <= maxEpoch }

// settle lets everything that is not a fault happen until nothing changes. It returns a text if no pod is the writer then.
func (m *model) settle(w world) string {
	for i := range w.nodes {
		if w.nodes[i].cut {
			w.heal(i)
		}
	}
	w.controllers, w.faults, w.deletions = [maxControllers]controllerState{}, 0, 0
	for range 40 {
		before := w
		for kind := range actions {
			for slot := range maxSlots {
				if kind == advanceAction || !m.enabled(&w, kind, slot) {
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
		}
		if w == before && w.controllers[0].stage == idleStage {
			break
		}
	}
	for i := range m.slots {
		if w.pods[i].role == writerRole && w.pods[i].ready && int(w.record.writer.pod) == i+1 {
			return ""
		}
	}
	return fmt.Sprintf("no pod becomes the writer: %+v", w)
}

// TestSearch visits every reachable world of each search. At most one pod is the writer at any time. After faults stop, a
// pod becomes the writer.
func TestSearch(t *testing.T) {
	for name, tc := range searches {
		if tc.deep && !*deep {
			continue
		}
		for _, fencing := range []v1.LockFencing{v1.LockFencingNone, v1.LockFencingTermination, v1.LockFencingLease} {
			if tc.only != "" && tc.only != fencing || tc.deepLease && fencing == v1.LockFencingLease && !*deep {
				continue
			}
			t.Run(string(fencing)+", "+name, func(t *testing.T) {
				t.Parallel()
				m := newModel(fencing, tc.pods, tc.controllers)
				s := search.Search[world]{Model: m, Start: m.start(tc.deletions, tc.faults), Check: m.settle}
				if broken := s.Run(); broken != "" {
					t.Fatalf("%s:\n%s", broken, s.Trace())
				}
				t.Logf("%d states, depth %d, %d different decisions", s.States(), s.Depth, len(m.plans)-1)
			})
		}
	}
}

// mutations are errors in the protocol that the search must find.
var mutations = map[string]struct {
	mutation
	fencing                              v1.LockFencing
	pods, controllers, deletions, faults int
	want                                 string
}{
	"Record is not a compare-and-swap": {
		mutation: mutation{blindRecord: true}, fencing: v1.LockFencingTermination, pods: 2, controllers: 2, deletions: 1, faults: 1, want: "gets ",
	},
	"labels ignore the writes of other clients": {
		mutation: mutation{blindLabels: true}, fencing: v1.LockFencingNone, pods: 2, controllers: 2, deletions: 1, faults: 1, want: "gets the label while",
	},
	"a pod is labelled for a tenure that ends": {
		mutation: mutation{see: func(v *view) {
			for i := range v.pods {
				if v.pods[i].ready {
					v.pods[i].ended = 0
				}
			}
		}}, fencing: v1.LockFencingNone, pods: 2, controllers: 2, faults: 1, want: "gets the label while",
	},
	"a terminating pod counts as terminated": {
		mutation: mutation{see: func(v *view) {
			for i := range v.pods {
				v.pods[i].reported = v.pods[i].reported || v.pods[i].deleting
			}
		}}, fencing: v1.LockFencingTermination, pods: 2, controllers: 1, deletions: 1, want: "gets a tenure while",
	},
	"a removed writer counts as terminated": {
		mutation: mutation{plan: without[tenure.Protect]}, fencing: v1.LockFencingTermination, pods: 2, controllers: 1, deletions: 1, faults: 1, want: "no pod becomes",
	},
	"a label is taken for removed": {
		mutation: mutation{see: func(v *view) {
			for i := range v.pods {
				if p := &v.pods[i]; p.role == writerRole && p.deleting {
					p.role, p.ended = readerRole, p.began
				}
			}
		}}, fencing: v1.LockFencingNone, pods: 2, controllers: 1, deletions: 1, want: "gets the label while",
	},
	"LabelWriter comes before Record": {
		mutation: mutation{plan: labelFirst}, fencing: v1.LockFencingNone, pods: 2, controllers: 2, deletions: 1, faults: 1, want: "gets the label while",
	},
	"WriteLease ignores the writes of other clients": {
		mutation: mutation{blindLease: true}, fencing: v1.LockFencingLease, pods: 2, controllers: 2, deletions: 1, want: "had epoch",
	},
	"a revoked tenure counts as released": {
		mutation: mutation{see: func(v *view) { v.lease.named = v.lease.named && v.lease.revoked < v.lease.epoch }},
		fencing:  v1.LockFencingLease, pods: 2, controllers: 1, deletions: 1, want: "write at the same time",
	},
	"a revoked Lease counts as expired": {
		mutation: mutation{see: func(v *view) { v.lease.silent = v.lease.silent || v.lease.revoked >= v.lease.epoch && v.lease.named }},
		fencing:  v1.LockFencingLease, pods: 2, controllers: 1, deletions: 1, want: "write at the same time",
	},
	"the Lease of a removed writer counts as expired": {
		mutation: mutation{see: func(v *view) {
			if is := v.lease.writer; is.pod > 0 && v.lease.named && (v.pods[is.pod-1].gone || v.pods[is.pod-1].life != is.life) {
				v.lease.silent = true
			}
		}}, fencing: v1.LockFencingLease, pods: 2, controllers: 1, deletions: 1, faults: 1, want: "write at the same time",
	},
	// MarkTenure prevents this too, because a controller that has not seen it fails to label the pod. So this shows that the block
	// suffices without MarkTenure.
	"a fenced pod that is not recorded does not block": {
		mutation: mutation{see: func(v *view) {
			if v.lease.writer != v.record.writer {
				v.lease.fenced = false
			}
		}, plan: without[tenure.MarkTenure], lockStays: true}, fencing: v1.LockFencingLease, pods: 2, controllers: 2, faults: 2, want: "write at the same time",
	},
	"the Lease names a pod that does not show the epoch": {
		mutation: mutation{plan: without[tenure.MarkTenure]}, fencing: v1.LockFencingLease, pods: 2, controllers: 1, deletions: 1, faults: 1, want: "had epoch",
	},
	"a writer that the Lease has not named yet counts as released": {
		mutation: mutation{see: func(v *view) {
			if r := v.record; r.writer.pod > 0 && v.lease.epoch < r.epoch {
				v.lease = leaseState{exists: true, writer: r.writer, epoch: r.epoch}
			}
		}}, fencing: v1.LockFencingLease, pods: 2, controllers: 2, deletions: 1, want: "write at the same time",
	},
}

// without removes all steps of a type.
func without[S tenure.Step](steps []tenure.Step) []tenure.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(s tenure.Step) bool { _, ok := s.(S); return ok })
}

// labelFirst moves LabelWriter to the beginning.
func labelFirst(steps []tenure.Step) []tenure.Step {
	i := slices.IndexFunc(steps, func(s tenure.Step) bool { _, ok := s.(tenure.LabelWriter); return ok })
	if i < 0 {
		return steps
	}
	return slices.Concat(steps[i:i+1], steps[:i], steps[i+1:])
}

// TestSearchFindsMutations shows that the search finds errors in the protocol.
func TestSearchFindsMutations(t *testing.T) {
	for name, tc := range mutations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel(tc.fencing, tc.pods, tc.controllers)
			m.mutation = tc.mutation
			s := search.Search[world]{Model: m, Start: m.start(tc.deletions, tc.faults), Check: m.settle}
			broken := s.Run()
			if broken == "" || !strings.Contains(broken, tc.want) {
				t.Fatalf("the search found %q, want %q", broken, tc.want)
			}
			t.Log(s.Trace())
		})
	}
}
