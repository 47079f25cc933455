package handoff_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/search"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// The model is a small world around the real Decide and its steps. It has an API server, kubelets, controllers that
// crash or act late, and a workload. It also has a person who makes mistakes but attests only the truth. The search
// visits all states of a small world. The walk takes random paths through a larger world.

const (
	maxPods        = 6
	maxNodes       = 3
	maxControllers = 3
)

// world is the actual state and the state that the API server stores. Equal worlds behave in the same way.
type world struct {
	singleton   singletonState
	pods        [maxPods]podState
	nodes       [maxNodes]nodeState
	controllers [maxControllers]controllerState
	// revision is the newest revision of the Deployment. retired has a bit for each ReplicaSet that is scaled to zero.
	revision, retired uint8
	lease             leaseState
	// faults is the number of faults that may still happen. expiries is the number of times that a controller may see a
	// whole duration pass without a renewal.
	faults, expiries uint8
	// lives is the number of singletons that were created.
	lives uint8
	// excused is true after an event that may require help from a person.
	excused bool
}

// singletonState is the stored singleton, or the singleton that a controller read.
type singletonState struct {
	exists, deleting, paused bool
	// life is the uid: the number of singletons that were created so far.
	life uint8
	// holder is the number of the recorded pod, from 1.
	holder uint8
	// open is true if the old holder has terminated and no other holder is recorded.
	open bool
	// signalled is true if the record says that the holder was signalled.
	signalled bool
	// attested is the number of the attested pod, from 1.
	attested uint8
	epoch    uint8
	// ended is the number of the last holder if the record has another proof that it ended for good, from 1. Only a Lease that
	// never expires needs it.
	ended uint8
	// expired is the number of the last holder if its Lease expired, from 1.
	expired uint8
}

type podKind uint8

const (
	noPod podKind = iota
	// overPod is a pod whose object is removed and whose processes have ended.
	overPod
	barePod
	wrapperPod
	barrierPod
	fencedPod
)

type podPhase uint8

const (
	livePhase podPhase = iota
	// The kubelet writes endedPhase. The pod garbage collector writes failedPhase.
	endedPhase
	failedPhase
)

// process is the state of the main process, or the state that the kubelet reported.
type process uint8

const (
	noProcess process = iota
	heldProcess
	mainProcess
	crashedProcess
	// endedProcess never starts again.
	endedProcess
)

// readinessGate is the condition of the readiness gate.
type readinessGate uint8

const (
	closedGate readinessGate = iota
	// standbyGate is open before the release. holdsGate is open since the release.
	standbyGate
	holdsGate
)

type podState struct {
	kind           podKind
	revision, node uint8

	// State of the object.
	gone, deleting, noGrace, finalizer, signal, role, configMap bool
	gate                                                        readinessGate
	phase                                                       podPhase
	// mayOpen is true if the record named the pod. The controller that wrote the record may still open the barrier.
	mayOpen bool
	// chosenBy is the life of the singleton that may open the barrier.
	chosenBy uint8
	// unmarked is true if an eviction overwrote the reason of the pod garbage collector.
	unmarked bool
	// noted is true if a controller of this singleton knows that the pod is terminating and cannot receive a finalizer.
	noted    bool
	reported process
	epoch    uint8

	// State on the node.
	known, seenSignal, seenGoing, seenGone bool
	runs                                   process
	// term is true if the pod has renewed the Lease, and may run its main process. retired is true if the pod stored that it
	// must not start the main process again.
	term, retired bool
	// receives is true if the kubelet reports the pod as Ready, because it accepts clients before its main process runs.
	receives bool
	// sawNamed is true if the sidecar has seen that the Lease names the pod. Only a mutation starts the pod for that.
	sawNamed bool
}

func (p *podState) exists() bool { return p.kind > overPod && !p.gone }
func (p *podState) going() bool  { return p.deleting || p.phase != livePhase }

// `removedUnseen` returns true if the pod ran before the singleton existed and is terminating without the finalizer.
func (p *podState) removedUnseen() bool {
	return p.exists() && p.kind == barePod && p.deleting && !p.finalizer
}

// mayRun returns true if a main process of the pod runs or may still start.
func (p *podState) mayRun() bool {
	return p.runs != endedProcess && p.node > 0 &&
		(p.kind == barePod || p.signal || p.term || p.mayOpen || p.seenSignal || p.configMap || p.runs == mainProcess || p.runs == crashedProcess)
}

type nodeState struct {
	// off is true if the machine has no power. cut is true if the machine has no network.
	off, cut bool
	// State of the object, which may lag behind the machine.
	notReady, outOfService, deleted bool
}

