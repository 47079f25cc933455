package handoff

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Decide returns what to do about the singleton of the Snapshot at the time now.
func Decide(s Snapshot, now time.Time) Plan {
	d := &decision{Snapshot: s, now: now, status: s.Singleton.Status.DeepCopy(), pods: classify(s)}
	d.unrecorded, d.standbys, d.overlap = withRole(d.pods, Unrecorded), withRole(d.pods, Standby), s.overlap(d.pods)
	for _, pod := range d.pods {
		if pod.Role == Holder {
			d.holder = pod
		}
		if given, ok := signalled(pod.Pod); ok {
			d.status.Epoch = max(d.status.Epoch, given.Epoch) // the record may have been lost
		}
	}
	d.status.Epoch = max(d.status.Epoch, s.leaseEpoch())
	d.receives = receptionIn(d.leaseAnnotations()).next
	last := d.status.LastTransition
	d.createLease()
	d.distrustLost()
	// Without a holder the PodDisruptionBudget stays as it is.
	d.plan.Budget = s.Budget() != nil && s.Singleton.Spec.Drain != v1.DrainEvict
	if d.status.ActivePodUID != "" {
		d.withHolder()
	} else {
		d.withoutHolder()
	}
	d.unprotectEnded()
	d.gateStandbys()
	if remove, refused := d.judgeAttestation(); remove {
		d.do(TakeAttestation{types.UID(d.Singleton.Annotations[v1.AttestAnnotation]), refused})
	}
	d.concludeDrain()
	d.adviseOneDeployment()
	d.reportNodeClaims()
	d.reportWarm()
	d.reportQueue()
	d.reportPaused()
	d.remember(last)
	d.report()
	d.plan.Status = *d.status
	return d.plan
}

// unprotectEnded removes the finalizer of pods with a proof of termination, except for the holder. If
// only such a pod has the highest epoch, the epoch is recorded first.
func (d *decision) unprotectEnded() {
	for _, pod := range d.pods {
		if pod.Role != Ended || pod.Proof == "" || !protected(pod.Pod) && !lostLeaseAlive(pod) {
			continue
		}
		if d.status.Epoch > d.Singleton.Status.Epoch && !slices.Contains(d.plan.Steps, Step(Record{})) {
			d.do(Record{})
		}
		d.forgo(pod)
	}
}

// forgo gives up a pod with a proof of termination. A pod whose Lease expired becomes a standby again. A pod that released
// the Lease does not, because it never starts its main processes again. If it is terminating, Services must not use it, even if its
// kubelet has not reported the end: they would send clients to it if the next pod is deleted too.
func (d *decision) forgo(pod *ClassifiedPod) {
	switch {
	case lostLeaseAlive(pod):
		d.do(Demote{refOf(pod.Pod), Version(pod.ResourceVersion)})
	case protected(pod.Pod) && canQueue(pod) && pod.DeletionTimestamp != nil && proof.IsTrue(pod.Pod, corev1.PodReady):
		d.do(Demote{Pod: refOf(pod.Pod)})
	case protected(pod.Pod):
		d.do(Unprotect{Pod: refOf(pod.Pod)})
	}
}

// blocked returns true if no pod may be signalled.
func (d *decision) blocked() bool { return d.overlap != "" || len(d.unrecorded) > 0 }

// reportBlocked reports why no pod may be signalled.
func (d *decision) reportBlocked() {
	if d.overlap != "" {
		d.needsPerson = true
		d.found(Overlapping, "%s: no pod is released while two StatefulSingletons select the same pod. Delete one of the two StatefulSingletons", d.overlap)
		return
	}
	d.needsPerson = !slices.ContainsFunc(d.unrecorded, func(p *ClassifiedPod) bool { return proof.Going(p.Pod) })
	d.found(SeveralRun, "%s", d.severalMessage())
}

// protect adds the finalizer to pods without it. A terminating pod cannot receive a finalizer.
func (d *decision) protect(pods ...*ClassifiedPod) {
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && !protected(pod.Pod) {
			d.do(Protect{Pod: refOf(pod.Pod), Holder: pod.UID == d.status.ActivePodUID})
		}
	}
}

func (d *decision) withHolder() {
	d.protect(d.unrecorded...)
	if d.holder == nil {
		if proof := d.proofForMissingHolder(); proof != "" {
			d.succeed(proof)
			return
		}
		d.needsPerson = true
		d.found(HolderLost, "%s", d.lostHelp())
		return
	}
	if d.holder.Proof != "" {
		d.succeed(d.holder.Proof)
		return
	}
	if d.holderExpires() {
		return
	}
	if proof.Going(d.holder.Pod) {
		d.protect(d.holder)
		d.retireInLease(d.receiver())
		d.found(HolderStopping, "pod %s is terminating%s", d.holder.Name, d.stoppingHelp(d.holder, d.now))
		return
	}
	if d.Singleton.Spec.Drain != v1.DrainEvict {
		d.drained = proof.Drained(d.holder.Pod, d.CachedNodes[d.holder.Spec.NodeName])
	}
	d.keepOrReplace()
	d.reportEvictions()
}

