package singleton

import (
	"context"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
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
// holder has released the Lease since.
func (r *Reconciler) afterRelease(ctx context.Context, key types.NamespacedName) (handoff.Snapshot, bool) {
	snapshot, awaited := r.releases.snapshots.LoadAndDelete(key)
	lease := &coordinationv1.Lease{}
	if !awaited || r.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: fencing.LeaseName(key.Name)}, lease) != nil {
		return handoff.Snapshot{}, false
	}
	return snapshot.(handoff.Snapshot).AfterRelease(lease)
}