func (n *nodeState) connected() bool { return !n.off && !n.cut }

type stage uint8

const (
	idleStage stage = iota
	// At readStage, the controller has read the singleton. At planStage, it has read everything and decided.
	readStage
	planStage
	// At releaseStage, the controller has a plan for the release of the Lease by the holder.
	releaseStage
)

// controllerState is the state of a controller between two of its reads and writes.
type controllerState struct {
	stage stage
	read  singletonState
	// staleSingleton and stalePods are set if another client wrote the object after the controller last read or wrote
	// it.
	staleSingleton bool
	stalePods      uint8
	staleLease     bool
	// sawLease is true if the controller has seen the current holder and the last renewal of the Lease. silent is true if
	// a whole duration has passed since.
	sawLease, silent bool
	// cached is the number of the cached pods that the controller reads instead of the pods, from 1.
	cached uint32
	plan   uint32
	done   uint8
	// notes is the number of the `removedUnseen` pod that the controller found, from 1.
	notes uint8
}

// step is a step of a plan, as the model executes it.
type step struct {
	do  stepKind
	pod uint8
	// conditional is true if the step fails when another client wrote the pod after the Snapshot.
	conditional bool
	// role is true if the pod also receives the label of the holder.
	role bool
	// unchoose is true if no controller may open the barrier of the pod from now on.
	unchoose bool
	// chosenBy is the chosenBy that the pod receives.
	chosenBy uint8
	epoch    uint8
	// create is true if the step creates the Lease. lease is what the step writes otherwise.
	create bool
	lease  leaseState
}

type stepKind uint8

const (
	noStep stepKind = iota
	protectStep
	recordStep
	signalStep
	openBarrierStep
	nudgeStep
	markReadyStep
	unprotectStep
	retireStep
	// rollStep requests a pod of a newer revision. The model creates newer pods at any time, even without rollStep.
	rollStep
	takeAttestationStep
	// Steps for the deletion of a singleton, and for the pods of a removed singleton.
	stripStep
	confirmGoneStep
	finishStep
	writeLeaseStep
	demoteStep
)

var stepNames = [...]string{
	"", "adds the finalizer to", "records", "signals", "opens the barrier of", "nudges the kubelet for", "opens the readiness gate of",
	"removes the finalizer from", "scales to zero the ReplicaSet of", "rolls the Deployment to replace", "removes the attestation from", "removes the finalizer from", "checks that the singleton is deleted", "removes the finalizer of the singleton",
	"writes the Lease", "demotes",
}

// planState is the result of a decision. Equal results are stored once.
type planState struct {
	steps  [3*maxPods + 3]step
	status singletonState
	// several is true if a person must delete pods because several may run.
	several bool
	// rolls is true if the controller waits for a pod of a newer revision.
	rolls bool
	// ready is true if the status says that the main process of the holder runs.
	ready bool
	// then is the plan for the time after the holder has released the Lease, whose state is then released. 0 means none.
	then     uint32
	released leaseState
}

// view is the input of a decision.
type view struct {
	singleton         singletonState
	pods              [maxPods]podState
	nodes             [maxNodes]nodeState
	revision, retired uint8
	lease             leaseState
	silent            bool
}

// model has the rules by which a world changes.
type model struct {
	// pods are the kinds of the pods that may be created, in order.
	pods                          []podKind
	nodes, controllers, revisions int
	// epochs is true if the model also checks the epochs.
	epochs bool
	// wishes is true if the first node is drained and a person requests a handoff.
	wishes bool
	// pauses is true if a person may pause and resume handoffs.
	pauses bool
	// never is true if the Lease never expires.
	never bool
	// queues is true if fenced pods accept clients before their main process runs, and the holder stops with a delay.
	queues   bool
	mutation mutation

	plans   []planState
	planIDs map[planState]uint32
	decided map[view]uint32
	caches  []view
	cacheID map[view]uint32
}

// mutation is a deliberate error in the protocol.
type mutation struct {
	// see changes the input of Decide. plan changes the result.
	see  func(*view)
	plan func(*planState)
	// cached is true if controllers read pods from a cache.
	cached bool
	// With blindRecord and blindSignal, writes ignore the writes of other clients.
	blindRecord, blindSignal, noFinalizer bool
	// With blindStrip, the deletion of the singleton continues even if a pod was removed in the meantime.
	blindStrip bool

	// Errors of sidecars and in the fencing.

	// With startUnrenewed, a pod starts although it only saw that the Lease names it.
	startUnrenewed bool
	// With stopLate, a pod runs longer than the Lease is valid. With missRenewals, a controller does not notice renewals.
	stopLate, missRenewals bool
	// With blindRenewal, the renewal of a pod that saw itself named replaces the name of another pod.
	blindRenewal bool
	// With restartRetired, a pod releases the Lease and may start its main process again. With releaseRunning, it releases
	// the Lease before its main process has ended.
	restartRetired, releaseRunning bool
	// With expireNever, a controller takes a Lease that never expires.
	expireNever bool
	// With delayLate, a pod that is deleted delays its stop beyond the time for which the Lease is valid.
	delayLate bool
	// With expectRelease, a controller that waits for the release of the Lease decides as if the holder had released it.
	expectRelease bool
}

