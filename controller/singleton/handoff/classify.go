package handoff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Role is what a pod is to a singleton.
type Role string

const (
	// Holder: the record names the pod. The pod may run its main processes.
	Holder Role = "Holder"
	// Standby: the pod is held for this singleton, and may be the next holder.
	Standby Role = "Standby"
	// Unrecorded: the pod may run a main process although the record does not name it.
	Unrecorded Role = "Unrecorded"
	// Foreign: the pod is held for a singleton of another name, and stays held.
	Foreign Role = "Foreign"
	// Ended: the pod has terminated, or is held and terminating or no longer selected.
	Ended Role = "Ended"
)

// ClassifiedPod is a pod of a Snapshot with its role.
type ClassifiedPod struct {
	*corev1.Pod
	Role Role
	// Proof is the proof that its main processes have ended and cannot start again. Empty: there is no
	// proof.
	Proof v1.Proof
	// WaitsFor says what keeps a standby from being warm. Empty: the pod is warm, or not a standby.
	WaitsFor string

	// held are the containers that must not start their main process before the signal.
	held []injected.Container
	// fencing are the settings of a fenced pod. Nil: the pod is not fenced, and notFenced says why.
	fencing   *signal.LeaseSettings
	notFenced string
	// selected: the singleton's selector matches the pod.
	selected bool
	// mayRun: the pod may run a main process.
	mayRun bool

	// The fields below are set for standbys only.

	// revision is the revision of the pod in its Deployment or StatefulSet.
	revision int64
	// newerStandbys is the number of standbys with a newer revision and the same Deployment, or no Deployment.
	newerStandbys int
	// nodeProblem says why the node cannot start the pod. Empty: the node is Ready, or the pod is not scheduled.
	nodeProblem string
	// drained says why the node is being drained. Empty: it is not.
	drained string
	// needsPerson: the pod does not become warm without a person.
	needsPerson bool
}

// Classify returns the pods of the Snapshot with their roles: first the holder, then unrecorded pods, the
// standbys in the order in which they would be released, and the rest.
func Classify(s Snapshot) []*ClassifiedPod {
	all := classify(s)
	byRole := []Role{Holder, Unrecorded, Standby, Foreign, Ended}
	slices.SortStableFunc(all, func(a, b *ClassifiedPod) int {
		return cmp.Compare(slices.Index(byRole, a.Role), slices.Index(byRole, b.Role))
	})
	return all
}

// classify sets the role of each pod, once for each decision. Standbys come in the order in which they would be
// released, other pods in the order of the Snapshot.
func classify(s Snapshot) []*ClassifiedPod {
	selector, err := s.Singleton.Spec.Selector.Parse()
	if err != nil {
		selector = labels.Nothing() // the CRD rejects such a selector
	}
	all := make([]*ClassifiedPod, len(s.Pods))
	for i := range s.Pods {
		pod := &s.Pods[i]
		all[i] = &ClassifiedPod{Pod: pod, held: injected.Containers(pod, s.Singleton), selected: selector.Matches(labels.Set(pod.Labels))}
		if settings, problem := injected.FencedBy(pod, s.Singleton); problem == "" {
			all[i].fencing = &settings
		} else {
			all[i].notFenced = problem
		}
	}
	for _, p := range all {
		p.Proof = s.proofOf(p)
		p.mayRun = p.Proof == "" && s.mayRun(p, all)
		p.Role = s.roleOf(p)
	}
	s.judgeStandbys(all)
	return all
}

func (s Snapshot) roleOf(p *ClassifiedPod) Role {
	switch {
	case p.UID == s.Singleton.Status.ActivePodUID:
		return Holder
	case p.Proof != "":
		return Ended
	case p.mayRun:
		return Unrecorded
	case proof.Going(p.Pod) || !p.selected:
		return Ended
	case injectedFor(p.Pod, s.Singleton):
		return Standby
	}
	return Foreign
}

// withRole returns the pods with the role, in their order.
func withRole(all []*ClassifiedPod, role Role) (pods []*ClassifiedPod) {
	for _, p := range all {
		if p.Role == role {
			pods = append(pods, p)
		}
	}
	return pods
}

// find returns the first pod that fulfils the condition, or nil.
func find(pods []*ClassifiedPod, which func(*ClassifiedPod) bool) *ClassifiedPod {
	if i := slices.IndexFunc(pods, which); i >= 0 {
		return pods[i]
	}
	return nil
}

