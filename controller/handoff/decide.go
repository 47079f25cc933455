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

	// holder is the recorded holder, nil if its object is gone or none is recorded.
	holder *corev1.Pod
	// runners may run a main process though the record does not name them.
	runners []*corev1.Pod
	// leftovers are proven dead and still bear the finalizer.
	leftovers []*corev1.Pod
	// standbys are in the order in which they would be released.
	standbys []standby
	// armed bear the finalizer, are held, and were not released yet.
	armed []*corev1.Pod
	// strangers are held for a singleton of another name, and stay held.
	strangers []*corev1.Pod
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
	d := &decision{Snapshot: s, now: now, status: s.Singleton.Status.DeepCopy()}
	d.sort()
	// While no holder is there, what guards it is left as it is.
	d.plan.Budget = s.Budget() != nil && s.Singleton.Spec.Drain != v1.DrainEvict
	if d.status.ActivePodUID != "" {
		d.withHolder()
	} else {
		d.withoutHolder()
	}
	d.letGoLeftovers()
	if spent, refused := d.judgeAttestation(); spent {
		d.do(TakeAttestation{types.UID(d.Singleton.Annotations[v1.AttestAnnotation]), refused})
	}
	d.concludeDrain()
	d.adviseOneDeployment()
	d.report()
	d.plan.Status = *d.status
	return d.plan
}

// letGoLeftovers comes after a Record of the epoch, where only they bear the last.
func (d *decision) letGoLeftovers() {
	recorded := slices.Contains(d.plan.Steps, Step(Record{}))
	if len(d.leftovers) > 0 && d.status.Epoch > d.Singleton.Status.Epoch && !recorded {
		d.do(Record{})
	}
	for _, pod := range d.leftovers {
		d.do(LetGo{Pod: refOf(pod)})
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
	case len(d.runners) > 0:
		d.needsPerson = !slices.ContainsFunc(d.runners, Going)
		besides := "and no record says which one holds"
		if d.status.ActivePodUID != "" {
			besides = "and may run besides the holder"
		}
		d.found(SeveralRun, "%s not held, %s: no pod is released until only one is left. %s", these(d.runners), besides, d.severalHelp())
	default:
		return false
	}
	return true
}

// protect puts the finalizer on pods that lack it, except where the API server
// takes no finalizer any more.
func (d *decision) protect(pods ...*corev1.Pod) {
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && !protected(pod) {
			d.do(Protect{Pod: refOf(pod), Holder: pod.UID == d.status.ActivePodUID})
		}
	}
}

func (d *decision) withHolder() {
	d.protect(d.runners...)
	if d.holder == nil {
		if proof, ok := d.proveGone(); ok {
			d.succeed(proof)
			return
		}
		d.needsPerson = true
		d.found(HolderLost, "%s", d.lostHelp())
		return
	}
	if proof, ok := d.proveDead(d.holder); ok {
		d.succeed(proof)
		return
	}
	if Going(d.holder) {
		d.protect(d.holder)
		if node := d.Nodes[d.holder.Spec.NodeName]; node != nil && NodeReady(node) && !terminal(d.holder) {
			d.usual = d.left(usuallyStops, askedToStop(d.holder))
		}
		d.found(HolderStopping, "pod %s stops%s", d.holder.Name, d.stoppingHelp(d.holder, d.now))
		return
	}
	if d.Singleton.Spec.Drain != v1.DrainEvict {
		d.drained = d.drainOf(d.holder)
	}
	d.alive()
	d.guard()
}