func (d *decision) withoutHolder() {
	next, lost := d.warm(), d.onlyLost()
	switch {
	case d.overlap != "", len(d.unrecorded) > 1 && d.terminatingUnprotected() == nil:
		d.unprotectOthers(nil)
		d.protect(d.unrecorded...)
		d.reportBlocked()
	case len(d.unrecorded) > 0:
		d.unprotectOthers(nil)
		d.adopt(cmp.Or(d.terminatingUnprotected(), d.unrecorded[0]))
	case lost != nil && d.rollsLost(lost.Pod) != nil:
		d.roll(d.rollsLost(lost.Pod), lost.Pod)
	case len(d.standbys) > 0 && next == nil:
		d.needsPerson = d.standbys[0].needsPerson
		d.found(WarmingUp, "pod %s %s%s", d.standbys[0].Name, d.standbys[0].WaitsFor, d.moving(d.standbys[0].Pod))
		d.adviseReplacement(d.standbys[0], d.standbys[0].nodeProblem)
	case next != nil && d.leaseBlocks(next):
		d.awaitLease(next)
	case next != nil:
		d.unprotectOthers(next)
		d.release(next, d.nextTransition())
	case d.status.LastTransition != nil && d.status.LastTransition.To == "" && d.status.LastTransition.Cause != v1.CauseScaleDown:
		d.found(AwaitingPod, "pod %s has terminated, and the next pod does not exist yet%s", d.status.LastTransition.From, d.foreignHelp())
	default:
		d.found(NoPods, "%s", d.noPodsMessage())
	}
}

// terminatingUnprotected returns an unrecorded pod that was deleted before it had the finalizer, or nil.
// The object of such a pod can be removed while its processes run.
func (d *decision) terminatingUnprotected() *ClassifiedPod {
	return find(d.unrecorded, func(pod *ClassifiedPod) bool { return pod.DeletionTimestamp != nil && !protected(pod.Pod) })
}

// warm returns the standby to release next, or nil if none is warm. Of several, it is the one whose clients wait.
func (d *decision) warm() *ClassifiedPod {
	if next := d.receiving(); next != nil && next.WaitsFor == "" {
		return next
	}
	return find(d.standbys, func(pod *ClassifiedPod) bool { return pod.WaitsFor == "" })
}

// succeed moves the record on from a holder that has terminated.
func (d *decision) succeed(proof v1.Proof) {
	now := metav1.NewMicroTime(d.now)
	t := &v1.Transition{From: d.status.ActivePod, FromUID: d.status.ActivePodUID, FromNode: d.status.ActiveNode, Cause: d.cause(), Proof: proof, Started: d.begun(), Terminated: &now}
	next := d.warm()
	switch {
	case d.overlap == "" && len(d.unrecorded) == 1:
		d.recordNoHolder(t) // the next reconcile adopts the unrecorded pod
		d.found(HolderEnded, "pod %s has terminated, and pod %s already runs", t.From, d.unrecorded[0].Name)
	case d.blocked():
		d.reportBlocked()
		d.recordNoHolder(t)
	case next == nil:
		d.recordNoHolder(t)
		d.found(HolderEnded, "pod %s has terminated, and no standby is warm yet", t.From)
	case d.leaseBlocks(next):
		d.awaitLease(next)
		d.recordNoHolder(t)
	default:
		d.release(next, t)
	}
	if d.holder != nil {
		d.forgo(d.holder)
	}
}

// recordNoHolder records that there is no holder.
func (d *decision) recordNoHolder(t *v1.Transition) {
	d.status.ActivePod, d.status.ActivePodUID, d.status.LastTransition = "", "", t
	d.do(Record{})
	d.emptyLease()
}

// unprotectOthers removes the finalizer of every held pod except next. A missing record may have been
// lost: a record of this singleton, or of another that selected the same pods. A late controller
// that read such a record may be about to signal one of the pods. This write makes that signal fail, or
// fails itself if the signal came first.
func (d *decision) unprotectOthers(next *ClassifiedPod) {
	for _, pod := range d.pods {
		if pod != next && protected(pod.Pod) && pod.Proof == "" && !pod.mayRun {
			d.do(Unprotect{refOf(pod.Pod), Version(pod.ResourceVersion)})
		}
	}
}

// nextTransition continues the transition whose old holder has terminated, or begins one without an
// old holder.
func (d *decision) nextTransition() *v1.Transition {
	if last := d.status.LastTransition; last != nil && last.To == "" && last.Cause != v1.CauseScaleDown {
		return last.DeepCopy()
	}
	return &v1.Transition{Cause: v1.CauseCreated, Started: d.begun()}
}

