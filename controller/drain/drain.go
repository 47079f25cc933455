// Package drain says whether the node of a pod is being drained, and which PodDisruptionBudgets cover a pod. It is pure.
package drain

import (
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// noDrain are taints that do not mean a drain: the condition Ready, the field unschedulable and the
// out-of-service taint have their own rules.
var noDrain = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeOutOfService}

// Of returns why the pod's node is being drained. Empty: the node is not being drained, or is nil or not Ready.
func Of(pod *corev1.Pod, node *corev1.Node) string {
	if node == nil || !proof.NodeReady(node) {
		return ""
	}
	if node.Spec.Unschedulable {
		return fmt.Sprintf("node %s is cordoned", node.Name)
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		switch {
		case taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectNoExecute:
		case slices.Contains(noDrain, taint.Key):
		case !Tolerates(pod, taint):
			return fmt.Sprintf("node %s has taint %s", node.Name, taint.ToString())
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

// Budget returns the PodDisruptionBudget with the name if the object of the kind controls it, or nil.
func Budget(budgets []policyv1.PodDisruptionBudget, of metav1.Object, kind schema.GroupKind, name string) *policyv1.PodDisruptionBudget {
	i := slices.IndexFunc(budgets, func(b policyv1.PodDisruptionBudget) bool { return b.Name == name && owner.Controls(of, kind, &b) })
	if i < 0 {
		return nil
	}
	return &budgets[i]
}

// OtherBudget returns a PodDisruptionBudget that is not the one that Budget returns, and that covers the pod or has the name. It
// returns nil if there is none. A pod that two budgets cover cannot be evicted.
func OtherBudget(
	budgets []policyv1.PodDisruptionBudget, of metav1.Object, kind schema.GroupKind, name string, pod *corev1.Pod,
) *policyv1.PodDisruptionBudget {
	own := Budget(budgets, of, kind, name)
	for i := range budgets {
		b := &budgets[i]
		if b == own {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if b.Name == name || err == nil && selector.Matches(labels.Set(pod.Labels)) {
			return b
		}
	}
	return nil
}
