// Package policies renders the Kyverno policies that hold the pods of singletons, and checks whether a pod is held. It also
// renders the policies of StatefulSetLocks.
//
// There is one policy for each singleton, or one for each namespace with the rules of all its singletons. Both change
// a pod in the same way, in each Kind. A pod to which several policies apply is the same as a pod to which one applies.
//
// No other package knows Kyverno's types: Render returns unstructured objects. Of a pod, only names of containers, numbers of
// ports, and probes in base64 are copied into a patch of a ClusterPolicy, and strings of a singleton are escaped. Kyverno therefore evaluates no
// text of a user as a variable or as CEL. A rule that applies again changes nothing, because the API server may call Kyverno
// twice for a pod.
//
// Functions that end in CEL return the CEL of a NamespacedMutatingPolicy. Their counterparts without the suffix return the
// rules or the JMESPath of a ClusterPolicy, and say why.
package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kyverno/kyverno/api/kyverno"
	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// SingletonAnnotation has the singleton of a policy, as <namespace>/<name>.
	SingletonAnnotation = "apps.statefulsingleton.com/singleton"
	// NamespaceAnnotation has the namespace whose singletons share a policy.
	NamespaceAnnotation = "apps.statefulsingleton.com/namespace"
	// InstalledAnnotation has the singletons from which a shared policy was rendered. See InstalledIn.
	InstalledAnnotation = "apps.statefulsingleton.com/installed"
)

// WebhookTimeoutSeconds is how long the API server waits for Kyverno before it rejects the pod.
const WebhookTimeoutSeconds = 10

// Per says whether each singleton or each namespace has a policy.
type Per string

const (
	// PerSingleton is the default.
	PerSingleton Per = "singleton"
	// PerNamespace is for many singletons: each policy has a webhook, which takes space in Kyverno's configuration
	// and time when any pod is created.
	PerNamespace Per = "namespace"
)

// Options are the settings of a policy that come from the installation.
type Options struct {
	// Kind is the kind of the policy. Empty: ClusterPolicy.
	Kind Kind
	// SidecarImage is the image of the status sidecar. It contains the gate.
	SidecarImage string
	// SidecarPullPolicy is the pull policy of SidecarImage. Empty: the default of Kubernetes.
	SidecarPullPolicy corev1.PullPolicy
	// SidecarPullSecrets are the Secrets with which to pull SidecarImage, in the namespace of each singleton. They
	// are added to every held pod.
	SidecarPullSecrets []string
	// APIServer is the API server of the sidecars of fenced pods.
	APIServer signal.APIServer
	// SidecarResources are the requests and limits of the sidecar. Default: DefaultSidecarResources.
	SidecarResources *corev1.ResourceRequirements
}

// Name returns the name of a singleton's policy. It has at most 63 characters, as Kyverno requires, and differs for
// every two singletons.
func Name(singleton types.NamespacedName) string {
	return shorten("stfs-"+singleton.Namespace+"-"+singleton.Name, singleton.String())
}

// NamespaceName returns the name of the policy that the singletons of a namespace share. It differs from every Name.
func NamespaceName(namespace string) string {
	return shorten("stfs-"+namespace, namespace+"/")
}

