package policies

import (
	"fmt"
	"maps"
	"slices"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// ClusterAnnotation has the StatefulCluster of a policy, as <namespace>/<name>.
const ClusterAnnotation = "apps.statefulsingleton.com/cluster"

// renderCluster returns the policy that makes each new pod of the StatefulCluster a member. The pod gets the labels of the
// selector that its template does not have. It also gets its name as the host name, and the readiness gate of updates in place.
func renderCluster(c *v1.StatefulCluster, o Options) (*unstructured.Unstructured, error) {
	if err := validateCluster(c); err != nil {
		return nil, err
	}
	if o.Kind == NamespacedMutatingPolicy {
		return mutatingCluster(c, o)
	}
	policy := clusterPolicy(o.Kind.Of(c), c.Namespace, memberCEL(c))
	policy.Labels[v1.ClusterLabel] = c.Name
	policy.Annotations[ClusterAnnotation] = keyOf(c).String()
	var rules []kyvernov1.Rule
	rule := func(name string, conditions []string, ops ...op) {
		rules = append(rules, kyvernov1.Rule{
			Name:                name,
			RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(append(conditions, memberJMESPath(c))...)},
			Mutation:            &kyvernov1.Mutation{PatchesJSON6902: patch(ops...)},
		})
	}
	for i, key := range slices.Sorted(maps.Keys(c.Spec.Selector.MatchLabels)) {
		rule(fmt.Sprintf("add-label-%d", i), []string{fmt.Sprintf("request.object.metadata.labels.%q == `null`", key)},
			add("/metadata/labels/"+pointer(key), c.Spec.Selector.MatchLabels[key]))
	}
	// Kyverno evaluates variables in the name, so only the name of a host is copied.
	rule("set-hostname", []string{fmt.Sprintf("regex_match('%s', request.object.metadata.name || '')", hostName)},
		op{Op: "add", Path: "/spec/hostname", Value: encode("{{request.object.metadata.name}}")})
	if c.Spec.ServiceName != "" {
		rule("set-subdomain", nil, add("/spec/subdomain", c.Spec.ServiceName))
	}
	if updatesInPlace(c) {
		rule("add-readiness-gate", []string{fmt.Sprintf("length(request.object.spec.readinessGates[?conditionType == '%s'] || `[]`) == `0`", v1.MemberServing)},
			add("/spec/readinessGates/-", servingGate()))
	}
	rule("answer-probe", []string{isProbe}, add("/metadata/annotations/"+pointer(answer(o.Kind.Of(c))), "true"))
	policy.Spec.Rules = forPods(kyvernov1.ResourceFilters{newPods(c.Namespace, memberSelector(c))}, rules...)
	return toUnstructured(policy)
}

// mutatingCluster returns the NamespacedMutatingPolicy that makes each new pod of the StatefulCluster a member.
func mutatingCluster(c *v1.StatefulCluster, o Options) (*unstructured.Unstructured, error) {
	policy := newMutatingPolicy(o.Kind.Of(c), memberSelector(c))
	policy.Labels[v1.ClusterLabel] = c.Name
	policy.Annotations[ClusterAnnotation] = keyOf(c).String()
	policy.own(c, "StatefulCluster")
	policy.addCondition("owner", memberCEL(c))
	for _, key := range slices.Sorted(maps.Keys(c.Spec.Selector.MatchLabels)) {
		policy.mutate(celIf(celSet("labels", key, c.Spec.Selector.MatchLabels[key]), "!("+hasLabel(key)+")"))
	}
	policy.mutate(celIf("["+celAdd(`"/spec/hostname"`, "object.metadata.name")+"]",
		fmt.Sprintf(`object.metadata.?name.orValue("").matches(%s)`, celString(hostName))))
	if c.Spec.ServiceName != "" {
		policy.mutate("[" + celAdd(`"/spec/subdomain"`, celString(c.Spec.ServiceName)) + "]")
	}
	if updatesInPlace(c) {
		policy.mutate(celIf(celAppend("object.spec", "readinessGates", `"/spec"`, celValue(servingGate())),
			fmt.Sprintf(`!%s.exists(g, g.conditionType == %s)`, celListOf("readinessGates"), celString(v1.MemberServing))))
	}
	policy.mutate(answerCEL(policy.ref()))
	return toUnstructured(policy)
}

// hostName matches a name of a pod that can be a host name. A name with a dot cannot.
const hostName = "^[-a-z0-9]+$"

// updatesInPlace returns true if new pods get the readiness gate of updates in place.
func updatesInPlace(c *v1.StatefulCluster) bool {
	return c.Spec.UpdateStrategy.Type == v1.ClusterInPlaceIfPossible
}

func servingGate() corev1.PodReadinessGate {
	return corev1.PodReadinessGate{ConditionType: v1.MemberServing}
}

// memberSelector selects the pods with the label that the manager of StatefulClusters gives to new pods.
func memberSelector(c *v1.StatefulCluster) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{v1.ClusterLabel: c.Name}}
}

// memberCEL and memberJMESPath return the condition that the StatefulCluster controls the pod.
func memberCEL(c *v1.StatefulCluster) string { return controlledCEL("StatefulCluster", c.Name) }

func memberJMESPath(c *v1.StatefulCluster) string {
	return controlledJMESPath("StatefulCluster", c.Name)
}

// validateCluster returns an error if spec.selector is invalid.
func validateCluster(c *v1.StatefulCluster) error {
	if _, err := c.Spec.Selector.Parse(); err != nil {
		return fmt.Errorf("no policy mutates the pods of StatefulCluster %s: spec.selector: %w", keyOf(c), err)
	}
	return nil
}

// clusterProbe returns a pod of the StatefulCluster for a server-side dry-run.
func clusterProbe(c *v1.StatefulCluster, o Options) *corev1.Pod {
	pod := probePod(c.Namespace, "probe", o)
	pod.Labels = map[string]string{v1.ClusterLabel: c.Name}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: "StatefulCluster", Name: c.Name, UID: c.UID, Controller: new(true),
	}}
	return pod
}

// checkClusterProbe returns nil if the probe pod is a member of the StatefulCluster, and the policy applied to it.
func checkClusterProbe(pod *corev1.Pod, c *v1.StatefulCluster, policy Ref) error {
	if !Answered(pod, policy) {
		return fmt.Errorf("pod went through no rule of %s for StatefulCluster %s", policy, keyOf(c))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Spec.Selector.MatchLabels)) {
		if pod.Labels[key] != c.Spec.Selector.MatchLabels[key] {
			return fmt.Errorf("label %s is %q", key, pod.Labels[key])
		}
	}
	switch {
	case pod.Spec.Hostname != pod.Name:
		return fmt.Errorf("spec.hostname is %q", pod.Spec.Hostname)
	case c.Spec.ServiceName != "" && pod.Spec.Subdomain != c.Spec.ServiceName:
		return fmt.Errorf("spec.subdomain is %q", pod.Spec.Subdomain)
	case updatesInPlace(c) && !slices.Contains(pod.Spec.ReadinessGates, servingGate()):
		return fmt.Errorf("no readiness gate %s", v1.MemberServing)
	}
	return nil
}
