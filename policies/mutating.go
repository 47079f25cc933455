package policies

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// mutatingPolicy is a NamespacedMutatingPolicy. Kyverno's own types would triple the size of the controller.
type mutatingPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              mutatingPolicySpec `json:"spec"`
}

type mutatingPolicySpec struct {
	FailurePolicy        admissionregistrationv1.FailurePolicyType `json:"failurePolicy"`
	WebhookConfiguration map[string]int32                          `json:"webhookConfiguration"`
	Autogen              map[string]any                            `json:"autogen"`
	MatchConstraints     admissionregistrationv1.MatchResources    `json:"matchConstraints"`
	MatchConditions      []admissionregistrationv1.MatchCondition  `json:"matchConditions"`
	Variables            []admissionregistrationv1.Variable        `json:"variables,omitempty"`
	Mutations            []admissionregistrationv1.Mutation        `json:"mutations"`
}

// newMutatingPolicy returns a policy without mutations for the pods of its namespace that the selector selects.
func newMutatingPolicy(ref Ref, selector *metav1.LabelSelector) *mutatingPolicy {
	return &mutatingPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: ref.Kind.GVK().GroupVersion().String(), Kind: string(ref.Kind)},
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, Labels: map[string]string{v1.ManagedByLabel: v1.ManagedBy}, Annotations: map[string]string{}},
		Spec: mutatingPolicySpec{
			FailurePolicy: admissionregistrationv1.Fail,
			// With a timeout, the policy has a webhook of its own.
			WebhookConfiguration: map[string]int32{"timeoutSeconds": WebhookTimeoutSeconds},
			// Otherwise Kyverno also changes the Deployments that own such pods.
			Autogen: map[string]any{"podControllers": map[string]any{"controllers": []string{}}},
			MatchConstraints: admissionregistrationv1.MatchResources{
				ObjectSelector: selector,
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "not-a-mirror-pod", Expression: notMirrorCEL}},
		},
	}
}

func (p *mutatingPolicy) ref() Ref { return NamespacedMutatingPolicy.ref(p.Namespace, p.Name) }

// own makes the object the owner of the policy, which is then garbage-collected with the object, even without the
// controller. The deletion of the object does not wait for the policy.
func (p *mutatingPolicy) own(s Subject, kind string) {
	if s.GetUID() == "" {
		return // the API server rejects an owner without a UID
	}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: kind, Name: s.GetName(), UID: s.GetUID()}}
}

// addCondition adds a condition on the pods that the policy mutates.
func (p *mutatingPolicy) addCondition(condition admissionregistrationv1.MatchCondition) {
	p.Spec.MatchConditions = append(p.Spec.MatchConditions, condition)
}

// mutate adds a mutation for each expression.
func (p *mutatingPolicy) mutate(expressions ...string) {
	for _, expression := range expressions {
		p.Spec.Mutations = append(p.Spec.Mutations, admissionregistrationv1.Mutation{
			PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression},
		})
	}
}

// variable adds a variable, and returns the expression that reads it.
func (p *mutatingPolicy) variable(name, expression string) string {
	name = strings.NewReplacer("-", "_", ".", "_").Replace(name)
	p.Spec.Variables = append(p.Spec.Variables, admissionregistrationv1.Variable{Name: name, Expression: expression})
	return "variables." + name
}

// mutatingSingleton returns the NamespacedMutatingPolicy that injects the pods of s.
func mutatingSingleton(s *v1.StatefulSingleton, o Options) (*unstructured.Unstructured, error) {
	policy := newMutatingPolicy(o.Kind.Of(s), s.Spec.Selector.Meta())
	policy.Labels[v1.SingletonLabel] = s.Name
	policy.Annotations[SingletonAnnotation] = keyOf(s).String()
	policy.own(s, "StatefulSingleton")
	policy.addCondition(isSmall)
	policy.inject(s.Namespace, subjectOf(s), o)
	return toUnstructured(policy)
}

