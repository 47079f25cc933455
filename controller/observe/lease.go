package observe

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// leaseBeforePods reads the Lease if the singleton uses a Lease, or if the cache has the Lease. HolderStays may depend on
// the Lease, and is called while the pods are read.
func (r *reading) leaseBeforePods(ctx context.Context, s *handoff.Snapshot) error {
	if s.Singleton.Spec.Fencing != v1.FencingLease && r.Client.Get(ctx, leaseKey(s.Singleton), &coordinationv1.Lease{}) != nil {
		return nil
	}
	return r.lease(ctx, s)
}

// leaseOfPods reads the Lease if one of the pods has fencing. Singletons that never used fencing need no request.
func (r *reading) leaseOfPods(ctx context.Context, s *handoff.Snapshot) error {
	if !slices.ContainsFunc(s.Pods, hasFencing) {
		return nil
	}
	return r.lease(ctx, s)
}

// lease reads the Lease once.
func (r *reading) lease(ctx context.Context, s *handoff.Snapshot) error {
	if r.leaseRead {
		return nil
	}
	key := leaseKey(s.Singleton)
	found, err := named[coordinationv1.Lease](ctx, r, r.Live, key.Namespace, sets.New(key.Name))
	if err != nil {
		return fmt.Errorf("read Lease %s: %w", key, err)
	}
	r.leaseRead = true
	s.Lease.Object = found[key.Name]
	if s.Lease.Object != nil {
		s.Lease.Silent = r.silence(s.Lease.Object)
	}
	return nil
}

// silence returns Lease.Silent of a Lease.
func (o Observer) silence(lease *coordinationv1.Lease) time.Duration {
	if o.Silent == nil {
		return 0
	}
	return o.Silent(lease)
}

func hasFencing(pod corev1.Pod) bool {
	_, has := pod.Annotations[v1.FencingAnnotation]
	return has
}

func leaseKey(singleton *v1.StatefulSingleton) client.ObjectKey {
	return client.ObjectKey{Namespace: singleton.Namespace, Name: signal.LeaseName(singleton.Name)}
}
