package handoff

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// A fenced pod runs its main processes only while the Lease names it and it renews the Lease. The record still says who
// the holder is, and the Lease follows the record: each release names the new holder, whether the pod is fenced or not.
// A late controller therefore cannot name a pod that the record no longer names.
//
// Only a controller names a pod. Only the pod that is named removes its name, which releases the Lease. A controller
// removes the name only if the pod has not renewed the Lease for its duration, which is longer than the pod may run
// after a renewal. Both removals are proofs that the main processes have ended. A released pod never starts them again.
// A pod whose Lease expired starts them only if the Lease names it again.

// named returns true if the Lease names the pod.
func (s Snapshot) named(p *ClassifiedPod) bool {
	return s.Lease.Holder() == signal.HolderIdentity(p.Name, string(p.UID))
}

// ownLease returns the Lease if the singleton controls it, or nil. Another object may have the name of the Lease.
func (s Snapshot) ownLease() *coordinationv1.Lease {
	if s.Lease.Object == nil || !owner.Controls(s.Singleton, owner.StatefulSingleton, s.Lease.Object) {
		return nil
	}
	return s.Lease.Object
}

// leaseEpoch returns the epoch of the pod that the singleton's Lease named last. 0: it has not named any pod.
func (s Snapshot) leaseEpoch() int64 {
	lease := s.ownLease()
	if lease == nil {
		return 0
	}
	return int64(ptr.Deref(lease.Spec.LeaseTransitions, 0))
}

// leaseProof returns the proof of termination of a fenced pod from which the Lease was removed. Empty: there is no proof.
// A Lease that was deleted and created again has epoch 0, and proves nothing.
func (s Snapshot) leaseProof(p *ClassifiedPod) v1.Proof {
	if p.fencing == nil || s.ownLease() == nil || s.named(p) {
		return ""
	}
	recorded := p.UID == s.Singleton.Status.ActivePodUID
	if !recorded && s.chosenElsewhere(p.Pod) {
		return "" // an earlier singleton of the name released the pod, under a Lease that no longer exists
	}
	given, hasSignal := signalled(p.Pod)
	epoch := s.leaseEpoch()
	switch {
	case recorded && epoch == s.Singleton.Status.Epoch, !recorded && hasSignal && epoch == given.Epoch:
		return s.proofOfRemoval(p)
	case !recorded && hasSignal && epoch > given.Epoch, !recorded && !hasSignal && released(p.Pod) && epoch > 0:
		// The record and the Lease moved on, or Unprotect removed the signal: there was a proof that the pod has terminated.
		return s.proofOfLastHolder(p.UID)
	}
	return ""
}

// proofOfRemoval returns the proof for the pod that the Lease named last. Empty: the Lease names a pod.
func (s Snapshot) proofOfRemoval(p *ClassifiedPod) v1.Proof {
	expired := types.UID(s.Lease.Object.Annotations[signal.ExpiredAnnotation])
	switch {
	case s.Lease.Holder() != "":
		return ""
	case expired == "":
		return v1.ProofLeaseReleased
	case expired == p.UID:
		return v1.ProofLeaseExpired
	}
	return ""
}

// proofOfLastHolder returns the proof in the record if the pod was the last holder.
func (s Snapshot) proofOfLastHolder(uid types.UID) v1.Proof {
	if last := s.Singleton.Status.LastTransition; last != nil && last.FromUID == uid && last.Proof != "" {
		return last.Proof
	}
	return v1.ProofLeaseReleased
}

// neverNamed returns true if the Lease shows that it has not named the recorded pod since the record names it. A Lease
// that was deleted and created again shows nothing.
func (s Snapshot) neverNamed(p *ClassifiedPod) bool {
	return !s.named(p) && s.leaseEpoch() > 0 && s.leaseEpoch() < s.Singleton.Status.Epoch
}

