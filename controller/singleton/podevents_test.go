package singleton

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// urgency is how soon a singleton is reconciled.
type urgency string

const (
	first urgency = "first"
	now   urgency = "now"
	soon  urgency = "soon"
	later urgency = "later"
	never urgency = "too late"
)

// order is a queue that records the priority of each singleton.
type order struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	of map[string]urgency
}

func (o order) AddWithOpts(options priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, request := range requests {
		switch {
		case options.After > 5*time.Second:
			o.of[request.Name] = never
		case options.After > 0 && options.After < time.Second:
			o.of[request.Name] = soon
		case options.After > 0:
			o.of[request.Name] = later
		case ptr.Deref(options.Priority, 0) > 0:
			o.of[request.Name] = first
		default:
			o.of[request.Name] = now
		}
	}
}

// handle gives an event to the handler.
func handle(t *testing.T, h handler.EventHandler, e any, queue order) {
	t.Helper()
	switch e := e.(type) {
	case event.CreateEvent:
		h.Create(t.Context(), e, queue)
	case event.UpdateEvent:
		h.Update(t.Context(), e, queue)
	case event.DeleteEvent:
		h.Delete(t.Context(), e, queue)
	}
}

// fakeClient returns a client of a cluster with the objects.
func fakeClient(objects ...client.Object) client.Client {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// Events of a standby can wait while the holder is healthy or another standby is warm. Events that may
// report the termination of the holder, or that come while there is no holder, have priority over all others.
func TestPodEvents(t *testing.T) {
	pod := func(name string, changes ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
		m := observe.PodMetadata()
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
	free := func(m *metav1.PartialObjectMetadata) { m.DeletionTimestamp = new(metav1.Now()) }
	protected := func(m *metav1.PartialObjectMetadata) { m.Finalizers = []string{v1.HandoffFinalizer} }
	released := func(m *metav1.PartialObjectMetadata) { m.Annotations = map[string]string{signal.Annotation: "{}"} }
	fenced := func(m *metav1.PartialObjectMetadata) {
		m.Annotations = map[string]string{v1.FencingAnnotation: string(v1.FencingLease)}
	}
	another := func(m *metav1.PartialObjectMetadata) { m.UID = "another-uid" }
	unnamed := func(m *metav1.PartialObjectMetadata) { m.Labels = map[string]string{v1.SingletonLabel: ""} }
	other := func(m *metav1.PartialObjectMetadata) { m.Labels = map[string]string{v1.SingletonLabel: "other"} }
	created := func(o client.Object) any { return event.CreateEvent{Object: o} }
	updated := func(before, after client.Object) any { return event.UpdateEvent{ObjectOld: before, ObjectNew: after} }
	deleted := func(o client.Object) any { return event.DeleteEvent{Object: o} }
	for name, tc := range map[string]struct {
		// holder is nil if its object is removed.
		holder *metav1.PartialObjectMetadata
		// noRecord is true if the record names no holder.
		noRecord bool
		// protected is a standby that has the finalizer, or nil.
		protected *metav1.PartialObjectMetadata
		event     any
		// want is empty if the event enqueues no singleton.
		want urgency
	}{
		"a standby is created":                                  {holder: pod("db-1"), event: created(pod("db-2")), want: soon},
		"a standby changes":                                     {holder: pod("db-1"), event: updated(pod("db-2"), pod("db-2")), want: soon},
		"a standby is terminating":                              {holder: pod("db-1"), event: updated(pod("db-2", going), pod("db-2", going)), want: soon},
		"a standby is removed":                                  {holder: pod("db-1"), event: deleted(pod("db-2", going)), want: soon},
		"a standby changes while the holder is terminating":     {holder: pod("db-1", going), event: updated(pod("db-2"), pod("db-2")), want: first},
		"a standby changes after the holder is removed":         {event: updated(pod("db-2"), pod("db-2")), want: first},
		"a standby is created while another standby is warm":    {holder: pod("db-1", going), protected: pod("db-3", protected), event: created(pod("db-2")), want: later},
		"the warm standby changes":                              {holder: pod("db-1", going), protected: pod("db-2", protected), event: updated(pod("db-2", protected), pod("db-2", protected)), want: first},
		"another pod has the holder's name":                     {holder: pod("db-1", another), event: updated(pod("db-2"), pod("db-2")), want: first},
		"a standby changes while a warm standby is terminating": {holder: pod("db-1", going), protected: pod("db-3", going), event: updated(pod("db-2"), pod("db-2")), want: first},
		"there is no holder":                                    {noRecord: true, event: updated(pod("db-2"), pod("db-2")), want: first},
		"there is no holder, and a standby has the finalizer":   {noRecord: true, protected: pod("db-3", protected), event: updated(pod("db-2"), pod("db-2")), want: first},
		"the holder changes":                                    {holder: pod("db-1"), event: updated(pod("db-1"), pod("db-1")), want: now},
		"the holder was just released":                          {holder: pod("db-1", released), event: updated(pod("db-1"), pod("db-1", released)), want: later},
		"the holder changes after its release":                  {holder: pod("db-1", released), event: updated(pod("db-1", released), pod("db-1", released)), want: now},
		"the deletion of the holder was just requested":         {holder: pod("db-1", going), event: updated(pod("db-1"), pod("db-1", going)), want: later},
		"the deletion of a fenced holder was just requested":    {holder: pod("db-1", going), event: updated(pod("db-1", fenced), pod("db-1", fenced, going)), want: first},
		"a fenced holder is terminating":                        {holder: pod("db-1", going), protected: pod("db-3", protected), event: updated(pod("db-1", fenced, going), pod("db-1", fenced, going)), want: soon},
		"the finalizer of a fenced holder is removed":           {holder: pod("db-1", going), event: updated(pod("db-1", fenced, going), pod("db-1", fenced, free)), want: later},
		"the holder is terminating":                             {holder: pod("db-1", going), protected: pod("db-3", protected), event: updated(pod("db-1", going), pod("db-1", going)), want: first},
		"the holder is removed":                                 {protected: pod("db-3", protected), event: deleted(pod("db-1", going)), want: first},
		"the finalizer of the holder is removed":                {holder: pod("db-1", going), event: updated(pod("db-1", going), pod("db-1", free)), want: later},
		"the holder is removed after its finalizer":             {event: deleted(pod("db-1", free)), want: later},
		"a pod of a singleton that does not exist":              {holder: pod("db-1"), event: created(pod("db-2", other)), want: now},
		"a pod whose label has no value":                        {holder: pod("db-1"), event: created(pod("db-2", unnamed))},
	} {
		t.Run(name, func(t *testing.T) {
			singleton := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db"}}
			if !tc.noRecord {
				singleton.Status = v1.StatefulSingletonStatus{ActivePod: "db-1", ActivePodUID: "db-1-uid"}
			}
			objects := []client.Object{singleton}
			for _, pod := range []*metav1.PartialObjectMetadata{tc.holder, tc.protected} {
				if pod != nil {
					objects = append(objects, &corev1.Pod{ObjectMeta: pod.ObjectMeta})
				}
			}
			r := &Reconciler{Client: fakeClient(objects...)}
			queue := order{of: map[string]urgency{}}
			handle(t, r.podEvents(), tc.event, queue)
			if none := tc.want == ""; none != (len(queue.of) == 0) || len(queue.of) > 1 {
				t.Fatalf("enqueued %v, want one singleton: %t", queue.of, !none)
			}
			for _, got := range queue.of {
				if got != tc.want {
					t.Errorf("the urgency is %s, want %s", got, tc.want)
				}
			}
		})
	}
}

// If a pod moves from one singleton to another, both singletons are reconciled.
func TestPodChangesItsSingleton(t *testing.T) {
	before, after := observe.PodMetadata(), observe.PodMetadata()
	before.Labels, after.Labels = map[string]string{v1.SingletonLabel: "db"}, map[string]string{v1.SingletonLabel: "queue"}
	queue := order{of: map[string]urgency{}}
	r := &Reconciler{Client: fakeClient()}
	handle(t, r.podEvents(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, queue)
	if diff := cmp.Diff(map[string]urgency{"db": now, "queue": now}, queue.of); diff != "" {
		t.Errorf("urgencies (-want +got):\n%s", diff)
	}
}

// An event of a singleton's own budget enqueues this singleton. An event of another budget enqueues all singletons of
// the namespace, because the budget may cover any holder.
func TestBudgetEvents(t *testing.T) {
	singleton := func(namespace, name string) *v1.StatefulSingleton {
		return &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}}
	}
	db := singleton("prod", "db")
	r := &Reconciler{Client: fakeClient(db, singleton("prod", "queue"), singleton("test", "db"))}
	theirs := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "theirs"}}
	own := theirs.DeepCopy()
	own.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(db, v1.GroupVersion.WithKind("StatefulSingleton"))}
	for budget, want := range map[*policyv1.PodDisruptionBudget][]string{own: {"prod/db"}, theirs: {"prod/db", "prod/queue"}} {
		var got []string
		for _, request := range r.singletonsOfBudget(t.Context(), budget) {
			got = append(got, request.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("enqueued (-want +got):\n%s", diff)
		}
	}
}
