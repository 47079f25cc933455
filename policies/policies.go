// Package policies renders the Kyverno ClusterPolicy that makes a singleton's
// pods wait, and tells whether a pod was really made to wait.
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
	"k8s.io/utils/ptr"

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
	// SpecHashAnnotation tells whether a policy is up to date. Its spec can't be
	// compared with Render's: Kyverno's CRD fills in defaults.
	SpecHashAnnotation = "apps.statefulsingleton.com/spec-hash"
)

// webhookTimeoutSeconds is how long the API server waits for Kyverno before it
// refuses the pod.
const webhookTimeoutSeconds = 10

// Options are what a policy takes from the installation, not from the singleton.
type Options struct {
	// SidecarImage is the image of the status sidecar, which holds the gate.
	SidecarImage string
	// SidecarPullPolicy is its pull policy. Empty leaves it to Kubernetes.
	SidecarPullPolicy corev1.PullPolicy
}

// Name is the name of a singleton's policy: of 63 characters at most, as Kyverno
// demands, and never the same for two singletons.
func Name(singleton types.NamespacedName) string {
	const hashLength, maxLength = 16, 63
	sum := sha256.Sum256([]byte(singleton.String()))
	readable := strings.ReplaceAll("stfs-"+singleton.Namespace+"-"+singleton.Name, ".", "-")
	readable = readable[:min(len(readable), maxLength-hashLength-1)]
	return strings.TrimRight(readable, "-") + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// Render returns the ClusterPolicy that injects the pods of s. It fails where
// the selector is none that Kubernetes accepts.
func Render(s *v1.StatefulSingleton, o Options) (*unstructured.Unstructured, error) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	selected, err := selectorCEL(&s.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("render the ClusterPolicy of StatefulSingleton %s: %w", key, err)
	}
	policy := &kyvernov1.ClusterPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: GVK.GroupVersion().String(), Kind: GVK.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name:   Name(key),
			Labels: map[string]string{ManagedByLabel: ManagedBy, v1.SingletonLabel: s.Name},
			Annotations: map[string]string{
				// Or Kyverno would rewrite the Deployments that own such pods too.
				kyverno.AnnotationAutogenControllers: "none",
				SingletonAnnotation:                  key.String(),
			},
		},
		Spec: kyvernov1.Spec{
			Background: ptr.To(false),
			// The matchConditions give the policy a webhook of its own: without
			// them every pod of the cluster would depend on Kyverno.
			WebhookConfiguration: &kyvernov1.WebhookConfiguration{
				FailurePolicy:  ptr.To(kyvernov1.Fail),
				TimeoutSeconds: ptr.To(int32(webhookTimeoutSeconds)),
				MatchConditions: []admissionregistrationv1.MatchCondition{
					{Name: "namespace", Expression: "request.namespace == " + celString(s.Namespace)},
					{Name: "selector", Expression: selected},
					{Name: "not-a-mirror-pod", Expression: notMirrorCEL},
				},
			},
			Rules: injectionRules(s, o),
		},
	}
	return toUnstructured(policy)
}

func toUnstructured(policy *kyvernov1.ClusterPolicy) (*unstructured.Unstructured, error) {
	spec, err := json.Marshal(policy.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode the spec of ClusterPolicy %s: %w", policy.Name, err)
	}
	sum := sha256.Sum256(spec)
	policy.Annotations[SpecHashAnnotation] = hex.EncodeToString(sum[:])

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
