package singleton

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// coalesceDelay is how long after an event that nobody waits for the singleton is reconciled,
	// once for all that come until then: a pod that warms up gives an event for each step.
	coalesceDelay = 2 * time.Second
	// stopping is the same where all that is to come is the holder's end: as long as a
	// holder usually takes to stop.
	stopping = 4 * time.Second
	// urgent is the priority of a singleton whose holder may have ended: nothing of it runs.
	urgent = 1
)

type podQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// podEvents has the singletons reconciled that pods belong to.
func (r *Reconciler) podEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q podQueue) { r.enqueue(ctx, q, e.Object, 0) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q podQueue) {
			r.enqueue(ctx, q, e.ObjectNew, quiet(e))
			if singletonOfPod(e.ObjectOld) != singletonOfPod(e.ObjectNew) {
				r.enqueue(ctx, q, e.ObjectOld, 0)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q podQueue) {
			after := coalesceDelay // it was let go of, or else is lost
			if isProtected(e.Object) {
				after = 0
			}
			r.enqueue(ctx, q, e.Object, after)
		},
	}
}

// enqueue has the pod's singleton reconciled in its turn, and not before some time has passed.
func (r *Reconciler) enqueue(ctx context.Context, q podQueue, pod client.Object, after time.Duration) {
	request := singletonOfPod(pod)
	turn := r.turnFor(ctx, request.NamespacedName, pod)
	if after > 0 {
		turn = priorityqueue.AddOpts{After: after}
	}
	q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(turn, request)
}

// turnFor tells how urgent is what may come of an event of the pod. Nothing is where it is
// not the holder's, and that one stays, or has only to end for a standby that is warm. The
// cache may lag, and that costs no more than the delay.
func (r *Reconciler) turnFor(ctx context.Context, key types.NamespacedName, pod client.Object) priorityqueue.AddOpts {
	singleton := &v1.StatefulSingleton{}
	if err := r.Client.Get(ctx, key, singleton); err != nil {
		return priorityqueue.AddOpts{}
	}
	itsHolder, stays := singleton.Status.ActivePodUID == pod.GetUID(), r.observer().SeemsToStay(ctx, singleton)
	switch {
	case itsHolder && stays:
		return priorityqueue.AddOpts{}
	case itsHolder:
		return priorityqueue.AddOpts{Priority: new(urgent)}
	case stays:
		return priorityqueue.AddOpts{After: coalesceDelay}
	case singleton.Status.ActivePodUID != "" && r.hasProtectedStandby(ctx, singleton, pod):
		return priorityqueue.AddOpts{After: stopping}
	}
	return priorityqueue.AddOpts{Priority: new(urgent)}
}

// hasProtectedStandby tells whether, as the cache has it, a standby besides the pod is warm, or
// was: it was given the finalizer. A holder that is not terminating stays, and the caller
// has handled that case.
func (r *Reconciler) hasProtectedStandby(ctx context.Context, singleton *v1.StatefulSingleton, pod client.Object) bool {
	pods, err := r.observer().Labelled(ctx, singleton)
	return err == nil && slices.ContainsFunc(pods, func(other metav1.PartialObjectMetadata) bool {
		return other.UID != pod.GetUID() && other.DeletionTimestamp == nil && isProtected(&other)
	})
}

// quiet is how long nothing can come of an update before another one comes: the kubelet
// has to act on it first, or the controller wrote it last. In that moment a reconcile would
// only compete with the kubelet, and with those of others. 0: there is no telling.
func quiet(e event.UpdateEvent) time.Duration {
	before, after := e.ObjectOld, e.ObjectNew
	given := after.GetAnnotations()[signal.Annotation]
	switch {
	case isProtected(before) && !isProtected(after):
		return coalesceDelay // let go
	case after.GetDeletionTimestamp() != nil && before.GetDeletionTimestamp() == nil:
		return stopping
	case after.GetDeletionTimestamp() == nil && given != "" && given != before.GetAnnotations()[signal.Annotation]:
		return coalesceDelay // released
	}
	return 0
}

func isProtected(pod client.Object) bool {
	return slices.Contains(pod.GetFinalizers(), v1.HandoffFinalizer)
}

// singletonOfPod names the singleton that a pod belongs to.
func singletonOfPod(pod client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[v1.SingletonLabel]}}
}
