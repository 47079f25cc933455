package policies

import (
	"encoding/json"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The controller does not underestimate the size of a webhook, as etcd stores it. The names are as long as possible.
func TestWebhookBytes(t *testing.T) {
	name := strings.Repeat("a", 63)
	meta := metav1.ObjectMeta{Namespace: name, Name: name}
	selector := v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	// The size as PEM of a certificate authority like Kyverno's, which has an RSA key of 2,048 bits.
	certificate := make([]byte, 1115)
	for _, kind := range Kinds {
		for _, s := range []Subject{
			&v1.StatefulSingleton{ObjectMeta: meta, Spec: v1.StatefulSingletonSpec{Selector: selector}},
			&v1.StatefulSetLock{ObjectMeta: meta, Spec: v1.StatefulSetLockSpec{StatefulSetName: name, Fencing: v1.LockFencingLease}},
		} {
			policy, err := Render(s, Options{Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			webhook := webhookOf(t, policy, certificate)
			if size, estimate := webhook.Size(), usageOf(PerSingleton, []Subject{s}).webhooks; size > estimate {
				t.Errorf("the webhook of a %s for a %T has %d bytes, and the estimate is %d", kind, s, size, estimate)
			}
		}
	}
}

// webhookOf returns the webhook that Kyverno 1.19 writes for the policy of one object. In a cluster with 1,000 policies of a kind, the sizes were
// the same to the byte.
func webhookOf(t *testing.T, policy *unstructured.Unstructured, certificate []byte) admissionregistrationv1.MutatingWebhook {
	t.Helper()
	var rendered struct {
		Spec struct {
			WebhookConfiguration struct {
				FailurePolicy   admissionregistrationv1.FailurePolicyType
				MatchConditions []admissionregistrationv1.MatchCondition
			}
			FailurePolicy    admissionregistrationv1.FailurePolicyType
			MatchConditions  []admissionregistrationv1.MatchCondition
			MatchConstraints admissionregistrationv1.MatchResources
		}
	}
	if err := json.Unmarshal(encode(policy.Object), &rendered); err != nil {
		t.Fatal(err)
	}
	spec := rendered.Spec
	notIn := metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system"}}
	notKyverno := metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kyverno"}}
	webhook := admissionregistrationv1.MutatingWebhook{
		Name: "mutate.kyverno.svc-fail-finegrained-" + policy.GetName(),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: certificate, Service: &admissionregistrationv1.ServiceReference{
			Namespace: "kyverno", Name: "kyverno-svc", Path: new("/mutate/fail/finegrained/" + policy.GetName()), Port: new(int32(443)),
		}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/ephemeralcontainers"}, Scope: new(admissionregistrationv1.NamespacedScope),
			},
		}},
		FailurePolicy:           &spec.WebhookConfiguration.FailurePolicy,
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{notIn, notKyverno}},
		ObjectSelector:          &metav1.LabelSelector{},
		SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          new(int32(WebhookTimeoutSeconds)),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      new(admissionregistrationv1.IfNeededReinvocationPolicy),
		MatchConditions:         spec.WebhookConfiguration.MatchConditions,
	}
	if policy.GetKind() == string(NamespacedMutatingPolicy) {
		webhook.Name = "nmpol.validate.kyverno.svc-fail-finegrained-" + policy.GetNamespace() + "-" + policy.GetName()
		webhook.ClientConfig.Service.Path = new("/nmpol/" + policy.GetName())
		webhook.Rules[0].Resources, webhook.Rules[0].Scope = []string{"pods"}, new(admissionregistrationv1.AllScopes)
		webhook.ReinvocationPolicy = new(admissionregistrationv1.NeverReinvocationPolicy)
		webhook.FailurePolicy, webhook.MatchConditions = &spec.FailurePolicy, spec.MatchConditions
		webhook.NamespaceSelector.MatchExpressions = append(webhook.NamespaceSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{policy.GetNamespace()}})
		webhook.ObjectSelector = spec.MatchConstraints.ObjectSelector
	}
	return webhook
}
