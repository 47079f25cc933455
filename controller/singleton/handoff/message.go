package handoff

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// adviseOneDeployment says why a rollout has no effect if the selector matches pods of several Deployments.
func (d *decision) adviseOneDeployment() {
	var names []string
	for _, pod := range d.pods {
		deployment := d.deployment(pod.Pod)
		if deployment != nil && pod.selected && !proof.Going(pod.Pod) && !d.unwanted(pod.Pod) && !slices.Contains(names, deployment.Name) {
			names = append(names, deployment.Name)
		}
	}
	if len(names) > 1 {
		slices.Sort(names)
		d.advice = slices.Insert(d.advice, 0, fmt.Sprintf("Pods of several Deployments match spec.selector (%s): only a rollout of the Deployment of the holder takes effect. Delete the other Deployments, or recreate the StatefulSingleton with a selector that matches the pods of only one Deployment",
			strings.Join(names, ", ")))
	}
}

// adviseReplacement says how to replace a standby that its node cannot start.
func (d *decision) adviseReplacement(pod *ClassifiedPod, problem string) {
	if problem != "" && !pod.needsPerson {
		d.advice = append(d.advice, fmt.Sprintf("A ReplicaSet replaces pod %s after its deletion, by default 5 minutes after its node stopped answering. A StatefulSet replaces the pod only after its removal. To delete it now, run: kubectl delete -n %s pod %s --wait=false",
			pod.Name, pod.Namespace, pod.Name))
	}
}

// sharesBarrier says which other pod would start at the same time as the pod. Empty: there is none.
func sharesBarrier(pod *ClassifiedPod, all []*ClassifiedPod) string {
	if other := sharing(pod, all, func(*ClassifiedPod) bool { return true }); other != nil {
		return fmt.Sprintf("waits for the same ConfigMap as pod %s, and both would start at the same time: one is a copy of the other. Delete both pods to have them recreated", other.Name)
	}
	return ""
}

// lostHelp says what to do if the object of the holder does not exist.
func (s Snapshot) lostHelp() string {
	return fmt.Sprintf("pod %s was removed, and nothing proves that its processes have ended: somebody removed its finalizer, or it never had one. Make sure that the processes have ended, then run: kubectl annotate -n %s stfs %s %s=%s --overwrite",
		s.Singleton.Status.ActivePod, s.Singleton.Namespace, s.Singleton.Name, v1.AttestAnnotation, s.Singleton.Status.ActivePodUID)
}

// severalMessage says that pods beside the holder may run, and what to do.
func (d *decision) severalMessage() string {
	why := "and no record names the holder"
	if d.status.ActivePodUID != "" {
		why = "and may run beside the holder"
	}
	return fmt.Sprintf("%s not held, %s: no pod is released until only one pod is left. %s", these(d.unrecorded), why, d.severalHelp())
}

func (d *decision) noPodsMessage() string {
	none := "no pod matches the selector; the first pod is held until the controller releases it"
	if slices.ContainsFunc(d.pods, func(pod *ClassifiedPod) bool { return pod.selected && proof.Going(pod.Pod) }) {
		none = "all pods that match the selector are terminating or have terminated; the first pod is held until the controller releases it"
	}
	return none + d.foreignHelp()
}

// whyNotStarted says why the holder has not been Ready yet.
func whyNotStarted(holder *ClassifiedPod, containers []injected.Container) string {
	if slices.ContainsFunc(containers, atBarrier) {
		return "the kubelet has not created the container behind the open barrier yet"
	}
	if proof.IsTrue(holder.Pod, corev1.PodReady) {
		return "clients can connect, and its main processes have not started yet"
	}
	return notReady(holder.Pod)
}

// awaitingHandoverMessage says how a person hands over to the next pod if spec.handoff is Manual.
func (d *decision) awaitingHandoverMessage(next *ClassifiedPod, cold string) string {
	state := "is warm"
	if cold != "" {
		state = "can only warm up after pod " + d.holder.Name + " has terminated, because " + cold
	}
	return fmt.Sprintf("pod %s %s. spec.handoff is Manual: pod %[1]s takes over from pod %[3]s only when you request the handoff. Run: kubectl annotate -n %s stfs %s %s=\"$(date +%%s)\" --overwrite",
		next.Name, state, d.holder.Name, d.Singleton.Namespace, d.Singleton.Name, v1.HandoverAnnotation)
}

// leaseMissing says what a fenced standby waits for. The name of the standby comes before.
func (s Snapshot) leaseMissing() string {
	return fmt.Sprintf("waits until Lease %s exists", signal.LeaseName(s.Singleton.Name))
}

