package singleton

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Each freed slot wakes the next singleton in the queue once. Singletons that left the queue are not woken.
func TestTurns(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "prod", Name: name} }
	var woken []string
	wake := func(key types.NamespacedName) { woken = append(woken, key.Name) }
	var line turns
	take := func(name string) func() { return line.take(key(name), 2, wake) }
	first, second := take("a"), take("b")
	if first == nil || second == nil {
		t.Fatal("the first two have no turn")
	}
	for _, name := range []string{"c", "d", "e", "f", "c"} {
		if take(name) != nil {
			t.Fatalf("%s has a turn beside two others", name)
		}
	}
	line.forget(key("d"))
	first()
	if third := take("e"); third == nil {
		t.Fatal("e has no turn, though one has ended")
	} else if take("c") != nil {
		t.Fatal("c has a turn beside two others")
	} else {
		second()
		third()
	}
	if diff := cmp.Diff([]string{"c", "f", "c"}, woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
	if take("a") == nil || take("b") == nil {
		t.Error("two have no turn, though all have ended")
	}
}

// contentOf differs for all changes that can change a policy. It does not depend on the order of the singletons.
func TestContentOf(t *testing.T) {
	one := func(name, uid string, generation int64) v1.StatefulSingleton {
		return v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation}}
	}
	db, queue := one("db", "1", 1), one("queue", "2", 1)
	if contentOf(db, queue) != contentOf(queue, db) {
		t.Error("the order counts")
	}
	all := []string{contentOf(), contentOf(db), contentOf(db, queue), contentOf(one("db", "3", 1)), contentOf(one("db", "1", 2)), contentOf(one("other", "1", 1))}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("two are taken for the same: %v", all)
	}
}

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
		"a cordon": {cordoned, true}, "a taint": {tainted, true}, "nothing": {fine, false}, "an answer": {answers, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := nodeChanges().Update(event.UpdateEvent{ObjectOld: fine, ObjectNew: test.after}); got != test.want {
				t.Errorf("it passes: %t, want %t", got, test.want)
			}
			if got := nodeChanges().Update(event.UpdateEvent{ObjectOld: test.after, ObjectNew: fine}); got != test.want {
				t.Errorf("its end passes: %t, want %t", got, test.want)
			}
		})
	}
	neighbour := &v1.StatefulSingleton{}
	if !createdOrDeleted().Create(event.CreateEvent{Object: neighbour}) || !createdOrDeleted().Delete(event.DeleteEvent{Object: neighbour}) {
		t.Error("a singleton comes or goes, and its neighbours are not told")
	}
	if createdOrDeleted().Update(event.UpdateEvent{ObjectOld: neighbour, ObjectNew: neighbour}) {
		t.Error("a singleton changes, and its neighbours are told")
	}
}