func newModel(pods []podKind, nodes, controllers int) *model {
	return &model{
		pods: pods, nodes: nodes, controllers: controllers, revisions: 2,
		plans: []planState{{}}, planIDs: map[planState]uint32{}, decided: map[view]uint32{},
		caches: []view{{}}, cacheID: map[view]uint32{}, epochs: slices.Contains(pods, fencedPod),
	}
}

// start returns a world in which the first pods of the model were just created. Bare pods among them were running
// before the singleton existed.
func (m *model) start(created, faults int) world {
	w := world{singleton: singletonState{exists: true, life: 1}, lives: 1, revision: 1, faults: uint8(faults)}
	if m.fences() {
		w.lease, w.expiries = leaseState{exists: true, life: 1}, maxExpiries
	}
	w.excused = created > 1 && m.pods[1] == barePod // two pods run at the start
	for i := range created {
		w.pods[i] = m.newPod(i, 1)
		if m.pods[i] == barePod {
			w.pods[i] = podState{kind: barePod, revision: 1, node: 1, known: true, runs: mainProcess, reported: mainProcess}
		}
	}
	return w
}

// newPod returns a new pod. The readiness gate of a wrapper pod is open from the start, except for the first pod. A write
// that opens the gate later fails if the pod was written since the read, so the model does not need it.
func (m *model) newPod(i int, revision uint8) podState {
	p := podState{kind: m.pods[i], revision: revision}
	if (p.kind == wrapperPod || p.kind == fencedPod) && i > 0 {
		p.gate = standbyGate
	}
	return p
}

func podName(i int) string { return fmt.Sprintf("db-%d", i) }

// wrote marks the pod as stale for all controllers except the writer. by is the controller that wrote, or -1.
func (w *world) wrote(pod, by int) {
	for c := range w.controllers {
		if s := &w.controllers[c]; c != by && (s.stage >= planStage || s.cached > 0) {
			s.stalePods |= 1 << pod
		}
	}
	if by >= 0 {
		w.controllers[by].stalePods &^= 1 << pod
	}
	w.sweep(pod)
}

func (w *world) wroteSingleton(by int) {
	for c := range w.controllers {
		if c != by && w.controllers[c].stage != idleStage {
			w.controllers[c].staleSingleton = true
		}
	}
	if by >= 0 {
		w.controllers[by].staleSingleton = false
	}
}

// sweep is the API server, which removes terminating objects that have no grace period and no finalizer left.
func (w *world) sweep(pod int) {
	p := &w.pods[pod]
	if p.deleting && p.noGrace && !p.finalizer {
		p.gone = true
	}
}

// Actions of people.

func (w *world) delete(pod int, force bool) {
	p := &w.pods[pod]
	// If an unheld pod without a finalizer is deleted, no controller can prove why the pod is gone.
	w.excused = w.excused || p.kind == barePod && !p.finalizer
	p.deleting = true
	p.noGrace = p.noGrace || force || p.node == 0 || p.phase != livePhase
	w.wrote(pod, -1)
}

// missed returns true if a controller notices a forced removal of the pod, or if the pod cannot run. The guarantee does
// not cover other forced removals.
func (p *podState) missed() bool { return p.finalizer || p.noted || !p.mayRun() }

func (p *podState) forcible() bool { return p.exists() && !p.noGrace && p.missed() }

// attestable returns true if a person can truthfully attest that the pod never starts again.
func (w *world) attestable(pod int) bool {
	p := &w.pods[pod]
	if p.kind == overPod {
		return w.singleton.holder == uint8(pod+1)
	}
	return p.kind > overPod && p.node > 0 && (p.runs == endedProcess || w.nodes[p.node-1].off && (p.gone || p.going()))
}

func (w *world) attest(pod int) {
	w.singleton.attested = uint8(pod + 1)
	w.wroteSingleton(-1)
}

// Actions of nodes.

