package handoff

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// decision is a Snapshot sorted by what its pods are to the singleton, and the
// Plan that grows out of it.
type decision struct {
	Snapshot
	now time.Time

	// pods are those of the Snapshot, classified.
	pods []*ClassifiedPod
	// holder is the recorded holder, nil if its object is gone or none is recorded.
	holder *ClassifiedPod
	// unrecorded may run a main process though the record does not name them.
	unrecorded []*ClassifiedPod
	// standbys are in the order in which they would be released.
	standbys []*ClassifiedPod
	// overlap names another singleton and the pod that both pick.
	overlap string
	// drained says why the holder has to leave its node. Empty: it has not.
	drained string

	plan   Plan
	status *v1.StatefulSingletonStatus
	// message says in words what the outcome means here.
	message string
	// advice is what a person can do about it, in sentences that end the message. A command is
	// their last words.
	advice []string
	// needsPerson: nothing goes on without a person, however long one waits.
	needsPerson bool
	// usual is how much longer what is under way usually takes: until then it is not told.
	usual time.Duration
	// again is in how long there is more to do or to tell, if nothing changes. 0: there is not.
	again time.Duration
}

// Decide says what to do about a singleton that looks like the Snapshot at the
// time now.
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
	// While no holder is there, what guards it is left as it is.
	d.plan.Budget = s.Budget() != nil && s.Singleton.Spec.Drain != v1.DrainEvict
	if d.status.ActivePodUID != "" {
		d.withHolder()
	} else {
		d.withoutHolder()
	}
	d.letGoEnded()
	if spent, refused := d.judgeAttestation(); spent {
		d.do(TakeAttestation{types.UID(d.Singleton.Annotations[v1.AttestAnnotation]), refused})
	}
	d.concludeDrain()
	d.adviseOneDeployment()
	d.report()
	d.plan.Status = *d.status
	return d.plan
}

// letGoEnded lets go of pods that are proven dead, besides the holder. It comes after a
// Record of the epoch, where only they bear the last.
func (d *decision) letGoEnded() {
	for _, pod := range d.pods {
		if pod.Role != Ended || pod.Proof == "" || !protected(pod.Pod) {
			continue
		}
		if d.status.Epoch > d.Singleton.Status.Epoch && !slices.Contains(d.plan.Steps, Step(Record{})) {
			d.do(Record{})
		}
		d.do(LetGo{Pod: refOf(pod.Pod)})
	}
}

func (d *decision) do(steps ...Step) { d.plan.Steps = append(d.plan.Steps, steps...) }

func (d *decision) found(outcome Outcome, format string, args ...any) {
	d.plan.Outcome = outcome
	d.message = fmt.Sprintf(format, args...)
}

// blocked reports why nothing may be signalled. It returns false where nothing
// is in the way.
func (d *decision) blocked() bool {
	switch {
	case d.overlap != "":
		d.needsPerson = true
		d.found(Overlapping, "%s: no pod is released until their selectors pick different pods. Delete one of the two StatefulSingletons", d.overlap)
	case len(d.unrecorded) > 0:
		d.needsPerson = !slices.ContainsFunc(d.unrecorded, func(p *ClassifiedPod) bool { return Going(p.Pod) })
		besides := "and no record says which one holds"
		if d.status.ActivePodUID != "" {
			besides = "and may run besides the holder"
		}
		d.found(SeveralRun, "%s not held, %s: no pod is released until only one is left. %s", these(d.unrecorded), besides, d.severalHelp())
	default:
		return false
	}
	return true
}

// protect puts the finalizer on pods that lack it, except where the API server
// takes no finalizer any more.
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
		if proof := d.proveGone(); proof != "" {
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
	if Going(d.holder.Pod) {
		d.protect(d.holder)
		if node := d.Nodes[d.holder.Spec.NodeName]; node != nil && NodeReady(node) && !terminal(d.holder.Pod) {
			d.usual = d.left(usuallyStops, askedToStop(d.holder.Pod))
		}
		d.found(HolderStopping, "pod %s stops%s", d.holder.Name, d.stoppingHelp(d.holder, d.now))
		return
	}
	if d.Singleton.Spec.Drain != v1.DrainEvict {
		d.drained = d.drainOf(d.holder.Pod)
	}
	d.alive()
	d.guard()
}

func (d *decision) withoutHolder() {
	switch {
	case d.overlap != "", len(d.unrecorded) > 1 && d.vanishing() == nil:
		d.letGoOthers(nil)
		d.protect(d.unrecorded...)
		d.blocked()
	case len(d.unrecorded) > 0:
		d.letGoOthers(nil)
		d.adopt(cmp.Or(d.vanishing(), d.unrecorded[0]))
	case len(d.standbys) > 0 && d.warm() == nil:
		d.needsPerson = d.standbys[0].needsPerson
		d.found(WarmingUp, "pod %s %s", d.standbys[0].Name, d.standbys[0].WaitsFor)
		d.adviseReplacement(d.standbys[0], d.standbys[0].silent)
	case len(d.standbys) > 0:
		d.letGoOthers(d.warm())
		d.release(d.warm(), d.nextTransition())
	case d.status.LastTransition != nil && d.status.LastTransition.To == "" && d.status.LastTransition.Cause != v1.CauseScaleDown:
		d.found(AwaitingPod, "pod %s has ended, and the pod that follows has not come yet%s", d.status.LastTransition.From, d.foreignHelp())
	default:
		none := "no pod matches the selector; the first that comes is held until it may run"
		if slices.ContainsFunc(d.Pods, func(pod corev1.Pod) bool { return picks(d.Singleton, &pod) && Going(&pod) }) {
			none = "each pod that matches the selector has ended, or stops; the first that comes is held until it may run"
		}
		d.found(NoPods, "%s%s", none, d.foreignHelp())
	}
}

