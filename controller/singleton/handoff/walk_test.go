package handoff_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
)

// TestWalkNeverRunsTwo takes random paths through a world that is too large for a complete search. The world has six
// pods of five revisions, three nodes, three controllers and up to 255 faults. The model checks each start of a
// process, and the epoch of each release. At the end of a path faults stop, and one pod must hold. In half of the paths,
// most pods are fenced.
//
// The test takes 10,000 paths, or the number in -rapid.checks.
func TestWalkNeverRunsTwo(t *testing.T) {
	setDefault(t, "rapid.checks", "10000")
	unfenced, mostlyFenced := []podKind{wrapperPod, barrierPod}, []podKind{wrapperPod, fencedPod, fencedPod}
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom(rapid.SampledFrom([][]podKind{unfenced, mostlyFenced}).Draw(t, "kinds"))
		pods := make([]podKind, maxPods)
		for i := range pods {
			pods[i] = kinds.Draw(t, "kind")
		}
		if rapid.Bool().Draw(t, "one ran before") {
			pods[0] = barePod
		}
		m := newModel(pods, maxNodes, maxControllers)
		m.revisions, m.epochs = 5, true
		m.queues, m.pauses = rapid.Bool().Draw(t, "queues"), true
		w := m.start(1, 255)
		w.excused, w.expiries = true, 255
		for range rapid.IntRange(1, 250).Draw(t, "steps") {
			next := drawAction(t, m, &w)
			before := w
			if broken := search.Broken(func() { m.Do(&w, next) }); broken != "" {
				t.Fatal(broken)
			}
			t.Log(m.Describe(&before, &w, next))
			m.canonical(&w)
		}
		if wrong := newSettler(m).check(w); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// drawAction draws one of the possible actions. One in eight actions is a fault.
func drawAction(t *rapid.T, m *model, w *world) search.Action {
	var ordinary, faults []search.Action
	m.Actions(w, func(a search.Action) {
		if actions[a.Kind].fault {
			faults = append(faults, a)
		} else {
			ordinary = append(ordinary, a)
		}
	})
	from := ordinary
	if len(ordinary) == 0 || len(faults) > 0 && rapid.IntRange(0, 7).Draw(t, "fault") == 7 {
		from = faults
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, "action")]
}

func setDefault(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
}
