package handoff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	// transitionPoll is how often to look again during a handoff for what no watch
	// reports: taints of nodes, pods without the singleton's label.
	transitionPoll = 5 * time.Second
	// settledPoll is the same while no handoff is under way.
	settledPoll = 5 * time.Minute
)

// Settled tells whether no handoff is under way.
func (o Outcome) Settled() bool {
	return o == NoPods || o == HolderReady || o == HolderNotReady || o == AwaitingHandover
}

// longestUntold is how far back a handoff may have begun of which no status tells yet.
const longestUntold = usuallyWarm + longestPause + usuallyAsked + usuallyStops

// begun is when the handoff that is under way began: now, if none was, or when the pod
// was created that the holder makes room for, or the holder was asked to stop.
func (d *decision) begun() *metav1.MicroTime {
	was := &d.Singleton.Status
	if was.TransitionTimestamp != nil && (was.Phase == v1.PhaseTransitioning || was.Phase == v1.PhaseFailed) {
		return was.TransitionTimestamp.DeepCopy()
	}
	began := d.now
	if d.holder != nil {
		moments := []time.Time{askedToStop(d.holder)}
		if next := d.newest(); next != nil {
			moments = append(moments, next.pod.CreationTimestamp.Time)
		}
		for _, moment := range moments {
			if d.left(longestUntold, moment) > 0 && moment.Before(began) {
				began = moment
			}
		}
	}
	return new(metav1.NewMicroTime(began))
}

// report turns the outcome into the rest of the status.
func (d *decision) report() {
	outcome := d.plan.Outcome
	d.plan.Requeue = settledPoll
	phase, message := v1.PhaseRunning, d.message
	if outcome == NoPods {
		phase = ""
	}
	if !outcome.Settled() {
		d.status.TransitionTimestamp = d.begun()
		phase, d.plan.Requeue = v1.PhaseTransitioning, transitionPoll
		patience := time.Duration(d.Singleton.Spec.MaxTransitionTime) * time.Second
		spent := d.now.Sub(d.status.TransitionTimestamp.Time)
		switch {
		case d.needsPerson:
			phase = v1.PhaseFailed
		case spent >= patience:
			phase = v1.PhaseFailed
			message = fmt.Sprintf("the handoff takes longer than maxTransitionTime (%s): %s", patience, message)
		default:
			d.plan.Requeue = min(transitionPoll, patience-spent)
		}
	}
	if d.drained != "" && !d.drainTimedOut() {
		d.plan.Requeue = min(d.plan.Requeue, d.drainDeadline().Sub(d.now))
	}
	if d.again > 0 {
		d.plan.Requeue = min(d.plan.Requeue, d.again)
	}
	if outcome == HolderEnded {
		d.plan.Requeue = time.Millisecond // the record just moved: decide on the rest at once
	}
	if d.usual > 0 {
		d.plan.Requeue, d.plan.Untold = min(d.plan.Requeue, d.usual), d.untold()
	}
	d.status.Phase, d.status.Message = phase, strings.Join(append([]string{message}, d.advice...), ". ")
	d.status.ActiveBarrier = d.activeBarrier()
	d.status.ActiveNode = d.activeNode()
	d.status.ObservedGeneration = d.Singleton.Generation
	d.status.StandbyPods = nil
	for _, s := range d.standbys {
		d.status.StandbyPods = append(d.status.StandbyPods, s.pod.Name)
	}
	serves := outcome == AwaitingHandover && IsTrue(d.holder, corev1.PodReady)
	d.setCondition(v1.ConditionReady, outcome == HolderReady || outcome == NoPods || serves)
	d.setCondition(v1.ConditionReconciling, phase == v1.PhaseTransitioning)
	d.setCondition(v1.ConditionStalled, phase == v1.PhaseFailed)
}

// untold tells whether the status need not be written yet.
func (d *decision) untold() bool {
	was, is := &d.Singleton.Status, d.status
	unchanged := func(kind string) bool {
		before, after := meta.FindStatusCondition(was.Conditions, kind), meta.FindStatusCondition(is.Conditions, kind)
		return before == nil && after == nil || before != nil && after != nil && before.Reason == after.Reason
	}
	return !d.needsPerson && !slices.Contains(d.plan.Steps, Step(Record{})) &&
		unchanged(v1.ConditionDraining) && unchanged(v1.ConditionGuarded) && equality.Semantic.DeepEqual(was.Handover, is.Handover)
}