func (w *world) powerOff(node int) {
	w.nodes[node].off = true
	for i := range w.pods {
		p := &w.pods[i]
		if int(p.node) != node+1 || p.runs == endedProcess {
			continue
		}
		p.known, p.seenSignal, p.seenGoing, p.seenGone = false, false, false, false
		p.term = false
		if p.runs == mainProcess {
			p.runs = crashedProcess
		}
		if p.runs == heldProcess {
			p.runs = noProcess
		}
	}
}

// see is the kubelet, which reads the object from the API server.
func (w *world) see(pod int) {
	p := &w.pods[pod]
	if p.gone {
		p.seenGone = true
		return
	}
	p.known, p.seenSignal, p.seenGoing = true, p.signal && p.kind == wrapperPod, p.seenGoing || p.going()
	if p.runs == noProcess && p.kind != barePod && !p.seenGoing {
		p.runs = heldProcess // the model gives the same results if the process starts later
	}
}

// act is the kubelet, which starts or stops the pod according to the object that it last read.
func (w *world) act(pod int) {
	p := &w.pods[pod]
	switch {
	case p.seenGone || p.seenGoing:
		p.runs = endedProcess
	case !p.known || p.runs == mainProcess || p.runs == endedProcess:
	case w.open(pod):
		for i := range w.pods {
			if w.pods[i].runs == mainProcess && (p.kind != barePod || w.pods[i].kind != barePod) {
				panic(search.Violation(fmt.Sprintf("%s starts while %s runs", podName(pod), podName(i))))
			}
		}
		p.runs = mainProcess
	default:
		p.runs = heldProcess
	}
}

// open returns true if the kubelet and the gate on the node let the main process start.
func (w *world) open(pod int) bool {
	p := &w.pods[pod]
	return p.kind == barePod || p.kind == wrapperPod && p.seenSignal ||
		p.kind == fencedPod && p.term && !p.retired ||
		p.kind == barrierPod && p.configMap && w.nodes[p.node-1].connected()
}

// news returns true if the kubelet has not read the current object.
func (p *podState) news() bool {
	if p.gone {
		return !p.seenGone
	}
	return !p.known || p.seenSignal != (p.signal && p.kind == wrapperPod) || p.going() && !p.seenGoing
}

// unreported returns true if the kubelet has not reported the current state of the process.
func (p *podState) unreported() bool {
	return p.reported != p.runs && p.runs != noProcess || p.runs == endedProcess && (p.phase == livePhase || p.deleting && !p.noGrace)
}

// report is the kubelet, which reports the state of the process to the API server.
func (w *world) report(pod int) {
	p := &w.pods[pod]
	if p.reported = p.runs; p.runs == endedProcess {
		p.noGrace = p.noGrace || p.deleting
		if p.phase == livePhase {
			p.phase = endedPhase
		}
	}
	w.wrote(pod, -1)
}

// collect is the pod garbage collector, which marks a pod as Failed and deletes it by force after its node is gone.
func (w *world) collect(pod int) {
	if p := &w.pods[pod]; p.phase == livePhase {
		p.phase = failedPhase
	}
	w.delete(pod, true)
}

// Actions of controllers.

// advance executes the next read, decision or write of a controller.
func (m *model) advance(w *world, c int) {
	s := &w.controllers[c]
	if s.stage == releaseStage {
		if s.staleLease = false; w.lease == m.plans[s.plan].released || m.mutation.expectRelease {
			s.stage, s.plan, s.sawLease, s.silent = planStage, m.plans[s.plan].then, true, false
			return
		}
		s.rest()
	}
	switch s.stage {
	case idleStage:
		s.stage, s.read, s.staleLease = readStage, w.singleton, false
		if m.mutation.cached {
			s.read = singletonState{}
			s.cached = m.cache(w)
		}
	case readStage:
		v := m.look(w, s)
		m.checkReady(w, v)
		*s = controllerState{stage: planStage, staleSingleton: s.staleSingleton && s.cached == 0, stalePods: s.stalePods, plan: m.decide(v), notes: w.removedUnseen(), sawLease: w.lease.exists, silent: v.silent}
		m.finish(w, c)
	case planStage:
		next := m.plans[s.plan].steps[s.done]
		s.done++
		if !m.write(w, c, next) {
			s.rest()
			return
		}
		m.finish(w, c)
	}
}

// checkReady checks that the status says only of a main process that has started that it runs. The kubelet may not have reported yet
// that the process has ended.
func (m *model) checkReady(w *world, v view) {
	h := v.singleton.holder
	if !m.queues || h == 0 || w.pods[h-1].kind != fencedPod || !m.plans[m.decide(v)].ready {
		return
	}
	if p := &w.pods[h-1]; p.runs != mainProcess && p.reported == heldProcess {
		panic(search.Violation(podName(int(h)-1) + readyTooEarly))
	}
}