// AfterRelease returns the Snapshot with a later state of the Lease, if the recorded holder has released the Lease. The
// release is a proof. The rest of the Snapshot is as old as that of a controller that is slow to write. A write fails if
// another client wrote its object in the meantime.
func (s Snapshot) AfterRelease(later *coordinationv1.Lease) (after Snapshot, released bool) {
	before := s.ownLease()
	uid := s.Singleton.Status.ActivePodUID
	if before == nil || uid == "" || !strings.HasSuffix(s.Lease.Holder(), "_"+string(uid)) || later.UID != before.UID {
		return s, false
	}
	s.Lease = leases.Observed{Object: later}
	released = s.Lease.Holder() == "" && s.leaseEpoch() == s.Singleton.Status.Epoch && later.Annotations[signal.ExpiredAnnotation] == ""
	return s, released
}

// leaseDuration returns how long the pod that holds the Lease may take until it renews the Lease.
func (d *decision) leaseDuration() time.Duration {
	longest := time.Duration(signal.LeaseSeconds(d.Singleton.Spec.LeaseDurationSeconds)) * time.Second
	if lease := d.Lease.Object; lease != nil {
		longest = max(longest, leases.DurationOf(lease))
	}
	for _, p := range d.pods {
		if p.fencing != nil {
			longest = max(longest, p.fencing.Duration)
		}
	}
	return longest
}

// createLease creates a missing Lease before it is needed. It names no pod: only an update can do that, which fails if
// the Lease was written or deleted since the Snapshot.
func (d *decision) createLease() {
	wanted := d.Singleton.Spec.Fencing == v1.FencingLease || slices.ContainsFunc(d.pods, func(p *ClassifiedPod) bool { return p.fencing != nil })
	if wanted && d.Lease.Object == nil {
		d.do(WriteLease{})
	}
}

// nameInLease names the recorded holder in the Lease.
func (d *decision) nameInLease(pod *ClassifiedPod) {
	if d.Lease.Object == nil || d.named(pod) || pod.fencing == nil && d.ownLease() == nil {
		return
	}
	step := WriteLease{Version: d.leaseVersion(), Holder: refOf(pod.Pod), Epoch: d.status.Epoch}
	if pod.fencing != nil {
		step.Duration = pod.fencing.Duration
	}
	d.do(step)
}

// retireInLease tells the holder not to start its main processes again, because the pod is being deleted. The pod
// releases the Lease once they have ended. The Lease also says which standby accepts connections meanwhile. Next is the standby that
// starts after the holder, or nil.
func (d *decision) retireInLease(next *ClassifiedPod) {
	lease := d.ownLease()
	if d.holder.fencing == nil || lease == nil || !d.named(d.holder) {
		return
	}
	is, wanted := receptionIn(lease.Annotations), d.reception(next)
	d.receives = wanted.next
	if lease.Annotations[signal.RetireAnnotation] == string(d.holder.UID) && is == wanted {
		return
	}
	d.do(WriteLease{
		Version: d.leaseVersion(), Holder: refOf(d.holder.Pod), Duration: d.holder.fencing.Duration, Epoch: d.leaseEpoch(), Retire: d.holder.UID,
		Next: wanted.next, Delay: wanted.delay,
	})
}

// leaseAnnotations returns the annotations of the singleton's Lease.
func (d *decision) leaseAnnotations() map[string]string {
	if lease := d.ownLease(); lease != nil {
		return lease.Annotations
	}
	return nil
}

// neverExpires returns true if no time without a renewal ends what the pods may do.
func (d *decision) neverExpires() bool { return d.leaseDuration() == signal.NeverExpires*time.Second }

// emptyLease removes the name of the old holder after the record has moved on without a new holder. A write that failed before can
// have left the name of an earlier holder.
func (d *decision) emptyLease() {
	old := d.Singleton.Status.ActivePodUID
	if d.leaseNamesEnded() {
		old = d.Singleton.Status.LastTransition.FromUID
	}
	if d.ownLease() != nil && old != "" && d.leaseNames(old) {
		d.takeLease(d.leaseEpoch(), old)
	}
}

