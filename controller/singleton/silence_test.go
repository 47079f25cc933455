package singleton

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// leaseOf returns the Lease of a singleton, which pod db-1 has renewed, with changes.
func leaseOf(singleton string, changes ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: signal.LeaseName(singleton), UID: "lease", Labels: map[string]string{v1.SingletonLabel: singleton},
		},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32(7)), LeaseDurationSeconds: new(int32(15))},
	}
	heldBy("db-1_1")(lease)
	renewed(0)(lease)
	for _, change := range changes {
		change(lease)
	}
	return lease
}

func heldBy(holder string) func(*coordinationv1.Lease) {
	return func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = &holder }
}

func renewed(after time.Duration) func(*coordinationv1.Lease) {
	return func(lease *coordinationv1.Lease) {
		lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(after)))
	}
}

func nextEpoch(lease *coordinationv1.Lease) { lease.Spec.LeaseTransitions = new(int32(8)) }
func otherUID(lease *coordinationv1.Lease)  { lease.UID = "other" }
func short(lease *coordinationv1.Lease)     { lease.Spec.LeaseDurationSeconds = new(int32(5)) }
func annotated(lease *coordinationv1.Lease) {
	lease.Annotations, lease.ResourceVersion = map[string]string{signal.RetireAnnotation: "1"}, "2"
}

// A Lease is silent since this process saw its last renewal or change of the holder first, in a watch event or a read.
func TestSilence(t *testing.T) {
	type states []*coordinationv1.Lease
	db := func(changes ...func(*coordinationv1.Lease)) *coordinationv1.Lease { return leaseOf("db", changes...) }
	tests := map[string]struct {
		// seen are the states before the read, each 4 seconds before the next.
		seen states
		read *coordinationv1.Lease
		want time.Duration
	}{
		"the first state":                   {nil, db(), 0},
		"an event before the read":          {states{db()}, db(), 4 * time.Second},
		"no change":                         {states{db(), db(), db()}, db(), 12 * time.Second},
		"a renewal before the read":         {states{db(), db(renewed(time.Microsecond))}, db(renewed(time.Microsecond)), 4 * time.Second},
		"a renewal in the read":             {states{db()}, db(renewed(time.Microsecond)), 0},
		"a renewal by a clock that is slow": {states{db()}, db(renewed(-time.Hour)), 0},
		"a late event":                      {states{db(renewed(time.Microsecond)), db(renewed(0))}, db(renewed(time.Microsecond)), 0},
		"another holder":                    {states{db()}, db(heldBy("db-2_2")), 0},
		"another epoch":                     {states{db()}, db(nextEpoch), 0},
		"another Lease of the name":         {states{db()}, db(otherUID), 0},
		"another write":                     {states{db()}, db(annotated), 4 * time.Second},
		"another singleton":                 {states{leaseOf("queue")}, db(), 0},
		"a shorter duration":                {states{db(), db(), db(short)}, db(short), 2 * time.Second},
		"a shorter duration at once":        {states{db()}, db(short), 0},
		"a shorter duration by a renewal":   {states{db(), db(short, renewed(1000))}, db(short, renewed(1000)), 4 * time.Second},
		"a longer duration":                 {states{db(short)}, db(), 4 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Now())
			r := &Reconciler{Clock: clock}
			for _, lease := range test.seen {
				r.leaseEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: lease, ObjectNew: lease}, order{of: map[string]urgency{}})
				clock.SetTime(clock.Now().Add(4 * time.Second))
			}
			if got := r.silent(test.read); got != test.want {
				t.Errorf("silent for %s, want %s", got, test.want)
			}
		})
	}
}

// The controller forgets a Lease when its singleton is removed.
func TestSilenceEndsWithTheSingleton(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	reader := fakeClient()
	r := &Reconciler{Clock: clock, Client: reader, Live: reader}
	r.silent(leaseOf("db"))
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "prod", Name: "db"}}); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if got := r.silent(leaseOf("db")); got != 0 {
		t.Errorf("the controller remembers a silence of %s", got)
	}
}