// busy returns true if the controller is between two of its reads and writes.
func (s *controllerState) busy() bool { return s.stage == readStage || s.stage == planStage }

// rest resets a controller, which still knows how long the Lease has been silent.
func (s *controllerState) rest() { *s = controllerState{sawLease: s.sawLease, silent: s.silent} }

// finish resets a controller that has no steps left.
func (m *model) finish(w *world, c int) {
	s := &w.controllers[c]
	if int(s.done) == len(m.plans[s.plan].steps) || m.plans[s.plan].steps[s.done].do == noStep {
		if s.notes > 0 && !s.staleSingleton {
			w.pods[s.notes-1].noted = true
		}
		if m.plans[s.plan].then > 0 {
			*s = controllerState{stage: releaseStage, plan: s.plan, stalePods: s.stalePods, staleSingleton: s.staleSingleton, sawLease: s.sawLease, silent: s.silent}
			return
		}
		s.rest()
	}
}

// `removedUnseen` returns the number of the only `removedUnseen` pod, from 1. It returns 0 if there is none, or if the record has
// no room for the pod.
func (w *world) removedUnseen() (pod uint8) {
	for i := range w.pods {
		switch {
		case !w.pods[i].removedUnseen():
		case pod > 0:
			return 0
		default:
			pod = uint8(i + 1)
		}
	}
	if s := &w.singleton; !s.exists || s.deleting || s.holder > 0 && s.holder != pod {
		return 0
	}
	return pod
}

// forgetNotes clears noted in all pods. A new singleton does not know what the previous singleton knew.
func (w *world) forgetNotes() {
	for i := range w.pods {
		w.pods[i].noted = false
	}
}

// look returns the Snapshot that a controller reads, without state that only nodes know.
func (m *model) look(w *world, s *controllerState) view {
	v := view{singleton: s.read, revision: w.revision, retired: w.retired, lease: w.lease, silent: s.sawLease && s.silent}
	for i, n := range w.nodes {
		v.nodes[i] = nodeState{notReady: n.notReady, outOfService: n.outOfService, deleted: n.deleted}
	}
	if s.cached > 0 {
		v.pods, v.singleton = m.caches[s.cached].pods, w.singleton
	} else {
		v.pods = visible(w)
	}
	if m.mutation.see != nil {
		m.mutation.see(&v)
	}
	return v
}

func visible(w *world) (pods [maxPods]podState) {
	for i, p := range w.pods {
		if p.exists() {
			p.term, p.retired, p.sawNamed = false, false, false
			p.known, p.seenSignal, p.seenGoing, p.seenGone, p.runs, p.noGrace, p.configMap, p.mayOpen, p.noted = false, false, false, false, 0, false, false, false, false
			pods[i] = p
		}
	}
	return pods
}

func (m *model) cache(w *world) uint32 {
	v := view{pods: visible(w)}
	id, ok := m.cacheID[v]
	if !ok {
		id = uint32(len(m.caches))
		m.caches, m.cacheID[v] = append(m.caches, v), id
	}
	return id
}

// write executes one step of a controller, and returns true if the step succeeded.
func (m *model) write(w *world, c int, s step) bool {
	p := &w.pods[s.pod]
	stale := s.conditional && w.controllers[c].stalePods&(1<<s.pod) != 0 && !m.mutation.blindSignal
	switch s.do {
	case recordStep, takeAttestationStep, finishStep:
		return m.writeSingleton(w, c, s)
	case confirmGoneStep:
		return !w.singleton.exists
	case openBarrierStep:
		p.configMap = true // the ConfigMap of a removed pod stays until it is garbage-collected
		return true
	case retireStep:
		w.retired |= 1 << p.revision
		return true
	case rollStep:
		return true
	case writeLeaseStep:
		return m.writeLease(w, c, s)
	}
	switch {
	case !p.exists():
		return s.do == unprotectStep || s.do == demoteStep || s.do == stripStep && m.mutation.blindStrip
	case stale:
		return false
	case s.do == protectStep && !m.protect(p):
		return false
	}
	switch s.do {
	case protectStep:
		p.role = p.role || s.role
		if s.chosenBy > 0 {
			p.chosenBy = s.chosenBy
		}
	case signalStep:
		p.signal, p.role, p.gate = true, true, holdsGate
		m.checkEpoch(w, s)
		p.epoch = s.epoch
	case markReadyStep:
		p.gate = holdsGate
	case unprotectStep, demoteStep:
		w.excused = w.excused || w.controllers[c].staleSingleton || m.aboutToRecord(w, c, s.pod)
		p.signal, p.role, p.finalizer = false, false, false
		if s.do == demoteStep {
			p.gate = closedGate
		}
		if w.controllers[c].staleSingleton {
			p.epoch = 0 // no object stores the epoch after the write of the record fails
		}
	case stripStep:
		p.finalizer = false
		if s.unchoose {
			p.chosenBy = 0
		}
	}
	w.wrote(int(s.pod), c)
	return true
}