// leaseHeldHelp says how long a Lease blocks every release, and what to do.
func (d *decision) leaseHeldHelp() string {
	if d.neverExpires() {
		return fmt.Sprintf("no pod is released, because the Lease never expires. Find and stop the processes of the pod. Then delete StatefulSingleton %s and create it again", d.Singleton.Name)
	}
	return fmt.Sprintf("no pod is released until the Lease has expired (%s). If the pod still renews it, find and stop the processes of the pod", d.leaseDuration())
}

func (d *decision) renewedMessage(pod *ClassifiedPod) string {
	if pod.fencing.NeverExpires() {
		return fmt.Sprintf("pod %s started its main processes after it had renewed Lease %s, which never expires", pod.Name, signal.LeaseName(d.Singleton.Name))
	}
	return fmt.Sprintf("pod %s runs its main processes only while it renews Lease %s", pod.Name, signal.LeaseName(d.Singleton.Name))
}

func (d *decision) notRenewedMessage(pod *ClassifiedPod) string {
	effect := "stops its main processes before the Lease expires"
	if pod.fencing.NeverExpires() {
		effect = "starts its main processes only after a renewal"
	}
	return fmt.Sprintf("pod %s has not renewed Lease %s recently, and %s. Check that the pod reaches the API server: kubectl logs -n %s %[1]s -c %[5]s",
		pod.Name, signal.LeaseName(d.Singleton.Name), effect, pod.Namespace, v1.SidecarName)
}

// notFencedMessage says why the holder is not fenced. Without a Lease, only its kubelet or a person can prove its
// termination.
func (d *decision) notFencedMessage(pod *ClassifiedPod) string {
	help := "Give each held container a command, as its image has it"
	switch whyNotFenced(pod) {
	case sharedProcesses:
		help = "Remove shareProcessNamespace and hostPID from the pod template"
	case createdBefore:
		help = "The next pod is fenced. To replace this pod, restart the rollout of its owner"
	}
	return fmt.Sprintf("pod %s is not fenced: %s. If its node is lost, the handoff waits for a person. %s", pod.Name, pod.notFenced, help)
}

// evictionMessage says that an eviction stops the holder before another pod is warm, and why.
func evictionMessage(why string) string {
	return "an eviction stops the holder at once, because " + why
}

// handoverRefusedMessage says why the controller refuses a requested handoff.
func (d *decision) handoverRefusedMessage(asked, why string) string {
	return fmt.Sprintf("annotation %s=%s is ignored: %s, so no pod can be warm before the holder stops. To replace the holder anyway, run: kubectl delete -n %s pod %s",
		v1.HandoverAnnotation, asked, why, d.holder.Namespace, d.holder.Name)
}

// these lists pods as the subject of a sentence, in the singular or the plural.
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

// severalHelp says what to do if several pods may run.
func (d *decision) severalHelp() string {
	for _, pod := range d.unrecorded {
		if proof.Going(pod.Pod) {
			return fmt.Sprintf("Pod %s is terminating%s", pod.Name, d.stoppingHelp(pod, d.now))
		}
	}
	why, names := "", ""
	for _, pod := range d.unrecorded {
		why, names = cmp.Or(why, d.whyInjectedRuns(pod)), names+" "+pod.Name
	}
	if d.holder == nil {
		return fmt.Sprintf("%sFind out which pod to keep, for example from the logs of the application. Then delete each other pod: kubectl delete -n %s pod <name>",
			why, d.Singleton.Namespace)
	}
	return fmt.Sprintf("%sKeep pod %s, which is the holder, and run: kubectl delete -n %s pod%s", why, d.holder.Name, d.Singleton.Namespace, names)
}

// whyInjectedRuns says why an injected pod may run if the pod itself does not show the reason. Empty: the pod
// shows it.
func (d *decision) whyInjectedRuns(pod *ClassifiedPod) string {
	if d.chosenElsewhere(pod.Pod) {
		return fmt.Sprintf("Another StatefulSingleton, which may have been deleted, may have released pod %s. ", pod.Name)
	}
	containers := pod.held
	i := slices.IndexFunc(containers, func(h injected.Container) bool { return h.Unheld })
	if i < 0 || pod.Annotations[v1.InjectedAnnotation] == "" {
		return ""
	}
	field, name := "spec.containers", containers[i].Name
	if containers[i].Init && !slices.Contains(d.Singleton.Spec.Containers, name) {
		field = "spec.holdInitContainers"
	}
	return fmt.Sprintf("Nothing holds container %s of pod %s, which was created before %s named the container. ", name, pod.Name, field)
}

