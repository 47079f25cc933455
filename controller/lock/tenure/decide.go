package tenure

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// decision is a Snapshot with its pods classified, and the Plan under construction.
type decision struct {
	Snapshot
	now time.Time

	pods []*pod
	// writer is the recorded writer. It is nil if no writer is recorded, or if its object does not exist.
	writer *pod
	// next is the pod that can become the writer. It is nil if there is none.
	next *pod

	plan   Plan
	status *v1.StatefulSetLockStatus
	// message says what the outcome means for this lock.
	message string
	// needsPerson is true if nothing continues without a person.
	needsPerson bool
}

// Decide returns what to do about the lock of the Snapshot at the time now.
func Decide(s Snapshot, now time.Time) Plan {
	d := &decision{Snapshot: s, now: now, status: s.Lock.Status.DeepCopy(), pods: classify(s)}
	d.writer = find(d.pods, d.status.WriterPodUID)
	d.plan.Requeue = settledPoll
	if !d.refuse() && !d.createLease() && !d.adopt() {
		d.next = d.candidate(nil)
		d.labelReaders()
		if d.status.WriterPodUID == "" {
			d.withoutWriter()
		} else {
			d.withWriter()
		}
		d.unprotectReaders()
		d.takeAttestation()
	}
	d.report()
	d.plan.Status = *d.status
	return d.plan
}

func (d *decision) do(steps ...Step) { d.plan.Steps = append(d.plan.Steps, steps...) }

// found sets the outcome, and the message that says what the outcome means here.
func (d *decision) found(outcome Outcome, format string, args ...any) {
	d.plan.Outcome, d.message = outcome, fmt.Sprintf(format, args...)
}

// requeueIn decides again after the delay, or earlier.
func (d *decision) requeueIn(delay time.Duration) {
	d.plan.Requeue = min(d.plan.Requeue, max(delay, minRequeue))
}

// left returns how much of a duration that began at since is left. If any is left, it decides again when none is left.
func (d *decision) left(duration time.Duration, since time.Time) time.Duration {
	left := proof.Left(duration, since, d.now)
	if left > 0 {
		d.requeueIn(left)
	}
	return left
}

// refuse reports why the lock must not change anything. It returns false if nothing forbids that.
func (d *decision) refuse() bool {
	older, spec, namespace := OlderLock(d.Lock, d.Others), &d.Lock.Spec, d.Lock.Namespace
	switch {
	case older != "":
		d.found(SecondLock, "StatefulSetLock %s already labels the pods of StatefulSet %s, and this lock changes nothing. "+
			"Delete one of the two: kubectl delete ssl -n %s %s", older, spec.StatefulSetName, namespace, d.Lock.Name)
	case d.Lease.Object != nil && !d.ownsLease():
		d.found(ForeignLease, "Lease %s exists, and this lock does not control the Lease, so this lock changes nothing. If nothing needs the Lease, "+
			"delete it: kubectl delete lease -n %s %[1]s. Otherwise, recreate the lock with another spec.leaseName", spec.LeaseName, namespace)
	default:
		return false
	}
	d.needsPerson = true
	return true
}

// OlderLock returns the name of an older lock of the same StatefulSet, or nothing.
func OlderLock(lock *v1.StatefulSetLock, others []v1.StatefulSetLock) string {
	for i := range others {
		other := &others[i]
		older := cmp.Or(other.CreationTimestamp.Compare(lock.CreationTimestamp.Time), cmp.Compare(other.Name, lock.Name)) < 0
		if older && other.Spec.StatefulSetName == lock.Spec.StatefulSetName {
			return other.Name
		}
	}
	return ""
}

// createLease creates a missing Lease. Without the Lease nothing is decided, because it can have a later tenure than the
// record.
func (d *decision) createLease() bool {
	if d.Lease.Object != nil {
		return false
	}
	step := CreateLease{}
	if slices.ContainsFunc(d.pods, func(p *pod) bool { return p.prepared }) {
		step.Held = d.longestDuration() // the earlier Lease may have named any pod, also one whose object does not exist any more
	}
	d.do(step)
	d.found(NoLease, "creating Lease %s", d.Lock.Spec.LeaseName)
	d.requeueIn(0)
	return true
}

