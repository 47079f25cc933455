package handoff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// bothSelect says that another singleton selects the pod too.
func bothSelect(other *v1.StatefulSingleton, pod *ClassifiedPod) string {
	return fmt.Sprintf("StatefulSingleton %s also selects pod %s", other.Name, pod.Name)
}

func (d *decision) overlapMessage() string {
	return d.overlap + ": no pod is released while two StatefulSingletons select the same pod. Delete one of the two StatefulSingletons"
}

func (d *decision) severalMessage() string {
	why := "and no record names the holder"
	if d.status.ActivePodUID != "" {
		why = "and may run beside the holder"
	}
	return fmt.Sprintf("%s not held, %s: no pod is released until only one pod is left. %s", these(d.unrecorded), why, d.severalHelp())
}

func (d *decision) stoppingMessage(pod *ClassifiedPod) string {
	return fmt.Sprintf("pod %s is terminating%s", pod.Name, d.stoppingHelp(pod, d.now))
}

// nodeMissing and nodeUnreachable say why a pod cannot start on its node. The name of the node comes before.
func nodeMissing() string     { return "does not exist" }
func nodeUnreachable() string { return "does not answer" }

// notScheduled, unschedulable and cannotStart say what a standby waits for. The name of the standby comes before.
func notScheduled() string { return "is not scheduled yet" }

func unschedulable(why string) string { return "can't be scheduled: " + why }

func cannotStart(standby *ClassifiedPod) string {
	return fmt.Sprintf("can't start: its node %s %s", standby.Spec.NodeName, standby.nodeProblem)
}

// coldMessage says what keeps a standby from being warm.
func coldMessage(standby *ClassifiedPod) string {
	return fmt.Sprintf("pod %s %s", standby.Name, standby.WaitsFor)
}

func (d *decision) awaitingPodMessage() string {
	return fmt.Sprintf("pod %s has terminated, and the next pod does not exist yet%s", d.status.LastTransition.From, d.foreignHelp())
}

func (d *decision) noPodsMessage() string {
	none := "no pod matches the selector; the first pod is held until the controller releases it"
	if slices.ContainsFunc(d.pods, func(pod *ClassifiedPod) bool { return pod.selected && proof.Going(pod.Pod) }) {
		none = "all pods that match the selector are terminating or have terminated; the first pod is held until the controller releases it"
	}
	return none + d.foreignHelp()
}

// endedMessage says that the holder has ended, and which pod runs already; nil if none does.
func endedMessage(t *v1.Transition, runs *ClassifiedPod) string {
	if runs != nil {
		return fmt.Sprintf("pod %s has terminated, and pod %s already runs", t.From, runs.Name)
	}
	return fmt.Sprintf("pod %s has terminated, and no standby is warm yet", t.From)
}

func (d *decision) releasedMessage(pod *ClassifiedPod) string {
	return fmt.Sprintf("pod %s is released with epoch %d", pod.Name, d.status.Epoch)
}

func (d *decision) notSignalledMessage(problem string) string {
	return fmt.Sprintf("pod %s is the holder with epoch %d and is not signalled, because its node %s %s", d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, problem)
}

func adoptedMessage(pod *ClassifiedPod) string {
	return fmt.Sprintf("pod %s already runs and becomes the holder", pod.Name)
}

func (d *decision) holderReadyMessage() string {
	return fmt.Sprintf("pod %s is the holder with epoch %d%s%s", d.holder.Name, d.status.Epoch, d.spareNote(), d.foreignHelp())
}

func (d *decision) startingMessage(containers []injected.Container) string {
	why := notReady(d.holder.Pod)
	if slices.ContainsFunc(containers, atBarrier) {
		why = "the kubelet has not created the container behind the open barrier yet"
	}
	return fmt.Sprintf("pod %s is the holder and has not been Ready yet: %s", d.holder.Name, why)
}

func (d *decision) startingOnLostNodeMessage(problem string) string {
	return fmt.Sprintf("pod %s is the holder with epoch %d and has not been Ready yet, and its node %s %s: the pod may start there, so no other pod is released%s",
		d.holder.Name, d.status.Epoch, d.holder.Spec.NodeName, problem, d.spareNote())
}

func (d *decision) holderOnLostNodeMessage(problem string) string {
	return fmt.Sprintf("pod %s is the holder, and its node %s %s: the pod may still run there, so no other pod is released%s",
		d.holder.Name, d.holder.Spec.NodeName, problem, d.spareNote())
}

// successorMessage says how the newer pod of a StatefulSet takes over.
func (d *decision) successorMessage(next *ClassifiedPod) string {
	return fmt.Sprintf("pod %s is warm and has a newer revision than pod %s, and their StatefulSet continues only after pod %s is Ready. To have it take over, run: kubectl delete -n %s pod %s",
		next.Name, d.holder.Name, next.Name, d.Singleton.Namespace, d.holder.Name)
}

