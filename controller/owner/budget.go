package owner

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Budget returns the PodDisruptionBudget with the name if the object of the kind controls it, or nil.
func Budget(budgets []policyv1.PodDisruptionBudget, of metav1.Object, kind schema.GroupKind, name string) *policyv1.PodDisruptionBudget {
	i := slices.IndexFunc(budgets, func(b policyv1.PodDisruptionBudget) bool { return b.Name == name && Controls(of, kind, &b) })
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
