package singleton

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
)

// silence remembers for how long each Lease has not been renewed. It starts from zero with the controller.
type silence struct {
	mu     sync.Mutex
	leases map[types.NamespacedName]silentLease
}

// silentLease is a state of a Lease.
type silentLease struct {
	renewal
	// since is when this process saw the state first.
	since time.Time
	// longest is the longest duration of the Lease in seconds since then.
	longest int32
	// overdue is true after overdue returned the singleton.
	overdue bool
}

// renewal has the fields of a Lease that change with each renewal and each change of the holder.
type renewal struct {
	uid         types.UID
	holder      string
	transitions int32
	microTime   int64
}

func renewalOf(lease *coordinationv1.Lease) renewal {
	r := renewal{uid: lease.UID, holder: holderOf(lease), transitions: ptr.Deref(lease.Spec.LeaseTransitions, 0)}
	if lease.Spec.RenewTime != nil {
		r.microTime = lease.Spec.RenewTime.UnixMicro()
	}
	return r
}

func holderOf(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

// see records a state of a Lease, and returns Lease.Silent of package handoff.
//
// The caller reads now after the state has arrived, because the pod can have sent the renewal until then. now must have
// the monotonic clock of the process. That clock stops while the machine is suspended, which lengthens the wait.
//
// A late event about an older state restarts the silence, and the next event restarts the silence again. That is safe.
// Only a renewal may shorten the duration, because the pod runs for the duration of its last renewal. So a duration that
// was shortened since then does not expire before the longer duration.
func (s *silence) see(lease *coordinationv1.Lease, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, is, duration := client.ObjectKeyFromObject(lease), renewalOf(lease), ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)
	seen, known := s.leases[key]
	if !known || seen.renewal != is {
		seen = silentLease{renewal: is, since: now}
	}
	seen.longest = max(seen.longest, duration)
	if s.leases == nil {
		s.leases = map[types.NamespacedName]silentLease{}
	}
	s.leases[key] = seen
	return max(0, now.Sub(seen.since)-time.Duration(seen.longest-duration)*time.Second)
}

// overdue returns the singletons whose Lease is overdue, each once for each state of its Lease. The next decision then
// knows when the Lease expires.
func (s *silence) overdue(now time.Time) (singletons []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, seen := range s.leases {
		if !seen.overdue && now.Sub(seen.since) >= time.Duration(seen.longest)*time.Second/2 {
			seen.overdue = true
			s.leases[key] = seen
			singletons = append(singletons, types.NamespacedName{Namespace: key.Namespace, Name: fencing.Singleton(key.Name)})
		}
	}
	return singletons
}

// forget forgets the Lease of a singleton.
func (s *silence) forget(singleton types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, types.NamespacedName{Namespace: singleton.Namespace, Name: fencing.LeaseName(singleton.Name)})
}