// vanishing is a pod that may run, and whose object may go unseen: its deletion was asked
// for before it bore the finalizer, and it takes none any more. Nil: there is none.
func (d *decision) vanishing() *ClassifiedPod {
	i := slices.IndexFunc(d.unrecorded, func(pod *ClassifiedPod) bool { return pod.DeletionTimestamp != nil && !protected(pod.Pod) })
	if i < 0 {
		return nil
	}
	return d.unrecorded[i]
}

// warm is the standby to release next, nil if none is warm.
func (d *decision) warm() *ClassifiedPod {
	for _, s := range d.standbys {
		if s.WaitsFor == "" {
			return s
		}
	}
	return nil
}

// succeed moves the record on from a holder that is proven dead.
func (d *decision) succeed(proof v1.Proof) {
	now := metav1.NewMicroTime(d.now)
	t := &v1.Transition{From: d.status.ActivePod, FromUID: d.status.ActivePodUID, Cause: d.cause(), Proof: proof, Started: d.begun(), Terminated: &now}
	switch next := d.warm(); {
	case d.overlap == "" && len(d.unrecorded) == 1:
		d.vacate(t) // that one is adopted next
		d.found(HolderEnded, "pod %s has ended, and pod %s runs already", t.From, d.unrecorded[0].Name)
	case d.blocked():
		d.vacate(t)
	case next == nil:
		d.vacate(t)
		d.found(HolderEnded, "pod %s has ended, and no standby is warm yet", t.From)
	default:
		d.release(next, t)
	}
	if d.holder != nil && protected(d.holder.Pod) {
		d.do(LetGo{Pod: refOf(d.holder.Pod)})
	}
}

// vacate records that nobody holds.
func (d *decision) vacate(t *v1.Transition) {
	d.status.ActivePod, d.status.ActivePodUID, d.status.LastTransition = "", "", t
	d.do(Record{})
}

// letGoOthers lets go of every pod but next that may be about to be signalled. Where
// there is no record, one may have been lost, of this singleton or of another that
// picked the same pods, and a controller that recorded such a pod there may be late
// with its signal: the write makes that fail, or fails if it came too late itself.
func (d *decision) letGoOthers(next *ClassifiedPod) {
	for _, pod := range d.pods {
		if pod != next && protected(pod.Pod) && pod.Proof == "" && !pod.mayRun {
			d.do(LetGo{refOf(pod.Pod), Version(pod.ResourceVersion)})
		}
	}
}

// nextTransition goes on with the transition whose old holder is dead already, or
// begins one from nothing.
func (d *decision) nextTransition() *v1.Transition {
	if last := d.status.LastTransition; last != nil && last.To == "" && last.Cause != v1.CauseScaleDown {
		return last.DeepCopy()
	}
	return &v1.Transition{Cause: v1.CauseCreated, Started: d.begun()}
}

// release records the pod as the holder and signals it.
func (d *decision) release(pod *ClassifiedPod, t *v1.Transition) {
	t.To = pod.Name
	d.status.ActivePod, d.status.ActivePodUID, d.status.LastTransition = pod.Name, pod.UID, t
	d.status.Epoch++
	d.standbys = slices.DeleteFunc(d.standbys, func(s *ClassifiedPod) bool { return s == pod })
	d.signalHolder(pod)
	d.found(Released, "pod %s is released with epoch %d", pod.Name, d.status.Epoch)
}

// signalHolder signals the pod that the record names. The Record before it is the
// compare-and-swap that stops whoever read an older one.
func (d *decision) signalHolder(pod *ClassifiedPod) {
	d.protectStandby(pod)
	d.do(Record{})
	d.do(d.barriers(pod)...)
	d.do(Signal{refOf(pod.Pod), Version(pod.ResourceVersion), signal.Signal{UID: string(pod.UID), Epoch: d.status.Epoch}})
	d.again = nudgeAfter(pod.held)
}

// protectStandby puts the finalizer on a standby that is to be signalled, and says who
// may open its barrier.
func (d *decision) protectStandby(pod *ClassifiedPod) {
	step := Protect{Pod: refOf(pod.Pod), Version: Version(pod.ResourceVersion)}
	if len(d.barriers(pod)) > 0 {
		step.ChosenBy = d.Singleton.UID
	}
	if !protected(pod.Pod) || step.ChosenBy != chosenBy(pod.Pod) {
		d.do(step)
	}
}

