package handoff_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

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

func TestHolds(t *testing.T) {
	pod := MakePod("db-1").Barrier().InitContainer(corev1.Container{Name: "migrate", Env: barrier("", "statefulsingleton-db-1").Env}).
		InitContainer(corev1.Container{Name: "seed"}).
		Container(corev1.Container{Name: "side", Command: []string{"/bin/side"}}).Injected().
		Container(corev1.Container{Name: "late"})
	got := handoff.Holds(pod.Obj(), MakeSnapshot().HoldInit().Singleton)
	want := []handoff.Hold{
		{Container: "migrate", Named: true, Init: true, By: handoff.ByBarrier, ConfigMap: "statefulsingleton-db-1"},
		{Container: "seed", Named: true, Init: true, By: handoff.ByNothing},
		{Container: "app", Named: true, By: handoff.ByBarrier, ConfigMap: "statefulsingleton-db-1"},
		{Container: "side", Named: true, By: handoff.ByWrapper},
		{Container: "late", Named: true, By: handoff.ByNothing},
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
