package singleton

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// The predicates pass the events of nodes and other singletons that can change a decision.
func TestPredicates(t *testing.T) {
	fine := &corev1.Node{}
	for _, test := range []struct {
		what  string
		after corev1.Node
		want  bool
	}{
		{"a cordon", corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, true},
		{"a taint", corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "gone", Effect: corev1.TaintEffectNoExecute}}}}, true},
		{"a Ready node", corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, true},
		{"no change", corev1.Node{}, false},
	} {
		for _, change := range []event.UpdateEvent{{ObjectOld: fine, ObjectNew: &test.after}, {ObjectOld: &test.after, ObjectNew: fine}} {
			if got := observe.NodeChanges().Update(change); got != test.want {
				t.Errorf("%s, or its end, passes: %t, want %t", test.what, got, test.want)
			}
		}
	}
	neighbour := &v1.StatefulSingleton{}
	if !observe.CreatedOrDeleted().Create(event.CreateEvent{Object: neighbour}) || !observe.CreatedOrDeleted().Delete(event.DeleteEvent{Object: neighbour}) {
		t.Error("the creation or deletion of a singleton does not pass")
	}
	if observe.CreatedOrDeleted().Update(event.UpdateEvent{ObjectOld: neighbour, ObjectNew: neighbour}) {
		t.Error("the change of a singleton passes")
	}
}