// adopt records a later tenure than that of the record, which was lost or is stale. If it is stale, Record fails. The
// writer of that tenure is recorded even if its object does not exist, because its processes may still run.
func (d *decision) adopt() bool {
	epoch, name, uid := d.status.Epoch, "", types.UID("")
	if is := d.inLease(); is.epoch > epoch {
		epoch, name, uid = is.epoch, is.writer.Name, is.writer.UID
	}
	for _, p := range d.pods {
		if p.began > epoch {
			epoch, name, uid = p.began, p.Name, p.UID
		}
	}
	// Another operator can have labelled a pod before, for example until a migration.
	if i := slices.IndexFunc(d.pods, func(p *pod) bool { return p.member && p.labelled }); epoch == 0 && i >= 0 {
		epoch, name, uid = 1, d.pods[i].Name, d.pods[i].UID
	}
	if epoch == d.status.Epoch {
		return false
	}
	d.status.WriterPod, d.status.WriterPodUID, d.status.Epoch = cmp.Or(name, string(uid)), uid, epoch
	d.status.WriterNode = ""
	adopted := find(d.pods, uid)
	if adopted != nil {
		d.status.WriterNode = adopted.Spec.NodeName
	}
	if adopted != nil && !adopted.labelled {
		adopted = nil // a late controller may be about to label it for another tenure
	}
	d.overtakeLostRecord(adopted)
	d.status.LastTransition = &v1.TenureTransition{Cause: v1.TenureAdopted, To: d.status.WriterPod, Started: d.microTime()}
	d.do(Record{})
	d.found(Adopted, "the Lease or a pod shows epoch %d of pod %s, which the status did not have", epoch, d.status.WriterPod)
	d.requeueIn(0)
	return true
}

func (d *decision) microTime() *metav1.MicroTime { return new(metav1.NewMicroTime(d.now)) }

// recordWriter sets the record. The pod is nil if there is no writer.
func (d *decision) recordWriter(p *pod, epoch int64) {
	d.status.WriterPod, d.status.WriterPodUID, d.status.WriterNode, d.status.Epoch = "", "", "", epoch
	if p != nil {
		d.status.WriterPod, d.status.WriterPodUID, d.status.WriterNode = p.Name, p.UID, p.Spec.NodeName
	}
}

// labelReaders labels all pods but the writer as readers.
func (d *decision) labelReaders() {
	for _, p := range d.pods {
		if p.UID != d.status.WriterPodUID && (p.Labels[v1.StsRoleLabel] != v1.StsRoleReader || p.Labels[v1.LockLabel] != d.Lock.Name) {
			d.do(LabelReader{Pod: refOf(p), Ends: max(p.began, p.ended)})
		}
	}
}

// overtakeLostRecord writes all pods but the writer before a record that does not follow another record. The record can
// have been lost, and a late controller that read the lost record may be about to label one of the pods. If LabelReader
// comes first, the late LabelWriter fails. If the late LabelWriter comes first, LabelReader fails, and the plan stops.
func (d *decision) overtakeLostRecord(writer *pod) {
	epoch := d.nextEpoch()
	d.do(Confirm{}) // otherwise a controller that reads the lock too early ends the tenure that it missed
	for _, p := range d.pods {
		if p != writer {
			d.do(LabelReader{Pod: refOf(p), Ends: epoch})
		}
	}
}

// unprotectReaders removes the finalizer of pods that are not the writer. Their tenures have ended, or never began.
func (d *decision) unprotectReaders() {
	for _, p := range d.pods {
		if p.UID != d.Lock.Status.WriterPodUID && p.UID != d.status.WriterPodUID {
			d.unprotect(p)
		}
	}
}

