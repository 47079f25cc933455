package handoff_test

import (
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// TestWalkNeverRunsTwo walks at random through a model of API server, kubelets,
// two controllers and a person who does not lie, and asserts the law at each start
// of a process. At the end of a walk every node comes back, and one pod must run.
//
// It takes five thousand walks, or as many as -rapid.checks says.
func TestWalkNeverRunsTwo(t *testing.T) {
	setDefault(t, "rapid.checks", "5000")
	setDefault(t, "rapid.steps", "60")
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		actions := map[string]func(*rapid.T){}
		for name, action := range w.actions() {
			for n := range action.weight {
				actions[fmt.Sprintf("%s (%d)", name, n)] = func(*rapid.T) {
					w.now = w.now.Add(time.Second)
					action.do()
				}
			}
		}
		t.Repeat(actions)
		w.settle()
	})
}

func setDefault(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
}

// world is what is true, and what the API server knows of it.
type world struct {
	t   *rapid.T
	now time.Time

	singleton *v1.StatefulSingleton
	// resourceVersion is the singleton's.
	resourceVersion int
	revision        int
	retired         map[string]bool
	configMaps      map[string]bool
	pods            []*worldPod
	nodes           map[string]*worldNode
	controllers     [2]worldController
}

type worldNode struct {
	// off is a machine without power, cut off one without a network.
	off, cutOff           bool
	deleted, outOfService bool
}

func (n *worldNode) connected() bool { return !n.off && !n.cutOff }

// worldPod is a pod's object and what is true on its node.
type worldPod struct {
	*PodWrapper
	// gone: the API server has the object no more. noGrace: it has it only for the finalizers.
	gone, noGrace bool

	// seen is the object as the kubelet saw it last.
	seen *corev1.Pod
	// seenGone: the kubelet saw that the object is gone.
	seenGone bool
	// runs: the main process runs. crashed: it ended, and may be started again.
	// ended: the kubelet has ended the pod for good.
	runs, crashed, ended bool
	// writes is how often the object was written.
	writes int
	// report is the status that is on its way to the API server.
	report func(*PodWrapper)
}

// worldController is one between any two of its reads and writes.
type worldController struct {
	read            *v1.StatefulSingleton
	resourceVersion int
	plan            *handoff.Plan
	done            int
	// written is the version that the controller's own last write left of a pod.
	written map[*worldPod]int
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: now, singleton: MakeSnapshot().Singleton, revision: 1,
		retired: map[string]bool{}, configMaps: map[string]bool{},
		nodes: map[string]*worldNode{node1: {}, node2: {}},
	}
	if rapid.Bool().Draw(t, "a pod ran before") {
		w.add(MakePod("db-0").Created(w.now).Revision(1).On(node1).Ready())
		w.pods[0].runs, w.pods[0].seen = true, w.pods[0].DeepCopy()
	} else {
		w.create(1)
	}
	for range rapid.IntRange(0, 2).Draw(t, "standbys") {
		w.settle()
		w.create(w.revision + rapid.IntRange(0, 1).Draw(t, "newer"))
		w.bind(w.pods[len(w.pods)-1])
		w.sync(w.pods[len(w.pods)-1])
	}
	return w
}

func (w *world) add(p *PodWrapper) { w.pods = append(w.pods, &worldPod{PodWrapper: p}) }

// action is something that may happen, and how often it does.
type action struct {
	weight int
	do     func()
}

func (w *world) actions() map[string]action {
	return map[string]action{
		"person: roll out":             {2, func() { w.create(w.revision + 1) }},
		"person: one more pod":         {2, func() { w.create(w.revision) }},
		"person: delete":               {2, func() { w.delete(w.pod(), false) }},
		"person: force delete":         {2, func() { w.delete(w.pod(), true) }},
		"person: take finalizer off":   {1, func() { w.takeFinalizerOff(w.pod()) }},
		"person: delete node":          {1, func() { w.deleteNode(w.node()) }},
		"person: taint out of service": {1, func() { n := w.nodes[w.node()]; n.outOfService = n.off }},
		"person: attest":               {1, func() { w.attest(w.pod()) }},
		"ReplicaSets: delete":          {2, w.deleteRetired},
		"scheduler: bind":              {4, func() { w.bind(w.pod()) }},
		"node: cut off":                {1, func() { w.nodes[w.node()].cutOff = true }},
		"node: power off":              {1, func() { w.powerOff(w.node()) }},
		"node: back":                   {3, func() { w.back(w.node()) }},
		"app: crash":                   {1, func() { p := w.pod(); p.crashed, p.runs = p.crashed || p.runs, false }},
		"kubelet: see":                 {2, func() { w.see(w.pod()) }},
		"kubelet: act":                 {2, func() { w.act(w.pod()) }},
		"kubelet: report":              {2, func() { w.pod().compose() }},
		"kubelet: deliver":             {2, func() { w.deliver(w.pod()) }},
		"kubelet: all":                 {4, func() { w.sync(w.pod()) }},
		"kubelets: all":                {8, w.syncAll},
		"controller: go on":            {8, func() { w.goOn(w.controller()) }},
		"controller: all":              {8, func() { w.reconcile(w.controller()) }},
		"controller: die":              {1, func() { *w.controller() = worldController{} }},
	}
}

