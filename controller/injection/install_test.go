package injection

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// contentOf differs for all changes that can change a policy. It does not depend on the order of the singletons.
func TestContentOf(t *testing.T) {
	one := func(name, uid string, generation int64) policies.Subject {
		return &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation}}
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
