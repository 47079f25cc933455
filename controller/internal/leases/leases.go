// Package leases reads the Leases that fence pods, and lets pods renew them. It knows for how long a Lease has not been renewed, and it
// is safe for clocks of other machines that are wrong. Only access.go has a client: it writes a Role for the Lease, and a RoleBinding
// of the ServiceAccounts of the fenced pods. Both are garbage-collected with the owner of the Lease.
package leases

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
)

// Observed is a Lease, as an observer knows it.
type Observed struct {
	// Object is a live read, or from the cache after a release. Nil: the Lease does not exist.
	Object *coordinationv1.Lease
	// Silent is how long this process has not seen a renewal or another change of the holder, by its own monotonic clock.
	Silent time.Duration
}

// Holder returns the holder identity. Empty: there is none, or no Lease.
func (o Observed) Holder() string {
	if o.Object == nil {
		return ""
	}
	return HolderOf(o.Object)
}

// Overdue returns true if half of the Lease's duration has passed without a renewal. Pods renew it five times in one
// duration.
func (o Observed) Overdue() bool {
	return o.Object != nil && o.Silent >= DurationOf(o.Object)/2
}

// Renewed returns true if the holder has renewed the Lease since it holds the Lease, and no renewal is overdue.
func (o Observed) Renewed() bool {
	spec := &o.Object.Spec
	return spec.RenewTime != nil && (spec.AcquireTime == nil || !spec.RenewTime.Before(spec.AcquireTime)) && !o.Overdue()
}

// HolderOf returns the holder identity of the Lease. Empty: there is none.
func HolderOf(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

// DurationOf returns the duration of the Lease.
func DurationOf(lease *coordinationv1.Lease) time.Duration {
	return time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
}

// SameHolder returns true if nobody got or lost the Lease between the two states.
func SameHolder(before, after *coordinationv1.Lease) bool {
	was, is := renewalOf(before), renewalOf(after)
	was.microTime = is.microTime
	return was == is
}