// mutatingNamespace returns the NamespacedMutatingPolicy that injects the pods of the singletons, which have the selectors. Its
// mutations are the same for all singletons, because Kyverno executes each of them for every pod, also those of another singleton.
func mutatingNamespace(namespace string, singletons []v1.StatefulSingleton, selectors []string, o Options) (*unstructured.Unstructured, error) {
	policy := newMutatingPolicy(o.Kind.OfNamespace(namespace), nil)
	policy.Annotations[NamespaceAnnotation], policy.Annotations[InstalledAnnotation] = namespace, installedIn(byVariant(singletons))
	policy.addCondition(admissionregistrationv1.MatchCondition{Name: "selector", Expression: selectedByFewCEL(selectors)})
	policy.addCondition(isSmall)
	var selecting []string
	for i, s := range singletons {
		selecting = append(selecting, policy.variable("selecting_"+shorten(s.Name, s.Name), fmt.Sprintf("%s ? [%s] : []", selectors[i], settingsCEL(&s))))
	}
	all := subjectsCEL(policy.variable("selecting", "["+strings.Join(selecting, ", ")+"].flatten()"))
	if !slices.ContainsFunc(singletons, func(s v1.StatefulSingleton) bool { return queues(&s) }) {
		all.queues = "false"
	}
	if !slices.ContainsFunc(singletons, func(s v1.StatefulSingleton) bool { return prefersNode(&s) }) {
		all.prefersNode = "false"
	}
	policy.inject(namespace, all, o)
	return toUnstructured(policy)
}

// inject adds the mutations that inject the pods of a singleton, and answer a probe.
func (p *mutatingPolicy) inject(namespace string, s subjectCEL, o Options) {
	if s.fences != "false" {
		s.fenceable = p.variable("fenceable", fenceableCEL(s))
	}
	if s.queues != "false" {
		s.queueable = p.variable("queueable", queueableCEL)
	}
	p.mutate(injectCEL(namespace, s, o)...)
	p.mutate(answerCEL(p.ref()))
}

// mutatingLock returns the NamespacedMutatingPolicy that makes each new pod of the lock's StatefulSet a reader. With fencing
// by a Lease, the policy also prepares the pod for the gate.
func mutatingLock(l *v1.StatefulSetLock, o Options) (*unstructured.Unstructured, error) {
	policy := newMutatingPolicy(o.Kind.Of(l), lockSelector())
	policy.Labels[v1.LockLabel] = l.Name
	policy.Annotations[LockAnnotation] = keyOf(l).String()
	policy.own(l, "StatefulSetLock")
	policy.Spec.FailurePolicy = admissionregistrationv1.Ignore // see renderLock
	policy.addCondition(admissionregistrationv1.MatchCondition{Name: "owner", Expression: ownedCEL(l)})
	policy.mutate(
		celSet("labels", v1.StsRoleLabel, celString(v1.StsRoleReader)),
		celSet("labels", v1.LockLabel, celString(l.Name)),
	)
	if l.Spec.Fencing == v1.LockFencingLease {
		policy.addCondition(isSmall)
		policy.mutate(removeLockFencingCEL()...)
		policy.mutate(celEachIf(policy.variable("fenceable", celAll(fenceableByLockCEL()...)), fenceByLockCEL(l, o)...)...)
	}
	policy.mutate(answerCEL(policy.ref()))
	return toUnstructured(policy)
}

// markCEL sets the label and the annotation that name the singleton.
func markCEL(namespace string, s subjectCEL) string {
	return celSet("annotations", v1.InjectedAnnotation, celString(namespace+"/")+" + "+s.name) + " + " + celSet("labels", v1.SingletonLabel, s.name)
}

// extendGracePeriodCEL gives a pod at least the grace period of s.
func extendGracePeriodCEL(s subjectCEL) string {
	return celIf("["+celAdd(`"/spec/terminationGracePeriodSeconds"`, s.gracePeriod)+"]",
		fmt.Sprintf("object.spec.?terminationGracePeriodSeconds.orValue(%d) < %s", defaultGracePeriod, s.gracePeriod))
}

// answerCEL answers a probe pod.
func answerCEL(policy Ref) string {
	return celIf(celSet("annotations", answer(policy), celString("true")), annotationCEL(probeAnnotation)+` == "true"`)
}

// annotationCEL returns an annotation of the pod. A missing annotation is empty.
func annotationCEL(key string) string {
	return fmt.Sprintf(`object.metadata.?annotations[?%s].orValue("")`, celString(key))
}
