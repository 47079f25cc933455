package singleton

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// Only the creation, the removal and changes of fenced pods pass.
func TestFencedPods(t *testing.T) {
	pod := func(uid, singleton, fencing string) *metav1.PartialObjectMetadata {
		m := observe.PodMetadata()
		m.UID = types.UID(uid)
		m.Labels, m.Annotations = map[string]string{v1.SingletonLabel: singleton}, map[string]string{v1.FencingAnnotation: fencing}
		return m
	}
	fenced, unfenced := pod("1", "db", "Lease"), pod("1", "db", "")
	for name, test := range map[string]struct {
		before, after *metav1.PartialObjectMetadata
		want          bool
	}{
		"no change":            {fenced, fenced, false},
		"no fenced pod":        {unfenced, pod("1", "queue", ""), false},
		"fenced":               {unfenced, fenced, true},
		"not fenced any more":  {fenced, unfenced, true},
		"replaced":             {fenced, pod("2", "db", "Lease"), true},
		"of another singleton": {fenced, pod("1", "queue", "Lease"), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fencedPods().Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.want {
				t.Errorf("passes: %t, want %t", got, test.want)
			}
		})
	}
	for _, p := range []*metav1.PartialObjectMetadata{fenced, unfenced} {
		want := p == fenced
		if fencedPods().Create(event.CreateEvent{Object: p}) != want || fencedPods().Delete(event.DeleteEvent{Object: p}) != want {
			t.Errorf("the creation or removal of a pod does not pass as its annotation %q says", p.Annotations[v1.FencingAnnotation])
		}
	}
}

// Changes of the spec pass, and a singleton that was replaced. Writes of the status do not pass.
func TestSpecChanges(t *testing.T) {
	singleton := func(uid string, generation int64) *v1.StatefulSingleton {
		return &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Generation: generation}}
	}
	for name, test := range map[string]struct {
		after *v1.StatefulSingleton
		want  bool
	}{
		"the status": {singleton("1", 1), false},
		"the spec":   {singleton("1", 2), true},
		"replaced":   {singleton("2", 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := specChanges().Update(event.UpdateEvent{ObjectOld: singleton("1", 1), ObjectNew: test.after}); got != test.want {
				t.Errorf("passes: %t, want %t", got, test.want)
			}
		})
	}
}