// spareNote reports the standby of a holder that is not about to be replaced: the standby is warm, or takes
// longer than warmUpPatience, and why.
func (d *decision) spareNote() string {
	if pod := d.warm(); pod != nil {
		return fmt.Sprintf("; pod %s is warm and would take over", pod.Name)
	}
	if len(d.standbys) == 0 {
		return ""
	}
	spare := d.standbys[0]
	if left := d.left(warmUpPatience, spare.CreationTimestamp.Time); left > 0 {
		d.requeueIn(left)
		return ""
	}
	d.adviseReplacement(spare, spare.nodeProblem)
	return fmt.Sprintf("; no standby is warm: pod %s %s", spare.Name, spare.WaitsFor)
}

// foreignHelp reports pods that no singleton releases.
func (d *decision) foreignHelp() string {
	pods := withRole(d.pods, Foreign)
	if len(pods) == 0 {
		return ""
	}
	pod := pods[0]
	return fmt.Sprintf("; pod %s is held for StatefulSingleton %s and is never released by this one: delete the pod to have it recreated",
		pod.Name, pod.Annotations[v1.InjectedAnnotation])
}

// attestHelp says how a person attests the termination of the pod. It follows an "if".
func (s Snapshot) attestHelp(pod *corev1.Pod) string {
	deletion := ""
	if !proof.Going(pod) {
		deletion = fmt.Sprintf("kubectl delete -n %s pod %s --wait=false && ", pod.Namespace, pod.Name)
	}
	return fmt.Sprintf("you have made sure that the processes of pod %s have ended, run: %skubectl annotate -n %s stfs %s %s=%s --overwrite",
		pod.Name, deletion, s.Singleton.Namespace, s.Singleton.Name, v1.AttestAnnotation, pod.UID)
}

// lostNodeHelp says what to do about a holder that is not terminating if its node does not answer or does not
// exist.
func (s Snapshot) lostNodeHelp(pod *corev1.Pod) string {
	if node := s.LostNode(pod); node != nil {
		return "If node " + node.Name + " is off, run: " + TaintCommand(node.Name)
	}
	return "If " + s.attestHelp(pod)
}

// stoppingHelp says what the proof of termination of a pod waits for.
func (s Snapshot) stoppingHelp(pod *ClassifiedPod, now time.Time) string {
	attest := "if " + s.attestHelp(pod.Pod)
	node, containers := s.Nodes[pod.Spec.NodeName], pod.held
	switch {
	case node == nil:
		return fmt.Sprintf(", but its node %s does not exist any more, and nothing proves that the pod has ended: %s", pod.Spec.NodeName, attest)
	case !proof.NodeReady(node):
		return fmt.Sprintf(", but its node %s does not answer, and nothing proves that the pod has ended. If node %s is off, run: %s; %s", node.Name, node.Name, TaintCommand(node.Name), attest)
	case proof.Terminal(pod.Pod) && first(containers, lost) != "":
		return fmt.Sprintf(", but its kubelet could not locate container %s (ContainerStatusUnknown), and nothing proves that the container has ended. Look for its processes on node %s; %s",
			first(containers, lost), node.Name, attest)
	case proof.Terminal(pod.Pod) && first(containers, cleaningUp) != "":
		return fmt.Sprintf("; its kubelet could not locate container %s. The kubelet kills the remaining processes of the pod, and then reports that the pod has terminated",
			first(containers, cleaningUp))
	case proof.Terminal(pod.Pod):
		return fmt.Sprintf(", but it is %s without a report that every held container has ended: %s", pod.Status.Phase, attest)
	}
	if pod.DeletionTimestamp != nil && now.After(pod.DeletionTimestamp.Time.Add(transitionPoll)) {
		return fmt.Sprintf(", although its grace period ended at %s: check the kubelet of node %s", pod.DeletionTimestamp.UTC().Format(time.RFC3339), node.Name)
	}
	return "; the next pod is released once the kubelet reports that the pod has terminated"
}

// first returns the name of the first container that fulfils the condition. Empty: there is none.
func first(containers []injected.Container, which func(injected.Container) bool) string {
	i := slices.IndexFunc(containers, which)
	if i < 0 {
		return ""
	}
	return containers[i].Name
}

// LostNode returns the pod's node if the node exists and is not Ready, or nil.
func (s Snapshot) LostNode(pod *corev1.Pod) *corev1.Node {
	if node := s.Nodes[pod.Spec.NodeName]; node != nil && !proof.NodeReady(node) {
		return node
	}
	return nil
}

