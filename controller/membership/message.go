package membership

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// templateProblem returns why no pod can be created from the template. Empty: no reason is known.
func (s Snapshot) templateProblem() string {
	selector, err := s.Cluster.Spec.Selector.Parse()
	if err != nil {
		return fmt.Sprintf("spec.selector is invalid: %v. Create another StatefulCluster, because the field is immutable", err)
	}
	of, err := LabelsOf(&s.Cluster.Spec)
	if err != nil {
		return fmt.Sprintf("can't read spec.template: %v. Set metadata.labels to a map of strings", err)
	}
	if !selector.Matches(labels.Set(of)) {
		return fmt.Sprintf("pods with the labels of spec.template (%s) do not match spec.selector (%s). Change spec.template.metadata.labels", labels.Set(of), selector)
	}
	return ""
}

func (d *decision) adoptedMessage(n int) string {
	return fmt.Sprintf("%s added to status.members: the StatefulCluster controls pods that the record did not list", plural(n, "pod was", "pods were"))
}

func (d *decision) tooManyLostMessage() string {
	m := d.excess[0]
	return fmt.Sprintf("%s no successor, because spec.replacement.maxLost is %d. Pod %s is replaced after its termination is proven: %s",
		plural(len(d.excess), "lost pod gets", "lost pods get"), d.maxLost(), m.Name, d.proveMessage(m))
}

// lostMessage says what to do about the members that are lost and do not count.
func (d *decision) lostMessage() string {
	for _, m := range d.members {
		if m.State == v1.MemberLost || m.State == v1.MemberLeaving && m.lost {
			return fmt.Sprintf("; pod %s is lost and keeps its claims: %s", m.Name, d.proveMessage(m))
		}
	}
	return ""
}

// proveMessage says what the proof of a termination waits for, and how a person can prove it.
func (d *decision) proveMessage(m *member) string {
	switch node := d.Nodes[m.Node]; {
	case m.pod == nil:
		return "its object was removed. " + d.attestMessage(m.UID)
	case node == nil:
		return fmt.Sprintf("its node %s does not exist. %s", m.Node, d.attestMessage(m.UID))
	case proof.NodeReady(node) && proof.Terminal(m.pod):
		return fmt.Sprintf("phase %s is no proof, because its kubelet could not locate a container, or did not write the phase. Look for its processes on node %s. %s",
			m.pod.Status.Phase, m.Node, d.attestMessage(m.UID))
	case proof.NodeReady(node):
		return "its kubelet has not reported the termination yet"
	}
	return fmt.Sprintf("its node %s does not report. If the node is off, run: kubectl taint node %[1]s node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", m.Node)
}

// attestMessage says how a person attests the termination of a pod.
func (d *decision) attestMessage(uid types.UID) string {
	return fmt.Sprintf("Make sure that the processes of the pod have ended, then run: kubectl annotate -n %s stc %s %s=%s --overwrite", d.Cluster.Namespace, d.Cluster.Name, v1.AttestAnnotation, uid)
}

func (d *decision) terminatingMessage(m *member) string {
	return fmt.Sprintf("pod %s is terminating. It is replaced after its termination is proven: %s", m.Name, d.proveMessage(m))
}

func (d *decision) policyMessage() string {
	why := "the StatefulSingleton controller has not reported it yet. Check whether it runs: kubectl get pods -A -l app.kubernetes.io/name=statefulsingleton"
	if policy := meta.FindStatusCondition(d.status.Conditions, v1.ConditionPolicyInstalled); policy != nil {
		why = policy.Message
	}
	return "the first pods wait until condition PolicyInstalled is True: " + why
}

func (d *decision) scalingMessage() string {
	if d.deleted != "" {
		return fmt.Sprintf("a pod waits until claim %s is deleted. Then the pod gets a new claim with this name. To show what keeps the claim, run: kubectl describe pvc -n %s %[1]s",
			d.deleted, d.Cluster.Namespace)
	}
	counted := d.counted()
	var names []string
	for _, m := range d.members {
		if m.State == v1.MemberLeaving {
			names = append(names, m.Name)
		}
	}
	if len(names) > 0 {
		return fmt.Sprintf("%s being removed: %s", plural(len(names), "pod is", "pods are"), strings.Join(names[:min(len(names), 5)], ", "))
	}
	return fmt.Sprintf("%d of %d pods exist", d.status.Replicas, max(len(counted), d.replicas()))
}

func plural(n int, singular, more string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprintf("%d %s", n, more)
}

func (d *decision) rollingOutMessage() string {
	return fmt.Sprintf("%d of %d pods have revision %s", d.status.UpdatedReplicas, d.replicas()-d.partition(), d.status.UpdateRevision)
}

func (d *decision) unavailableMessage() string {
	return fmt.Sprintf("%d of %d pods are available. To show the others, run: kubectl get pods -n %s -l %s=%s", d.status.AvailableReplicas, d.replicas(), d.Cluster.Namespace, v1.ClusterLabel, d.Cluster.Name)
}

func (d *decision) availableMessage() string {
	return fmt.Sprintf("all %d pods are available", d.replicas())
}

func (d *decision) notAwaitedMessage(uid types.UID) string {
	return fmt.Sprintf("annotation %s=%s is ignored: no member has a pod with this uid", v1.AttestAnnotation, uid)
}

func (d *decision) notAttestableMessage(m *member) string {
	return fmt.Sprintf("annotation %s=%s is ignored: pod %s is not terminating, or its kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n %s %[3]s",
		v1.AttestAnnotation, m.UID, m.Name, d.Cluster.Namespace)
}
