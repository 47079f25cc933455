package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// LabelSelector selects pods by their labels, as metav1.LabelSelector does. Its fields have upper bounds, because
// each selector becomes part of Kyverno's webhook configuration, which all namespaces share.
//
// +structType=atomic
type LabelSelector struct {
	// MatchLabels are the labels that a pod must have. At most 16.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) <= 317)",message="spec.selector.matchLabels: a key has more than 317 characters, and the key of a label cannot be longer: shorten the key"
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(self[key]) <= 63)",message="spec.selector.matchLabels: a value has more than 63 characters, and the value of a label cannot be longer: shorten the value"
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// MatchExpressions are the requirements that the labels of a pod must meet. At most
	// 16.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is one requirement of a LabelSelector.
type LabelSelectorRequirement struct {
	// Key is the key of the label: at most 317 characters, a prefix of 253, a slash and a
	// name of 63.
	//
	// +kubebuilder:validation:MaxLength=317
	// +required
	Key string `json:"key"`

	// Operator is In, NotIn, Exists or DoesNotExist.
	// +required
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// Values are the values of In and NotIn: at least one and at most 32, of 63
	// characters each. Exists and DoesNotExist take none.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	Values []string `json:"values,omitempty"`
}

// Meta returns a copy as metav1.LabelSelector.
func (s *LabelSelector) Meta() *metav1.LabelSelector {
	meta := &metav1.LabelSelector{}
	own := s.DeepCopy()
	meta.MatchLabels = own.MatchLabels
	for _, requirement := range own.MatchExpressions {
		meta.MatchExpressions = append(meta.MatchExpressions, metav1.LabelSelectorRequirement(requirement))
	}
	return meta
}

// Parse returns the selector for the labels of pods. It returns an error if Kubernetes does not accept the selector.
// The definition bounds lengths, but does not check all rules for keys and values.
func (s *LabelSelector) Parse() (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(s.Meta())
}