// unprotect removes the finalizer from a pod. The finalizer of a pod of a StatefulSingleton belongs to the StatefulSingleton.
func (d *decision) unprotect(p *pod) {
	if p.protected() && p.Labels[v1.SingletonLabel] == "" {
		d.do(Unprotect{Pod: refOf(p)})
	}
}

// takeAttestation removes an attestation that is used, or that is refused.
func (d *decision) takeAttestation() {
	uid := types.UID(d.Lock.Annotations[v1.AttestAnnotation])
	w, last := d.writer, d.Lock.Status.WriterPodUID
	switch {
	case uid == "":
	case uid != last:
		d.do(TakeAttestation{uid, fmt.Sprintf("annotation %s=%s is ignored: the lock waits for no pod with this uid", v1.AttestAnnotation, uid)})
	case uid != d.status.WriterPodUID:
		d.do(TakeAttestation{UID: uid})
	case w != nil && !(proof.Going(w.Pod) && proof.Attestable(w.Pod, d.Nodes[w.Spec.NodeName])):
		d.do(TakeAttestation{uid, fmt.Sprintf("annotation %s=%s is ignored: pod %s is not terminating, or its kubelet can still report that the pod "+
			"has terminated. Delete the pod: kubectl delete pod -n %s %[3]s", v1.AttestAnnotation, uid, w.Name, d.Lock.Namespace)})
	}
}

// withoutWriter gives the next pod a tenure.
func (d *decision) withoutWriter() {
	switch {
	case d.leaseBlocks():
		d.awaitLease()
	case d.next != nil:
		t := d.status.LastTransition // from a writer whose tenure has ended
		if t == nil || t.To != "" {
			d.overtakeLostRecord(d.next)
			t = &v1.TenureTransition{Cause: v1.TenureCreated, Started: d.microTime()}
		}
		d.grant(d.next, t)
	case d.StatefulSet == nil:
		d.found(NoStatefulSet, "StatefulSet %s does not exist. The lock waits until its first pod is Ready, which becomes the writer. "+
			"To show the StatefulSets, run: kubectl get statefulsets -n %s", d.Lock.Spec.StatefulSetName, d.Lock.Namespace)
	default:
		d.found(NoReadyPod, "%s", d.noReadyPodMessage())
	}
}

// withWriter ends the tenure of the writer if there is a cause.
func (d *decision) withWriter() {
	if d.writer == nil {
		d.writerRemoved()
	} else if cause := d.cause(); cause != "" {
		d.end(cause)
	} else {
		d.keep()
	}
}

// cause returns why the tenure of the writer ends. Empty: it does not end.
func (d *decision) cause() v1.TenureCause {
	w, last := d.writer, d.status.LastTransition
	switch {
	case w.ended >= d.status.Epoch && last != nil && last.FromUID == w.UID && last.To == "":
		return last.Cause
	case proof.Going(w.Pod) && proof.IsTrue(w.Pod, corev1.DisruptionTarget):
		return v1.TenureEviction
	case proof.Going(w.Pod) && w.outdated:
		return v1.TenureRollout
	case proof.Going(w.Pod), w.ended >= d.status.Epoch:
		return v1.TenureDeletion
	case d.leaseProof() == v1.ProofLeaseReleased:
		return v1.TenureRelease
	case d.leaseProof() == v1.ProofLeaseExpired, w.fenced && d.isNamed() && d.leaseExpired():
		return v1.TenureExpiry
	case d.next == nil || d.next == w:
		return ""
	case !w.member || w.Labels[v1.SingletonLabel] != "" || w.followsOtherLease():
		return v1.TenureLeft
	case d.tooLongUnready():
		return v1.TenureUnready
	case w.drained != "" && d.next.drained == "":
		return v1.TenureDrain
	case (d.next.drained != "") == (w.drained != "") && w.outdated && !d.next.outdated:
		return v1.TenureRollout
	}
	return ""
}

