package leases

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Silence remembers for how long each Lease has not been renewed. It starts from zero with the controller.
type Silence struct {
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
	// overdue is true after Overdue returned the Lease.
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
	r := renewal{uid: lease.UID, holder: HolderOf(lease), transitions: ptr.Deref(lease.Spec.LeaseTransitions, 0)}
	if lease.Spec.RenewTime != nil {
		r.microTime = lease.Spec.RenewTime.UnixMicro()
	}
	return r
}

// See records a state of a Lease, and returns Observed.Silent.
//
// The caller reads now after the state has arrived, because the pod can have sent the renewal until then. now must have
// the monotonic clock of the process. That clock stops while the machine is suspended, which lengthens the wait.
//
// A late event about an older state restarts the silence, and the next event restarts the silence again. That is safe.
// Only a renewal may shorten the duration, because the pod runs for the duration of its last renewal. So a duration that
// was shortened since then does not expire before the longer duration.
func (s *Silence) See(lease *coordinationv1.Lease, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, is, duration := types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}, renewalOf(lease), ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)
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

// Overdue returns the Leases that are overdue, each once for each of its states. The next decision then knows when the Lease
// expires.
func (s *Silence) Overdue(now time.Time) (overdue []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, seen := range s.leases {
		if !seen.overdue && now.Sub(seen.since) >= time.Duration(seen.longest)*time.Second/2 {
			seen.overdue = true
			s.leases[key] = seen
			overdue = append(overdue, key)
		}
	}
	return overdue
}

// Forget forgets a Lease.
func (s *Silence) Forget(lease types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, lease)
}
