package tenure

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// A fenced pod is a writer only while the Lease names it and it renews the Lease. The Lease follows the record: a late
// controller cannot name a pod that the record no longer names.
//
// Only a controller names a pod. Only the pod that is named removes its name, after its last process that was a writer has
// ended. A controller removes the name only if the pod has not renewed the Lease for its duration, which is longer than the
// pod may be a writer after a renewal. Both removals prove that the tenure has ended. An unfenced writer also has its name in
// the Lease, for tools and for people. That proves nothing, and the controller renews the Lease.

// A Lease that names no pod is held if a pod may still be the writer that an earlier Lease named. That Lease is gone, for example
// because somebody took the finalizer off the lock, and deleted and created the lock. The pod cannot renew it, so no process of the
// pod is the writer once a duration has passed.

// ownsLease returns true if the lock controls the Lease, and has created it.
func (d *decision) ownsLease() bool {
	return owner.Controls(d.Lock, owner.StatefulSetLock, d.Lease.Object) && d.Lease.Object.Labels[v1.LockLabel] == d.Lock.Name
}

// inLease is what the Lease says about its holder.
type inLease struct {
	// epoch is 0 before the first writer.
	epoch int64
	// writer is the pod that the Lease names, or named last. Its name is empty if the Lease names no pod.
	writer PodRef
	// fenced is true if the Lease names a fenced pod.
	fenced bool
	// revoked is the last epoch that the holder was told to end, and writing the last with which a holder was a writer.
	revoked, writing int64
	// expired is the pod from which the Lease was taken.
	expired types.UID
}

// inLease returns what the Lease says. It is empty if the Lease does not exist.
func (d *decision) inLease() inLease {
	lease := d.Lease.Object
	if lease == nil {
		return inLease{}
	}
	name, _, fenced := strings.Cut(d.Lease.Holder(), "_")
	return inLease{
		epoch:   int64(ptr.Deref(lease.Spec.LeaseTransitions, 0)),
		writer:  PodRef{Name: name, UID: types.UID(lease.Annotations[signal.WriterAnnotation])},
		fenced:  fenced,
		revoked: epochIn(lease, signal.RevokedAnnotation), writing: epochIn(lease, signal.WritingAnnotation),
		expired: types.UID(lease.Annotations[signal.ExpiredAnnotation]),
	}
}

// holderOf returns the holder identity of the pod. A fenced pod becomes the writer when the Lease has its UID.
func holderOf(p *pod) string {
	if p.fenced {
		return signal.HolderIdentity(p.Name, string(p.UID))
	}
	return p.Name
}

// isNamed returns true if the Lease names the recorded writer with its epoch.
func (d *decision) isNamed() bool {
	is := d.inLease()
	return d.Lease.Holder() == holderOf(d.writer) && is.writer.UID == d.writer.UID && is.epoch == d.status.Epoch
}

// isWriting returns true if the recorded writer is the writer. A fenced pod says so in the Lease.
func (d *decision) isWriting() bool {
	return !d.writer.fenced || d.isNamed() && d.inLease().writing == d.status.Epoch && !d.Lease.Overdue()
}

// nameInLease names the recorded writer. It also renews the Lease of an unfenced writer. A fenced pod shows its epoch before.
func (d *decision) nameInLease(p *pod) {
	if p.fenced && p.began < d.status.Epoch {
		d.do(MarkTenure{Pod: refOf(p), Epoch: d.status.Epoch})
	}
	step := WriteLease{Holder: holderOf(p), Writer: p.UID, Epoch: d.status.Epoch, Duration: p.duration}
	if !p.fenced {
		step.Renew, step.Duration = true, leaseDuration(d.Lock)
		d.requeueIn(renewalPeriod(d.Lock))
	}
	d.do(step)
}

// renewalIsDue returns true if the controller renews the Lease, and the last renewal is half of the duration ago. Otherwise, it
// decides again then.
func (d *decision) renewalIsDue() bool {
	renewed := d.Lease.Object.Spec.RenewTime
	return !d.writer.fenced && (renewed == nil || d.left(renewalPeriod(d.Lock), renewed.Time) <= 0)
}

// isHeld returns true if no pod can get the Lease before it expires. CreateLease makes it so.
func (d *decision) isHeld() bool {
	return d.inLease().epoch == 0 && d.Lease.Object.Spec.RenewTime != nil && !d.leaseExpired()
}