// barriers are the steps that open those of the pod, each once.
func (d *decision) barriers(pod *ClassifiedPod) (steps []Step) {
	for _, h := range pod.held {
		open := OpenBarrier{refOf(pod.Pod), h.configMap, d.status.Epoch}
		if h.configMap != "" && !slices.Contains(steps, Step(open)) {
			steps = append(steps, open)
		}
	}
	return steps
}

// adopt records as the holder a pod that runs already: one that ran before the
// singleton existed, or one that was signalled and then forgotten. One that is
// being deleted is recorded too, and before any other that runs, though it takes no
// finalizer any more: if it vanishes, that proves nothing.
func (d *decision) adopt(pod *ClassifiedPod) {
	now := metav1.NewMicroTime(d.now)
	d.protect(d.unrecorded...)
	d.status.ActivePod, d.status.ActivePodUID = pod.Name, pod.UID
	d.status.LastTransition = &v1.Transition{To: pod.Name, Cause: v1.CauseAdopted, Started: d.begun(), Signalled: &now}
	if _, ok := signalled(pod.Pod); !ok {
		d.status.Epoch++ // one that was signalled has its own in its environment
	}
	d.do(Record{})
	if pod.DeletionTimestamp == nil {
		d.do(Protect{Pod: refOf(pod.Pod), Holder: true})
	}
	d.found(Adopted, "pod %s runs already and holds", pod.Name)
}

// alive looks after a holder that is not asked to stop.
func (d *decision) alive() {
	containers := d.holder.held
	given, hasSignal := signalled(d.holder.Pod)
	if awaitsSignal(d.holder.Pod, containers) {
		switch silent := d.silentNode(d.holder.Pod); {
		case d.blocked():
		case silent != "" && d.isUnreleased(d.holder):
			if !protected(d.holder.Pod) {
				d.do(Protect{Pod: refOf(d.holder.Pod), Version: Version(d.holder.ResourceVersion)})
			}
			d.found(WarmingUp, "pod %s is chosen with epoch %d and is not signalled: its node %s %s", d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, silent)
			d.adviseReplacement(d.holder, silent)
		default:
			d.signalHolder(d.holder)
			d.found(Released, "pod %s is released with epoch %d", d.holder.Name, d.status.Epoch)
		}
		return
	}
	d.protect(d.holder)
	if hasSignal && !IsTrue(d.holder.Pod, v1.ReadyCondition) {
		d.do(MarkReady{refOf(d.holder.Pod)})
	}
	d.nudge(containers, given)
	d.followStart(containers, given)
	if d.blocked() {
		return
	}
	if next := d.warm(); next != nil {
		d.protectStandby(next) // now, while nobody waits
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

// serving reports a holder that nothing is about to replace.
func (d *decision) serving(containers []heldContainer) {
	t, next := d.status.LastTransition, d.successor()
	switch {
	case next == nil && IsTrue(d.holder.Pod, corev1.PodReady):
		d.found(HolderReady, "pod %s holds with epoch %d%s%s", d.holder.Name, d.status.Epoch, d.spareInWords(), d.foreignHelp())
	case t != nil && t.To == d.holder.Name && t.Ready == nil && silentIn(d.Nodes, d.holder.Pod) != "":
		d.found(Starting, "pod %s was released with epoch %d and is not Ready yet, and its node %s %s: it may start there, so nothing starts elsewhere%s",
			d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, silentIn(d.Nodes, d.holder.Pod), d.spareInWords())
		d.advice = append(d.advice, d.lostNodeHelp(d.holder.Pod))
	case t != nil && t.To == d.holder.Name && t.Ready == nil:
		why := notReady(d.holder.Pod)
		if slices.ContainsFunc(containers, heldContainer.atBarrier) {
			why = "the kubelet has not noticed yet that its barrier is open"
		}
		if d.Singleton.Status.LastTransition.GapMilliseconds != nil || t.GapMilliseconds == nil {
			d.usual = d.left(usuallyReady, t.Signalled.Time)
		}
		d.found(Starting, "pod %s was released and is not Ready yet: %s", d.holder.Name, why)
	case silentIn(d.Nodes, d.holder.Pod) != "":
		d.found(HolderNotReady, "pod %s holds, and its node %s %s: it may run on there, so nothing starts elsewhere%s",
			d.holder.Name, d.holder.Spec.NodeName, silentIn(d.Nodes, d.holder.Pod), d.spareInWords())
		d.advice = append(d.advice, d.lostNodeHelp(d.holder.Pod))
	case next != nil:
		d.found(AwaitingHandover, "pod %s is warm and of a newer revision than pod %s, and their StatefulSet goes on only once pod %s is Ready. To have it take over, run: kubectl delete -n %s pod %s",
			next.Name, d.holder.Name, next.Name, d.Singleton.Namespace, d.holder.Name)
	default:
		d.found(HolderNotReady, "pod %s holds and is not Ready: %s", d.holder.Name, notReady(d.holder.Pod))
	}
}