// judgeStandbys sets the fields of standbys, and sorts the standbys.
func (s Snapshot) judgeStandbys(all []*ClassifiedPod) {
	standbys := withRole(all, Standby)
	for _, p := range standbys {
		s.judgeStandby(p, all)
	}
	for _, p := range standbys {
		for _, other := range standbys {
			// Revisions of two Deployments cannot be compared.
			if other.revision > p.revision && s.deployment(other.Pod) == s.deployment(p.Pod) {
				p.newerStandbys++
			}
		}
	}
	holder := find(all, func(p *ClassifiedPod) bool { return p.Role == Holder })
	otherDeployment := func(p *ClassifiedPod) bool { return holder != nil && s.deployment(p.Pod) != s.deployment(holder.Pod) }
	slices.SortFunc(standbys, func(a, b *ClassifiedPod) int {
		return cmp.Or(falseFirst(otherDeployment(a), otherDeployment(b)), // pods of the holder's Deployment first
			cmp.Compare(a.newerStandbys, b.newerStandbys),
			falseFirst(s.lostLease(a), s.lostLease(b)),           // a pod that lost its Lease last
			falseFirst(a.nodeProblem != "", b.nodeProblem != ""), // Ready nodes first
			falseFirst(a.drained != "", b.drained != ""),         // nodes that are not drained first
			falseFirst(a.WaitsFor != "", b.WaitsFor != ""),       // warm standbys first
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	for i, next := 0, 0; i < len(all); i++ {
		if all[i].Role == Standby {
			all[i], next = standbys[next], next+1
		}
	}
}

// judgeStandby sets the fields of one standby.
func (s Snapshot) judgeStandby(p *ClassifiedPod, all []*ClassifiedPod) {
	p.revision, p.nodeProblem, p.drained = s.revision(p.Pod), nodeProblem(s.CachedNodes, p.Pod), proof.Drained(p.Pod, s.CachedNodes[p.Spec.NodeName])
	shares := sharesBarrier(p, all)
	p.WaitsFor, p.needsPerson = cmp.Or(shares, waitsFor(p)), shares != ""
	switch {
	case shares != "":
	case p.nodeProblem != "":
		p.WaitsFor = fmt.Sprintf("can't start: its node %s %s", p.Spec.NodeName, p.nodeProblem)
	case p.WaitsFor == "" && p.fencing != nil && s.Lease.Object == nil:
		p.WaitsFor = s.leaseMissing()
	}
}

// falseFirst compares two conditions: false comes before true.
func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// selects returns true if the selector of another singleton matches the pod. An invalid selector matches no pod.
func selects(singleton *v1.StatefulSingleton, pod *corev1.Pod) bool {
	selector, err := singleton.Spec.Selector.Parse()
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// nodeProblem returns why the node of a pod cannot start the pod: the node does not exist, or does not
// answer. Empty: the node is Ready, or the pod is not scheduled. With the cached nodes, the result keeps a pod
// from being chosen, and proves nothing.
func nodeProblem(nodes map[string]*corev1.Node, pod *corev1.Pod) string {
	name := pod.Spec.NodeName
	node := nodes[name]
	switch {
	case name == "":
		return ""
	case node == nil:
		return "does not exist"
	case !proof.NodeReady(node):
		return "does not answer"
	}
	return ""
}

// mayRun returns true if a pod without a proof of termination may run a main process: the pod is not held,
// or is no longer held.
func (s Snapshot) mayRun(p *ClassifiedPod, all []*ClassifiedPod) bool {
	return !injected.IsHeld(p.Pod, p.held) || released(p.Pod) || s.named(p) || s.chosenElsewhere(p.Pod) || slices.ContainsFunc(p.held, pastBarrier) ||
		sharing(p, all, s.opened) != nil
}

// opened returns true if the pod's barriers were opened, or may be opened at any time. A pod that shares a
// barrier with the pod is a copy of the pod.
func (s Snapshot) opened(p *ClassifiedPod) bool {
	return released(p.Pod) || p.UID == s.Singleton.Status.ActivePodUID || s.chosenElsewhere(p.Pod)
}

// sharing returns another pod that fulfils the condition and waits for one of the same ConfigMaps, or nil.
func sharing(p *ClassifiedPod, all []*ClassifiedPod, which func(*ClassifiedPod) bool) *ClassifiedPod {
	return find(all, func(other *ClassifiedPod) bool {
		return other.UID != p.UID && which(other) && slices.ContainsFunc(other.held, func(theirs injected.Container) bool {
			return theirs.ConfigMap != "" && slices.ContainsFunc(p.held, func(h injected.Container) bool { return h.ConfigMap == theirs.ConfigMap })
		})
	})
}

// overlap names another singleton and a pod that both select. Empty: there is none.
func (s Snapshot) overlap(all []*ClassifiedPod) string {
	for _, p := range all {
		for i := range s.Others {
			if other := &s.Others[i]; p.selected && selects(other, p.Pod) {
				return fmt.Sprintf("StatefulSingleton %s also selects pod %s", other.Name, p.Name)
			}
		}
	}
	return ""
}

// injectedFor returns true if the singleton's policy injected the pod.
func injectedFor(pod *corev1.Pod, singleton *v1.StatefulSingleton) bool {
	return pod.Annotations[v1.InjectedAnnotation] == singleton.Namespace+"/"+singleton.Name
}

// waitsFor returns what keeps a standby from being warm, as text for the status. Empty: the standby is warm
// and waits only for the signal.
func waitsFor(pod *ClassifiedPod) string {
	if pod.Spec.NodeName == "" {
		if c := proof.Condition(pod.Pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
			return "can't be scheduled: " + c.Message + zoneHelp(c.Message)
		}
		return "is not scheduled yet"
	}
	byName := map[string]injected.Container{}
	for _, h := range pod.held {
		byName[h.Name] = h
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if h, ok := byName[c.Name]; ok {
			if waitsForSignal(h) {
				return "" // the containers after it have not been created yet
			}
			return containerState(c.Name, h.Status)
		}
		status := proof.StatusOf(pod.Status.InitContainerStatuses, c.Name)
		if !initDone(c, status) {
			return initContainerState(c.Name, status)
		}
	}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		status := proof.StatusOf(pod.Status.ContainerStatuses, name)
		if h, ok := byName[name]; ok {
			if !waitsForSignal(h) {
				return containerState(name, status)
			}
		} else if status == nil || status.ImageID == "" && status.State.Running == nil {
			return containerState(name, status)
		}
	}
	return ""
}

// zoneHelp says what to do if the scheduler rejects nodes that the volumes of a pod cannot reach. Such nodes have this reason in
// k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding.ErrReasonNodeConflict. Empty: it does not.
func zoneHelp(message string) string {
	if !strings.Contains(message, "PersistentVolume's node affinity") && !strings.Contains(message, "volume node affinity conflict") {
		return ""
	}
	return " A volume of the pod exists only in one zone or on one node: uncordon or add a node there"
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