// leaseProof returns the proof of the Lease that the recorded tenure has ended. Empty: there is no proof. The name of an
// unfenced writer is never removed.
func (d *decision) leaseProof() v1.Proof {
	is := d.inLease()
	switch {
	case is.writer.UID == "" || is.writer.Name != "" || is.epoch != d.status.Epoch || is.writer.UID != d.status.WriterPodUID:
		return ""
	case is.expired == d.status.WriterPodUID:
		return v1.ProofLeaseExpired
	}
	return v1.ProofLeaseReleased
}

// longestDuration returns the longest duration of the Lease, the lock and the pods.
func (d *decision) longestDuration() time.Duration {
	longest := leaseDuration(d.Lock)
	if d.Lease.Object != nil {
		longest = max(longest, leases.DurationOf(d.Lease.Object))
	}
	for _, p := range d.pods {
		longest = max(longest, p.duration)
	}
	return longest
}

// leaseExpired returns true if the Lease has not been renewed for the longest duration. If a renewal is overdue, it decides again
// when the Lease expires.
func (d *decision) leaseExpired() bool {
	left := d.longestDuration() - d.Lease.Silent
	if d.Lease.Overdue() {
		d.requeueIn(left)
	}
	return left <= 0
}

// revokeLease ends the tenure of a fenced writer. It also does so if the object of the writer does not exist.
func (d *decision) revokeLease() {
	is, uid := d.inLease(), d.status.WriterPodUID
	d.found(TenureRevoked, "pod %s must end its tenure. Another pod becomes the writer after Lease %s was released, or after it has expired",
		d.status.WriterPod, d.Lock.Spec.LeaseName)
	names := is.fenced && is.writer.UID == uid
	switch {
	case d.leaseBlocks():
		d.awaitLease()
	case d.leaseExpired():
		// Also if the Lease was deleted and created again: the pod could not renew the old one.
		d.takeLease(PodRef{Name: d.status.WriterPod, UID: uid}, d.status.Epoch)
	case !names && 0 < is.epoch && is.epoch < d.status.Epoch:
		// The Lease has never named the writer. A late controller that is about to name it fails after this write.
		d.do(WriteLease{Writer: uid, Epoch: d.status.Epoch})
		d.requeueIn(0)
	case names && is.revoked < is.epoch:
		d.revoke(is)
	}
}

// takeLease takes the Lease, which has expired, from a pod.
func (d *decision) takeLease(from PodRef, epoch int64) {
	d.do(WriteLease{Writer: from.UID, Epoch: epoch, Expired: from.UID})
	d.found(LeaseTaken, "Lease %s has expired: pod %s did not renew it", d.Lock.Spec.LeaseName, from.Name)
	d.requeueIn(0)
}

// revoke tells the holder of the Lease to end its tenure.
func (d *decision) revoke(is inLease) {
	d.do(WriteLease{Holder: d.Lease.Holder(), Writer: is.writer.UID, Epoch: is.epoch, Revoked: is.epoch})
}

// leaseBlocks returns true if the Lease is held, or names a fenced pod that is not the recorded writer. The pod can be a writer
// until it releases the Lease, or until the Lease expires.
func (d *decision) leaseBlocks() bool {
	is, last := d.inLease(), d.status.LastTransition
	ended := last != nil && last.FromUID == is.writer.UID && last.Proof != "" // by another proof than the Lease
	return d.isHeld() || is.fenced && is.writer.UID != d.status.WriterPodUID && !(ended && is.epoch <= d.status.Epoch)
}

// awaitLease takes a Lease that blocks, if it has expired. Otherwise it revokes the tenure of its pod, and reports that the lock
// waits.
func (d *decision) awaitLease() {
	is := d.inLease()
	switch {
	case d.isHeld():
		d.found(LeaseHeld, "Lease %s was created again, so a pod that the Lease before named may still be the writer. Another pod becomes the writer "+
			"after the new Lease has expired, at the latest %s after its creation", d.Lock.Spec.LeaseName, d.longestDuration())
		return
	case d.leaseExpired():
		d.takeLease(is.writer, is.epoch)
		return
	case is.revoked < is.epoch:
		d.revoke(is)
	}
	d.found(LeaseHeld, "Lease %s names pod %s, which status does not have. Another pod becomes the writer after the Lease was released, "+
		"or after it has expired", d.Lock.Spec.LeaseName, is.writer.Name)
}
