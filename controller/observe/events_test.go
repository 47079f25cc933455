package observe_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// A label names at most one object. An empty label names none.
func TestNamedBy(t *testing.T) {
	for name, test := range map[string]struct {
		labels map[string]string
		want   []reconcile.Request
	}{
		"a name":        {map[string]string{v1.ClusterLabel: "db"}, []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: "prod", Name: "db"}}}},
		"no value":      {labels: map[string]string{v1.ClusterLabel: ""}},
		"another label": {labels: map[string]string{v1.LockLabel: "db"}},
		"no label":      {},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-0", Labels: test.labels}}
			if diff := cmp.Diff(test.want, observe.NamedBy(v1.ClusterLabel)(t.Context(), pod)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}