// tooLongUnready returns true if the writer has been unready for spec.failoverDelaySeconds, or has not started in time.
func (d *decision) tooLongUnready() bool {
	if d.mayStart() {
		return false
	}
	return d.neverStarted() || !d.writer.ready() && d.left(failoverDelay(d.Lock), d.unreadySince()) <= 0
}

// mayStart returns true while a fenced writer has time to start and to become Ready. The time begins when the Lease names the
// writer, which can be long after the tenure before has ended.
func (d *decision) mayStart() bool {
	if !d.writer.fenced {
		return false
	}
	named := d.Lease.Object.Spec.AcquireTime
	if named == nil || !d.isNamed() {
		return true
	}
	began := named.Time
	if began.After(d.now) {
		began = d.now // the clock of another replica of the controller is ahead, and the writer needs time nevertheless
	}
	return d.left(startPatience+failoverDelay(d.Lock), began) > 0
}

// neverStarted returns true if the fenced writer has not said that it is the writer.
func (d *decision) neverStarted() bool {
	return d.writer.fenced && d.inLease().writing < d.status.Epoch
}

// unreadySince returns when the writer became unready. If the kubelet reports a time in the future, its clock is ahead, and the time
// is that of the lock.
func (d *decision) unreadySince() time.Time {
	since := d.writer.CreationTimestamp.Time
	if c := proof.Condition(d.writer.Pod, corev1.PodReady); c != nil {
		since = c.LastTransitionTime.Time
	}
	if since.After(d.now) {
		return d.unavailableSince()
	}
	return since
}

// unavailableSince returns since when the lock reports that this writer is not available. It returns now if the lock does not report
// that yet. A lock can have been unavailable before the pod got the label of the writer.
func (d *decision) unavailableSince() time.Time {
	c := meta.FindStatusCondition(d.Lock.Status.Conditions, v1.ConditionAvailable)
	if c == nil || c.Status != metav1.ConditionFalse || c.LastTransitionTime.After(d.now) {
		return d.now
	}
	since := c.LastTransitionTime.Time
	if t := d.status.LastTransition; t != nil && t.Labelled != nil && t.Labelled.After(since) && !t.Labelled.After(d.now) {
		return t.Labelled.Time
	}
	return since
}

// end continues the end of the writer's tenure: first its label, then its endpoints, then the tenure itself.
func (d *decision) end(cause v1.TenureCause) {
	w, t := d.writer, d.beginTransition(cause)
	proven, by := d.proofOf(w), d.endsBy(w)
	switch {
	case w.labelled || w.ended < d.status.Epoch:
		d.do(LabelReader{Pod: refOf(w), Ends: d.status.Epoch})
		d.found(LabelRemoved, "the tenure of pod %s ends (cause %s)", w.Name, cause)
		d.requeueIn(0)
	case cause == v1.TenureRelease && d.neverStarted() && d.left(retryDelay, t.Started.Time) > 0:
		// If a hook fails in each pod, the pods must not become the writer in quick succession for ever.
		d.found(StartFailed, "pod %s gave up its tenure before it was the writer: its main process or its promote hook has failed. "+
			"The next attempt follows after %s. To show why, run: kubectl logs -n %s %[1]s --all-containers --tail=50", w.Name, retryDelay, w.Namespace)
	case proven != "":
		d.succeed(proven)
	case d.Serving && cause != v1.TenureExpiry && d.left(servingPatience, t.Started.Time) > 0:
		d.found(AwaitingEndpoints, "pod %s is no longer the writer. The controller waits at most %s until EndpointSlices of Services for the writer "+
			"no longer list the pod", w.Name, servingPatience)
		d.requeueIn(servingPoll)
	case by == v1.LockFencingNone:
		d.succeed("")
	case by == v1.LockFencingLease:
		d.revokeLease()
	default:
		d.terminate()
	}
}

