package tenure

import (
	"fmt"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

func (d *decision) secondLockMessage(older string) string {
	return fmt.Sprintf("StatefulSetLock %s already labels the pods of StatefulSet %s, and this lock changes nothing. Delete one of the two: kubectl delete ssl -n %s %s",
		older, d.Lock.Spec.StatefulSetName, d.Lock.Namespace, d.Lock.Name)
}

func (d *decision) foreignLeaseMessage() string {
	return fmt.Sprintf("Lease %s exists, and this lock does not control the Lease, so this lock changes nothing. If nothing needs the Lease, delete it: kubectl delete lease -n %s %[1]s. Otherwise, recreate the lock with another spec.leaseName",
		d.Lock.Spec.LeaseName, d.Lock.Namespace)
}

func (d *decision) noStatefulSetMessage() string {
	return fmt.Sprintf("StatefulSet %s does not exist. The lock waits until its first pod is Ready, which becomes the writer. To show the StatefulSets, run: kubectl get statefulsets -n %s",
		d.Lock.Spec.StatefulSetName, d.Lock.Namespace)
}

// noReadyPodMessage says why no pod can become the writer. It names only some of the pods, because the length of a condition
// is limited.
func (d *decision) noReadyPodMessage() string {
	const most = 5
	var why []string
	for _, p := range d.pods {
		if p.member {
			why = append(why, fmt.Sprintf("pod %s can't become the writer: %s", p.Name, d.cannotWrite(p)))
		}
	}
	switch {
	case len(why) == 0:
		return fmt.Sprintf("StatefulSet %s has no pods", d.Lock.Spec.StatefulSetName)
	case len(why) > most:
		why = append(why[:most], fmt.Sprintf("nor can %d other pods", len(why)-most))
	}
	return strings.Join(why, "; ")
}

func (d *decision) grantedMessage(p *pod) string {
	return fmt.Sprintf("pod %s becomes the writer with epoch %d", p.Name, d.status.Epoch)
}

func (d *decision) startingMessage() string {
	return fmt.Sprintf("pod %s has epoch %d. It becomes the writer when its main processes have started as the writer, or the promote hook has succeeded", d.writer.Name, d.status.Epoch)
}

func (d *decision) readyMessage() string {
	return fmt.Sprintf("pod %s is the writer with epoch %d", d.writer.Name, d.status.Epoch)
}

func (d *decision) notReadyMessage() string {
	message := fmt.Sprintf("the writer, pod %s, is unready", d.writer.Name)
	if d.next == nil || d.next == d.writer {
		return message + ", and no other pod can become the writer"
	}
	return fmt.Sprintf("%s. If it stays unready for spec.failoverDelaySeconds (%d), pod %s becomes the writer", message, d.Lock.Spec.FailoverDelaySeconds, d.next.Name)
}

func (d *decision) labelRemovedMessage(cause v1.TenureCause) string {
	return fmt.Sprintf("the tenure of pod %s ends (cause %s)", d.writer.Name, cause)
}

func (d *decision) awaitingEndpointsMessage() string {
	return fmt.Sprintf("pod %s is no longer the writer. The controller waits at most %s until EndpointSlices of Services for the writer no longer list the pod", d.writer.Name, servingPatience)
}

func (d *decision) stoppingMessage(w *pod) string {
	node := d.Nodes[w.Spec.NodeName]
	switch {
	case w.DeletionTimestamp == nil:
		return fmt.Sprintf("deleting pod %s, because its tenure ends when the pod has terminated", w.Name)
	case node == nil:
		return fmt.Sprintf("pod %s is terminating, and its node %s does not exist. To let another pod become the writer, %s", w.Name, w.Spec.NodeName, d.attestMessage(w.UID))
	case !proof.NodeReady(node):
		return fmt.Sprintf("pod %s is terminating, and its node %s does not report. If the node is off, run: kubectl taint node %[2]s node.kubernetes.io/out-of-service=nodeshutdown:NoExecute. If the node is on, %[3]s",
			w.Name, w.Spec.NodeName, d.attestMessage(w.UID))
	}
	if proof.Terminal(w.Pod) {
		return fmt.Sprintf("pod %s has phase %s, and the kubelet has not reported that its containers have terminated. If this does not change, %s", w.Name, w.Status.Phase, d.attestMessage(w.UID))
	}
	return fmt.Sprintf("pod %s is terminating. Another pod becomes the writer after the kubelet has reported the termination", w.Name)
}

// attestMessage says how a person attests the termination of a pod.
func (d *decision) attestMessage(uid types.UID) string {
	return fmt.Sprintf("make sure that the processes of the pod have ended, then run: kubectl annotate -n %s ssl %s %s=%s --overwrite", d.Lock.Namespace, d.Lock.Name, v1.AttestAnnotation, uid)
}

func (d *decision) startFailedMessage() string {
	return fmt.Sprintf("pod %s gave up its tenure before it was the writer: its main process or its promote hook has failed. The next attempt follows after %s. To show why, run: kubectl logs -n %s %[1]s --all-containers --tail=50",
		d.writer.Name, retryDelay, d.Lock.Namespace)
}

func (d *decision) revokedMessage() string {
	return fmt.Sprintf("pod %s must end its tenure. Another pod becomes the writer after Lease %s was released, or after it has expired", d.status.WriterPod, d.Lock.Spec.LeaseName)
}

func (d *decision) leaseTakenMessage(name string) string {
	return fmt.Sprintf("Lease %s has expired: pod %s did not renew it", d.Lock.Spec.LeaseName, name)
}

func (d *decision) leaseHeldMessage(name string) string {
	return fmt.Sprintf("Lease %s names pod %s, which status does not have. Another pod becomes the writer after the Lease was released, or after it has expired", d.Lock.Spec.LeaseName, name)
}

func (d *decision) heldMessage() string {
	return fmt.Sprintf("Lease %s was created again, so a pod that the Lease before named may still be the writer. Another pod becomes the writer after the new Lease has expired, at the latest %s after its creation",
		d.Lock.Spec.LeaseName, max(d.longestDuration(), leases.DurationOf(d.Lease.Object)))
}

func (d *decision) endedMessage(t *v1.TenureTransition) string {
	return fmt.Sprintf("the tenure of pod %s has ended, and no other pod can become the writer yet", t.From)
}

func (d *decision) adoptedMessage() string {
	return fmt.Sprintf("the Lease or a pod shows epoch %d of pod %s, which the status did not have", d.status.Epoch, d.status.WriterPod)
}

func (d *decision) noLeaseMessage() string {
	return fmt.Sprintf("creating Lease %s", d.Lock.Spec.LeaseName)
}

func (d *decision) lostMessage() string {
	return fmt.Sprintf("pod %s, the last writer, does not exist, and nothing proves that its processes have ended. To let another pod become the writer, %s",
		d.status.WriterPod, d.attestMessage(d.status.WriterPodUID))
}

func (d *decision) notAwaitedMessage(uid types.UID) string {
	return fmt.Sprintf("annotation %s=%s is ignored: the lock waits for no pod with this uid", v1.AttestAnnotation, uid)
}

func (d *decision) notAttestableMessage() string {
	return fmt.Sprintf("annotation %s=%s is ignored: pod %s is not terminating, or its kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n %s %[3]s",
		v1.AttestAnnotation, d.writer.UID, d.writer.Name, d.Lock.Namespace)
}

func (d *decision) leaseMessage() string {
	return fmt.Sprintf("a pod is the writer only while it renews Lease %s", d.Lock.Spec.LeaseName)
}

func (d *decision) notFencedMessage(p *pod) string {
	return fmt.Sprintf("pod %s is the writer also without Lease %s: %s. To create the pods again, run: kubectl rollout restart -n %s statefulset %s",
		p.Name, d.Lock.Spec.LeaseName, p.notFenced, d.Lock.Namespace, d.Lock.Spec.StatefulSetName)
}

// Messages of condition Fenced.
const (
	noneMessage        = "not safe: spec.fencing is None, so the old writer can still write through open connections after a failover. Use Termination or Lease if two writers do harm"
	terminationMessage = "another pod becomes the writer after the pod of the writer has provably terminated"
)

func evictionsBlockedMessage(w *pod) string {
	return fmt.Sprintf("evictions of the writer, pod %s, are blocked until another pod is the writer", w.Name)
}

func noOtherPodMessage(w *pod) string {
	return fmt.Sprintf("an eviction stops the writer, pod %s, at once, because no other pod can become the writer on a node that is not drained", w.Name)
}

func otherBudgetMessage(other *policyv1.PodDisruptionBudget) string {
	return fmt.Sprintf("PodDisruptionBudget %s exists, and the controller creates none beside it, because a pod that two budgets cover cannot be evicted. If the controller is to create one, delete it: kubectl delete pdb -n %s %[1]s",
		other.Name, other.Namespace)
}