func (d *decision) withoutHolder() {
	switch {
	case d.overlap != "", len(d.runners) > 1 && d.vanishing() == nil:
		d.letGoOthers(nil)
		d.protect(d.runners...)
		d.blocked()
	case len(d.runners) > 0:
		d.letGoOthers(nil)
		d.adopt(cmp.Or(d.vanishing(), d.runners[0]))
	case len(d.standbys) > 0 && d.warm() == nil:
		d.needsPerson = d.standbys[0].needsPerson
		d.found(WarmingUp, "pod %s %s", d.standbys[0].pod.Name, d.standbys[0].waitsFor)
		d.adviseReplacement(d.standbys[0])
	case len(d.standbys) > 0:
		d.letGoOthers(d.warm())
		d.release(d.warm(), d.nextTransition())
	case d.status.LastTransition != nil && d.status.LastTransition.To == "" && d.status.LastTransition.Cause != v1.CauseScaleDown:
		d.found(AwaitingPod, "pod %s has ended, and the pod that follows has not come yet%s", d.status.LastTransition.From, d.strangerHelp())
	default:
		none := "no pod matches the selector; the first that comes is held until it may run"
		if slices.ContainsFunc(d.Pods, func(pod corev1.Pod) bool { return picks(d.Singleton, &pod) && Going(&pod) }) {
			none = "each pod that matches the selector has ended, or stops; the first that comes is held until it may run"
		}
		d.found(NoPods, "%s%s", none, d.strangerHelp())
	}
}

// vanishing is a pod that may run, and whose object may go unseen: its deletion was asked
// for before it bore the finalizer, and it takes none any more. Nil: there is none.
func (d *decision) vanishing() *corev1.Pod {
	i := slices.IndexFunc(d.runners, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil && !protected(pod) })
	if i < 0 {
		return nil
	}
	return d.runners[i]
}

// warm is the standby to release next, nil if none is warm.
func (d *decision) warm() *corev1.Pod {
	for _, s := range d.standbys {
		if s.waitsFor == "" {
			return s.pod
		}
	}
	return nil
}