// live are the pods of which there is something left, object or process.
func (w *world) live() map[string]*worldPod {
	live := map[string]*worldPod{}
	for _, p := range w.pods {
		if !p.gone || !p.ended && p.Spec.NodeName != "" {
			live[p.Name] = p
		}
	}
	return live
}

func (w *world) pod() *worldPod {
	live := w.live()
	if len(live) == 0 {
		w.create(w.revision)
		live = w.live()
	}
	return live[rapid.SampledFrom(slices.Sorted(maps.Keys(live))).Draw(w.t, "pod")]
}

func (w *world) node() string { return rapid.SampledFrom([]string{node1, node2}).Draw(w.t, "node") }

func (w *world) controller() *worldController {
	return &w.controllers[rapid.IntRange(0, 1).Draw(w.t, "controller")]
}

// What a person, the workload's controller and the scheduler do.

func (w *world) create(revision int) {
	if len(w.live()) == 3 {
		return
	}
	w.revision = revision
	p := MakePod(fmt.Sprintf("db-%d", len(w.pods))).Created(w.now).Revision(revision)
	if rapid.Bool().Draw(w.t, "barrier") {
		p.Barrier()
	}
	w.add(p.Injected())
}

func (w *world) delete(p *worldPod, force bool) {
	if p.gone || force && w.unknown(p) {
		return
	}
	if p.DeletionTimestamp == nil {
		p.Deleting()
	}
	p.changed()
	p.noGrace = p.noGrace || force || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed
	p.sweep()
}

// unknown tells whether the pod ran before the singleton existed and no controller
// has come to know it: forced away now, it can't be known any more.
func (w *world) unknown(p *worldPod) bool {
	return p.Annotations[v1.InjectedAnnotation] == "" && len(p.Finalizers) == 0 && w.singleton.Status.Epoch == 0
}

// sweep is the API server that removes what nothing keeps.
func (p *worldPod) sweep() {
	p.gone = p.gone || p.DeletionTimestamp != nil && p.noGrace && len(p.Finalizers) == 0
}

// takeFinalizerOff is done by a person once the controllers wrote down the signal.
func (w *world) takeFinalizerOff(p *worldPod) {
	last := w.singleton.Status.LastTransition
	if p.Pod.UID == w.singleton.Status.ActivePodUID && last.Signalled == nil {
		return
	}
	p.Finalizers = nil
	p.changed()
	p.sweep()
}

// deleteNode is done to a node that does not answer, and the pod garbage collector follows.
func (w *world) deleteNode(name string) {
	if w.nodes[name].connected() {
		return
	}
	w.nodes[name].deleted = true
	for _, p := range w.pods {
		if p.Spec.NodeName == name && !p.gone {
			if p.Status.Phase != corev1.PodFailed {
				p.Phase(corev1.PodFailed).Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByPodGC", "")
			}
			w.delete(p, true)
		}
	}
}

// attest is done for a pod that has stopped and won't start again.
func (w *world) attest(p *worldPod) {
	if n := w.nodes[p.Spec.NodeName]; p.ended || n != nil && n.off && (p.gone || p.DeletionTimestamp != nil) {
		w.singleton.Annotations[v1.AttestAnnotation] = string(p.Pod.UID)
		w.resourceVersion++
	}
}

func (w *world) deleteRetired() {
	for _, p := range w.pods {
		if w.retired[metav1.GetControllerOf(p).Name] {
			w.delete(p, false)
		}
	}
}

func (w *world) bind(p *worldPod) {
	name := w.node()
	if n := w.nodes[name]; !p.gone && p.Spec.NodeName == "" && p.DeletionTimestamp == nil && n.connected() && !n.outOfService {
		p.On(name)
		p.changed()
	}
}

// What nodes do.

func (w *world) powerOff(name string) {
	w.nodes[name].off = true
	for _, p := range w.pods {
		if p.Spec.NodeName == name {
			p.runs, p.crashed, p.report, p.seen = false, p.crashed || p.runs, nil, nil
		}
	}
}

