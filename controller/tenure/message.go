package tenure

import (
	"fmt"
	"strings"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
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
	return fmt.Sprintf("StatefulSet %s does not exist. The first Ready pod of the StatefulSet becomes the writer", d.Lock.Spec.StatefulSetName)
}

// noReadyPodMessage says why no pod can become the writer.
func (d *decision) noReadyPodMessage() string {
	var why []string
	for _, p := range d.pods {
		if p.member {
			why = append(why, fmt.Sprintf("pod %s can't become the writer: %s", p.Name, d.cannotWrite(p)))
		}
	}
	if len(why) == 0 {
		return fmt.Sprintf("StatefulSet %s has no pods", d.Lock.Spec.StatefulSetName)
	}
	return strings.Join(why, "; ")
}

func (d *decision) grantedMessage(p *pod) string {
	if p.fenced {
		return fmt.Sprintf("pod %s is named in Lease %s with epoch %d, and becomes the writer after it has renewed the Lease", p.Name, d.Lock.Spec.LeaseName, d.status.Epoch)
	}
	return fmt.Sprintf("pod %s becomes the writer with epoch %d", p.Name, d.status.Epoch)
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
	return fmt.Sprintf("pod %s is no longer the writer, and waits at most %s until Services no longer send requests for the writer to it", d.writer.Name, servingPatience)
}

func (d *decision) stoppingMessage() string {
	w := d.writer
	node := d.Nodes[w.Spec.NodeName]
	switch {
	case w.DeletionTimestamp == nil:
		return fmt.Sprintf("pod %s is deleted, because its tenure ends when it has terminated", w.Name)
	case node == nil || !proof.NodeReady(node):
		return fmt.Sprintf("pod %s is terminating, and its node %s does not report. No other pod becomes the writer until the pod has provably terminated. If the node is off, run: kubectl taint node %[2]s node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
			w.Name, w.Spec.NodeName)
	}
	return fmt.Sprintf("pod %s is terminating, and is no longer the writer", w.Name)
}

func (d *decision) revokedMessage() string {
	return fmt.Sprintf("pod %s must end its tenure and release Lease %s", d.status.WriterPod, d.Lock.Spec.LeaseName)
}

func (d *decision) leaseTakenMessage() string {
	return fmt.Sprintf("Lease %s has expired: pod %s has not renewed it", d.Lock.Spec.LeaseName, d.Lease.Holder())
}

func (d *decision) leaseHeldMessage(name string) string {
	return fmt.Sprintf("Lease %s names pod %s, which is not recorded as the writer. Another pod becomes the writer after the Lease is released or has expired", d.Lock.Spec.LeaseName, name)
}

func (d *decision) endedMessage(t *v1.TenureTransition) string {
	return fmt.Sprintf("the tenure of pod %s has ended, and no other pod can become the writer yet", t.From)
}

func (d *decision) adoptedMessage() string {
	return fmt.Sprintf("pod %s has the tenure with epoch %d, which the status did not have", d.status.WriterPod, d.status.Epoch)
}

func (d *decision) noLeaseMessage() string {
	return fmt.Sprintf("Lease %s did not exist, and is created", d.Lock.Spec.LeaseName)
}

func (d *decision) lostMessage() string {
	return fmt.Sprintf("pod %s, the last writer, was removed, and nothing proves that its processes have ended: somebody removed its finalizer. Make sure that the processes have ended, then run: kubectl annotate -n %s ssl %s %s=%s --overwrite",
		d.status.WriterPod, d.Lock.Namespace, d.Lock.Name, v1.AttestAnnotation, d.status.WriterPodUID)
}

func noneMessage() string {
	return "not safe: spec.fencing is None, so the old writer can still write through open connections after a failover. Use Termination or Lease if two writers do harm"
}

func terminationMessage() string {
	return "another pod becomes the writer after the pod of the writer has provably terminated"
}

func (d *decision) leaseMessage() string {
	return fmt.Sprintf("the writer is the writer only while it renews Lease %s", d.Lock.Spec.LeaseName)
}

func (d *decision) notFencedMessage(p *pod) string {
	return fmt.Sprintf("pod %s is not fenced by Lease %s: %s. To create the pods again, run: kubectl rollout restart -n %s statefulset %s",
		p.Name, d.Lock.Spec.LeaseName, p.notFenced, d.Lock.Namespace, d.Lock.Spec.StatefulSetName)
}
