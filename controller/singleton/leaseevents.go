package singleton

import (
	"context"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// leaseEvents returns the handler that restarts the silence of a Lease, and enqueues the singleton of the Lease unless the
// event is a renewal.
func (r *Reconciler) leaseEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q podQueue) {
			if isSingletonLease(e.Object) {
				r.silent(e.Object.(*coordinationv1.Lease))
				if !e.IsInInitialList { // the first reconcile of each singleton reads the Lease
					enqueueLease(q, e.Object, priorityqueue.AddOpts{})
				}
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q podQueue) {
			before, after := e.ObjectOld.(*coordinationv1.Lease), e.ObjectNew.(*coordinationv1.Lease)
			if !isSingletonLease(after) {
				return
			}
			r.silent(after)
			switch {
			case leases.SameHolder(before, after) && maps.Equal(before.Annotations, after.Annotations): // a renewal
			case before.Annotations[signal.QueueAnnotation] != after.Annotations[signal.QueueAnnotation]: // the start of the holder
				enqueueLease(q, after, priorityqueue.AddOpts{Priority: new(urgent)})
			case leases.SameHolder(before, after) || leases.HolderOf(before) == "":
				// Only the controller writes the other annotations, or names a pod in a Lease without a holder. A reconcile right
				// after its own write would delay the reconcile of the next release.
				enqueueLease(q, after, priorityqueue.AddOpts{After: coalesceDelay})
			default:
				enqueueLease(q, after, priorityqueue.AddOpts{Priority: new(urgent)})
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q podQueue) {
			if isSingletonLease(e.Object) {
				r.silence.Forget(client.ObjectKeyFromObject(e.Object))
				enqueueLease(q, e.Object, priorityqueue.AddOpts{Priority: new(urgent)})
			}
		},
	}
}

// overduePeriod is how often to look for Leases whose renewal is overdue. The shortest duration of a Lease is 5 s.
const overduePeriod = 500 * time.Millisecond

// enqueueOverdue enqueues the singletons whose Lease is overdue, until ctx ends.
func (r *Reconciler) enqueueOverdue(ctx context.Context, q podQueue) error {
	go wait.UntilWithContext(ctx, func(context.Context) {
		for _, lease := range r.silence.Overdue(r.Clock.Now()) {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: lease.Namespace, Name: signal.SingletonOf(lease.Name)}})
		}
	}, overduePeriod)
	return nil
}

// silent returns Observed.Silent of a Lease that was just read or watched.
func (r *Reconciler) silent(lease *coordinationv1.Lease) time.Duration {
	return r.silence.See(lease, r.Clock.Now())
}

// isSingletonLease returns true if the Lease has the name of the Lease of the singleton in its label.
func isSingletonLease(lease client.Object) bool {
	return lease.GetName() == signal.LeaseName(lease.GetLabels()[v1.SingletonLabel])
}

func enqueueLease(q podQueue, lease client.Object, options priorityqueue.AddOpts) {
	q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(options, singletonOfPod(lease))
}