// back has the node answer again. Whoever vouched that it is off takes that back before.
func (w *world) back(name string) { *w.nodes[name] = worldNode{} }

func (w *world) see(p *worldPod) {
	if n := w.nodes[p.Spec.NodeName]; n == nil || !n.connected() {
		return
	}
	if p.gone {
		p.seenGone = true
		return
	}
	p.seen = p.DeepCopy()
}

// act is the kubelet that does what it takes to be wanted.
func (w *world) act(p *worldPod) {
	n := w.nodes[p.Spec.NodeName]
	switch {
	case n == nil || n.off || p.ended:
	case p.seenGone || p.seen != nil && (p.seen.DeletionTimestamp != nil || p.seen.Status.Phase == corev1.PodFailed):
		p.runs, p.ended = false, true
	case p.seen != nil && !p.runs && w.mayStart(p):
		for _, other := range w.pods {
			if other.runs {
				w.t.Fatalf("%s starts while %s runs", p.Name, other.Name)
			}
		}
		p.runs, p.crashed = true, false
	}
}

// mayStart is what holds a container: gate and kubelet, not the controller.
func (w *world) mayStart(p *worldPod) bool {
	switch {
	case p.Annotations[v1.InjectedAnnotation] == "":
		return true
	case len(p.Spec.Containers[0].Env) > 0:
		return w.configMaps[barrierOf(p.Name)] && w.nodes[p.Spec.NodeName].connected()
	}
	s, err := signal.Parse([]byte(p.seen.Annotations[signal.Annotation]))
	return err == nil && s.UID == string(p.Pod.UID)
}

// compose is the kubelet that writes a report, to be delivered later.
func (p *worldPod) compose() {
	switch {
	case p.ended:
		p.report = func(p *PodWrapper) { p.Ended() }
	case p.seen == nil:
	case p.runs:
		p.report = func(p *PodWrapper) { p.Ready().Phase(p.Status.Phase) }
	case p.crashed:
		p.report = func(p *PodWrapper) { p.State("app", terminated(1)) }
	default:
		p.report = func(p *PodWrapper) { node := p.Spec.NodeName; p.Warm().On(node) }
	}
}

func (w *world) deliver(p *worldPod) {
	n := w.nodes[p.Spec.NodeName]
	if p.report == nil || n == nil || !n.connected() || p.gone {
		return
	}
	node := p.Spec.NodeName
	p.report(p.PodWrapper)
	p.changed()
	p.On(node)
	p.report = nil
	p.noGrace = p.noGrace || p.Status.Phase == corev1.PodFailed
	p.sweep()
}

func (w *world) syncAll() {
	for _, p := range w.pods {
		w.sync(p)
	}
}

func (w *world) sync(p *worldPod) { w.see(p); w.act(p); p.compose(); w.deliver(p) }

// What controllers do.

// goOn is one read, decision or write, where another controller may come between.
func (w *world) goOn(c *worldController) {
	switch {
	case c.read == nil:
		w.read(c)
	case c.plan == nil:
		w.decide(c)
	default:
		w.write(c)
	}
}

func (w *world) read(c *worldController) {
	*c = worldController{read: w.singleton.DeepCopy(), resourceVersion: w.resourceVersion}
}

func (w *world) decide(c *worldController) {
	s := handoff.Snapshot{
		Singleton: c.read, ReplicaSets: map[types.UID]*appsv1.ReplicaSet{}, Nodes: map[string]*corev1.Node{},
		Deployments: map[types.UID]*appsv1.Deployment{uidOf("db"): {}},
	}
	replicaSets := MakeSnapshot()
	for _, p := range w.pods {
		if !p.gone {
			s.Pods = append(s.Pods, *p.DeepCopy())
			owner := metav1.GetControllerOf(p).Name
			s.ReplicaSets[uidOf(owner)] = replicaSets.ReplicaSet(owner, replicasOf(!w.retired[owner])).ReplicaSets[uidOf(owner)]
		}
	}
	for name, n := range w.nodes {
		if !n.deleted {
			s.Nodes[name] = nodeOf(n)
		}
	}
	c.plan, c.written = new(handoff.Decide(s, w.now)), map[*worldPod]int{}
}

func replicasOf(wanted bool) int32 {
	if wanted {
		return 1
	}
	return 0
}

func nodeOf(n *worldNode) *corev1.Node {
	ready, taints := corev1.ConditionTrue, []string(nil)
	if !n.connected() {
		ready = corev1.ConditionUnknown
	}
	if n.outOfService {
		taints = append(taints, corev1.TaintNodeOutOfService)
	}
	return MakeSnapshot().Node("", ready, taints...).Nodes[""]
}

