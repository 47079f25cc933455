package membership

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
	of, err := templateLabels(s.Cluster)
	if err != nil {
		return fmt.Sprintf("can't read spec.template: %v. Set metadata.labels to a map of strings", err)
	}
	if all := labels.Set(PodLabels(s.Cluster, of, RevisionName(s.Cluster))); !selector.Matches(all) {
		return fmt.Sprintf("pods with the labels of spec.template (%s) do not match spec.selector (%s). Change spec.template.metadata.labels", all, selector)
	}
	return ""
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

func (d *decision) inUseMessage(u use) string {
	return fmt.Sprintf("a pod waits for claim %s, because pod %s can run with the claim and has not provably terminated. %s", u.claim, u.pod.Name, d.endUserMessage(u.pod))
}

// keptMessage says which pod keeps a released claim from being deleted.
func (d *decision) keptMessage() string {
	for _, released := range toDelete(d.status.Released) {
		if p := d.userOf(released.Name, ""); p != nil && d.claim(released.Name) != nil {
			return fmt.Sprintf("; claim %s is not deleted, because pod %s can run with the claim. %s To keep the claim, remove its label: kubectl label pvc -n %[4]s %[1]s %[5]s-",
				released.Name, p.Name, d.endUserMessage(p), d.Cluster.Namespace, v1.ClusterLabel)
		}
	}
	return ""
}

// endUserMessage says how a person ends a pod that uses a claim.
func (d *decision) endUserMessage(p *corev1.Pod) string {
	return fmt.Sprintf("If nothing needs the pod, delete the pod: kubectl delete pod -n %s %s.", d.Cluster.Namespace, p.Name)
}

// proveMessage says what the proof of a termination waits for, and how a person can prove it.
func (d *decision) proveMessage(m *member) string {
	node := d.Nodes[m.Node]
	switch {
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

func (d *decision) scalingMessage() string {
	if d.deleted != "" {
		return fmt.Sprintf("a pod waits until claim %s is deleted. Then the pod gets a new claim with this name. To show what keeps the claim, run: kubectl describe pvc -n %s %[1]s",
			d.deleted, d.Cluster.Namespace)
	}
	var names []string
	for _, m := range d.members {
		if m.State == v1.MemberLeaving {
			names = append(names, m.Name)
		}
	}
	if len(names) > 0 {
		return fmt.Sprintf("%s being removed: %s", plural(len(names), "pod is", "pods are"), strings.Join(names[:min(len(names), 5)], ", "))
	}
	return fmt.Sprintf("%d of %d pods exist", d.status.Replicas, max(len(d.counted()), d.replicas()))
}

func plural(n int, singular, more string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprintf("%d %s", n, more)
}

func (d *decision) rollingOutMessage() string {
	text := fmt.Sprintf("%d of %d pods have revision %s", d.status.UpdatedReplicas, d.replicas()-d.partition(), d.status.UpdateRevision)
	if len(d.resizing) > 0 {
		text += "; " + d.resizingMessage(d.resizing[0])
	}
	return text
}

// resizingMessage says why a pod does not have its new resources, and how to replace it. It prefers the pod whose kubelet fails.
func (d *decision) resizingMessage(m *member) string {
	if i := slices.IndexFunc(d.resizing, d.failsResize); i >= 0 {
		m = d.resizing[i]
	}
	waits := fmt.Sprintf("pod %s waits for its new resources: the kubelet of node %s ", m.Name, m.Node)
	remedy := fmt.Sprintf("To replace the pod instead, run: kubectl delete pod -n %s %s", d.Cluster.Namespace, m.Name)
	reports := func(c *corev1.PodCondition) string {
		return waits + "reports " + strings.TrimSuffix(c.Reason+": "+oneLine(c.Message), ": ") + ". "
	}
	if c := resizeCondition(m.pod, corev1.PodResizePending); c != nil {
		return reports(c) + fmt.Sprintf("The pod is replaced if that takes %g minutes. %s", resizePatience.Minutes(), remedy)
	}
	if c := resizeCondition(m.pod, corev1.PodResizeInProgress); c != nil && c.Reason == corev1.PodReasonError {
		return reports(c) + remedy
	}
	return waits + "has not reported them yet. " + remedy
}

// oneLine returns the words of another program in one line and without a period at the end.
func oneLine(words string) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(words), " "), ".")
}

