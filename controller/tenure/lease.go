package tenure

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// identityOf returns the holder identity of the pod. Only the identity of a fenced pod has its UID, because a fenced pod
// becomes the writer when the Lease has its UID.
func identityOf(p *pod) string {
	if p.fenced {
		return fencing.HolderIdentity(p.Name, string(p.UID))
	}
	return p.Name
}

// named returns true if the Lease names the pod for the recorded tenure.
func (d *decision) named(p *pod) bool {
	return d.Lease.Holder() == identityOf(p) && d.leaseWriter() == p.UID && d.Lease.Epoch() == d.status.Epoch
}

// leaseWriter returns the UID of the pod that the Lease names, or named last. Empty: it has not named a pod.
func (d *decision) leaseWriter() types.UID {
	return types.UID(d.Lease.Object.Annotations[fencing.WriterAnnotation])
}

// leaseNamesWriter returns true if the Lease names the recorded writer, and the writer is fenced.
func (d *decision) leaseNamesWriter() bool {
	return strings.HasSuffix(d.Lease.Holder(), "_"+string(d.status.WriterPodUID))
}

// nameInLease names the recorded writer.
func (d *decision) nameInLease(p *pod) {
	d.do(WriteLease{Version: d.leaseVersion(), Holder: identityOf(p), Writer: p.UID, Epoch: d.status.Epoch, Renew: !p.fenced})
}

// acknowledged returns true if the named pod has renewed the Lease since it is named, and no renewal is overdue.
func (d *decision) acknowledged() bool {
	return d.Lease.Object.Spec.RenewTime != nil && !d.Lease.Overdue()
}

// renew renews the Lease of an unfenced writer after half of its duration.
func (d *decision) renew() {
	half := d.Lease.Duration(d.Lock.Spec.LeaseDurationSeconds) / 2
	if renewed := d.Lease.Object.Spec.RenewTime; renewed == nil || d.left(half, renewed.Time) <= 0 {
		d.do(WriteLease{Version: d.leaseVersion(), Holder: identityOf(d.writer), Writer: d.writer.UID, Epoch: d.status.Epoch, Renew: true})
		d.requeueIn(half)
	}
}

func (d *decision) leaseVersion() Version { return Version(d.Lease.Object.ResourceVersion) }

// isReleased returns true if the fenced writer has released the Lease.
func (d *decision) isReleased() bool { return d.leaseProof() != "" }

// leaseProof returns the proof of the Lease that the recorded tenure has ended. Empty: there is no proof. The Lease of an
// unfenced writer proves nothing.
func (d *decision) leaseProof() v1.Proof {
	fenced := d.Lock.Spec.Fencing == v1.LockFencingLease
	if d.writer != nil {
		fenced = d.writer.fenced
	}
	if !fenced || d.Lease.Holder() != "" || d.Lease.Epoch() != d.status.Epoch || d.leaseWriter() != d.status.WriterPodUID {
		return ""
	}
	if types.UID(d.Lease.Object.Annotations[fencing.ExpiredAnnotation]) == d.status.WriterPodUID {
		return v1.ProofLeaseExpired
	}
	return v1.ProofLeaseReleased
}

// hasExpired returns true if the fenced writer has not renewed the Lease for its duration.
func (d *decision) hasExpired() bool {
	return d.writer.fenced && d.named(d.writer) && d.leaseExpired()
}

// leaseExpired returns true if the Lease has not been renewed for the longest duration of the Lease, the lock and the pods.
// If a renewal is overdue, it decides again when the Lease expires.
func (d *decision) leaseExpired() bool {
	longest := d.Lease.Duration(d.Lock.Spec.LeaseDurationSeconds)
	for _, p := range d.pods {
		longest = max(longest, p.duration)
	}
	left := longest - d.Lease.Silent
	if d.Lease.Overdue() {
		d.requeueIn(left)
	}
	return left <= 0
}

