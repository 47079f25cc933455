//go:build cluster

package policies_test

import (
	"bytes"
	"context"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientconfig "sigs.k8s.io/controller-runtime/pkg/client/config"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// The real Kyverno injects pods, and the real guards admit them, in the cluster of KUBECONFIG. TestInjection has more pods.
func TestOnCluster(t *testing.T) { withEachKind(t, testOnCluster) }

func testOnCluster(t *testing.T, c client.Client) {
	createAPIServer(t, c)
	for _, object := range helmTemplate(t, "crd.yaml", "guards.yaml") {
		if err := c.Create(t.Context(), object); !apierrors.IsAlreadyExists(err) {
			if err != nil {
				t.Fatal(err)
			}
			deleteAtEnd(t, c, object)
		}
	}
	for singleton, pods := range map[string][]string{
		"default":               {"shell", "scratch", "weird-strings"},
		"hold-init-containers":  {"init-containers", "restricted"},
		"named-init-containers": {"init-containers"},
	} {
		t.Run(singleton, func(t *testing.T) {
			s := installSingleton(t, c, singleton)
			for _, name := range pods {
				t.Run(name, func(t *testing.T) { checkInjection(t, c, readPod(t, name, nil), s) })
			}
		})
	}
	t.Run("pull secrets", func(t *testing.T) { checkPullSecrets(t, c) })
}

// withEachKind runs the test with policies of each kind.
func withEachKind(t *testing.T, test func(*testing.T, client.Client)) {
	config, err := clientconfig.GetConfig()
	if err != nil {
		t.Fatalf("find the cluster, as `cluster exec -- go test -tags cluster ./policies` does: %v", err)
	}
	c := newClient(t, config)
	before := options
	t.Cleanup(func() { options = before })
	useInstalledGate(t, c)
	for _, options.Kind = range policies.Kinds {
		t.Run(string(options.Kind), func(t *testing.T) { test(t, c) })
	}
}

// useInstalledGate injects the image that the guards of the cluster admit, if guards are installed.
func useInstalledGate(t *testing.T, c client.Client) {
	t.Helper()
	var list admissionregistrationv1.ValidatingAdmissionPolicyList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, policy := range list.Items {
		if image := policy.Annotations["apps.statefulsingleton.com/gate-image"]; image != "" {
			options.SidecarImage = image
		}
	}
}

// The API server adds the pull secrets of the service account only if the pod has none. The pull secrets of the sidecar
// must not prevent that, even if Kyverno mutates the pod twice. The StatefulSingleton does not exist, so the controller
// does not change the policy.
func checkPullSecrets(t *testing.T, c client.Client) {
	o := options
	o.SidecarPullSecrets = []string{"mirror"}
	s := readSingleton(t, "default")
	s.Namespace = clusterNamespace(t, c, "policies-pull")
	policy := ownPolicy(s, o).render(t, options.Kind)
	policy.SetLabels(nil) // the controller would look after it
	create(t, c, policy)
	deleteAtEnd(t, c, policy)
	awaitAnswers(t, c, []v1.StatefulSingleton{*s}, options.Kind.Of(s))
	create(t, c, &corev1.ServiceAccount{
		ObjectMeta:       metav1.ObjectMeta{Namespace: s.Namespace, Name: "puller"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "team"}},
	})
	pod := bare(s.Namespace, s)
	pod.Spec.ServiceAccountName = "puller"

	got := dryRun(t, c, pod, s.Namespace).Spec.ImagePullSecrets

	if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: "team"}, {Name: "mirror"}}, got); diff != "" {
		t.Errorf("pull secrets (-want +got):\n%s", diff)
	}
}

// The real Kyverno injects the pods of several singletons with one policy. The StatefulSingletons do not exist, so the controller
// does not change the policy. TestBothPoliciesAreEquivalent also has the policies of the singletons.
func TestSharedOnCluster(t *testing.T) { withEachKind(t, testSharedOnCluster) }