// release records the pod as the holder and signals it.
func (d *decision) release(pod *ClassifiedPod, t *v1.Transition) {
	t.To = pod.Name
	d.measureAttach(pod.Pod, t)
	d.status.ActivePod, d.status.ActivePodUID, d.status.LastTransition = pod.Name, pod.UID, t
	d.status.Epoch++
	d.standbys = slices.DeleteFunc(d.standbys, func(s *ClassifiedPod) bool { return s == pod })
	d.signalHolder(pod)
}

// signalHolder signals the recorded holder. The Record before the Signal is a compare-and-swap: it stops
// a controller that read an older record.
func (d *decision) signalHolder(pod *ClassifiedPod) {
	d.protectStandby(pod)
	d.do(Record{})
	d.do(d.barriers(pod)...)
	d.nameInLease(pod)
	d.do(Signal{refOf(pod.Pod), Version(pod.ResourceVersion), signal.Signal{UID: string(pod.UID), Epoch: d.status.Epoch}})
	d.requeueIn(nudgeAfter(pod.held))
	d.found(Released, "pod %s is released with epoch %d", pod.Name, d.status.Epoch)
}

// protectStandby adds the finalizer to the next standby, and annotates it with the singleton that may start it before the
// signal: by its barrier, or by the Lease.
func (d *decision) protectStandby(pod *ClassifiedPod) {
	step := Protect{Pod: refOf(pod.Pod), Version: Version(pod.ResourceVersion)}
	if len(d.barriers(pod)) > 0 || pod.fencing != nil {
		step.ChosenBy = d.Singleton.UID
	}
	if !protected(pod.Pod) || step.ChosenBy != chosenBy(pod.Pod) {
		d.do(step)
	}
}

// barriers returns the steps that open the barriers of the pod, one for each ConfigMap.
func (d *decision) barriers(pod *ClassifiedPod) (steps []Step) {
	for _, h := range pod.held {
		open := OpenBarrier{refOf(pod.Pod), h.ConfigMap, d.status.Epoch}
		if h.ConfigMap != "" && !slices.Contains(steps, Step(open)) {
			steps = append(steps, open)
		}
	}
	return steps
}

// adopt records a running pod as the holder: a pod that ran before the singleton existed, or a pod that was
// signalled and whose record was lost. A terminating pod is recorded too, and before any other,
// although it cannot receive the finalizer: once it is recorded, a missing object proves nothing.
func (d *decision) adopt(pod *ClassifiedPod) {
	now := metav1.NewMicroTime(d.now)
	d.protect(d.unrecorded...)
	d.status.ActivePod, d.status.ActivePodUID = pod.Name, pod.UID
	d.status.LastTransition = &v1.Transition{To: pod.Name, Cause: v1.CauseAdopted, Started: d.begun(), Signalled: &now}
	if _, ok := signalled(pod.Pod); !ok {
		d.status.Epoch++ // a signalled pod already has an epoch in its environment
	}
	d.do(Record{})
	if pod.DeletionTimestamp == nil {
		d.do(Protect{Pod: refOf(pod.Pod), Holder: true})
	}
	d.found(Adopted, "pod %s already runs and becomes the holder", pod.Name)
}

// keepOrReplace handles a holder that is not terminating.
func (d *decision) keepOrReplace() {
	containers := d.holder.held
	given, hasSignal := signalled(d.holder.Pod)
	if d.awaitsRelease(d.holder) {
		problem := nodeProblem(d.CachedNodes, d.holder.Pod)
		switch {
		case d.blocked():
			d.reportBlocked()
		case d.leaseBlocks(d.holder):
			d.awaitLease(d.holder)
		case problem != "" && d.isUnreleased(d.holder):
			if !protected(d.holder.Pod) {
				d.do(Protect{Pod: refOf(d.holder.Pod), Version: Version(d.holder.ResourceVersion)})
			}
			d.found(WarmingUp, "pod %s is the holder with epoch %d and is not signalled, because its node %s %s",
				d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, problem)
			d.adviseReplacement(d.holder, problem)
		default:
			d.signalHolder(d.holder)
		}
		return
	}
	d.protect(d.holder)
	if hasSignal && !proof.IsTrue(d.holder.Pod, v1.ReadyCondition) {
		d.do(MarkReady{refOf(d.holder.Pod)})
	}
	d.nudge(containers, given)
	d.followStart(containers, given)
	if d.blocked() {
		d.reportBlocked()
		return
	}
	if next := d.warm(); next != nil {
		d.protectStandby(next)
	}
	if next := d.newest(); next != nil {
		if !d.postpone(next) {
			d.rollOver(next)
		}
		return
	}
	if !d.replace() {
		d.serving(containers)
	}
}