// nextPlan returns the plan that the controller executes, or will execute after the holder has released the Lease. Nil:
// there is none.
func (m *model) nextPlan(s controllerState) *planState {
	switch s.stage {
	case planStage:
		return &m.plans[s.plan]
	case releaseStage:
		return &m.plans[m.plans[s.plan].then]
	}
	return nil
}

// aboutToRecord returns true if another controller may still record the pod that this controller unprotects. If the pod
// is then removed, nothing proves that the pod was never signalled. A pod that was recorded in the meantime has the
// same problem.
func (m *model) aboutToRecord(w *world, c int, pod uint8) bool {
	for i, s := range w.controllers {
		plan := m.nextPlan(s)
		if i == c || plan == nil || plan.status.holder != pod+1 {
			continue
		}
		for _, next := range plan.steps[s.done:] {
			if next.do == recordStep {
				return true
			}
		}
	}
	return false
}

// protect adds the finalizer, and returns false if the pod is terminating and has no finalizer.
func (m *model) protect(p *podState) bool {
	if m.mutation.noFinalizer || p.finalizer {
		return true
	}
	p.finalizer = !p.deleting
	return p.finalizer
}

// checkEpoch checks that the epoch of a release is greater than all earlier epochs. It ignores an epoch that was only
// on a pod whose object is gone.
func (m *model) checkEpoch(w *world, s step) {
	for i := range w.pods {
		p := &w.pods[i]
		if unseen := p.gone && p.signal; m.epochs && i != int(s.pod) && p.epoch >= s.epoch && !unseen {
			panic(search.Violation(fmt.Sprintf("%s is released with epoch %d, and %s had %d", podName(int(s.pod)), s.epoch, podName(i), p.epoch)))
		}
	}
}

// writeSingleton is a compare-and-swap on the singleton.
func (m *model) writeSingleton(w *world, c int, s step) bool {
	unconditional := m.mutation.blindRecord || s.do == finishStep && !s.conditional
	if !w.singleton.exists || w.controllers[c].staleSingleton && !unconditional {
		return s.do == finishStep && !w.singleton.exists
	}
	switch s.do {
	case recordStep:
		was := w.singleton
		w.singleton = m.plans[w.controllers[c].plan].status
		w.singleton.exists, w.singleton.deleting, w.singleton.paused = true, was.deleting, was.paused
		w.singleton.attested, w.singleton.life = was.attested, was.life
		if h := w.singleton.holder; h > 0 && w.pods[h-1].kind == barrierPod {
			w.pods[h-1].mayOpen = true
		}
	case takeAttestationStep:
		w.singleton.attested = 0
	case finishStep:
		w.singleton = singletonState{}
	}
	w.wroteSingleton(c)
	return true
}

// Decisions.

// decide calls the real Decide with the view, and caches the result.
func (m *model) decide(v view) uint32 {
	if id, ok := m.decided[v]; ok {
		return id
	}
	plan := planState{}
	switch {
	case !v.singleton.exists:
		plan = m.translateSteps(v, handoff.Orphans(m.snapshot(v)))
	case v.singleton.deleting:
		steps, _, _ := handoff.Finalize(m.snapshot(v), now)
		plan = m.translateSteps(v, steps)
	default:
		decided := handoff.Decide(m.snapshot(v), now)
		plan = m.translate(v, decided)
		if decided.Outcome == handoff.HolderStopping {
			plan.then, plan.released = m.afterRelease(v)
		}
	}
	if m.mutation.plan != nil {
		m.mutation.plan(&plan)
	}
	id, ok := m.planIDs[plan]
	if !ok {
		id = uint32(len(m.plans))
		m.plans, m.planIDs[plan] = append(m.plans, plan), id
	}
	m.decided[v] = id
	return id
}

// translateSteps returns a plan that has only steps.
func (m *model) translateSteps(v view, steps []handoff.Step) (plan planState) {
	for i, s := range steps {
		plan.steps[i] = m.translateStep(v, s)
	}
	return plan
}

