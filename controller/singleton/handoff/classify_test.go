package handoff_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func TestClassify(t *testing.T) {
	s := MakeSnapshot(
		MakePod("ended").Injected().Running().Ended().Signalled(6),
		MakePod("theirs").InjectedFor("cache").Warm(),
		MakePod("cold").Injected().Revision(3).On(node1),
		MakePod("warm").Injected().Revision(2).Warm(),
		MakePod("stray").Running(),
		MakePod("holder").Injected().Revision(1).Holding(),
	).Holder("holder")
	type found struct{ Pod, Role, WaitsFor string }
	var got []found
	for _, one := range handoff.Classify(s.Snapshot) {
		got = append(got, found{one.Pod.Name, string(one.Role), one.WaitsFor})
	}
	want := []found{
		{"holder", "Holder", ""},
		{"stray", "Unrecorded", ""},
		{"cold", "Standby", "init container status-sidecar has not started"},
		{"warm", "Standby", ""},
		{"theirs", "Foreign", ""},
		{"ended", "Ended", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Standbys on drained nodes come in the order of their creation, not of the reasons for the drains.
func TestClassifyOrderOnDrainedNodes(t *testing.T) {
	s := MakeSnapshot(
		MakePod("newer").Injected().Warm().On(node1).Created(now.Add(-time.Minute)),
		MakePod("older").Injected().Warm().On(node2).Created(now.Add(-time.Hour)),
	).Cordon(node1).Cordon(node2)
	var got []string
	for _, pod := range handoff.Classify(s.Snapshot) {
		got = append(got, pod.Name)
	}
	if diff := cmp.Diff([]string{"older", "newer"}, got); diff != "" {
		t.Errorf("order of the standbys (-want +got):\n%s", diff)
	}
}
