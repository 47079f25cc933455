package singleton

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// delays is a queue that tells what was put off.
type delays struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	of map[string]time.Duration
}

func (d delays) Add(r reconcile.Request)                           { d.of[r.Name] = 0 }
func (d delays) AddAfter(r reconcile.Request, after time.Duration) { d.of[r.Name] = after }

// What the kubelet reports of a pod can wait while another one holds and stays. Whatever
// may end the holder, or comes while none is there, can't.
func TestPodEvents(t *testing.T) {
	pod := func(name string, changes ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
		m := podMetadata()
		m.Namespace, m.Name, m.UID = "prod", name, types.UID(name+"-uid")
		m.Labels = map[string]string{v1.SingletonLabel: "db"}
		for _, change := range changes {
			change(m)
		}
		return m
	}
	going := func(m *metav1.PartialObjectMetadata) {
		m.DeletionTimestamp, m.Finalizers = new(metav1.Now()), []string{v1.HandoffFinalizer}
	}
	released := func(m *metav1.PartialObjectMetadata) { m.Annotations = map[string]string{signal.Annotation: "{}"} }
	another := func(m *metav1.PartialObjectMetadata) { m.UID = "another-uid" }
	other := func(m *metav1.PartialObjectMetadata) { m.Labels = map[string]string{v1.SingletonLabel: "other"} }
	created := func(o client.Object) any { return event.CreateEvent{Object: o} }
	updated := func(before, after client.Object) any { return event.UpdateEvent{ObjectOld: before, ObjectNew: after} }
	deleted := func(o client.Object) any { return event.DeleteEvent{Object: o} }
	for name, tc := range map[string]struct {
		// holder is nil if its object is gone.
		holder *metav1.PartialObjectMetadata
		// noRecord: nobody holds.
		noRecord  bool
		event     any
		wantLater bool
	}{
		"a standby comes":                         {holder: pod("db-1"), event: created(pod("db-2")), wantLater: true},
		"a standby changes":                       {holder: pod("db-1"), event: updated(pod("db-2"), pod("db-2")), wantLater: true},
		"a standby goes":                          {holder: pod("db-1"), event: updated(pod("db-2", going), pod("db-2", going)), wantLater: true},
		"a standby is gone":                       {holder: pod("db-1"), event: deleted(pod("db-2", going)), wantLater: true},
		"a standby changes while the holder goes": {holder: pod("db-1", going), event: updated(pod("db-2"), pod("db-2"))},
		"a standby changes after the holder":      {event: updated(pod("db-2"), pod("db-2"))},
		"another pod has the holder's name":       {holder: pod("db-1", another), event: updated(pod("db-2"), pod("db-2"))},
		"nobody holds":                            {noRecord: true, event: updated(pod("db-2"), pod("db-2"))},
		"the holder changes":                      {holder: pod("db-1"), event: updated(pod("db-1"), pod("db-1"))},
		"the holder was just released":            {holder: pod("db-1", released), event: updated(pod("db-1"), pod("db-1", released)), wantLater: true},
		"the holder changes after its release":    {holder: pod("db-1", released), event: updated(pod("db-1", released), pod("db-1", released))},
		"the holder was just asked to stop":       {holder: pod("db-1", going), event: updated(pod("db-1"), pod("db-1", going)), wantLater: true},
		"the holder goes":                         {holder: pod("db-1", going), event: updated(pod("db-1", going), pod("db-1", going))},
		"the holder is gone":                      {event: deleted(pod("db-1", going))},
		"a pod of a singleton that is not there":  {holder: pod("db-1"), event: created(pod("db-2", other))},
	} {
		t.Run(name, func(t *testing.T) {
			singleton := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db"}}
			if !tc.noRecord {
				singleton.Status = v1.StatefulSingletonStatus{ActivePod: "db-1", ActivePodUID: "db-1-uid"}
			}
			objects := []client.Object{singleton}
			if tc.holder != nil {
				objects = append(objects, &corev1.Pod{ObjectMeta: tc.holder.ObjectMeta})
			}
			scheme := runtime.NewScheme()
			if err := v1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			if err := corev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
			queue := delays{of: map[string]time.Duration{}}
			switch e := tc.event.(type) {
			case event.CreateEvent:
				r.podEvents().Create(t.Context(), e, queue)
			case event.UpdateEvent:
				r.podEvents().Update(t.Context(), e, queue)
			case event.DeleteEvent:
				r.podEvents().Delete(t.Context(), e, queue)
			}
			if len(queue.of) != 1 {
				t.Fatalf("enqueued %v, want one", queue.of)
			}
			for _, after := range queue.of {
				if later := after > 0; later != tc.wantLater {
					t.Errorf("enqueued after %s, want it later: %t", after, tc.wantLater)
				}
			}
		})
	}
}
