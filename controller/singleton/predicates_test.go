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
	node := func(change func(*corev1.Node)) *corev1.Node {
		node := &corev1.Node{}
		change(node)
		return node
	}
	fine := node(func(*corev1.Node) {})
	answers := node(func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
	cordoned := node(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	tainted := node(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "gone", Effect: corev1.TaintEffectNoExecute}}
	})
	for name, test := range map[string]struct {
		after *corev1.Node
		want  bool
	}{
		"a cordon": {cordoned, true}, "a taint": {tainted, true}, "no change": {fine, false}, "a Ready node": {answers, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := observe.NodeChanges().Update(event.UpdateEvent{ObjectOld: fine, ObjectNew: test.after}); got != test.want {
				t.Errorf("the change passes: %t, want %t", got, test.want)
			}
			if got := observe.NodeChanges().Update(event.UpdateEvent{ObjectOld: test.after, ObjectNew: fine}); got != test.want {
				t.Errorf("the opposite change passes: %t, want %t", got, test.want)
			}
		})
	}
	neighbour := &v1.StatefulSingleton{}
	if !createdOrDeleted().Create(event.CreateEvent{Object: neighbour}) || !createdOrDeleted().Delete(event.DeleteEvent{Object: neighbour}) {
		t.Error("the creation or deletion of a singleton does not pass")
	}
	if createdOrDeleted().Update(event.UpdateEvent{ObjectOld: neighbour, ObjectNew: neighbour}) {
		t.Error("the change of a singleton passes")
	}
}