// takeLease takes the Lease from the pod. A standby that accepts connections keeps its clients.
func (d *decision) takeLease(epoch int64, from types.UID) {
	step := WriteLease{Version: d.leaseVersion(), Epoch: epoch, Expired: from}
	if d.receiving() != nil {
		step.Next = d.receives
	}
	d.do(step)
}

// leaseNames returns true if the Lease names the pod with the UID.
func (d *decision) leaseNames(uid types.UID) bool {
	return strings.HasSuffix(d.Lease.Holder(), "_"+string(uid))
}

// leaseNamesEnded returns true if a Lease that never expires still names the last holder, and the record has a proof that its
// processes have ended for good. A pod that was never signalled may start if a late controller names it, and so may a pod whose
// Lease expired.
func (d *decision) leaseNamesEnded() bool {
	last := d.Singleton.Status.LastTransition
	if last == nil || last.FromUID == "" || !d.leaseNames(last.FromUID) || !d.neverExpires() {
		return false
	}
	return slices.Contains([]v1.Proof{v1.ProofKubeletReported, v1.ProofNodeOutOfService, v1.ProofAttested}, last.Proof)
}

func (d *decision) leaseVersion() Version { return Version(d.Lease.Object.ResourceVersion) }

// holderExpires takes the Lease from a fenced holder that has not renewed it for its duration. It returns false if
// the Lease has not expired.
func (d *decision) holderExpires() bool {
	mayRun := d.named(d.holder) || d.Lease.Holder() == "" && proof.Going(d.holder.Pod) // the Lease was created again
	if d.holder.fencing == nil || d.ownLease() == nil || !mayRun || d.status.Epoch != d.Singleton.Status.Epoch {
		return false
	}
	d.awaitExpiry()
	if !d.leaseExpired() {
		return false
	}
	d.takeLease(d.status.Epoch, d.holder.UID)
	d.reportTaken(d.holder.Name)
	return true
}

// leaseExpired returns true if the Lease has not been renewed for its duration.
func (d *decision) leaseExpired() bool { return d.Lease.Silent >= d.leaseDuration() }

// awaitExpiry decides again when the Lease expires, if a renewal is overdue.
func (d *decision) awaitExpiry() {
	if d.Lease.Overdue() {
		d.requeueIn(d.leaseDuration() - d.Lease.Silent)
	}
}

// leaseBlocks returns true if the Lease names a pod that may run beside the pod to release. A pod of the Snapshot without
// a proof of termination is unrecorded, which blocks every release. Another pod blocks until the Lease has expired.
func (d *decision) leaseBlocks(next *ClassifiedPod) bool {
	recorded := d.Singleton.Status.ActivePodUID
	switch {
	case next.fencing != nil && d.Lease.Object == nil:
		return true
	case next.fencing == nil && d.ownLease() == nil, d.Lease.Holder() == "", recorded != "" && d.leaseNames(recorded), d.leaseNamesEnded():
		return false
	}
	return !slices.ContainsFunc(d.pods, func(p *ClassifiedPod) bool { return d.named(p) })
}

// awaitLease takes a Lease that blocks the pod to release, if it has expired. Otherwise it reports why the pod waits.
func (d *decision) awaitLease(next *ClassifiedPod) {
	if d.Lease.Object == nil {
		d.found(LeaseHeld, "pod %s %s", next.Name, d.leaseMissing())
		return
	}
	d.awaitExpiry()
	name, uid, _ := strings.Cut(d.Lease.Holder(), "_")
	if d.leaseExpired() && d.ownLease() != nil {
		d.takeLease(d.leaseEpoch(), types.UID(uid))
		d.reportTaken(name)
		return
	}
	d.needsPerson = d.neverExpires()
	d.found(LeaseHeld, "Lease %s names pod %s, which does not exist: %s", signal.LeaseName(d.Singleton.Name), name, d.leaseHeldHelp())
}

