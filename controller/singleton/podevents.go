package singleton

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// leisure is how long after an event that nobody waits for the singleton is reconciled,
// once for all that come until then: a pod that warms up gives an event for each step.
const leisure = 2 * time.Second

// podEvents has the singletons reconciled that pods belong to.
func (r *Reconciler) podEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue, pod client.Object, later bool) {
		request := singletonOfPod(pod)
		if later || r.canWait(ctx, request.NamespacedName, pod) {
			q.AddAfter(request, leisure)
		} else {
			q.Add(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, q, e.Object, false) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			enqueue(ctx, q, e.ObjectNew, isBeginning(e))
			if singletonOfPod(e.ObjectOld) != singletonOfPod(e.ObjectNew) {
				enqueue(ctx, q, e.ObjectOld, false)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, q, e.Object, false) },
	}
}

// canWait tells whether nothing can come of an event of the pod that is urgent: it is not
// the holder's, and nobody asked that one to stop. A cache that lags costs no more than
// the delay.
func (r *Reconciler) canWait(ctx context.Context, key types.NamespacedName, pod client.Object) bool {
	singleton := &v1.StatefulSingleton{}
	err := r.Client.Get(ctx, key, singleton)
	return err == nil && singleton.Status.ActivePodUID != pod.GetUID() && r.seemsToStay(ctx, singleton)
}

// isBeginning tells whether nothing can come of an update before the kubelet has acted on
// it, which gives an event of its own: the pod was released, or asked to stop. In that
// moment a reconcile would only compete with the kubelet.
func isBeginning(e event.UpdateEvent) bool {
	before, after := e.ObjectOld, e.ObjectNew
	if after.GetDeletionTimestamp() != nil {
		return before.GetDeletionTimestamp() == nil
	}
	given := after.GetAnnotations()[signal.Annotation]
	return given != "" && given != before.GetAnnotations()[signal.Annotation]
}

// singletonOfPod names the singleton that a pod belongs to.
func singletonOfPod(pod client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[v1.SingletonLabel]}}
}
