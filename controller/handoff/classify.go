package handoff

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

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

// NodeReady tells whether the node controller takes the node to answer, and the kubelet to be able
// to run pods.
func NodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// injectedFor tells whether the singleton's policy injected the pod.
func injectedFor(pod *corev1.Pod, singleton *v1.StatefulSingleton) bool {
	return pod.Annotations[v1.InjectedAnnotation] == singleton.Namespace+"/"+singleton.Name
}

// waitsFor says what keeps a standby from being warm, in words for status. Empty:
// it is warm, nothing is left to wait for but the signal.
func waitsFor(pod *corev1.Pod, containers []heldContainer) string {
	if pod.Spec.NodeName == "" {
		if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
			return "can't be scheduled: " + c.Message
		}
		return "is not scheduled yet"
	}
	byName := map[string]heldContainer{}
	for _, h := range containers {
		byName[h.name] = h
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if h, ok := byName[c.Name]; ok {
			if h.waitsForSignal() {
				return "" // whatever follows waits in its turn
			}
			return containerState(c.Name, h.status)
		}
		status := statusOf(pod.Status.InitContainerStatuses, c.Name)
		if !initDone(c, status) {
			return "init " + containerState(c.Name, status)
		}
	}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		status := statusOf(pod.Status.ContainerStatuses, name)
		if h, ok := byName[name]; ok {
			if !h.waitsForSignal() {
				return containerState(name, status)
			}
		} else if status == nil || status.ImageID == "" && status.State.Running == nil {
			return containerState(name, status)
		}
	}
	return ""
}

func initDone(c *corev1.Container, status *corev1.ContainerStatus) bool {
	if status == nil {
		return false
	}
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return status.State.Running != nil && status.Started != nil && *status.Started
	}
	return status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
}

// Part is what a pod is to a singleton.
type Part string

const (
	// Holder: the record names it, so it may run its main processes.
	Holder Part = "Holder"
	// Standby: held for this singleton, and may be the next holder.
	Standby Part = "Standby"
	// Runner: it may run a main process though the record does not name it.
	Runner Part = "Runner"
	// Stranger: held for a singleton of another name, and stays held.
	Stranger Part = "Stranger"
	// Ended: it has ended, or is held and nothing releases it as it is.
	Ended Part = "Ended"
)

// Surveyed is a pod, and what it is to the singleton.
type Surveyed struct {
	Pod  *corev1.Pod
	Part Part
	// WaitsFor says what keeps a standby from being warm. Empty: it is warm, or no standby.
	WaitsFor string
}

// Survey tells of each pod of the Snapshot what it is to the singleton, by the same rules
// as Decide: the holder first, then what may run besides it, the standbys in the order in
// which they would be released, and the rest.
func Survey(s Snapshot) []Surveyed {
	d := &decision{Snapshot: s, status: s.Singleton.Status.DeepCopy()}
	d.sort()
	var all []Surveyed
	add := func(part Part, waitsFor string, pods ...*corev1.Pod) {
		for _, pod := range pods {
			all = append(all, Surveyed{pod, part, waitsFor})
		}
	}
	if d.holder != nil {
		add(Holder, "", d.holder)
	}
	add(Runner, "", d.runners...)
	for _, standby := range d.standbys {
		add(Standby, standby.waitsFor, standby.pod)
	}
	add(Stranger, "", d.strangers...)
	for i := range d.Pods {
		if pod := &d.Pods[i]; !surveyed(all, pod) {
			add(Ended, "", pod)
		}
	}
	return all
}

func surveyed(all []Surveyed, pod *corev1.Pod) bool {
	return slices.ContainsFunc(all, func(one Surveyed) bool { return one.Pod == pod })
}