func testSharedOnCluster(t *testing.T, c client.Client) {
	namespace := clusterNamespace(t, c, "policies-shared")
	var singletons []v1.StatefulSingleton
	for _, file := range []string{"default", "named-containers", "hold-init-containers"} {
		s := named(t, file, file)
		s.Namespace = namespace
		singletons = append(singletons, s)
	}
	shared := sharedPolicy(singletons...).render(t, options.Kind)
	shared.SetLabels(nil) // the controller would look after it
	create(t, c, shared)
	deleteAtEnd(t, c, shared)
	awaitAnswers(t, c, singletons, options.Kind.OfNamespace(namespace))
	wantOwnWebhook(t, c, shared)
	for _, s := range singletons {
		t.Run(s.Name, func(t *testing.T) {
			checkInjection(t, c, readPod(t, "shell", func(p *corev1.Pod) { p.Labels["app"] = s.Name }), &s)
		})
	}
}

// awaitAnswers waits until the probe pods of all singletons pass through the policy.
func awaitAnswers(t *testing.T, c client.Client, singletons []v1.StatefulSingleton, policy policies.Ref) {
	t.Helper()
	for _, s := range singletons {
		eventually(t, "inject the probe pod of "+s.Name, func() error {
			probe, err := policies.ProbePod(&s, options)
			if err != nil {
				return err
			}
			if err := c.Create(t.Context(), probe, client.DryRunAll); err != nil {
				return err
			}
			return policies.CheckProbe(probe, &s, policy)
		})
	}
}

// checkInjection checks that the pod is injected, and that a second pass changes only the barrier.
func checkInjection(t *testing.T, c client.Client, pod *corev1.Pod, s *v1.StatefulSingleton) {
	t.Helper()
	pod.Spec.AutomountServiceAccountToken = new(false) // the volume of the token has a random name
	got := dryRun(t, c, pod, s.Namespace)
	if err := policies.CheckInjected(got, s); err != nil {
		t.Error(err)
	}
	again, uid := dryRun(t, c, got, s.Namespace), barrierUID(got)
	if uid != "" && barrierUID(again) == uid {
		t.Error("a copy of the pod waits for the same ConfigMap")
	}
	if diff := cmp.Diff(got.Spec, withBarrierUID(t, again, barrierUID(again), uid).Spec, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("a second pass changed the pod (-first +second):\n%s", diff)
	}
}

// dryRun returns pod as the API server would store it in namespace.
func dryRun(t *testing.T, c client.Client, pod *corev1.Pod, namespace string) *corev1.Pod {
	t.Helper()
	pod = pod.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: namespace, Name: pod.Name, GenerateName: pod.GenerateName,
		Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
	}
	if err := c.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Fatalf("dry-run in %s: %v", namespace, err)
	}
	return pod
}

// barrierUID returns the UID of the admission request in the barriers of the pod, or "" if the pod has no barrier.
func barrierUID(pod *corev1.Pod) string {
	for _, container := range allContainers(*pod) {
		for _, e := range container.Env {
			if e.ValueFrom == nil || e.ValueFrom.ConfigMapKeyRef == nil {
				continue
			}
			if name := e.ValueFrom.ConfigMapKeyRef.Name; len(name) == len("statefulsingleton-")+len(firstRequest) {
				return name[len("statefulsingleton-"):]
			}
		}
	}
	return ""
}

func withBarrierUID(t *testing.T, pod *corev1.Pod, from, to string) corev1.Pod {
	t.Helper()
	if from == "" {
		return *pod
	}
	return decoded[corev1.Pod](t, bytes.ReplaceAll(mustJSON(t, pod), []byte(from), []byte(to)))
}

// installSingleton creates the policy of the singleton, and waits until a selected pod is injected. The singleton itself
// exists only if its policy is of the kind that the installed controller writes. Otherwise, two policies would hold its pods.
func installSingleton(t *testing.T, c client.Client, name string) *v1.StatefulSingleton {
	t.Helper()
	s := readSingleton(t, name)
	s.Namespace = clusterNamespace(t, c, "policies-"+name)
	policy := render(t, s)
	if options.Kind != policies.ClusterPolicy {
		policy.SetLabels(nil) // the controller would look after it
	}
	create(t, c, policy)
	deleteAtEnd(t, c, policy)
	if options.Kind == policies.ClusterPolicy {
		eventually(t, "create the StatefulSingleton", func() error { return c.Create(t.Context(), s) })
	}
	awaitAnswers(t, c, []v1.StatefulSingleton{*s}, options.Kind.Of(s))
	wantOwnWebhook(t, c, policy)
	return s
}