// A release is urgent. Renewals need no reconcile, and the controller's own writes need none soon. All events but the
// deletion begin or continue the silence.
func TestLeaseEvents(t *testing.T) {
	foreign := func(lease *coordinationv1.Lease) { lease.Name = "leader" }
	updated := func(before, after client.Object) any { return event.UpdateEvent{ObjectOld: before, ObjectNew: after} }
	released := leaseOf("db", heldBy(""))
	tests := map[string]struct {
		event any
		// want is empty if the event enqueues nothing.
		want       urgency
		wantSilent time.Duration
	}{
		"a renewal":                {updated(leaseOf("db"), leaseOf("db", renewed(time.Second))), "", time.Second},
		"the first renewal":        {updated(leaseOf("db", func(lease *coordinationv1.Lease) { lease.Spec.RenewTime = nil }), leaseOf("db")), "", time.Second},
		"a resync":                 {updated(leaseOf("db"), leaseOf("db")), "", time.Second},
		"a release":                {updated(leaseOf("db"), released), first, time.Second},
		"a missed grant":           {updated(leaseOf("db"), leaseOf("db", heldBy("db-2_2"), nextEpoch)), first, time.Second},
		"another epoch":            {updated(leaseOf("db"), leaseOf("db", nextEpoch)), first, time.Second},
		"another Lease":            {updated(leaseOf("db"), leaseOf("db", otherUID)), first, time.Second},
		"a grant":                  {updated(released, leaseOf("db", nextEpoch)), later, time.Second},
		"an annotation":            {updated(leaseOf("db"), leaseOf("db", annotated)), later, time.Second},
		"a new Lease":              {event.CreateEvent{Object: leaseOf("db")}, now, time.Second},
		"the start of the watch":   {event.CreateEvent{Object: leaseOf("db"), IsInInitialList: true}, "", time.Second},
		"a deletion":               {event.DeleteEvent{Object: leaseOf("db")}, first, 0},
		"a release of other Lease": {updated(leaseOf("db", foreign), leaseOf("db", foreign, heldBy(""))), "", 0},
		"a deleted other Lease":    {event.DeleteEvent{Object: leaseOf("db", foreign)}, "", 0},
		"a created other Lease":    {event.CreateEvent{Object: leaseOf("db", foreign)}, "", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Now())
			r := &Reconciler{Clock: clock}
			queue := order{of: map[string]urgency{}}
			handle(t, r.leaseEvents(), test.event, queue)
			if queue.of["db"] != test.want || len(queue.of) > 1 {
				t.Errorf("enqueued %v, want db %s", queue.of, test.want)
			}
			clock.SetTime(clock.Now().Add(time.Second))
			if got := r.silent(leaseOfEvent(test.event)); got != test.wantSilent {
				t.Errorf("silent for %s, want %s", got, test.wantSilent)
			}
		})
	}
}

func leaseOfEvent(e any) *coordinationv1.Lease {
	switch e := e.(type) {
	case event.CreateEvent:
		return e.Object.(*coordinationv1.Lease)
	case event.UpdateEvent:
		return e.ObjectNew.(*coordinationv1.Lease)
	case event.DeleteEvent:
		return e.Object.(*coordinationv1.Lease)
	}
	return nil
}

// A Lease is overdue after half of its duration, and again only after it was renewed.
func TestSilenceOverdue(t *testing.T) {
	s, start := &leases.Silence{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, step := range []struct {
		at   time.Duration
		seen *coordinationv1.Lease
		want []types.NamespacedName
	}{
		{at: 0, seen: leaseOf("db")},
		{at: 7 * time.Second},
		{at: 7500 * time.Millisecond, want: []types.NamespacedName{{Namespace: "prod", Name: signal.LeaseName("db")}}},
		{at: 9 * time.Second, seen: leaseOf("db")},
		{at: 10 * time.Second, seen: leaseOf("db", renewed(10*time.Second))},
		{at: 17 * time.Second},
		{at: 18 * time.Second, want: []types.NamespacedName{{Namespace: "prod", Name: signal.LeaseName("db")}}},
	} {
		if step.seen != nil {
			s.See(step.seen, start.Add(step.at))
		}
		if diff := cmp.Diff(step.want, s.Overdue(start.Add(step.at))); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}