// beginTransition returns the transition from the writer, which begins now unless it has begun.
func (d *decision) beginTransition(cause v1.TenureCause) *v1.TenureTransition {
	last := d.status.LastTransition
	if last == nil || last.FromUID != d.status.WriterPodUID || last.To != "" {
		d.status.LastTransition = &v1.TenureTransition{From: d.status.WriterPod, FromUID: d.status.WriterPodUID, Cause: cause, Started: d.microTime()}
	}
	return d.status.LastTransition
}

// terminate deletes the writer.
func (d *decision) terminate() {
	w := d.writer
	if w.DeletionTimestamp == nil {
		d.protect(w)
		d.do(Delete{Pod: refOf(w)})
	} else {
		d.needsPerson = proof.Attestable(w.Pod, d.Nodes[w.Spec.NodeName])
	}
	d.found(WriterStopping, "%s", d.stoppingMessage(w))
}

// protect adds the finalizer to a pod with a tenure if only its termination ends the tenure, and removes it otherwise.
func (d *decision) protect(p *pod) {
	terminates := d.endsBy(p) == v1.LockFencingTermination
	switch {
	case !terminates:
		d.unprotect(p)
	case !p.protected():
		d.do(Protect{Pod: refOf(p)})
	}
}

// writerRemoved handles a writer whose object does not exist.
func (d *decision) writerRemoved() {
	d.beginTransition(v1.TenureDeletion)
	proven, by := d.proofOfRemoved(), d.recordedEndsBy()
	switch {
	case proven != "" || by == v1.LockFencingNone:
		d.succeed(proven)
	case by == v1.LockFencingLease:
		d.revokeLease()
	default:
		d.needsPerson = true
		d.found(WriterLost, "%s", d.lostMessage())
	}
}

// succeed records that the tenure of the writer has ended, and gives the next pod a tenure.
func (d *decision) succeed(proven v1.Proof) {
	t, old := d.status.LastTransition, d.writer
	t.Proof, t.Ended = proven, d.microTime()
	blocked := d.next != nil && d.leaseBlocks()
	if blocked {
		d.awaitLease()
	}
	if d.next != nil && !blocked {
		d.grant(d.next, t)
	} else {
		d.recordWriter(nil, d.status.Epoch)
		d.do(Record{})
		d.found(TenureEnded, "the tenure of pod %s has ended, and no other pod can become the writer yet", t.From)
		d.requeueIn(0)
	}
	if old != nil && old != d.next {
		d.unprotect(old)
	}
}

// nextEpoch returns an epoch that is later than that of every tenure that has ended or was about to end. If an epoch were
// used twice, the mark of an earlier end would also end the new tenure, and no write would stop a late LabelWriter.
func (d *decision) nextEpoch() int64 {
	last := d.status.Epoch
	for _, p := range d.pods {
		last = max(last, p.began, p.ended)
	}
	return last + 1
}

// grant gives the pod a tenure.
func (d *decision) grant(p *pod, t *v1.TenureTransition) {
	t.To = p.Name
	d.status.LastTransition = t
	d.protect(p)
	d.recordWriter(p, d.nextEpoch())
	d.do(Record{})
	d.nameInLease(p)
	if !p.fenced { // a fenced pod first says that it is the writer
		d.do(LabelWriter{Pod: refOf(p), Epoch: d.status.Epoch})
	}
	d.found(Granted, grantedMessage, p.Name, d.status.Epoch)
}

