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
	// coalesceDelay is how long after an event that is not urgent the singleton is reconciled.
	coalesceDelay = 2 * time.Second
	// warmUpDelay is the same for events of a standby. A pod that warms up causes several events, and one reconcile handles those that
	// follow each other at once. The last of them is the one that the handoff waits for.
	warmUpDelay = 300 * time.Millisecond
	// terminationDelay is the delay after the deletion of a pod, and while the singleton only waits for the holder to
	// terminate: the typical duration.
	terminationDelay = 4 * time.Second
	// releaseDelay is the delay after other updates of a terminating pod with fencing. If the application stops at
	// once, the pod releases the Lease within this time. An earlier reconcile would delay the reconcile of the release.
	releaseDelay = 300 * time.Millisecond
	// urgent is the priority of a singleton whose holder may have terminated.
	urgent = 1
)

type podQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// podEvents returns the handler that enqueues the singleton of a pod.
func (r *Reconciler) podEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q podQueue) { r.enqueue(ctx, q, e.Object, 0) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q podQueue) {
			r.enqueue(ctx, q, e.ObjectNew, delayFor(e))
			if singletonOfPod(e.ObjectOld) != singletonOfPod(e.ObjectNew) {
				r.enqueue(ctx, q, e.ObjectOld, 0)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q podQueue) {
			after := coalesceDelay // the controller removed the finalizer, or the pod never had it
			if isProtected(e.Object) {
				after = 0
			}
			r.enqueue(ctx, q, e.Object, after)
		},
	}
}

// enqueue adds the pod's singleton to the queue, with a delay or with the priority of the event.
func (r *Reconciler) enqueue(ctx context.Context, q podQueue, pod client.Object, after time.Duration) {
	request := singletonOfPod(pod)
	if request.Name == "" {
		return // see observe.NamedBy
	}
	options := r.priorityFor(ctx, request.NamespacedName, pod)
	if after > 0 {
		options = priorityqueue.AddOpts{After: after}
	}
	q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(options, request)
}

// priorityFor returns how urgent an event of the pod is. Events of other pods are not urgent while the holder keeps
// running, or while a warm standby only waits for the holder to terminate. A late cache costs no more than
// the delay. Events of fenced pods are urgent, because a holder that stops may serve until the next pod is Ready.
func (r *Reconciler) priorityFor(ctx context.Context, key types.NamespacedName, pod client.Object) priorityqueue.AddOpts {
	singleton := &v1.StatefulSingleton{}
	if err := r.Client.Get(ctx, key, singleton); err != nil {
		return priorityqueue.AddOpts{}
	}
	itsHolder, stays := singleton.Status.ActivePodUID == pod.GetUID(), r.observer().CachedHolderRuns(ctx, singleton)
	switch {
	case itsHolder && stays:
		return priorityqueue.AddOpts{}
	case itsHolder:
		return priorityqueue.AddOpts{Priority: new(urgent)}
	case stays:
		return priorityqueue.AddOpts{After: warmUpDelay}
	case singleton.Status.ActivePodUID != "" && !hasFencing(pod) && r.hasProtectedStandby(ctx, singleton, pod):
		return priorityqueue.AddOpts{After: terminationDelay}
	}
	return priorityqueue.AddOpts{Priority: new(urgent)}
}

// hasProtectedStandby returns true if the cache has a standby with the finalizer beside the pod: the standby is or was warm. The
// caller has excluded a holder that keeps running.
func (r *Reconciler) hasProtectedStandby(ctx context.Context, singleton *v1.StatefulSingleton, pod client.Object) bool {
	pods, err := r.observer().Labelled(ctx, singleton)
	return err == nil && slices.ContainsFunc(pods, func(other metav1.PartialObjectMetadata) bool {
		return other.UID != pod.GetUID() && other.DeletionTimestamp == nil && isProtected(&other)
	})
}

// delayFor returns how long to delay the reconcile after an update that needs no decision yet: the kubelet has to act
// on the update first, or the controller wrote it. An earlier reconcile would only compete with the kubelet. 0: the
// update may need a decision.
func delayFor(e event.UpdateEvent) time.Duration {
	before, after := e.ObjectOld, e.ObjectNew
	given := after.GetAnnotations()[signal.Annotation]
	switch {
	case isProtected(before) && !isProtected(after):
		return coalesceDelay // the controller removed the finalizer
	case after.GetDeletionTimestamp() != nil && before.GetDeletionTimestamp() == nil && !hasFencing(after):
		return terminationDelay // the Lease must at once say that a pod with fencing is terminating
	case before.GetDeletionTimestamp() != nil && hasFencing(after):
		return releaseDelay
	case after.GetDeletionTimestamp() == nil && given != "" && given != before.GetAnnotations()[signal.Annotation]:
		return coalesceDelay // released
	}
	return 0
}

func isProtected(pod client.Object) bool {
	return slices.Contains(pod.GetFinalizers(), v1.HandoffFinalizer)
}

func hasFencing(pod client.Object) bool {
	_, has := pod.GetAnnotations()[v1.FencingAnnotation]
	return has
}

// singletonOfPod returns the singleton that the pod's label names.
func singletonOfPod(pod client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[v1.SingletonLabel]}}
}
