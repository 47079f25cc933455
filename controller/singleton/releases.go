package singleton

import (
	"context"
	"maps"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// releases has the Snapshots of singletons whose fenced holder is terminating, by key. When the holder releases the
// Lease, the next decision needs no new reads, which would lengthen the gap.
type releases struct{ snapshots sync.Map }

// await keeps the Snapshot until the next reconcile. The execution of its plan has updated the singleton in the Snapshot.
func (r *releases) await(s handoff.Snapshot) {
	if s.Lease.Object != nil {
		r.snapshots.Store(client.ObjectKeyFromObject(s.Singleton), s)
	}
}

// afterRelease removes the Snapshot of the last reconcile. It returns the Snapshot with the Lease in the cache if the
// holder has released the Lease since, and the standbys have not changed.
func (r *Reconciler) afterRelease(ctx context.Context, key types.NamespacedName) (handoff.Snapshot, bool) {
	kept, awaited := r.releases.snapshots.LoadAndDelete(key)
	lease := &coordinationv1.Lease{}
	if !awaited || r.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: signal.LeaseName(key.Name)}, lease) != nil {
		return handoff.Snapshot{}, false
	}
	snapshot, released := kept.(handoff.Snapshot).AfterRelease(lease)
	return snapshot, released && r.sameStandbys(ctx, snapshot)
}

// sameStandbys returns true if the pods in the cache, apart from the holder, have the versions of the Snapshot. A standby
// that was deleted since, or is not warm any more, would be a slow next holder.
func (r *Reconciler) sameStandbys(ctx context.Context, s handoff.Snapshot) bool {
	cached, err := r.observer().Labelled(ctx, s.Singleton)
	if err != nil {
		return false
	}
	is, was := map[types.UID]string{}, map[types.UID]string{}
	for i := range cached {
		is[cached[i].UID] = cached[i].ResourceVersion
	}
	for i := range s.Pods {
		was[s.Pods[i].UID] = s.Pods[i].ResourceVersion
	}
	delete(is, s.Singleton.Status.ActivePodUID)
	delete(was, s.Singleton.Status.ActivePodUID)
	return maps.Equal(is, was)
}