// wantOwnWebhook checks that the policy has a webhook that receives only the policy's pods.
func wantOwnWebhook(t *testing.T, c client.Client, policy *unstructured.Unstructured) {
	t.Helper()
	var configurations admissionregistrationv1.MutatingWebhookConfigurationList
	if err := c.List(t.Context(), &configurations); err != nil {
		t.Fatal(err)
	}
	for _, configuration := range configurations.Items {
		for _, webhook := range configuration.Webhooks {
			service := webhook.ClientConfig.Service
			if service == nil || path.Base(ptr.Deref(service.Path, "")) != policy.GetName() {
				continue
			}
			if diff := cmp.Diff(wantWebhook(t, policy), admissionregistrationv1.MutatingWebhook{
				FailurePolicy: webhook.FailurePolicy, MatchConditions: forPods(webhook.MatchConditions),
				ObjectSelector: webhook.ObjectSelector, NamespaceSelector: onlyNamespace(webhook.NamespaceSelector),
			}, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("webhook %s (-want +got):\n%s", webhook.Name, diff)
			}
			return
		}
	}
	t.Errorf("%s %s has no webhook of its own", policy.GetKind(), policy.GetName())
}

// wantWebhook returns the fields of the policy's webhook that select pods, and its failure policy.
func wantWebhook(t *testing.T, policy *unstructured.Unstructured) admissionregistrationv1.MutatingWebhook {
	t.Helper()
	want := admissionregistrationv1.MutatingWebhook{
		FailurePolicy:     new(admissionregistrationv1.Fail),
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
	}
	if policy.GetKind() == string(policies.ClusterPolicy) {
		want.MatchConditions = matchConditions(t, policy)
		return want
	}
	var spec struct {
		MatchConditions  []admissionregistrationv1.MatchCondition `json:"matchConditions"`
		MatchConstraints admissionregistrationv1.MatchResources   `json:"matchConstraints"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(policy.Object["spec"].(map[string]any), &spec); err != nil {
		t.Fatal(err)
	}
	want.MatchConditions = spec.MatchConditions
	want.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{policy.GetNamespace()},
	}}
	if spec.MatchConstraints.ObjectSelector != nil {
		want.ObjectSelector = spec.MatchConstraints.ObjectSelector
	}
	return want
}

// onlyNamespace returns the selector without Kyverno's settings, which exclude its own namespace.
func onlyNamespace(selector *metav1.LabelSelector) *metav1.LabelSelector {
	selector = selector.DeepCopy()
	selector.MatchExpressions = slices.DeleteFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Operator == metav1.LabelSelectorOpNotIn
	})
	return selector
}

// forPods returns the conditions without the precondition that Kyverno adds if a policy could also be for owners of pods.
func forPods(conditions []admissionregistrationv1.MatchCondition) []admissionregistrationv1.MatchCondition {
	for i, c := range conditions {
		if expression, found := strings.CutPrefix(c.Expression, "!((object.apiVersion == 'v1' && object.kind =='Pod')) || ("); found {
			conditions[i] = admissionregistrationv1.MatchCondition{Name: strings.TrimPrefix(c.Name, "autogen-"), Expression: strings.TrimSuffix(expression, ")")}
		}
	}
	return conditions
}

func clusterNamespace(t *testing.T, c client.Client, name string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}
	create(t, c, namespace)
	deleteAtEnd(t, c, namespace)
	create(t, c, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "db"}})
	eventually(t, "find the default service account", func() error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: namespace.Name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return namespace.Name
}

func deleteAtEnd(t *testing.T, c client.Client, object client.Object) {
	t.Cleanup(func() {
		object := object.DeepCopyObject().(client.Object)
		if err := client.IgnoreNotFound(c.Delete(context.Background(), object)); err != nil {
			t.Errorf("delete %s: %v", client.ObjectKeyFromObject(object), err)
		}
	})
}
