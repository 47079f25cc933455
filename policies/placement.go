package policies

import (
	"fmt"
	"strings"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// A volume that is attached to one node can be mounted by two pods of that node, but not by a pod of another node. So a new pod
// that prefers the node of the holder can warm up. The term is the same for all singletons: the API server replaces
// matchLabelKeys by the pod's own labels, of which the rule "mark" sets the one that names the singleton.

// prefersNode returns true if the policy of s makes new pods prefer the node of the holder.
func prefersNode(s *v1.StatefulSingleton) bool {
	return s.Spec.Placement != v1.PlacementNone && len(s.Status.NodeClaims) > 0
}

// besideHolder is the term by which a pod prefers the node of the holder.
func besideHolder() corev1.WeightedPodAffinityTerm {
	return corev1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
		TopologyKey:    corev1.LabelHostname,
		LabelSelector:  &metav1.LabelSelector{MatchLabels: map[string]string{v1.RoleLabel: v1.RoleActive}},
		MatchLabelKeys: []string{v1.SingletonLabel},
	}}
}

const (
	requiredTerms  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredTerms = "preferredDuringSchedulingIgnoredDuringExecution"
	// preferredPath is the JSON pointer to the list of besideHolder.
	preferredPath = "/spec/affinity/podAffinity/" + preferredTerms
)

// affinities are the fields of an affinity whose terms are about other pods.
var affinities = []string{"podAffinity", "podAntiAffinity"}

// Conditions on a pod: it mounts a claim, and none of its terms is about pods of the same node.
var (
	mountsClaim = "length(request.object.spec.volumes[?persistentVolumeClaim != `null`] || `[]`) > `0`"
	noNodeTerm  = fmt.Sprintf("length([%s][] | [?topologyKey == '%s']) == `0`", strings.Join(nodeTerms(), ", "), corev1.LabelHostname)
)

// nodeTerms returns JMESPath expressions of the lists with the terms of a pod's affinities.
func nodeTerms() (lists []string) {
	for _, affinity := range affinities {
		terms := "request.object.spec.affinity." + affinity + "."
		lists = append(lists, fmt.Sprintf("(%s || `[]`)", terms+requiredTerms), fmt.Sprintf("(%s[].podAffinityTerm || `[]`)", terms+preferredTerms))
	}
	return lists
}

// preferNodeRule returns the rule by which a pod prefers the node of the holder.
func preferNodeRule() kyvernov1.Rule {
	return kyvernov1.Rule{
		Name:                "prefer-node",
		RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(mountsClaim, noNodeTerm)},
		Mutation:            &kyvernov1.Mutation{PatchesJSON6902: patch(add(preferredPath+"/-", besideHolder()))},
	}
}

// preferNodeCEL returns the operations of preferNodeRule.
func preferNodeCEL(s subjectCEL) string {
	conditions := []string{s.prefersNode, celListOf("volumes") + ".exists(e, has(e.persistentVolumeClaim))"}
	for _, affinity := range affinities {
		terms := fmt.Sprintf("object.spec.?affinity.?%s.?", affinity)
		conditions = append(conditions,
			fmt.Sprintf("!%s%s.orValue([]).exists(e, e.topologyKey == %s)", terms, requiredTerms, celString(corev1.LabelHostname)),
			fmt.Sprintf("!%s%s.orValue([]).exists(e, e.podAffinityTerm.topologyKey == %s)", terms, preferredTerms, celString(corev1.LabelHostname)))
	}
	missing := func(field, path, empty string) string {
		return fmt.Sprintf("(object.spec.?%s.hasValue() ? [] : [%s])", field, celAdd(celString(path), empty))
	}
	operations := []string{
		missing("affinity", "/spec/affinity", "{}"),
		missing("affinity.?podAffinity", "/spec/affinity/podAffinity", "{}"),
		missing("affinity.?podAffinity.?"+preferredTerms, preferredPath, "[]"),
		"[" + celAdd(celString(preferredPath+"/-"), celValue(besideHolder())) + "]",
	}
	return celIf(strings.Join(operations, " + "), conditions...)
}
