// Package policies renders the Kyverno ClusterPolicies that make singletons'
// pods wait, and tells whether a pod was really made to wait.
//
// There is one for each singleton, or one for each namespace, with the rules of all
// its singletons. Both do the same to a pod, and a pod that goes through both is as one
// that went through one.
//
// It alone knows Kyverno: what leaves it is unstructured. The pods' own strings
// are never part of a patch, and the singleton's are escaped, so that nothing a
// user writes is evaluated as a Kyverno variable. Every change is made only
// where it is still missing, since Kyverno may be asked twice about one pod.
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

// GVK is the kind of what Render returns.
var GVK = schema.GroupVersionKind{Group: "kyverno.io", Version: "v1", Kind: "ClusterPolicy"}

const (
	// ManagedByLabel is ManagedBy on every policy that Render returns, so that
	// the controller can watch its own policies alone.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of ManagedByLabel.
	ManagedBy = "statefulsingleton"
	// SingletonAnnotation names a policy's singleton, as <namespace>/<name>.
	SingletonAnnotation = "apps.statefulsingleton.com/singleton"
	// NamespaceAnnotation names the namespace of the singletons that share a policy.
	NamespaceAnnotation = "apps.statefulsingleton.com/namespace"
)

// WebhookTimeoutSeconds is how long the API server waits for Kyverno before it
// refuses the pod.
const WebhookTimeoutSeconds = 10

// Per is what has a policy of its own.
type Per string

const (
	// PerSingleton is the default.
	PerSingleton Per = "singleton"
	// PerNamespace is for more singletons than webhooks fit into Kyverno's
	// configuration, or into the time that the creation of any pod may take.
	PerNamespace Per = "namespace"
)

// Options are what a policy takes from the installation, not from the singleton.
type Options struct {
	// SidecarImage is the image of the status sidecar, which holds the gate.
	SidecarImage string
	// SidecarPullPolicy is its pull policy. Empty leaves it to Kubernetes.
	SidecarPullPolicy corev1.PullPolicy
	// SidecarPullSecrets name the Secrets to pull it with, of each singleton's namespace: every
	// held pod gets those that it does not name itself.
	SidecarPullSecrets []string
	// SidecarResources are what it asks for and may have. Default: DefaultSidecarResources.
	SidecarResources *corev1.ResourceRequirements
}

// Name is the name of a singleton's policy: of 63 characters at most, as Kyverno
// demands, and never the same for two singletons.
func Name(singleton types.NamespacedName) string {
	return shorten("stfs-"+singleton.Namespace+"-"+singleton.Name, singleton.String())
}

// NamespaceName is the name of the policy that the singletons of a namespace share.
// No singleton's has it.
func NamespaceName(namespace string) string {
	return shorten("stfs-"+namespace, namespace+"/")
}

// shorten makes a DNS label of what is readable, which nothing else has that is not
// of the same identity.
func shorten(readable, identity string) string {
	const hashLength, maxLength = 16, 63
	sum := sha256.Sum256([]byte(identity))
	readable = strings.ReplaceAll(readable, ".", "-")
	readable = readable[:min(len(readable), maxLength-hashLength-1)]
	return strings.TrimRight(readable, "-") + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// Validate fails if Kubernetes does not accept the selector, or if the selector is too
// large to be rendered: then the error is an ErrSelectorTooLarge.
func Validate(s *v1.StatefulSingleton) error {
	if _, err := selectorCEL(&s.Spec.Selector); err != nil {
		return fmt.Errorf("no ClusterPolicy injects the pods of StatefulSingleton %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// Render returns the ClusterPolicy that injects the pods of s. It fails where
// Validate does.
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

// RenderNamespace returns the ClusterPolicy that injects the pods of all these
// singletons, which are of the namespace, in whatever order they come. It fails where
// Render would.
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

// clusterPolicy is one without rules yet, for the pods of the namespace that the CEL
// expression selects.
func clusterPolicy(name, namespace, selected string) *kyvernov1.ClusterPolicy {
	return &kyvernov1.ClusterPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: GVK.GroupVersion().String(), Kind: GVK.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{ManagedByLabel: ManagedBy},
			// Or Kyverno would rewrite the Deployments that own such pods too.
			Annotations: map[string]string{kyverno.AnnotationAutogenControllers: "none"},
		},
		Spec: kyvernov1.Spec{
			Background: new(false),
			// The matchConditions give the policy a webhook of its own: without
			// them every pod of the cluster would depend on Kyverno.
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

// Disarm has no pod go through the policy any more, once Kyverno has seen it.
func Disarm(policy *unstructured.Unstructured) error {
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