// revokeLease makes the fenced writer end its tenure, or takes the Lease after it has expired.
func (d *decision) revokeLease() {
	uid, epoch := d.status.WriterPodUID, d.status.Epoch
	empty := WriteLease{Version: d.leaseVersion(), Writer: uid, Epoch: epoch}
	d.found(TenureRevoked, d.revokedMessage())
	switch last := d.Lease.Epoch(); {
	case d.leaseBlocks(): // it names another pod
	case d.leaseNamesWriter() && !d.leaseExpired():
		if d.revoked() != epoch {
			d.do(WriteLease{Version: d.leaseVersion(), Holder: d.Lease.Holder(), Writer: uid, Epoch: last, Revoke: epoch})
		}
	case !d.leaseNamesWriter() && 0 < last && last < epoch:
		// The Lease has never named the writer. A late controller that is about to name it fails after this write.
		d.do(empty)
		d.requeueIn(0)
	case d.leaseExpired():
		// Also if the Lease was deleted and created again: it shows nothing, but the writer could not renew it.
		empty.Expired = uid
		d.do(empty)
		d.found(LeaseTaken, d.leaseTakenMessage())
		d.requeueIn(0)
	}
}

// emptyLease removes the name of a fenced pod whose tenure has ended without a release, because its pod has terminated.
func (d *decision) emptyLease(uid types.UID) {
	if strings.HasSuffix(d.Lease.Holder(), "_"+string(uid)) {
		d.do(WriteLease{Version: d.leaseVersion(), Writer: uid, Epoch: d.Lease.Epoch(), Expired: uid})
	}
}

// revoked returns the epoch of the tenure that the holder of the Lease must end. 0: none.
func (d *decision) revoked() int64 {
	n, _ := strconv.ParseInt(d.Lease.Object.Annotations[fencing.RevokedAnnotation], 10, 64)
	return n
}

// leaseBlocks returns true if the Lease names a fenced pod that is not the recorded writer. The pod may be a writer until it
// releases the Lease, or until the Lease expires.
func (d *decision) leaseBlocks() bool {
	holder := d.Lease.Holder()
	name, uid, fenced := strings.Cut(holder, "_")
	if !fenced || uid == string(d.status.WriterPodUID) {
		return false
	}
	if d.leaseExpired() {
		d.do(WriteLease{Version: d.leaseVersion(), Writer: types.UID(uid), Epoch: d.Lease.Epoch(), Expired: types.UID(uid)})
		d.found(LeaseTaken, d.leaseTakenMessage())
		d.requeueIn(0)
		return true
	}
	if d.revoked() != d.Lease.Epoch() {
		d.do(WriteLease{Version: d.leaseVersion(), Holder: holder, Writer: types.UID(uid), Epoch: d.Lease.Epoch(), Revoke: d.Lease.Epoch()})
	}
	d.found(LeaseHeld, d.leaseHeldMessage(name))
	return true
}

// proofOf returns the proof that the tenure of the writer has ended. Empty: there is no proof.
func (d *decision) proofOf(p *pod) v1.Proof {
	if proven := d.leaseProof(); proven != "" {
		return proven
	}
	node := d.Nodes[p.Spec.NodeName]
	switch {
	case !proof.Going(p.Pod):
		return ""
	case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
		return v1.ProofNeverSignalled
	case proof.KubeletReported(p.Pod, containersOf(p.Pod)...):
		return v1.ProofKubeletReported
	case proof.OutOfService(node):
		return v1.ProofNodeOutOfService
	case d.attested(p.UID) && proof.Attestable(p.Pod, node):
		return v1.ProofAttested
	}
	return ""
}

// proofOfRemoved returns the proof for a writer whose object does not exist. The writer had the finalizer, so a missing
// object proves nothing.
func (d *decision) proofOfRemoved() v1.Proof {
	if d.attested(d.status.WriterPodUID) {
		return v1.ProofAttested
	}
	return d.leaseProof()
}

func (d *decision) attested(uid types.UID) bool {
	return uid != "" && d.Lock.Annotations[v1.AttestAnnotation] == string(uid)
}

// containersOf returns the states of all containers that can write: regular containers and native sidecars.
func containersOf(p *corev1.Pod) []*corev1.ContainerStatus {
	var all []*corev1.ContainerStatus
	for _, c := range p.Spec.InitContainers {
		all = append(all, proof.StatusOf(p.Status.InitContainerStatuses, c.Name))
	}
	for _, c := range p.Spec.Containers {
		all = append(all, proof.StatusOf(p.Status.ContainerStatuses, c.Name))
	}
	return all
}