// succeed moves the record on from a holder that is proven dead.
func (d *decision) succeed(proof v1.Proof) {
	now := metav1.NewMicroTime(d.now)
	t := &v1.Transition{From: d.status.ActivePod, FromUID: d.status.ActivePodUID, Cause: d.cause(), Proof: proof, Started: d.begun(), Terminated: &now}
	switch next := d.warm(); {
	case d.overlap == "" && len(d.runners) == 1:
		d.vacate(t) // that one is adopted next
		d.found(HolderEnded, "pod %s has ended, and pod %s runs already", t.From, d.runners[0].Name)
	case d.blocked():
		d.vacate(t)
	case next == nil:
		d.vacate(t)
		d.found(HolderEnded, "pod %s has ended, and no standby is warm yet", t.From)
	default:
		d.release(next, t)
	}
	if d.holder != nil && protected(d.holder) {
		d.do(LetGo{Pod: refOf(d.holder)})
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
func (d *decision) letGoOthers(next *corev1.Pod) {
	for _, pod := range d.armed {
		if pod != next {
			d.do(LetGo{refOf(pod), Version(pod.ResourceVersion)})
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
func (d *decision) release(pod *corev1.Pod, t *v1.Transition) {
	t.To = pod.Name
	d.status.ActivePod, d.status.ActivePodUID, d.status.LastTransition = pod.Name, pod.UID, t
	d.status.Epoch++
	d.standbys = slices.DeleteFunc(d.standbys, func(s standby) bool { return s.pod == pod })
	d.signalHolder(pod)
	d.found(Released, "pod %s is released with epoch %d", pod.Name, d.status.Epoch)
}

// signalHolder signals the pod that the record names. The Record before it is the
// compare-and-swap that stops whoever read an older one.
func (d *decision) signalHolder(pod *corev1.Pod) {
	d.protectStandby(pod)
	d.do(Record{})
	d.do(d.barriers(pod)...)
	d.do(Signal{refOf(pod), Version(pod.ResourceVersion), signal.Signal{UID: string(pod.UID), Epoch: d.status.Epoch}})
	d.again = nudgeAfter(held(pod, d.Singleton))
}

// protectStandby puts the finalizer on a standby that is to be signalled, and says who
// may open its barrier.
func (d *decision) protectStandby(pod *corev1.Pod) {
	step := Protect{Pod: refOf(pod), Version: Version(pod.ResourceVersion)}
	if len(d.barriers(pod)) > 0 {
		step.ChosenBy = d.Singleton.UID
	}
	if !protected(pod) || step.ChosenBy != chosenBy(pod) {
		d.do(step)
	}
}

// barriers are the steps that open those of the pod, each once.
func (d *decision) barriers(pod *corev1.Pod) (steps []Step) {
	for _, h := range held(pod, d.Singleton) {
		open := OpenBarrier{refOf(pod), h.configMap, d.status.Epoch}
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
func (d *decision) adopt(pod *corev1.Pod) {
	now := metav1.NewMicroTime(d.now)
	d.protect(d.runners...)
	d.status.ActivePod, d.status.ActivePodUID = pod.Name, pod.UID
	d.status.LastTransition = &v1.Transition{To: pod.Name, Cause: v1.CauseAdopted, Started: d.begun(), Signalled: &now}
	if _, ok := signalled(pod); !ok {
		d.status.Epoch++ // one that was signalled has its own in its environment
	}
	d.do(Record{})
	if pod.DeletionTimestamp == nil {
		d.do(Protect{Pod: refOf(pod), Holder: true})
	}
	d.found(Adopted, "pod %s runs already and holds", pod.Name)
}

// alive looks after a holder that is not asked to stop.
func (d *decision) alive() {
	containers := held(d.holder, d.Singleton)
	given, hasSignal := signalled(d.holder)
	if awaitsSignal(d.holder, containers) {
		switch silent := d.silentNode(d.holder); {
		case d.blocked():
		case silent != "" && d.isUnreleased(d.holder, containers):
			if !protected(d.holder) {
				d.do(Protect{Pod: refOf(d.holder), Version: Version(d.holder.ResourceVersion)})
			}
			d.found(WarmingUp, "pod %s is chosen with epoch %d and is not signalled: its node %s %s", d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, silent)
			d.adviseReplacement(standby{pod: d.holder, silent: silent})
		default:
			d.signalHolder(d.holder)
			d.found(Released, "pod %s is released with epoch %d", d.holder.Name, d.status.Epoch)
		}
		return
	}
	d.protect(d.holder)
	if hasSignal && !IsTrue(d.holder, v1.ReadyCondition) {
		d.do(MarkReady{refOf(d.holder)})
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
	case next == nil && IsTrue(d.holder, corev1.PodReady):
		d.found(HolderReady, "pod %s holds with epoch %d%s%s", d.holder.Name, d.status.Epoch, d.spareInWords(), d.strangerHelp())
	case t != nil && t.To == d.holder.Name && t.Ready == nil && silentIn(d.Nodes, d.holder) != "":
		d.found(Starting, "pod %s was released with epoch %d and is not Ready yet, and its node %s %s: it may start there, so nothing starts elsewhere%s",
			d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, silentIn(d.Nodes, d.holder), d.spareInWords())
		d.advice = append(d.advice, d.lostNodeHelp(d.holder))
	case t != nil && t.To == d.holder.Name && t.Ready == nil:
		why := notReady(d.holder)
		if slices.ContainsFunc(containers, heldContainer.atBarrier) {
			why = "the kubelet has not noticed yet that its barrier is open"
		}
		if d.Singleton.Status.LastTransition.GapMilliseconds != nil || t.GapMilliseconds == nil {
			d.usual = d.left(usuallyReady, t.Signalled.Time)
		}
		d.found(Starting, "pod %s was released and is not Ready yet: %s", d.holder.Name, why)
	case silentIn(d.Nodes, d.holder) != "":
		d.found(HolderNotReady, "pod %s holds, and its node %s %s: it may run on there, so nothing starts elsewhere%s",
			d.holder.Name, d.holder.Spec.NodeName, silentIn(d.Nodes, d.holder), d.spareInWords())
		d.advice = append(d.advice, d.lostNodeHelp(d.holder))
	case next != nil:
		d.found(AwaitingHandover, "pod %s is warm and of a newer revision than pod %s, and their StatefulSet goes on only once pod %s is Ready. To have it take over, run: kubectl delete -n %s pod %s",
			next.Name, d.holder.Name, next.Name, d.Singleton.Namespace, d.holder.Name)
	default:
		d.found(HolderNotReady, "pod %s holds and is not Ready: %s", d.holder.Name, notReady(d.holder))
	}
}
