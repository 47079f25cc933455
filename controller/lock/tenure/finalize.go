package tenure

import (
	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Finalize returns the writes for a lock that is being deleted, after its policy was deleted. The message says what the
// deletion waits for. It is empty if the deletion waits for nothing.
//
// The deletion waits for a writer that is terminating, and for a lost writer: the next lock of the StatefulSet would know
// neither. It also waits until a fenced writer is a reader, because the Lease is deleted with the lock. Another writer that runs
// becomes a pod without a role. The record is emptied first: without its finalizer, the pod can be removed before the lock is.
func Finalize(s Snapshot) (plan Plan, message string) {
	d := &decision{Snapshot: s, status: s.Lock.Status.DeepCopy(), pods: classify(s)}
	d.writer = find(d.pods, d.status.WriterPodUID)
	var free []*pod
	for _, p := range d.pods {
		isSingleton := p.Labels[v1.SingletonLabel] != ""
		switch {
		case p.Labels[v1.LockLabel] != s.Lock.Name:
		case !isSingleton && p.protected() && proof.Going(p.Pod) && d.proofOf(p) == "":
			message = d.stoppingMessage(p)
		default:
			free = append(free, p)
		}
	}
	if message == "" {
		message = d.tenureLeft()
	}
	if message == "" && d.status.WriterPodUID != "" {
		d.recordWriter(nil, d.status.Epoch)
		d.do(Record{})
	}
	for _, p := range free {
		if p.UID != s.Lock.Status.WriterPodUID || message == "" {
			d.do(Forget{Pod: refOf(p), Ends: max(p.ended, d.status.Epoch), Unprotect: p.Labels[v1.SingletonLabel] == ""})
		}
	}
	d.plan.Status = *d.status
	return d.plan, message
}

// tenureLeft ends the tenure of a fenced writer. It returns why the deletion must wait for the end of a tenure, or nothing.
func (d *decision) tenureLeft() string {
	uid := d.status.WriterPodUID
	if d.Lease.Object == nil || !d.ownsLease() {
		return ""
	}
	switch {
	case d.leaseBlocks():
		d.awaitLease()
		return d.message
	case uid == "" || d.writer != nil && d.proofOf(d.writer) != "" || d.proofOfRemoved() != "":
		return ""
	case d.recordedEndsBy() == v1.LockFencingLease:
		d.revokeLease()
		return d.message
	case d.writer == nil && d.recordedEndsBy() == v1.LockFencingTermination:
		return d.lostMessage()
	}
	return ""
}