func (d *decision) notReadyMessage() string {
	return fmt.Sprintf("pod %s is the holder and is not Ready: %s", d.holder.Name, notReady(d.holder.Pod))
}

// newerNotWarmMessage says what keeps a standby of a newer revision from being warm.
func (d *decision) newerNotWarmMessage(next *ClassifiedPod) string {
	return fmt.Sprintf("%s; pod %s keeps running until pod %s is warm", coldMessage(next), d.holder.Name, next.Name)
}

// retiringMessage says that the next pod replaces the holder. cold is the volume that keeps the next pod cold. Empty:
// the next pod is warm.
func (d *decision) retiringMessage(next *ClassifiedPod, cold string) string {
	if cold == "" {
		return fmt.Sprintf("pod %s is warm; next, the ReplicaSet of pod %s is scaled to zero", next.Name, d.holder.Name)
	}
	return fmt.Sprintf("pod %s stops before pod %s is warm, because %s", d.holder.Name, next.Name, cold)
}

// warmOnDrainedNodeMessage says that the next pod, on a drained node, waits for a warm pod on another node.
func (d *decision) warmOnDrainedNodeMessage(next *ClassifiedPod) string {
	return fmt.Sprintf("pod %s is warm, but %s; pod %s keeps running until a pod is warm on another node", next.Name, next.drained, d.holder.Name)
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

// readWriteOncePodReason and attachedReason say which volume keeps a standby cold while the holder runs.
func readWriteOncePodReason(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("claim %s is ReadWriteOncePod", claim.Name)
}

func (d *decision) attachedReason(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("claim %s is ReadWriteOnce and attached to node %s", claim.Name, d.holder.Spec.NodeName)
}

func rollingMessage(deployment string, pod *corev1.Pod) string {
	return fmt.Sprintf("Deployment %s is rolled, and the pod that takes over from pod %s does not exist yet", deployment, pod.Name)
}

// leaseMissing says what a fenced standby waits for. The name of the standby comes before.
func (s Snapshot) leaseMissing() string {
	return fmt.Sprintf("waits until Lease %s exists", signal.LeaseName(s.Singleton.Name))
}

// lostLeaseReason says why a standby is not chosen. The name of the standby comes before.
func lostLeaseReason(singleton *v1.StatefulSingleton) string {
	return fmt.Sprintf("did not renew Lease %s, so its node may be lost", signal.LeaseName(singleton.Name))
}

func (d *decision) leaseMissingMessage(next *ClassifiedPod) string {
	return fmt.Sprintf("pod %s %s", next.Name, d.leaseMissing())
}

func (d *decision) fencedMessage(pod *ClassifiedPod) string {
	return fmt.Sprintf("pod %s runs its main processes only while it renews Lease %s", pod.Name, signal.LeaseName(d.Singleton.Name))
}

func (d *decision) notRenewedMessage(pod *ClassifiedPod) string {
	return fmt.Sprintf("pod %s has not renewed Lease %s recently, and stops its main processes before the Lease expires. Check that the pod reaches the API server: kubectl logs -n %s %[1]s -c %[4]s",
		pod.Name, signal.LeaseName(d.Singleton.Name), pod.Namespace, v1.SidecarName)
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

// leaseTakenMessage says that the Lease expired.
func (d *decision) leaseTakenMessage(pod string) string {
	return fmt.Sprintf("pod %s has not renewed Lease %s for %s, before which it stops its main processes: the Lease is taken from the pod",
		pod, signal.LeaseName(d.Singleton.Name), d.leaseDuration())
}

// leaseHeldMessage says that the Lease names a pod that does not exist.
func (d *decision) leaseHeldMessage(pod string) string {
	return fmt.Sprintf("Lease %s names pod %s, which does not exist: no pod is released until the Lease has expired (%s). If the pod still renews it, find and stop the processes of the pod",
		signal.LeaseName(d.Singleton.Name), pod, d.leaseDuration())
}

// The reasons below say why a rollout cannot create a new pod before it deletes the holder.

func deploymentEndsReason(deployment *appsv1.Deployment) string {
	return fmt.Sprintf("Deployment %s is being deleted or has no replicas", deployment.Name)
}

func deploymentPausedReason(deployment *appsv1.Deployment) string {
	return fmt.Sprintf("Deployment %s is paused", deployment.Name)
}

func recreateReason(deployment *appsv1.Deployment) string {
	return fmt.Sprintf("Deployment %s has strategy Recreate", deployment.Name)
}

func noSurgeReason(deployment *appsv1.Deployment) string {
	return fmt.Sprintf("Deployment %s has maxSurge 0", deployment.Name)
}

func maxUnavailableReason(deployment *appsv1.Deployment) string {
	return fmt.Sprintf("Deployment %s stops the holder at once in a rollout, because its maxUnavailable is not below its replicas", deployment.Name)
}

func noOwnerReason(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s belongs to no Deployment", pod.Name)
}

func otherOwnerReason(pod *corev1.Pod, owner *metav1.OwnerReference) string {
	return fmt.Sprintf("pod %s belongs to %s %s, and not to a Deployment", pod.Name, owner.Kind, owner.Name)
}

// The messages below say what happens to an eviction of the holder.

func evictionsBlockedMessage() string {
	return "evictions of the holder are blocked; once its node is cordoned, another pod warms up first"
}

// evictionMessage says that an eviction stops the holder before another pod is warm, and why.
func evictionMessage(why string) string {
	return "an eviction stops the holder at once, because " + why
}

func drainIsEvictReason() string { return "spec.drain is Evict" }

func toleratesCordonReason() string {
	return "the holder tolerates cordoned nodes, and the next pod could be scheduled to the same node"
}

func (d *decision) drainTimedOutReason() string {
	return fmt.Sprintf("no pod was warm on another node within maxTransitionTime (%ds)", d.Singleton.Spec.MaxTransitionTime)
}

func otherBudgetMessage(other *policyv1.PodDisruptionBudget) string {
	return fmt.Sprintf("PodDisruptionBudget %s exists, and the controller creates none beside it: a pod that two budgets cover cannot be evicted", other.Name)
}

func spareTakesOverMessage(spare *ClassifiedPod) string {
	return fmt.Sprintf("an eviction hands over to pod %s, which is warm on node %s", spare.Name, spare.Spec.NodeName)
}

func (d *decision) blockedUntilMessage() string {
	return fmt.Sprintf("evictions of the holder are blocked until another pod is warm, at most until %s", d.drainDeadline().UTC().Format(time.RFC3339))
}

// drainMessage says why the holder's node is being drained, and what happens to an eviction.
func (d *decision) drainMessage(evictions string) string { return d.drained + ": " + evictions }

// handoverRefusedMessage says why the controller refuses a requested handoff.
func (d *decision) handoverRefusedMessage(asked, why string) string {
	return fmt.Sprintf("annotation %s=%s is ignored: %s, so no pod can be warm before the holder stops. To replace the holder anyway, run: kubectl delete -n %s pod %s",
		v1.HandoverAnnotation, asked, why, d.holder.Namespace, d.holder.Name)
}

// attestationOfNoPodMessage refuses an attestation.
func (d *decision) attestationOfNoPodMessage(uid string) string {
	return fmt.Sprintf("no pod of this StatefulSingleton has the uid %q; the holder is %s", uid, d.holderName())
}

func attestationTooEarlyMessage(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s is not terminating, and the kubelet may restart its containers. Delete the pod, and then attest again. Run: kubectl delete -n %s pod %s --wait=false",
		pod.Name, pod.Namespace, pod.Name)
}

func attestationOnReadyNodeMessage(pod *corev1.Pod) string {
	return fmt.Sprintf("node %s of pod %s is Ready, and its kubelet reports when the pod has terminated", pod.Spec.NodeName, pod.Name)
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

// keptByPodMessage says which pod keeps a singleton that is being deleted.
func (s Snapshot) keptByPodMessage(pod *ClassifiedPod, now time.Time) string {
	return fmt.Sprintf("the StatefulSingleton is removed once pod %s has terminated: the pod is terminating%s", pod.Name, s.stoppingHelp(pod, now))
}

// keptByLostHolderMessage says that a lost holder keeps a singleton that is being deleted.
func (s Snapshot) keptByLostHolderMessage() string {
	return "the StatefulSingleton is removed once there is a proof that its holder has terminated: " + s.lostHelp()
}

// tooLongMessage says that the handoff takes longer than the user allows.
func tooLongMessage(patience time.Duration, message string) string {
	return fmt.Sprintf("the handoff takes longer than maxTransitionTime (%s): %s", patience, message)
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
		return "If node " + node.Name + " is off, run: " + TaintCommand(node)
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
		return fmt.Sprintf(", but its node %s does not answer, and nothing proves that the pod has ended. If node %s is off, run: %s; %s", node.Name, node.Name, TaintCommand(node), attest)
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
func TaintCommand(node *corev1.Node) string {
	return fmt.Sprintf("kubectl taint node %s %s=nodeshutdown:NoExecute", node.Name, corev1.TaintNodeOutOfService)
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
