package proof

import (
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
)

// noDrain are taints that do not mean a drain: the condition Ready, the field unschedulable and the
// out-of-service taint have their own rules.
var noDrain = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeOutOfService}

// Drained returns why the pod's node is being drained. Empty: the node is not being drained, or is nil or not Ready.
func Drained(pod *corev1.Pod, node *corev1.Node) string {
	if node == nil || !NodeReady(node) {
		return ""
	}
	if node.Spec.Unschedulable {
		return "node " + node.Name + " is cordoned"
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		switch {
		case taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectNoExecute:
		case slices.Contains(noDrain, taint.Key):
		case !Tolerates(pod, taint):
			return "node " + node.Name + " has taint " + taint.ToString()
		}
	}
	return ""
}

// Tolerates returns true if the pod tolerates the taint without a time limit.
func Tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.TolerationSeconds == nil && t.ToleratesTaint(logr.Discard(), taint, true)
	})
}