// snapshot converts the view to API objects.
func (m *model) snapshot(v view) handoff.Snapshot {
	var pods []*PodWrapper
	for i := range v.pods {
		if v.pods[i].kind != noPod {
			pod := podOf(i, &v.pods[i])
			if m.never && !m.mutation.expireNever && v.pods[i].kind == fencedPod {
				pod.NeverExpires()
			}
			if m.queues && v.pods[i].kind == fencedPod {
				pod.Queues()
			}
			pods = append(pods, pod)
		}
	}
	s := MakeSnapshot(pods...)
	for r := range m.revisions {
		replicas := int32(1)
		if v.retired&(1<<(r+1)) != 0 {
			replicas = 0
		}
		s.ReplicaSet(fmt.Sprintf("db-v%d", r+1), replicas).Deployment(1)
	}
	for i, n := range v.nodes {
		ready, taints := corev1.ConditionTrue, []string(nil)
		if n.notReady {
			ready = corev1.ConditionUnknown
		}
		if n.outOfService {
			taints = append(taints, corev1.TaintNodeOutOfService)
		}
		if s.Node(nodeName(i), ready, taints...); n.deleted {
			s.NoNode(nodeName(i))
		}
	}
	if m.wishes && !v.nodes[0].deleted {
		s.Manual().Handover("now").Cordon(nodeName(0))
	}
	s.Singleton.Spec.Paused = v.singleton.paused
	if v.singleton.attested > 0 {
		s.Attest(string(uidOf(podName(int(v.singleton.attested) - 1))))
	}
	s.Singleton.UID = lifeUID(v.singleton.life)
	if m.fences() {
		s.Lease = m.leaseOf(v)
	}
	status := &s.Singleton.Status
	status.Epoch = int64(v.singleton.epoch)
	if v.singleton.holder > 0 {
		name := podName(int(v.singleton.holder) - 1)
		status.ActivePod, status.ActivePodUID = name, uidOf(name)
		status.LastTransition = &v1.Transition{To: name, Cause: v1.CauseRollout}
		if v.singleton.signalled {
			status.LastTransition.Signalled = microTime(now)
		}
	} else if v.singleton.open {
		status.LastTransition = &v1.Transition{Cause: v1.CauseDeletion}
	}
	if v.singleton.ended > 0 && status.LastTransition != nil {
		status.LastTransition.FromUID, status.LastTransition.Proof = uidOf(podName(int(v.singleton.ended)-1)), v1.ProofKubeletReported
	}
	if v.singleton.expired > 0 && status.LastTransition != nil {
		status.LastTransition.FromUID, status.LastTransition.Proof = uidOf(podName(int(v.singleton.expired)-1)), v1.ProofLeaseExpired
		status.LastTransition.Terminated = microTime(now)
	}
	return s.Snapshot
}

func lifeUID(life uint8) types.UID { return types.UID(fmt.Sprintf("life-%d", life)) }

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// podOf returns the object of the pod.
func podOf(i int, p *podState) *PodWrapper {
	pod := MakePod(podName(i)).Created(now.Add(time.Duration(i-maxPods) * time.Second)).Revision(int(p.revision))
	switch p.kind {
	case wrapperPod:
		pod.Injected().Probed()
	case fencedPod:
		pod.Injected().Probed().Fenced()
	case barrierPod:
		pod.Barrier().Injected()
	}
	switch p.reported {
	case heldProcess:
		pod.Warm()
		if p.receives {
			pod.Condition(corev1.PodReady, corev1.ConditionTrue, "", "")
		}
	case mainProcess:
		pod.Running().Condition(corev1.PodReady, corev1.ConditionTrue, "", "")
	case crashedProcess:
		pod.Warm().State("app", terminated(1))
	case endedProcess:
		pod.Warm().Ended()
	}
	if p.node > 0 {
		pod.On(nodeName(int(p.node) - 1))
	}
	if p.phase == failedPhase {
		reason := "DeletionByPodGC"
		if p.unmarked {
			reason = "EvictionByEvictionAPI"
		}
		pod.FailedByGC(reason)
	}
	if p.deleting {
		pod.Deleting()
	}
	if p.finalizer {
		pod.Protected()
	}
	if p.chosenBy > 0 {
		pod.Annotation(v1.ChosenByAnnotation, string(lifeUID(p.chosenBy)))
	}
	if p.signal {
		given := signal.Signal{UID: string(pod.Pod.UID), Epoch: max(1, int64(p.epoch))}
		if i%2 == 1 {
			given.Time = now // the start has not taken long
		}
		pod.Annotation(signal.Annotation, given.String())
	}
	if p.role {
		pod.Label(v1.RoleLabel, v1.RoleActive)
	}
	switch p.gate {
	case closedGate:
	case standbyGate:
		pod.OpenGate(v1.ReadyReasonStandby)
	case holdsGate:
		pod.OpenGate(v1.ReadyReasonHolds)
	}
	return pod
}