// activeBarrier is the ConfigMap that the holder's barriers read. The policy gives
// those of one pod the same.
func (d *decision) activeBarrier() string {
	if d.status.ActivePodUID == "" {
		return ""
	}
	for i := range d.Pods {
		if d.Pods[i].UID != d.status.ActivePodUID {
			continue
		}
		for _, h := range held(&d.Pods[i], d.Singleton) {
			if h.configMap != "" {
				return h.configMap
			}
		}
		return ""
	}
	return d.status.ActiveBarrier
}

// activeNode is the holder's.
func (d *decision) activeNode() string {
	if d.status.ActivePodUID == "" {
		return ""
	}
	i := slices.IndexFunc(d.Pods, func(pod corev1.Pod) bool { return pod.UID == d.status.ActivePodUID })
	if i < 0 {
		return d.status.ActiveNode
	}
	return d.Pods[i].Spec.NodeName
}

func (d *decision) setCondition(kind string, value bool) {
	status := metav1.ConditionFalse
	if value {
		status = metav1.ConditionTrue
	}
	d.setConditionTo(kind, status, string(d.plan.Outcome), d.status.Message)
}

func (d *decision) setConditionTo(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: d.Singleton.Generation, LastTransitionTime: metav1.NewTime(d.now),
	})
}

// lostHelp says what to do about a holder whose object is gone.
func (s Snapshot) lostHelp() string {
	return fmt.Sprintf("pod %s is gone and nothing proves that its processes have ended: somebody took its finalizer off, or it never bore one. Make sure that they have, then run: kubectl annotate -n %s stfs %s %s=%s --overwrite",
		s.Singleton.Status.ActivePod, s.Singleton.Namespace, s.Singleton.Name, v1.AttestAnnotation, s.Singleton.Status.ActivePodUID)
}

// these lists pods as the subject of a sentence in the plural or the singular.
func these(pods []*corev1.Pod) string {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = pod.Name
	}
	if len(names) == 1 {
		return "pod " + names[0] + " is"
	}
	return "pods " + strings.Join(names, ", ") + " are"
}

// severalHelp says what to do about pods of which only one may be left.
func (d *decision) severalHelp() string {
	for _, pod := range d.runners {
		if Going(pod) {
			return fmt.Sprintf("Pod %s stops%s", pod.Name, d.stoppingHelp(pod, d.now))
		}
	}
	why, names := "", ""
	for _, pod := range d.runners {
		why, names = cmp.Or(why, d.whyInjectedRuns(pod)), names+" "+pod.Name
	}
	if d.holder == nil {
		return fmt.Sprintf("%sFind out which pod to keep, as from the logs of the application. Then delete each other pod: kubectl delete -n %s pod <name>",
			why, d.Singleton.Namespace)
	}
	return fmt.Sprintf("%sKeep pod %s, which holds, and run: kubectl delete -n %s pod%s", why, d.holder.Name, d.Singleton.Namespace, names)
}

// whyInjectedRuns says why a pod may run though it was injected, where the pod itself
// does not show it; empty if it does.
func (d *decision) whyInjectedRuns(pod *corev1.Pod) string {
	if d.chosenElsewhere(pod) {
		return fmt.Sprintf("Pod %s may have been released by a StatefulSingleton that is gone. ", pod.Name)
	}
	containers := held(pod, d.Singleton)
	i := slices.IndexFunc(containers, func(h heldContainer) bool { return h.open })
	if i < 0 || pod.Annotations[v1.InjectedAnnotation] == "" {
		return ""
	}
	field, name := "spec.containers", containers[i].name
	if containers[i].init && !slices.Contains(d.Singleton.Spec.Containers, name) {
		field = "spec.holdInitContainers"
	}
	return fmt.Sprintf("Nothing holds container %s of pod %s, which was created before %s asked for it. ", name, pod.Name, field)
}

// spareInWords tells of the standby of a holder that nothing is about to replace: that it
// is warm, or why it is not, where it takes longer than usual.
func (d *decision) spareInWords() string {
	if pod := d.warm(); pod != nil {
		return fmt.Sprintf("; pod %s is warm and would take over", pod.Name)
	}
	if len(d.standbys) == 0 {
		return ""
	}
	spare := &d.standbys[0]
	if d.again = d.left(usuallyWarm, spare.pod.CreationTimestamp.Time); d.again > 0 {
		return ""
	}
	d.adviseReplacement(*spare)
	return fmt.Sprintf("; no standby is warm: pod %s %s", spare.pod.Name, spare.waitsFor)
}