// TaintCommand returns the command with which a person states that the node is off.
func TaintCommand(node string) string {
	return fmt.Sprintf("kubectl taint node %s %s=nodeshutdown:NoExecute", node, corev1.TaintNodeOutOfService)
}

// notReady says why a pod is not Ready. A container that failed is the cause: the containers that end after it, for example the
// sidecar, end because of it.
func notReady(pod *corev1.Pod) string {
	if failed := failedFirst(pod.Status.ContainerStatuses); failed != nil {
		return containerState(failed.Name, failed)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if status := proof.StatusOf(pod.Status.InitContainerStatuses, c.Name); !initDone(c, status) {
			return initContainerState(c.Name, status)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; !s.Ready {
			if s.State.Running != nil {
				return fmt.Sprintf("container %s is running and not ready", s.Name)
			}
			return containerState(s.Name, s)
		}
	}
	if c := proof.Condition(pod, corev1.PodReady); c != nil && c.Message != "" {
		return c.Message
	}
	return "the kubelet has not reported it Ready"
}

// failedFirst returns the first of the containers that ended with an error, or nil.
func failedFirst(statuses []corev1.ContainerStatus) (first *corev1.ContainerStatus) {
	for i := range statuses {
		ended := statuses[i].State.Terminated
		if ended != nil && ended.ExitCode != 0 && (first == nil || ended.FinishedAt.Before(&first.State.Terminated.FinishedAt)) {
			first = &statuses[i]
		}
	}
	return first
}

func initContainerState(name string, status *corev1.ContainerStatus) string {
	return "init " + containerState(name, status)
}

// containerState describes a container's state.
func containerState(name string, status *corev1.ContainerStatus) string {
	switch {
	case status == nil:
		return fmt.Sprintf("container %s has not started", name)
	case status.State.Waiting != nil:
		text := fmt.Sprintf("container %s waits: %s", name, status.State.Waiting.Reason)
		if m := strings.Fields(status.State.Waiting.Message); len(m) > 0 {
			text += ": " + strings.Join(m, " ") // in one line
		}
		return text
	case status.State.Terminated != nil:
		return fmt.Sprintf("container %s ended: %s, exit code %d", name, status.State.Terminated.Reason, status.State.Terminated.ExitCode)
	case status.State.Running != nil:
		return fmt.Sprintf("container %s is running", name)
	default:
		return fmt.Sprintf("container %s has not started", name)
	}
}

func (s Snapshot) holderName() string {
	if s.Singleton.Status.ActivePodUID == "" {
		return "none"
	}
	return fmt.Sprintf("pod %s with uid %s", s.Singleton.Status.ActivePod, s.Singleton.Status.ActivePodUID)
}

func (d *decision) unknownAttested(uid string) string {
	return fmt.Sprintf("no pod of this StatefulSingleton has the uid %q; the holder is %s", uid, d.holderName())
}

func notTerminating(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s is not terminating, and the kubelet may restart its containers. Delete the pod, and then attest again. "+
		"Run: kubectl delete -n %s pod %[1]s --wait=false", pod.Name, pod.Namespace)
}

func reportedByKubelet(pod *corev1.Pod) string {
	return fmt.Sprintf("node %s of pod %s is Ready, and its kubelet reports when the pod has terminated", pod.Spec.NodeName, pod.Name)
}

// notPreparedMessage says why the gates of the holder cannot accept connections.
func (d *decision) notPreparedMessage(pod *ClassifiedPod) string {
	why := pod.notFenced
	if pod.fencing != nil {
		why = injected.NotQueueableBy(pod.Pod, d.Singleton)
	}
	if why == "" {
		return fmt.Sprintf("pod %s was created before spec.connections was Queue. To replace this pod, restart the rollout of its owner", pod.Name)
	}
	return fmt.Sprintf("connections are refused during a handoff from pod %s: %s", pod.Name, why)
}

func lostClientsMessage(pod *ClassifiedPod, report signal.QueueReport) string {
	return fmt.Sprintf("pod %s did not get all connections that waited for it: %s", pod.Name, report.Message)
}

func portsUnknownMessage(pod *ClassifiedPod) string {
	return fmt.Sprintf("pod %s does not listen on all addresses of a TCP port of its held containers. "+
		"Add the ports of the application to ports of its container, and configure the application to listen on all addresses", pod.Name)
}

func portsKnownMessage(report signal.QueueReport) string {
	var ports []string
	for _, port := range slices.Sorted(maps.Keys(report.Ports)) {
		ports = append(ports, fmt.Sprint(port))
	}
	return fmt.Sprintf("the next pod accepts connections before its main processes run, on port %s", strings.Join(ports, ", "))
}
