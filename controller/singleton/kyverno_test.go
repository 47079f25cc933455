package singleton_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// kyvernoLabel is a label of a namespace that controls the webhook for Kyverno. "serves" injects pods, "refuses"
// rejects all pods, and "singleton" or "namespace" serves only policies of that kind. Without the label, Kyverno is
// down.
const kyvernoLabel = "test/kyverno"

// refusedLabel is a label of a namespace. Its value is the app whose pods the webhook rejects.
const refusedLabel = "test/refused"

const kyvernoPath = "/mutate"

func kyvernoWebhooks() []*admissionregistrationv1.MutatingWebhookConfiguration {
	return []*admissionregistrationv1.MutatingWebhookConfiguration{{
		ObjectMeta: metav1.ObjectMeta{Name: "kyverno"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "mutate.kyverno.svc",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: "kyverno", Name: "kyverno-svc", Path: new(kyvernoPath)},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: kyvernoLabel, Operator: metav1.LabelSelectorOpExists}},
			},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}}
}

// serveKyverno injects the pods of each singleton whose ClusterPolicy exists, like Kyverno.
func serveKyverno(ctx context.Context, o envtest.WebhookInstallOptions) {
	server := webhook.NewServer(webhook.Options{Host: o.LocalServingHost, Port: o.LocalServingPort, CertDir: o.LocalServingCertDir})
	server.Register(kyvernoPath, &admission.Webhook{Handler: admission.HandlerFunc(mutate)})
	go func() {
		if err := server.Start(ctx); err != nil {
			panic(fmt.Sprintf("serve the webhook: %v", err))
		}
	}()
}

func mutate(ctx context.Context, request admission.Request) admission.Response {
	var namespace corev1.Namespace
	if err := c.Get(ctx, client.ObjectKey{Name: request.Namespace}, &namespace); err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if namespace.Labels[kyvernoLabel] == "refuses" {
		return admission.Denied("\n\nresource Pod was blocked due to the following policies\n\nsome-policy:\n  some-rule: not on my watch.\n")
	}
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode the pod: %w", err))
	}
	if app := namespace.Labels[refusedLabel]; app != "" && pod.Labels["app"] == app {
		return admission.Denied("not this one")
	}
	var singletons v1.StatefulSingletonList
	if err := c.List(ctx, &singletons, client.InNamespace(request.Namespace)); err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	webhooksMu.Lock()
	defer webhooksMu.Unlock()
	for i := range singletons.Items {
		s := &singletons.Items[i]
		key := client.ObjectKeyFromObject(s)
		selector, err := singletons.Items[i].Spec.Selector.Parse()
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		for _, kind := range policies.Kinds {
			for per, policy := range map[string]policies.Ref{"singleton": kind.Of(s), "namespace": kind.OfNamespace(key.Namespace)} {
				if served := namespace.Labels[kyvernoLabel]; served != "serves" && served != per {
					continue
				}
				switch exists, injects := rulesOf(ctx, policy, s); {
				case injects:
					answer(inject(&pod, key), policy)
				case !exists && webhooks[policy] && kind == policies.ClusterPolicy: // the other kind lets such pods through
					webhooks[policy] = false
					return admission.Denied("failed to fetch policy with key: " + policy.Name)
				}
			}
		}
	}
	injected, err := json.Marshal(&pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, injected)
}

// webhooks are the policies that have a webhook. Kyverno removes the webhook of a deleted policy with a delay, and
// rejects pods until then.
var (
	webhooksMu sync.Mutex
	webhooks   = map[policies.Ref]bool{}
)

// rulesOf returns whether the policy exists and whether it injects pods for the singleton.
func rulesOf(ctx context.Context, ref policies.Ref, singleton *v1.StatefulSingleton) (exists, injects bool) {
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(ref.Kind.GVK())
	if err := c.Get(ctx, ref.NamespacedName, policy); err != nil {
		return false, false
	}
	webhooks[ref] = !strings.Contains(fmt.Sprint(policy.Object["spec"]), "expression:false")
	shared, err := policies.InstalledIn(policy)
	own := policy.GetAnnotations()[policies.SingletonAnnotation] == client.ObjectKeyFromObject(singleton).String()
	return true, webhooks[ref] && err == nil && (own || shared.Has(singleton))
}

// answer adds the annotation that shows that a probe passed through the policy.
func answer(pod *corev1.Pod, policy policies.Ref) {
	prefix := map[policies.Kind]string{policies.ClusterPolicy: "policy", policies.NamespacedMutatingPolicy: "mutatingpolicy"}[policy.Kind]
	if pod.Annotations["apps.statefulsingleton.com/probe"] == "true" {
		pod.Annotations[prefix+".statefulsingleton.com/"+policy.Name] = "true"
	}
}

func policyMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	return m
}