// shorten returns a DNS label that begins with the readable text and is unique for the identity.
func shorten(readable, identity string) string {
	const hashLength, maxLength = 16, 63
	sum := sha256.Sum256([]byte(identity))
	readable = strings.ReplaceAll(readable, ".", "-")
	readable = readable[:min(len(readable), maxLength-hashLength-1)]
	return strings.TrimRight(readable, "-") + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// renderSingleton returns the policy that injects the pods of s.
func renderSingleton(s *v1.StatefulSingleton, o Options) (*unstructured.Unstructured, error) {
	selected, err := selectorCEL(&s.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("render the policy of StatefulSingleton %s: %w", keyOf(s), err)
	}
	if o.Kind == NamespacedMutatingPolicy {
		return mutatingSingleton(s, o)
	}
	policy := clusterPolicy(o.Kind.Of(s), s.Namespace, selected)
	policy.Labels[v1.SingletonLabel] = s.Name
	policy.Annotations[SingletonAnnotation] = keyOf(s).String()
	addCondition(policy, isSmall)
	rules := slices.Concat(commonRules(s, o), ownRules(s, o), []kyvernov1.Rule{answerRule(o.Kind.Of(s))})
	policy.Spec.Rules = forPodsOf([]v1.StatefulSingleton{*s}, rules...)
	return toUnstructured(policy)
}

// RenderNamespace returns the policy that injects the pods of the singletons, which are in the namespace. The order of the
// singletons does not matter. It returns the errors of Validate.
func RenderNamespace(namespace string, singletons []v1.StatefulSingleton, o Options) (*unstructured.Unstructured, error) {
	singletons = slices.SortedFunc(slices.Values(singletons), func(a, b v1.StatefulSingleton) int { return strings.Compare(a.Name, b.Name) })
	var selectors []string
	for _, s := range singletons {
		selected, err := selectorCEL(&s.Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("render the policy of namespace %s, for StatefulSingleton %s: %w", namespace, s.Name, err)
		}
		selectors = append(selectors, "("+selected+")")
	}
	if o.Kind == NamespacedMutatingPolicy {
		return mutatingNamespace(namespace, singletons, selectors, o)
	}
	ref := o.Kind.OfNamespace(namespace)
	policy := clusterPolicy(ref, namespace, selectedByFewCEL(selectors))
	addCondition(policy, isSmall)
	groups := byVariant(singletons)
	policy.Annotations[NamespaceAnnotation], policy.Annotations[InstalledAnnotation] = namespace, installedIn(groups)
	for i, alike := range groups {
		for _, rule := range forPodsOf(alike, commonRules(&alike[0], o)...) {
			rule.Name = fmt.Sprintf("%s-%d", rule.Name, i)
			policy.Spec.Rules = append(policy.Spec.Rules, rule)
		}
	}
	for _, s := range singletons {
		for _, rule := range forPodsOf([]v1.StatefulSingleton{s}, ownRules(&s, o)...) {
			rule.Name = shorten(rule.Name+"-"+s.Name, s.Name)
			policy.Spec.Rules = append(policy.Spec.Rules, rule)
		}
	}
	policy.Spec.Rules = append(policy.Spec.Rules, forPodsOf(singletons, answerRule(ref))...)
	return toUnstructured(policy)
}

// byVariant returns the singletons in groups. A shared policy has the rules that hold pods once for each group, because they
// have about 15 kB, and most singletons of a namespace need the same rules.
func byVariant(singletons []v1.StatefulSingleton) (groups [][]v1.StatefulSingleton) {
	group := map[string]int{}
	for _, s := range singletons {
		variant := Variant(&s)
		if _, known := group[variant]; !known {
			group[variant] = len(groups)
			groups = append(groups, nil)
		}
		groups[group[variant]] = append(groups[group[variant]], s)
	}
	return groups
}

// clusterPolicy returns a policy without rules for the pods of the namespace that the CEL expression selects.
func clusterPolicy(ref Ref, namespace, selected string) *kyvernov1.ClusterPolicy {
	return &kyvernov1.ClusterPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: ClusterPolicy.GVK().GroupVersion().String(), Kind: string(ClusterPolicy)},
		ObjectMeta: metav1.ObjectMeta{
			Name:   ref.Name,
			Labels: map[string]string{v1.ManagedByLabel: v1.ManagedBy},
			// Otherwise Kyverno also changes the Deployments that own such pods.
			Annotations: map[string]string{kyverno.AnnotationAutogenControllers: "none"},
		},
		Spec: kyvernov1.Spec{
			Background: new(false),
			// With matchConditions the policy has a webhook of its own. Without them, every pod of the cluster would
			// depend on Kyverno.
			WebhookConfiguration: &kyvernov1.WebhookConfiguration{
				FailurePolicy:  new(kyvernov1.Fail),
				TimeoutSeconds: new(int32(WebhookTimeoutSeconds)),
				MatchConditions: []admissionregistrationv1.MatchCondition{
					{Name: "namespace", Expression: "request.namespace == " + celString(namespace)},
					{Name: "selector", Expression: selected},
					{Name: "not-a-mirror-pod", Expression: notMirrorCEL},
				},
			},
		},
	}
}

// addCondition adds a condition on the pods that the policy mutates.
func addCondition(policy *kyvernov1.ClusterPolicy, condition admissionregistrationv1.MatchCondition) {
	webhook := policy.Spec.WebhookConfiguration
	webhook.MatchConditions = append(webhook.MatchConditions, condition)
}

// Disable changes the policy to match no pod.
func Disable(policy *unstructured.Unstructured) error {
	path := []string{"spec", "webhookConfiguration", "matchConditions"}
	if policy.GetKind() == string(NamespacedMutatingPolicy) {
		path = []string{"spec", "matchConditions"}
	}
	conditions, _, err := unstructured.NestedSlice(policy.Object, path...)
	if err != nil {
		return fmt.Errorf("disable %s %s: %w", policy.GetKind(), policy.GetName(), err)
	}
	for _, condition := range conditions {
		condition.(map[string]any)["expression"] = "false"
	}
	return unstructured.SetNestedSlice(policy.Object, conditions, path...)
}

func toUnstructured(policy metav1.Object) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(policy)
	if err != nil {
		return nil, fmt.Errorf("encode policy %s: %w", policy.GetName(), err)
	}
	object := map[string]any{}
	if err := utiljson.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("decode policy %s: %w", policy.GetName(), err)
	}
	delete(object, "status")
	return &unstructured.Unstructured{Object: object}, nil
}