// translate converts the plan to the types of the model.
func (m *model) translate(v view, plan handoff.Plan) planState {
	status := &plan.Status
	p := planState{several: plan.Outcome == handoff.SeveralRun, ready: m.queues && meta.IsStatusConditionTrue(status.Conditions, v1.ConditionReady), status: singletonState{
		holder: numberOf(status.ActivePodUID), open: status.LastTransition != nil && status.LastTransition.To == "",
		signalled: status.LastTransition != nil && status.LastTransition.Signalled != nil,
	}}
	if m.epochs {
		p.status.epoch = uint8(status.Epoch)
	}
	if last := status.LastTransition; last != nil {
		switch last.Proof {
		case v1.ProofLeaseExpired:
			p.status.expired = numberOf(last.FromUID)
		case v1.ProofKubeletReported, v1.ProofNodeOutOfService, v1.ProofAttested:
			if m.never {
				p.status.ended = numberOf(last.FromUID)
			}
		}
	}
	p.rolls = plan.Outcome == handoff.Rolling && status.ActivePodUID == ""
	recorded, n := false, 0
	for _, s := range plan.Steps {
		p.steps[n] = m.translateStep(v, s)
		recorded = recorded || p.steps[n].do == recordStep
		n++
	}
	was := v.singleton
	was.exists, was.paused, was.attested, was.life = false, false, 0, 0
	if !recorded && was != p.status {
		p.steps[n] = step{do: recordStep}
	}
	return p
}

func (m *model) translateStep(v view, s handoff.Step) step {
	of := func(do stepKind, pod handoff.PodRef, version handoff.Version) step {
		return step{do: do, pod: numberOf(pod.UID) - 1, conditional: version != ""}
	}
	switch s := s.(type) {
	case handoff.Protect:
		protect := of(protectStep, s.Pod, s.Version)
		protect.role = s.Holder
		if s.ChosenBy != "" {
			protect.chosenBy = v.singleton.life
		}
		return protect
	case handoff.Record:
		return step{do: recordStep}
	case handoff.Signal:
		signal := of(signalStep, s.Pod, s.Version)
		if m.epochs {
			signal.epoch = uint8(s.Signal.Epoch)
		}
		return signal
	case handoff.OpenBarrier:
		return of(openBarrierStep, s.Pod, "")
	case handoff.Nudge:
		return of(nudgeStep, s.Pod, "")
	case handoff.MarkReady:
		return of(markReadyStep, s.Pod, "")
	case handoff.Unprotect:
		return of(unprotectStep, s.Pod, s.Version)
	case handoff.Roll:
		return of(rollStep, s.Replaces, "")
	case handoff.TakeAttestation:
		return step{do: takeAttestationStep}
	case handoff.RemoveFinalizer:
		strip := of(stripStep, s.Pod, s.Version)
		strip.unchoose = s.Unchoose
		return strip
	case handoff.WriteLease:
		return leaseStep(s)
	case handoff.Demote:
		return of(demoteStep, s.Pod, s.Version)
	case handoff.ConfirmGone:
		return step{do: confirmGoneStep}
	case handoff.Finish:
		return step{do: finishStep, conditional: s.Version != ""}
	case handoff.Retire:
		i := slices.IndexFunc(v.pods[:], func(p podState) bool {
			return p.kind != noPod && fmt.Sprintf("db-v%d", p.revision) == s.ReplicaSet
		})
		if !v.warmAfter(v.pods[i].revision) {
			panic(search.Violation(fmt.Sprintf("%s is asked to stop, and no pod is warm on a node that answers", podName(i))))
		}
		return step{do: retireStep, pod: uint8(i)}
	default:
		panic(fmt.Sprintf("no such step: %T", s))
	}
}

// warmAfter returns true if a pod of a newer revision is warm on a node that appears Ready.
func (v *view) warmAfter(revision uint8) bool {
	return slices.ContainsFunc(v.pods[:], func(p podState) bool {
		return p.exists() && !p.going() && p.revision > revision && p.reported == heldProcess && p.node > 0 &&
			!v.nodes[p.node-1].notReady && !v.nodes[p.node-1].deleted
	})
}

// number returns the number of the pod, from 1, or 0 for an empty uid.
func numberOf[T ~string](uid T) (n uint8) {
	if uid != "" {
		_, err := fmt.Sscanf(strings.TrimSuffix(string(uid), "-uid"), "db-%d", &n)
		if err != nil {
			panic(fmt.Sprintf("uid %q: %v", uid, err))
		}
		n++
	}
	return n
}
