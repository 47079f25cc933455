package handoff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

type standby struct {
	pod      *corev1.Pod
	revision int64
	// outdated is how many standbys of its Deployment are of a newer revision.
	outdated int
	// silent says why its node can't start it. Empty: as far as is known, it can.
	silent string
	// drained says why its node is being drained. Empty: it is not.
	drained string
	// waitsFor is empty if the standby is warm.
	waitsFor string
	// needsPerson: it never will be by itself.
	needsPerson bool
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

// picks tells whether the singleton's selector picks the pod. The CRD lets one in that is
// none: it picks nothing.
func picks(singleton *v1.StatefulSingleton, pod *corev1.Pod) bool {
	selector, err := singleton.Spec.Selector.Parse()
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// sort finds out what each pod is to the singleton.
func (d *decision) sort() {
	selector, err := d.Singleton.Spec.Selector.Parse()
	if err != nil {
		selector = labels.Nothing() // the CRD lets no such selector in
	}
	for i := range d.Pods {
		pod := &d.Pods[i]
		selected := selector.Matches(labels.Set(pod.Labels))
		if selected {
			d.findOverlap(pod)
		}
		containers := held(pod, d.Singleton)
		_, dead := d.proveDead(pod)
		if given, ok := signalled(pod); ok {
			d.status.Epoch = max(d.status.Epoch, given.Epoch) // the record may have been lost
		}
		mayRun := d.mayRun(pod, containers)
		if !dead && protected(pod) && !mayRun {
			d.armed = append(d.armed, pod)
		}
		switch {
		case pod.UID == d.status.ActivePodUID:
			d.holder = pod
		case dead && protected(pod):
			d.leftovers = append(d.leftovers, pod)
		case dead:
		case mayRun:
			d.runners = append(d.runners, pod)
		case Going(pod):
		case injectedFor(pod, d.Singleton) && selected:
			d.standbys = append(d.standbys, d.standbyOf(pod, containers))
		case selected:
			d.strangers = append(d.strangers, pod)
		}
	}
	for i := range d.standbys {
		d.standbys[i].outdated = d.newerRevisions(d.standbys[i])
	}
	slices.SortFunc(d.standbys, func(a, b standby) int {
		return cmp.Or(cmp.Compare(d.foreign(a.pod), d.foreign(b.pod)), // one of the holder's owner first
			cmp.Compare(a.outdated, b.outdated),
			cmp.Compare(min(len(a.silent), 1), min(len(b.silent), 1)),     // one whose node answers first
			cmp.Compare(a.drained, b.drained),                             // one that need not leave first
			cmp.Compare(min(len(a.waitsFor), 1), min(len(b.waitsFor), 1)), // one that is warm first
			a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
			cmp.Compare(a.pod.Name, b.pod.Name))
	})
}

// newerRevisions is how many standbys are of a newer revision of the same owner. Revisions
// of two Deployments can't be compared.
func (d *decision) newerRevisions(s standby) (n int) {
	for _, other := range d.standbys {
		if other.revision > s.revision && d.deployment(other.pod) == d.deployment(s.pod) {
			n++
		}
	}
	return n
}

// foreign is 1 if the pod is not of the Deployment that the holder is of, and 0 if it is.
func (d *decision) foreign(pod *corev1.Pod) int {
	if d.holder == nil || d.deployment(pod) == d.deployment(d.holder) {
		return 0
	}
	return 1
}

// adviseOneDeployment says why rollouts don't take effect where several Deployments want
// pods that the selector picks.
func (d *decision) adviseOneDeployment() {
	var names []string
	for i := range d.Pods {
		deployment := d.deployment(&d.Pods[i])
		if deployment != nil && picks(d.Singleton, &d.Pods[i]) && !Going(&d.Pods[i]) && !d.unwanted(&d.Pods[i]) && !slices.Contains(names, deployment.Name) {
			names = append(names, deployment.Name)
		}
	}
	if len(names) > 1 {
		slices.Sort(names)
		d.advice = slices.Insert(d.advice, 0, fmt.Sprintf("Pods of several Deployments match spec.selector (%s): only a rollout of the Deployment whose pod holds takes effect. Have spec.selector pick the pods of one of them",
			strings.Join(names, ", ")))
	}
}

// standbyOf says what is known of a pod that is held for the singleton.
func (d *decision) standbyOf(pod *corev1.Pod, containers []heldContainer) standby {
	s := standby{pod: pod, revision: d.revision(pod), silent: d.silentNode(pod), drained: d.drainOf(pod)}
	shares := d.sharesBarrier(pod, containers)
	s.waitsFor, s.needsPerson = cmp.Or(shares, waitsFor(pod, containers)), shares != ""
	if shares == "" && s.silent != "" {
		s.waitsFor = fmt.Sprintf("can't start: its node %s %s", pod.Spec.NodeName, s.silent)
	}
	return s
}

// silentNode returns why the node of a pod cannot start the pod: the node does not exist, or
// does not answer. Empty: the node answers, or the pod is not scheduled yet. The node is read
// from a cache that may lag: the result keeps a pod from being chosen, and proves nothing.
func (s Snapshot) silentNode(pod *corev1.Pod) string { return silentIn(s.CachedNodes, pod) }

func silentIn(nodes map[string]*corev1.Node, pod *corev1.Pod) string {
	name := pod.Spec.NodeName
	node := nodes[name]
	switch {
	case name == "":
		return ""
	case node == nil:
		return "does not exist"
	case !NodeReady(node):
		return "does not answer"
	}
	return ""
}

// adviseReplacement says how a standby that its node can't start is replaced.
func (d *decision) adviseReplacement(s standby) {
	if s.silent != "" && !s.needsPerson {
		d.advice = append(d.advice, fmt.Sprintf("A ReplicaSet replaces pod %s once it is deleted, by default 5 minutes after its node stopped answering; a StatefulSet, only once it is gone. To delete it now, run: kubectl delete -n %s pod %s --wait=false",
			s.pod.Name, s.pod.Namespace, s.pod.Name))
	}
}

// mayRun tells whether a pod that is not proven dead may run a main process: nothing
// holds it, or not any more.
func (d *decision) mayRun(pod *corev1.Pod, containers []heldContainer) bool {
	return !isHeld(pod, containers) || released(pod) || d.chosenElsewhere(pod) || slices.ContainsFunc(containers, heldContainer.pastBarrier) ||
		d.sharing(pod, containers, d.opened) != nil
}

// opened tells whether the pod's barriers were opened, or are about to be. Whoever
// shares one must be a copy of it.
func (d *decision) opened(pod *corev1.Pod) bool {
	return released(pod) || pod.UID == d.status.ActivePodUID || d.chosenElsewhere(pod)
}

// sharesBarrier says which pod would start along with this one. Empty: none.
func (d *decision) sharesBarrier(pod *corev1.Pod, containers []heldContainer) string {
	if other := d.sharing(pod, containers, func(*corev1.Pod) bool { return true }); other != nil {
		return fmt.Sprintf("waits for the same ConfigMap as pod %s, which would start along with it: one is a copy of the other. Delete both, so that they are created anew", other.Name)
	}
	return ""
}

// sharing is another pod that waits for one of the same ConfigMaps, nil if none does.
func (d *decision) sharing(pod *corev1.Pod, containers []heldContainer, which func(*corev1.Pod) bool) *corev1.Pod {
	for i := range d.Pods {
		other := &d.Pods[i]
		if other.UID == pod.UID || !which(other) {
			continue
		}
		for _, theirs := range held(other, d.Singleton) {
			if theirs.configMap != "" && slices.ContainsFunc(containers, func(h heldContainer) bool { return h.configMap == theirs.configMap }) {
				return other
			}
		}
	}
	return nil
}

func (d *decision) findOverlap(pod *corev1.Pod) {
	for i := range d.Others {
		if other := &d.Others[i]; picks(other, pod) {
			d.overlap = fmt.Sprintf("StatefulSingleton %s picks pod %s too", other.Name, pod.Name)
			return
		}
	}
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

// nudge has the kubelet look again at a holder that starts, once, where it usually would
// have seen by now what it looks for. It may have missed the signal: it goes through lists
// of pods and of volumes to project anew what has changed, and a pod that changes meanwhile
// it may project as the list has it (pkg/kubelet/volumemanager: findAndAddNewPods,
// mountOrAttachVolumes). By itself it would look again after 60 to 90 s.
func (d *decision) nudge(containers []heldContainer, given signal.Signal) {
	t := d.status.LastTransition
	starts := t != nil && t.To == d.holder.Name && t.Ready == nil && !IsTrue(d.holder, corev1.PodReady)
	atBarrier := slices.ContainsFunc(containers, heldContainer.atBarrier)
	after := nudgeAfter(containers)
	nudged := d.holder.Annotations[v1.NudgeAnnotation] == fmt.Sprint(given.Epoch)
	if after == 0 || !atBarrier && (!starts || nudged) {
		return
	}
	if d.again = d.left(after, given.Time); d.again > 0 {
		return
	}
	if atBarrier {
		d.do(d.barriers(d.holder)...)
	}
	if !nudged {
		d.do(Nudge{refOf(d.holder), given.Epoch})
	}
}

// nudgeAfter is how long after the signal the kubelet is made to look again. 0: it is not.
func nudgeAfter(containers []heldContainer) time.Duration {
	switch {
	case slices.ContainsFunc(containers, func(h heldContainer) bool { return h.configMap != "" }):
		return usuallySeen
	case slices.ContainsFunc(containers, func(h heldContainer) bool { return h.seldomProbed }):
		return kubeletLook
	case slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.open && !(h.gateProbe && h.started()) }):
		return usuallyReady
	}
	return 0
}

// followStart writes down what the kubelet reported of the new holder's start.
func (d *decision) followStart(containers []heldContainer, given signal.Signal) {
	t := d.status.LastTransition
	if t == nil || t.To != d.holder.Name {
		return
	}
	now := metav1.NewMicroTime(d.now)
	if t.Signalled == nil {
		t.Signalled = &now
		if !given.Time.IsZero() {
			t.Signalled = new(metav1.NewMicroTime(given.Time))
		}
	}
	ready := IsTrue(d.holder, corev1.PodReady)
	if t.Terminated != nil && t.GapMilliseconds == nil && (ready || startReported(containers) && mainStarted(containers)) {
		t.GapMilliseconds = new(d.now.Sub(t.Terminated.Time).Milliseconds())
	}
	if t.Ready == nil && ready {
		t.Ready = &now
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

// successor is a warm standby of the newest revision of the holder's StatefulSet, where
// the holder is of an older one; nil if there is none. The StatefulSet stops the holder
// only once the pod that it made before is Ready, which a standby never is.
func (d *decision) successor() *corev1.Pod {
	set, next := d.statefulSet(d.holder), d.warm()
	if set == nil || next == nil || d.statefulSet(next) != set || !d.outdated(d.holder) || d.outdated(next) {
		return nil
	}
	return next
}

// newest is the first standby that is of a newer revision than the holder.
func (d *decision) newest() *standby {
	for i := range d.standbys {
		if d.newer(d.standbys[i].pod, d.holder) {
			return &d.standbys[i]
		}
	}
	return nil
}

// rollOver asks the holder to stop once a pod of a newer revision is warm, or can
// only warm up without it.
func (d *decision) rollOver(next *standby) {
	cold := ""
	if next.waitsFor != "" {
		if cold = d.waitsForHolder(next.pod); cold == "" {
			d.needsPerson = next.needsPerson
			d.usual = d.left(usuallyWarm, next.pod.CreationTimestamp.Time)
			d.found(StandbyNotWarm, "pod %s %s; pod %s goes on until it is warm", next.pod.Name, next.waitsFor, d.holder.Name)
			d.adviseReplacement(*next)
			return
		}
	}
	if cold == "" {
		d.found(Retiring, "pod %s is warm; pod %s is asked to stop", next.pod.Name, d.holder.Name)
		if d.usual = min(d.left(kubeletPause, lastWrite(next.pod)), d.left(longestPause, lastStart(next.pod))); d.usual > 0 {
			return
		}
	} else {
		d.found(RetiringCold, "pod %s is asked to stop before pod %s is warm, since %s", d.holder.Name, next.pod.Name, cold)
	}
	rs := d.replicaSet(d.holder)
	if rs.Spec.Replicas != nil && *rs.Spec.Replicas == 0 {
		return
	}
	d.do(Retire{rs.Name})
	if cold == "" {
		d.usual = usuallyAsked
	}
}

const (
	// kubeletPause is how long a standby has not been written before the holder is asked
	// to stop. The kubelet looks at a pod after each write, and only once its list of
	// containers is newer than its last look (pkg/kubelet/pod_workers: GetNewerThan). It
	// makes that list every second: a signal shortly after anything else about the pod
	// would wait for the next one, while nothing runs.
	kubeletPause = 3 * time.Second
	// longestPause is how long after its start a standby is waited for that somebody
	// writes again and again.
	longestPause = 15 * time.Second
	// usuallyWarm is how long a standby takes to warm up where all it needs is there.
	usuallyWarm = 5 * time.Second
	// usuallyAsked is how long it takes from Retire to the request for deletion.
	usuallyAsked = time.Second
	// usuallySeen is how long the kubelet takes from the signal to the report that a
	// container is beyond its barrier.
	usuallySeen = 2 * time.Second
	// kubeletLook is how long after the signal the kubelet can look at a pod again at once.
	// With the signal it runs the readiness probe, too early, and then not before a whole
	// period has passed (pkg/kubelet/prober: worker.run), unless it looks at the pod again.
	kubeletLook = time.Second
	// usuallyStops is how long it takes from the request for deletion, which is dated in
	// whole seconds, to the kubelet's report of the end.
	usuallyStops = 4 * time.Second
	// usuallyReady is how long a holder takes from its signal to Ready.
	usuallyReady = 5 * time.Second
)

// left is what is left of a time since then. None is left where that is later than
// now, by another machine's clock.
func (d *decision) left(of time.Duration, since time.Time) time.Duration {
	passed := d.now.Sub(since)
	if passed < 0 {
		return 0
	}
	return max(0, of-passed)
}

// attachPatience is how long a volume that is attached to the holder's node may
// keep the standby waiting on another: some volumes of that kind do mount twice.
const attachPatience = 20 * time.Second

// waitsForHolder says which volume keeps the standby from warming up while the
// holder has it; empty if none does, or if its node could not start it anyway.
func (d *decision) waitsForHolder(pod *corev1.Pod) string {
	if d.silentNode(pod) != "" {
		return ""
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil || !mounts(d.holder, volume.PersistentVolumeClaim.ClaimName) {
			continue
		}
		claim := d.Claims[volume.PersistentVolumeClaim.ClaimName]
		if claim == nil {
			continue
		}
		modes := claim.Spec.AccessModes
		scheduled := condition(pod, corev1.PodScheduled)
		switch {
		case slices.Contains(modes, corev1.ReadWriteOncePod):
			// The scheduler's own words (pkg/scheduler/framework/plugins/volumerestrictions).
			// A pod that no node could take anyway is told other ones.
			if scheduled != nil && scheduled.Status == corev1.ConditionFalse && strings.Contains(scheduled.Message, "ReadWriteOncePod") {
				return fmt.Sprintf("claim %s is ReadWriteOncePod", claim.Name)
			}
		case slices.Contains(modes, corev1.ReadWriteMany) || slices.Contains(modes, corev1.ReadOnlyMany):
		case pod.Spec.NodeName != "" && pod.Spec.NodeName != d.holder.Spec.NodeName &&
			!IsTrue(pod, corev1.PodReadyToStartContainers) &&
			scheduled != nil && d.now.Sub(scheduled.LastTransitionTime.Time) >= attachPatience:
			return fmt.Sprintf("claim %s is ReadWriteOnce and attached to node %s", claim.Name, d.holder.Spec.NodeName)
		}
	}
	return ""
}

func mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// cause is what began the handoff from a holder that is dead.
func (d *decision) cause() v1.Cause {
	pod := d.holder
	if pod == nil {
		return v1.CauseDeletion
	}
	disrupted := IsTrue(pod, corev1.DisruptionTarget)
	switch replaced := d.replaced(); {
	case replaced != "":
		return replaced
	case disrupted:
		return v1.CauseEviction
	case pod.DeletionTimestamp == nil && d.completesJob(pod) && len(d.standbys) == 0:
		return v1.CauseScaleDown
	case pod.DeletionTimestamp == nil:
		return v1.CauseCompletion
	case d.unwanted(pod):
		return v1.CauseScaleDown
	case d.outdated(pod):
		return v1.CauseRollout
	}
	return v1.CauseDeletion
}

// completesJob tells whether the pod has done the work of a Job, which creates no other pod
// for it. A Job that wants several completions creates the next one at once.
func (d *decision) completesJob(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job" && pod.Status.Phase == corev1.PodSucceeded
}