// reportTaken reports that the Lease was taken from the pod.
func (d *decision) reportTaken(pod string) {
	d.found(LeaseTaken, "pod %s has not renewed Lease %s for %s, before which it stops its main processes: the Lease is taken from the pod",
		pod, signal.LeaseName(d.Singleton.Name), d.leaseDuration())
}

// lostLease returns true if the pod was the last holder and its Lease expired. Its node may be lost, even if it still
// appears Ready.
func (s Snapshot) lostLease(p *ClassifiedPod) bool {
	last := s.Singleton.Status.LastTransition
	return last != nil && last.FromUID == p.UID && last.Proof == v1.ProofLeaseExpired
}

// lostLeaseAlive returns true if the Lease of a released pod expired, and the pod is not terminating.
func lostLeaseAlive(p *ClassifiedPod) bool {
	return !proof.Going(p.Pod) && released(p.Pod) && p.Proof == v1.ProofLeaseExpired
}

// distrustLost keeps a pod whose Lease expired from becoming the holder again while another pod can. Its node may be lost,
// and may still appear Ready.
func (d *decision) distrustLost() {
	alone := d.status.ActivePodUID == "" && d.onlyLost() != nil
	for _, p := range d.standbys {
		if !d.lostLease(p) || alone && d.rollsLost(p.Pod) == nil {
			continue
		}
		if ended := d.status.LastTransition.Terminated; ended != nil && d.left(lostNodePatience, ended.Time) > 0 {
			p.WaitsFor = fmt.Sprintf("did not renew Lease %s, so its node may be lost", signal.LeaseName(d.Singleton.Name))
		}
	}
}

// awaitsRelease returns true if only the signal or the Lease keeps the recorded holder from running.
func (s Snapshot) awaitsRelease(holder *ClassifiedPod) bool {
	return awaitsSignal(holder.Pod, holder.held) || holder.fencing != nil && !s.named(holder)
}

// leaseRunsOut returns true if the Lease may be taken from the holder.
func (s Snapshot) leaseRunsOut(holder *ClassifiedPod) bool {
	return holder.fencing != nil && s.Lease.Silent >= holder.fencing.Duration
}

// Reasons of condition Fenced.
const (
	leaseRenewed    = "LeaseRenewed"
	leaseNotRenewed = "LeaseNotRenewed"
	sharedProcesses = "SharedProcesses"
	notWrapped      = "NotWrapped"
	createdBefore   = "CreatedBefore"
)

// reportFencing reports whether the holder runs only while it holds the Lease.
func (d *decision) reportFencing() {
	active := d.active()
	switch {
	case active == nil || d.Singleton.Spec.Fencing != v1.FencingLease && active.fencing == nil:
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionFenced)
	case active.fencing == nil:
		d.setCondition(v1.ConditionFenced, false, whyNotFenced(active), d.notFencedMessage(active))
	case d.named(active) && d.Lease.Renewed() && (!active.fencing.NeverExpires() || d.Lease.Silent < maxRenewalAge):
		d.setCondition(v1.ConditionFenced, true, leaseRenewed, d.renewedMessage(active))
	default:
		d.setCondition(v1.ConditionFenced, false, leaseNotRenewed, d.notRenewedMessage(active))
	}
}

// whyNotFenced returns the reason of condition Fenced for a pod that is not fenced.
func whyNotFenced(p *ClassifiedPod) string {
	switch {
	case ptr.Deref(p.Spec.ShareProcessNamespace, false) || p.Spec.HostPID:
		return sharedProcesses
	case slices.ContainsFunc(p.held, func(h injected.Container) bool { return h.Unheld || h.ConfigMap != "" }):
		return notWrapped
	}
	return createdBefore
}
