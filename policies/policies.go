// Package policies renders the Kyverno ClusterPolicies that hold the pods of singletons, and checks whether a pod is
// held.
//
// There is one policy for each singleton, or one for each namespace with the rules of all its singletons. Both change
// a pod in the same way. A pod to which both apply is the same as a pod to which one applies.
//
// No other package knows Kyverno's types: Render returns unstructured objects. Of a pod, only names of containers are
// copied into a patch, and strings of a singleton are escaped. Kyverno therefore evaluates no text of a user as a
// variable. A rule that applies again changes nothing, because the API server may call Kyverno twice for a pod.
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// GVK is the group, version and kind of the policies.
var GVK = schema.GroupVersionKind{Group: "kyverno.io", Version: "v1", Kind: "ClusterPolicy"}

const (
	// ManagedByLabel is a label of every policy, with the value ManagedBy. The controller watches only policies with
	// this label.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of ManagedByLabel.
	ManagedBy = "statefulsingleton"
	// SingletonAnnotation has the singleton of a policy, as <namespace>/<name>.
	SingletonAnnotation = "apps.statefulsingleton.com/singleton"
	// NamespaceAnnotation has the namespace whose singletons share a policy.
	NamespaceAnnotation = "apps.statefulsingleton.com/namespace"
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
	// SidecarImage is the image of the status sidecar. It contains the gate.
	SidecarImage string
	// SidecarPullPolicy is the pull policy of SidecarImage. Empty: the default of Kubernetes.
	SidecarPullPolicy corev1.PullPolicy
	// SidecarPullSecrets are the Secrets with which to pull SidecarImage, in the namespace of each singleton. They
	// are added to every held pod.
	SidecarPullSecrets []string
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

// Validate returns an error if the selector is invalid, or an ErrSelectorTooLarge if it is too large to be rendered.
func Validate(s *v1.StatefulSingleton) error {
	if _, err := selectorCEL(&s.Spec.Selector); err != nil {
		return fmt.Errorf("no ClusterPolicy injects the pods of StatefulSingleton %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// Render returns the ClusterPolicy that injects the pods of s. It returns the errors of Validate.
func Render(s *v1.StatefulSingleton, o Options) (*unstructured.Unstructured, error) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	selected, err := selectorCEL(&s.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("render the ClusterPolicy of StatefulSingleton %s: %w", key, err)
	}
	policy := clusterPolicy(Name(key), s.Namespace, selected)
	policy.Labels[v1.SingletonLabel] = s.Name
	policy.Annotations[SingletonAnnotation] = key.String()
	policy.Spec.Rules = injectionRules(s, o, policy.Name)
	return toUnstructured(policy)
}

// RenderNamespace returns the ClusterPolicy that injects the pods of the singletons, which are in the namespace. The
// order of the singletons does not matter. It returns the errors of Validate.
func RenderNamespace(namespace string, singletons []v1.StatefulSingleton, o Options) (*unstructured.Unstructured, error) {
	var selectors []string
	var rules []kyvernov1.Rule
	for _, s := range slices.SortedFunc(slices.Values(singletons), byName) {
		selected, err := selectorCEL(&s.Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("render the ClusterPolicy of namespace %s, for StatefulSingleton %s: %w", namespace, s.Name, err)
		}
		selectors = append(selectors, "("+selected+")")
		for _, rule := range injectionRules(&s, o, NamespaceName(namespace)) {
			rule.Name = shorten(rule.Name+"-"+s.Name, s.Name)
			rules = append(rules, rule)
		}
	}
	policy := clusterPolicy(NamespaceName(namespace), namespace, strings.Join(selectors, " || "))
	policy.Annotations[NamespaceAnnotation] = namespace
	policy.Spec.Rules = rules
	return toUnstructured(policy)
}

func byName(a, b v1.StatefulSingleton) int { return strings.Compare(a.Name, b.Name) }

// clusterPolicy returns a policy without rules for the pods of the namespace that the CEL expression selects.
func clusterPolicy(name, namespace, selected string) *kyvernov1.ClusterPolicy {
	return &kyvernov1.ClusterPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: GVK.GroupVersion().String(), Kind: GVK.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{ManagedByLabel: ManagedBy},
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

// Disable changes the policy to match no pod.
func Disable(policy *unstructured.Unstructured) error {
	path := []string{"spec", "webhookConfiguration", "matchConditions"}
	conditions, _, err := unstructured.NestedSlice(policy.Object, path...)
	if err != nil {
		return fmt.Errorf("disable ClusterPolicy %s: %w", policy.GetName(), err)
	}
	for _, condition := range conditions {
		condition.(map[string]any)["expression"] = "false"
	}
	return unstructured.SetNestedSlice(policy.Object, conditions, path...)
}

func toUnstructured(policy *kyvernov1.ClusterPolicy) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(policy)
	if err != nil {
		return nil, fmt.Errorf("encode ClusterPolicy %s: %w", policy.Name, err)
	}
	object := map[string]any{}
	if err := utiljson.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("decode ClusterPolicy %s: %w", policy.Name, err)
	}
	delete(object, "status")
	return &unstructured.Unstructured{Object: object}, nil
}