// strangerHelp tells of pods that stay held for ever.
func (d *decision) strangerHelp() string {
	if len(d.strangers) == 0 {
		return ""
	}
	pod := d.strangers[0]
	return fmt.Sprintf("; pod %s is held for StatefulSingleton %s and is never released by this one: delete the pod, so that it is created anew",
		pod.Name, pod.Annotations[v1.InjectedAnnotation])
}

// attestHelp says how a person attests that the pod has stopped for good, after an if.
func (s Snapshot) attestHelp(pod *corev1.Pod) string {
	deletion := ""
	if !Going(pod) {
		deletion = fmt.Sprintf("kubectl delete -n %s pod %s --wait=false && ", pod.Namespace, pod.Name)
	}
	return fmt.Sprintf("you have made sure that the processes of pod %s have ended, run: %skubectl annotate -n %s stfs %s %s=%s --overwrite",
		pod.Name, deletion, s.Singleton.Namespace, s.Singleton.Name, v1.AttestAnnotation, pod.UID)
}

// lostNodeHelp says what to do about the holder, which nobody asked to stop, where its
// node does not answer or does not exist.
func (s Snapshot) lostNodeHelp(pod *corev1.Pod) string {
	if node := s.LostNode(pod); node != nil {
		return "If node " + node.Name + " is off, run: " + TaintCommand(node)
	}
	return "If " + s.attestHelp(pod)
}

// stoppingHelp says what the proof of a pod's death waits for.
func (s Snapshot) stoppingHelp(pod *corev1.Pod, now time.Time) string {
	attest := "if " + s.attestHelp(pod)
	node, containers := s.Nodes[pod.Spec.NodeName], held(pod, s.Singleton)
	switch {
	case node == nil:
		return fmt.Sprintf(", but its node %s does not exist any more, and nothing proves that the pod has ended: %s", pod.Spec.NodeName, attest)
	case !NodeReady(node):
		return fmt.Sprintf(", but its node %s does not answer, and nothing proves that the pod has ended. If node %s is off, run: %s; %s", node.Name, node.Name, TaintCommand(node), attest)
	case terminal(pod) && first(containers, heldContainer.lost) != "":
		return fmt.Sprintf(", but its kubelet could not locate container %s (ContainerStatusUnknown), and nothing proves that the container has ended. Look for its processes on node %s; %s",
			first(containers, heldContainer.lost), node.Name, attest)
	case terminal(pod) && first(containers, heldContainer.cleaningUp) != "":
		return fmt.Sprintf("; its kubelet could not locate container %s, and kills what is left of the pod before it reports that it has ended",
			first(containers, heldContainer.cleaningUp))
	case terminal(pod):
		return fmt.Sprintf(", but it is %s without a report that every held container has ended: %s", pod.Status.Phase, attest)
	}
	if pod.DeletionTimestamp != nil && now.After(pod.DeletionTimestamp.Time.Add(transitionPoll)) {
		return fmt.Sprintf(", though its grace period ended at %s: look at the kubelet of node %s", pod.DeletionTimestamp.UTC().Format(time.TimeOnly), node.Name)
	}
	return "; the next pod is released once the kubelet reports that it has ended"
}

// first is the name of the first container of that kind; empty if there is none.
func first(containers []heldContainer, kind func(heldContainer) bool) string {
	i := slices.IndexFunc(containers, kind)
	if i < 0 {
		return ""
	}
	return containers[i].name
}

// LostNode is the pod's node if it is known not to answer, and nil if not.
func (s Snapshot) LostNode(pod *corev1.Pod) *corev1.Node {
	if node := s.Nodes[pod.Spec.NodeName]; node != nil && !NodeReady(node) {
		return node
	}
	return nil
}

// TaintCommand is how a person vouches that the node is off.
func TaintCommand(node *corev1.Node) string {
	return fmt.Sprintf("kubectl taint node %s %s=nodeshutdown:NoExecute", node.Name, corev1.TaintNodeOutOfService)
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

// notReady says why a pod is not Ready.
func notReady(pod *corev1.Pod) string {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if status := statusOf(pod.Status.InitContainerStatuses, c.Name); !initDone(c, status) {
			return "init " + containerState(c.Name, status)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; !s.Ready {
			return containerState(s.Name, s)
		}
	}
	if c := condition(pod, corev1.PodReady); c != nil && c.Message != "" {
		return c.Message
	}
	return "the kubelet has not reported it Ready"
}