// keep completes the grant of the writer's tenure, and renews its Lease.
func (d *decision) keep() {
	w := d.writer
	named, writing, labelled := d.isNamed(), d.isWriting(), w.labelled && w.Labels[v1.LockLabel] == d.Lock.Name
	if !named && d.leaseBlocks() {
		d.awaitLease()
		return
	}
	d.protect(w)
	if !named || !labelled && writing {
		d.do(Record{}) // fails if the pod is no longer recorded
	}
	if !named || d.renewalIsDue() {
		d.nameInLease(w)
	}
	switch {
	case labelled:
	case writing:
		d.do(LabelWriter{Pod: refOf(w), Epoch: d.status.Epoch})
		d.found(Granted, grantedMessage, w.Name, d.status.Epoch)
		return
	default:
		d.found(Granted, "pod %s has epoch %d. It becomes the writer when its main processes have started as the writer, or the promote hook "+
			"has succeeded", w.Name, d.status.Epoch)
		return
	}
	if t := d.status.LastTransition; t != nil && t.To == w.Name && t.Labelled == nil {
		t.Labelled = d.microTime()
	}
	switch {
	case w.ready():
		d.found(WriterReady, "pod %s is the writer with epoch %d", w.Name, d.status.Epoch)
	case d.next == nil || d.next == w:
		d.found(WriterNotReady, "the writer, pod %s, is unready, and no other pod can become the writer", w.Name)
	default:
		d.found(WriterNotReady, "the writer, pod %s, is unready. If it stays unready for spec.failoverDelaySeconds (%d), pod %s becomes the writer",
			w.Name, d.Lock.Spec.FailoverDelaySeconds, d.next.Name)
	}
}

// candidate returns the best pod for the next tenure, or nil. That can be the writer itself. It never returns the exception.
func (d *decision) candidate(except *pod) *pod {
	able := slices.DeleteFunc(slices.Clone(d.pods), func(p *pod) bool { return p == except || d.cannotWrite(p) != "" })
	if len(able) == 0 {
		return nil
	}
	later, lastAttempt := map[bool]int{true: 1}, func(*pod) int64 { return 0 }
	if d.hasJustFailed() { // each pod is tried before a pod is tried again
		lastAttempt = func(p *pod) int64 { return max(p.began, p.ended) }
	}
	return slices.MinFunc(able, func(a, b *pod) int {
		return cmp.Or(
			cmp.Compare(later[a.drained != ""], later[b.drained != ""]),
			cmp.Compare(later[d.distrusted(a)], later[d.distrusted(b)]),
			cmp.Compare(lastAttempt(a), lastAttempt(b)),
			cmp.Compare(later[a.outdated], later[b.outdated]),
			cmp.Compare(a.ordinal, b.ordinal))
	})
}

// hasJustFailed returns true if the last change began with a failure of the writer, not long ago.
func (d *decision) hasJustFailed() bool {
	last := d.status.LastTransition
	return last != nil && last.Started != nil && proof.Left(distrust, last.Started.Time, d.now) > 0 &&
		(last.Cause == v1.TenureRelease || last.Cause == v1.TenureExpiry || last.Cause == v1.TenureUnready)
}

// distrusted returns true if the pod can be broken although it appears Ready. Its node is unready or does not exist, or the
// pod has just failed as the writer, or it does not start as the writer.
func (d *decision) distrusted(p *pod) bool {
	node := d.Nodes[p.Spec.NodeName]
	failed := d.hasJustFailed() && d.failedWith(p) || p == d.writer && d.neverStarted() && !d.mayStart()
	return failed || node == nil || !proof.NodeReady(node)
}

// failedWith returns true if the last writer was the pod, or did not renew the Lease and is on the same node. That node may be
// lost, and its pods appear Ready until the node is unready.
func (d *decision) failedWith(p *pod) bool {
	last := d.status.LastTransition
	from := find(d.pods, last.FromUID)
	return last.FromUID == p.UID || last.Cause == v1.TenureExpiry && from != nil && from.Spec.NodeName == p.Spec.NodeName
}

// cannotWrite returns why the pod cannot become the writer. Empty: it can.
func (d *decision) cannotWrite(p *pod) string {
	switch {
	case !p.member:
		return fmt.Sprintf("StatefulSet %s does not control it", d.Lock.Spec.StatefulSetName)
	case p.Labels[v1.SingletonLabel] != "":
		return fmt.Sprintf("it belongs to StatefulSingleton %s", p.Labels[v1.SingletonLabel])
	case d.Lock.Spec.Fencing == v1.LockFencingLease && !p.fenced, p.followsOtherLease():
		return p.notFenced
	case !p.ready():
		return "it is not Ready"
	}
	return ""
}
