package handoff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

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

// adviseReplacement says how a standby that its node can't start is replaced.
func (d *decision) adviseReplacement(pod *ClassifiedPod, silent string) {
	if silent != "" && !pod.needsPerson {
		d.advice = append(d.advice, fmt.Sprintf("A ReplicaSet replaces pod %s once it is deleted, by default 5 minutes after its node stopped answering; a StatefulSet, only once it is gone. To delete it now, run: kubectl delete -n %s pod %s --wait=false",
			pod.Name, pod.Namespace, pod.Name))
	}
}

// sharesBarrier says which pod would start along with this one. Empty: none.
func sharesBarrier(pod *ClassifiedPod, all []*ClassifiedPod) string {
	if other := sharing(pod, all, func(*ClassifiedPod) bool { return true }); other != nil {
		return fmt.Sprintf("waits for the same ConfigMap as pod %s, which would start along with it: one is a copy of the other. Delete both, so that they are created anew", other.Name)
	}
	return ""
}

// lostHelp says what to do about a holder whose object is gone.
func (s Snapshot) lostHelp() string {
	return fmt.Sprintf("pod %s is gone and nothing proves that its processes have ended: somebody took its finalizer off, or it never bore one. Make sure that they have, then run: kubectl annotate -n %s stfs %s %s=%s --overwrite",
		s.Singleton.Status.ActivePod, s.Singleton.Namespace, s.Singleton.Name, v1.AttestAnnotation, s.Singleton.Status.ActivePodUID)
}

// these lists pods as the subject of a sentence in the plural or the singular.
func these(pods []*ClassifiedPod) string {
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
	for _, pod := range d.unrecorded {
		if Going(pod.Pod) {
			return fmt.Sprintf("Pod %s stops%s", pod.Name, d.stoppingHelp(pod, d.now))
		}
	}
	why, names := "", ""
	for _, pod := range d.unrecorded {
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
func (d *decision) whyInjectedRuns(pod *ClassifiedPod) string {
	if d.chosenElsewhere(pod.Pod) {
		return fmt.Sprintf("Pod %s may have been released by a StatefulSingleton that is gone. ", pod.Name)
	}
	containers := pod.held
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
	spare := d.standbys[0]
	if d.again = d.left(usuallyWarm, spare.CreationTimestamp.Time); d.again > 0 {
		return ""
	}
	d.adviseReplacement(spare, spare.silent)
	return fmt.Sprintf("; no standby is warm: pod %s %s", spare.Name, spare.WaitsFor)
}

// foreignHelp tells of pods that stay held for ever.
func (d *decision) foreignHelp() string {
	pods := withRole(d.pods, Foreign)
	if len(pods) == 0 {
		return ""
	}
	pod := pods[0]
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
func (s Snapshot) stoppingHelp(pod *ClassifiedPod, now time.Time) string {
	attest := "if " + s.attestHelp(pod.Pod)
	node, containers := s.Nodes[pod.Spec.NodeName], pod.held
	switch {
	case node == nil:
		return fmt.Sprintf(", but its node %s does not exist any more, and nothing proves that the pod has ended: %s", pod.Spec.NodeName, attest)
	case !NodeReady(node):
		return fmt.Sprintf(", but its node %s does not answer, and nothing proves that the pod has ended. If node %s is off, run: %s; %s", node.Name, node.Name, TaintCommand(node), attest)
	case terminal(pod.Pod) && first(containers, heldContainer.lost) != "":
		return fmt.Sprintf(", but its kubelet could not locate container %s (ContainerStatusUnknown), and nothing proves that the container has ended. Look for its processes on node %s; %s",
			first(containers, heldContainer.lost), node.Name, attest)
	case terminal(pod.Pod) && first(containers, heldContainer.cleaningUp) != "":
		return fmt.Sprintf("; its kubelet could not locate container %s, and kills what is left of the pod before it reports that it has ended",
			first(containers, heldContainer.cleaningUp))
	case terminal(pod.Pod):
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

// containerState is a container's state in words.
func containerState(name string, status *corev1.ContainerStatus) string {
	switch {
	case status == nil:
		return fmt.Sprintf("container %s has not started", name)
	case status.State.Waiting != nil:
		text := fmt.Sprintf("container %s waits: %s", name, status.State.Waiting.Reason)
		if m := strings.Fields(status.State.Waiting.Message); len(m) > 0 {
			text += ": " + strings.Join(m, " ") // in one line, whatever the kubelet wrote
		}
		return text
	case status.State.Terminated != nil:
		return fmt.Sprintf("container %s ended: %s, exit code %d", name, status.State.Terminated.Reason, status.State.Terminated.ExitCode)
	case status.State.Running != nil:
		return fmt.Sprintf("container %s runs", name)
	default:
		return fmt.Sprintf("container %s has not started", name)
	}
}

func (s Snapshot) holderInWords() string {
	if s.Singleton.Status.ActivePodUID == "" {
		return "none"
	}
	return fmt.Sprintf("pod %s with uid %s", s.Singleton.Status.ActivePod, s.Singleton.Status.ActivePodUID)
}