func (d *decision) unavailableMessage() string {
	text := fmt.Sprintf("%d of %d pods are available", d.status.AvailableReplicas, d.replicas())
	for _, m := range d.counted() {
		if m.unschedulable() != nil {
			return text + ": " + d.unschedulableMessage(m)
		}
	}
	return fmt.Sprintf("%s. To show the others, run: kubectl get pods -n %s -l %s=%s", text, d.Cluster.Namespace, v1.ClusterLabel, d.Cluster.Name)
}

// unschedulableMessage says why the scheduler finds no node for a pod, and what to do. A claim can bind the pod to a node.
func (d *decision) unschedulableMessage(m *member) string {
	why := oneLine(m.unschedulable().Message)
	text := fmt.Sprintf("pod %s can't be scheduled: %s. ", m.Name, why)
	var claims, volumes []string
	for _, c := range m.Claims {
		if is := d.claim(c.Name); is != nil && is.Spec.VolumeName != "" {
			claims, volumes = append(claims, c.Name), append(volumes, is.Spec.VolumeName)
		}
	}
	if len(claims) == 0 || !strings.Contains(strings.ToLower(why), "volume") {
		return text + fmt.Sprintf("Add a node that fits the pod, or change spec.template. To show what the scheduler reports, run: kubectl describe pod -n %s %s", d.Cluster.Namespace, m.Name)
	}
	text += fmt.Sprintf("The pod needs a node on which it can use claim %s. To show the nodes, run: kubectl describe pv %s. Let one of them take the pod. ",
		strings.Join(claims, ", "), strings.Join(volumes, " "))
	return text + "If no such node returns, and the data of the claim can be lost, give the pod a new claim: " + d.freshCommand(m)
}

// freshCommand returns the command that gives a pod without a node new claims, and says what becomes of the old claims.
func (d *decision) freshCommand(m *member) string {
	object := fmt.Sprintf("-n %s stc %s", d.Cluster.Namespace, d.Cluster.Name)
	patch := func(state v1.ReplacementState) string {
		return fmt.Sprintf(`kubectl patch %s --type=merge -p '{"spec":{"replacement":{"state":"%s"}}}'`, object, state)
	}
	command := fmt.Sprintf("kubectl delete pod -n %s %s", d.Cluster.Namespace, m.Name)
	if d.Cluster.Spec.Replacement.State != v1.ReplacementFresh {
		command = fmt.Sprintf("%s && %s && %s", patch(v1.ReplacementFresh), command, patch(v1.ReplacementCarry))
	}
	if d.Cluster.Spec.PersistentVolumeClaimRetentionPolicy.WhenReplaced == v1.ClaimDelete {
		return command + ". That deletes the old claim, because of spec.persistentVolumeClaimRetentionPolicy.whenReplaced"
	}
	return command + ". The old claim is kept"
}

// ExpansionMessage returns what the API server said when it rejected larger claims, and what to do. The error is that of the first.
func (s Snapshot) ExpansionMessage(refused []GrowClaim, err error) string {
	first := refused[0]
	name, others := "claim "+first.Claim.Name, ""
	if n := len(refused) - 1; n > 0 {
		others = fmt.Sprintf(" and %s", plural(n, "other claim", "other claims"))
	}
	help := "A claim without a storage class cannot grow"
	is := s.claim(first.Claim.Name)
	if class := is.Spec.StorageClassName; class != nil && *class != "" {
		name += " of storage class " + *class
		help = fmt.Sprintf(`If the storage class does not allow the expansion of its volumes although its driver can expand them, run: kubectl patch storageclass %s -p '{"allowVolumeExpansion":true}'`, *class)
	}
	return fmt.Sprintf("can't raise the request of %s%s from %s to %s: %s. The pods keep running with the old size, and new claims get the new size. %s",
		name, others, is.Spec.Resources.Requests.Storage(), &first.Storage, oneLine(err.Error()), help)
}