// write executes the next step of the plan, and the write of status after the last.
func (w *world) write(c *worldController) {
	var ok bool
	if c.done < len(c.plan.Steps) {
		ok = w.execute(c, c.plan.Steps[c.done])
	} else if !reflect.DeepEqual(c.read.Status, c.plan.Status) {
		w.record(c)
	}
	if c.done++; !ok {
		*c = worldController{}
	}
}

func (w *world) execute(c *worldController, step handoff.Step) bool {
	switch step := step.(type) {
	case handoff.Record:
		return w.record(c)
	case handoff.Protect:
		return w.patch(c, step.Pod, step.Version, func(p *worldPod) bool { return p.protect() })
	case handoff.Signal:
		return w.patch(c, step.Pod, step.Version, func(p *worldPod) bool {
			if !p.protect() {
				return false
			}
			p.Annotation(signal.Annotation, step.Signal.String()).Label(v1.RoleLabel, v1.RoleActive)
			return true
		})
	case handoff.OpenBarrier:
		w.configMaps[step.ConfigMap] = true
		return true
	case handoff.Nudge:
		return w.patch(c, step.Pod, "", func(*worldPod) bool { return true })
	case handoff.LetGo:
		w.patch(c, step.Pod, "", func(p *worldPod) bool {
			delete(p.Annotations, signal.Annotation)
			delete(p.Labels, v1.RoleLabel)
			p.Finalizers = nil
			return true
		})
		return true
	case handoff.Retire:
		w.retired[step.ReplicaSet] = true
		return true
	case handoff.MarkReady:
		return w.patch(c, step.Pod, "", func(p *worldPod) bool {
			p.Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "")
			return true
		})
	case handoff.TakeWord:
		if c.resourceVersion != w.resourceVersion {
			return false
		}
		delete(w.singleton.Annotations, v1.AttestAnnotation)
		w.resourceVersion++
		c.resourceVersion = w.resourceVersion
		return true
	default:
		panic(fmt.Sprintf("no such step: %T", step))
	}
}

// record is the compare-and-swap of the status.
func (w *world) record(c *worldController) bool {
	if c.resourceVersion != w.resourceVersion {
		return false
	}
	w.resourceVersion++
	w.singleton.Status = *c.plan.Status.DeepCopy()
	c.resourceVersion, c.read = w.resourceVersion, w.singleton.DeepCopy()
	return true
}

// patch fails where the very pod that is meant is gone, or not in the version that is meant.
func (w *world) patch(c *worldController, ref handoff.PodRef, version handoff.Version, change func(*worldPod) bool) bool {
	for _, p := range w.pods {
		if p.Pod.UID != ref.UID || p.gone {
			continue
		}
		if own, ok := c.written[p]; ok && version != "" {
			version = handoff.Version(strconv.Itoa(own))
		}
		if version != "" && string(version) != p.Pod.ResourceVersion {
			return false
		}
		ok := change(p)
		p.changed()
		c.written[p] = p.writes
		p.sweep()
		return ok
	}
	return false
}

// changed gives the pod's object its next version.
func (p *worldPod) changed() {
	p.writes++
	p.Pod.ResourceVersion = strconv.Itoa(p.writes)
}

// protect fails where a new finalizer would come on a pod that is being deleted.
func (p *worldPod) protect() bool {
	if slices.Contains(p.Finalizers, v1.HandoffFinalizer) {
		return true
	}
	if p.DeletionTimestamp != nil {
		return false
	}
	p.Protected()
	return true
}

func (w *world) reconcile(c *worldController) {
	w.read(c)
	w.decide(c)
	for c.plan != nil {
		w.write(c)
	}
}

// settle has everything work again. Then, if a pod is wanted, one must run: the holder.
func (w *world) settle() {
	w.back(node1)
	w.back(node2)
	for range 20 {
		w.deleteRetired()
		for _, p := range w.pods {
			if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
				p.On(node1)
			}
			w.sync(p)
			if p.gone && p.Pod.UID == w.singleton.Status.ActivePodUID || p.ended && !p.gone {
				w.attest(p)
			}
		}
		w.reconcile(&w.controllers[0])
		if w.settled() {
			return
		}
	}
	w.t.Fatalf("nobody holds, or not the one that runs: %s", w.singleton.Status.Message)
}

func (w *world) settled() bool {
	wanted := false
	for _, p := range w.pods {
		if p.runs {
			return p.Pod.UID == w.singleton.Status.ActivePodUID
		}
		wanted = wanted || !p.gone && p.DeletionTimestamp == nil && !p.ended
	}
	return !wanted
}
