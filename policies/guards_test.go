package policies_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

const (
	chart            = "../charts/statefulsingleton"
	releaseNamespace = "the-release"
	notInjected      = "but Kyverno has not injected it"
	controllerUser   = "system:serviceaccount:the-release:demo-statefulsingleton"
)

// TestOnAPIServer: a real API server evaluates the guards and the selectors. Kyverno does not run. The pods are those
// that Kyverno injected in TestInjection.
func TestOnAPIServer(t *testing.T) {
	environment := startAPIServer(t)
	stopAtEnd(t, environment)
	config := environment.Config
	c := newClient(t, config)
	install(t, c, "crd.yaml")
	known := createSingleton(t, c, "known", readSingleton(t, "default"))
	createAPIServer(t, c)
	install(t, c, "guards.yaml", "guards-writes.yaml")
	waitForRefusal(t, c, bare(known.Namespace, known), notInjected)
	waitForAdmission(t, c, bare("default", nil))
	t.Run("held", func(t *testing.T) { testHeld(t, c) })
	t.Run("not guarded", func(t *testing.T) { testNotGuarded(t, c) })
	t.Run("injected", func(t *testing.T) { testInjected(t, c) })
	t.Run("forged", func(t *testing.T) { testForged(t, c) })
	t.Run("fenced", func(t *testing.T) { testFenced(t, c) })
	t.Run("being deleted", func(t *testing.T) { testBeingDeleted(t, config) })
	t.Run("sidecar-image", func(t *testing.T) { testSidecarImage(t, config) })
	t.Run("ephemeral-containers", func(t *testing.T) { testEphemeralContainers(t, config) })
	t.Run("selector", func(t *testing.T) { testSelectors(t, c) })
	t.Run("large selector", func(t *testing.T) { testLargeSelector(t, c) })
	t.Run("selected by many", func(t *testing.T) { testSelectedByMany(t, c) })
	t.Run("copied", func(t *testing.T) { testCopied(t, config) })
	t.Run("unreleased", func(t *testing.T) { testUnreleased(t, c) })
	t.Run("marks", func(t *testing.T) { testMarks(t, config) })
	t.Run("subresources", func(t *testing.T) { testSubresources(t, config) })
	t.Run("bindings", func(t *testing.T) { testBindings(t, config) })
	t.Run("finalizer", func(t *testing.T) { testFinalizer(t, config) })
	t.Run("barrier", func(t *testing.T) { testBarrier(t, config) })
	t.Run("attestation", func(t *testing.T) { testAttestation(t, config) })
	t.Run("record", func(t *testing.T) { testRecord(t, config) })
	t.Run("exempt-namespaces", func(t *testing.T) { testExemptNamespace(t, c) })
	t.Run("definition", func(t *testing.T) { testDefinition(t, c) })
	t.Run("definition changes", func(t *testing.T) { testDefinitionChanges(t, c, known) })
}

// testSelectors: the guard selects the same pods as the label selectors of Kubernetes. FuzzSelectorCEL shows the same of the
// policy's matchConditions.
func testSelectors(t *testing.T, c client.Client) {
	in, notIn := metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn
	exists, doesNotExist := metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist
	selectors := map[string]v1.LabelSelector{
		"match-labels":   {MatchLabels: map[string]string{"app": "db", "example.com/tier": "gold"}},
		"empty-value":    {MatchLabels: map[string]string{"app": ""}},
		"in":             selectorOf(expression("app", in, "db", "web")),
		"not-in":         selectorOf(expression("app", notIn, "db", "web")),
		"exists":         selectorOf(expression("app", exists)),
		"does-not-exist": selectorOf(expression("app", doesNotExist)),
		"all-of-them": {MatchLabels: map[string]string{"example.com/tier": "gold"},
			MatchExpressions: []v1.LabelSelectorRequirement{expression("app", in, "db"), expression("debug", doesNotExist), expression("app", notIn, "web")}},
	}
	podLabels := []map[string]string{
		nil, {"app": "db"}, {"app": "web"}, {"app": ""}, {"app": "other"}, {"example.com/tier": "gold"},
		{"app": "db", "example.com/tier": "gold"}, {"app": "db", "example.com/tier": "silver"},
		{"app": "db", "example.com/tier": "gold", "debug": ""},
	}
	for name, selector := range selectors {
		t.Run(name, func(t *testing.T) {
			s := createSingleton(t, c, "guard-"+name, singletonOf(selector))
			parsed, _ := selector.Parse()
			waitForRefusal(t, c, bare(s.Namespace, s), notInjected)
			for _, set := range podLabels {
				want := parsed.Matches(labels.Set(set))
				if got := tryCreate(t, c, podOf(s.Namespace, set)) != nil; got != want {
					t.Errorf("%v is selected: %t, want %t", set, got, want)
				}
			}
		})
	}
}

// testSelectedByMany: no pod that more than policies.MaxSelecting singletons select is sent to Kyverno for a shared policy. The guard
// rejects the pod.
func testSelectedByMany(t *testing.T, c client.Client) {
	const guarded, picked, label = "guard-many", "policy-many", "selected-by"
	createNamespace(t, c, picked)
	createNamespace(t, c, guarded)
	var singletons []v1.StatefulSingleton
	for i := range policies.MaxSelecting + 1 {
		var values []string
		for many := i + 1; many <= policies.MaxSelecting+1; many++ {
			values = append(values, strconv.Itoa(many))
		}
		s := singletonOf(selectorOf(expression(label, metav1.LabelSelectorOpIn, values...)))
		s.Name, s.Namespace = fmt.Sprint("db-", i), picked
		singletons = append(singletons, *s)
		s.Namespace = guarded
		create(t, c, s)
	}
	selectedBy := func(namespace string, many int) *corev1.Pod {
		return podOf(namespace, map[string]string{label: strconv.Itoa(many)})
	}
	refuseWhatMatches(t, c, picked, sharedPolicy(singletons...).render(t, policies.ClusterPolicy))
	waitForRefusal(t, c, selectedBy(guarded, 1), notInjected)
	waitForRefusal(t, c, selectedBy(picked, 1), "failed expression: false")
	for many := range policies.MaxSelecting + 2 {
		wantSent, wantRefused := "", ""
		if many > 0 {
			wantSent, wantRefused = "failed expression: false", notInjected
		}
		if many > policies.MaxSelecting {
			wantSent = ""
		}
		t.Run(strconv.Itoa(many), func(t *testing.T) {
			wantAnswer(t, tryCreate(t, c, selectedBy(picked, many)), wantSent)
			wantAnswer(t, tryCreate(t, c, selectedBy(guarded, many)), wantRefused)
		})
	}
}

// refuseWhatMatches makes the API server evaluate the matchConditions of a ClusterPolicy. It creates a guard that rejects
// matching pods.
func refuseWhatMatches(t *testing.T, c client.Client, namespace string, policy *unstructured.Unstructured) {
	t.Helper()
	name := "refuse-" + namespace
	newPods := admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}
	create(t, c, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{newPods}},
			MatchConditions:  matchConditions(t, policy),
			Validations:      []admissionregistrationv1.Validation{{Expression: "false"}},
		},
	}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	})
}

func matchConditions(t *testing.T, policy *unstructured.Unstructured) []admissionregistrationv1.MatchCondition {
	t.Helper()
	found, _, err := unstructured.NestedSlice(policy.Object, "spec", "webhookConfiguration", "matchConditions")
	if err != nil {
		t.Fatal(err)
	}
	var conditions []admissionregistrationv1.MatchCondition
	decode(t, encode(t, found), &conditions)
	return conditions
}

func testUnreleased(t *testing.T, c client.Client) {
	annotate := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{"apps.statefulsingleton.com/" + name: ""} }
	}
	label := func(p *corev1.Pod) { p.Labels = map[string]string{v1.RoleLabel: "standby"} }
	released := bare("default", nil)
	label(released)
	waitForRefusal(t, c, released, "role cannot be set when a pod is created")
	wantCreations(t, c, func() *corev1.Pod { return bare("default", nil) }, map[string]change[*corev1.Pod]{
		"plain": {},
		"others' own": {change: func(p *corev1.Pod) {
			p.Annotations, p.Labels, p.Finalizers = map[string]string{"a": "b"}, map[string]string{"role": "active"}, []string{"example.com/mine"}
		}},
		"chosen":    {annotate("chosen-by"), "chosen-by cannot be set when a pod is created"},
		"signal":    {annotate("start-signal"), "start-signal cannot be set when a pod is created"},
		"role":      {label, "role cannot be set when a pod is created"},
		"finalizer": {func(p *corev1.Pod) { p.Finalizers = []string{v1.HandoffFinalizer} }, "handoff cannot be set when a pod is created"},
	})
}

// startAPIServer starts an API server, which the caller must stop.
func startAPIServer(t *testing.T) *envtest.Environment {
	t.Helper()
	environment := &envtest.Environment{}
	if _, err := environment.Start(); err != nil {
		t.Fatalf("start kube-apiserver and etcd from KUBEBUILDER_ASSETS (`make test` sets it): %v", err)
	}
	environment.Config.WarningHandler = rest.NoWarnings{}
	return environment
}

// stopAtEnd stops an API server at the end of the test.
func stopAtEnd(t *testing.T, environment *envtest.Environment) {
	t.Helper()
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("stop kube-apiserver and etcd: %v", err)
		}
	})
}

// shared has the API servers with guards that several tests share. TestMain stops them.
var shared = map[string]*envtest.Environment{}

// sharedAPIServer returns the API server of that name. The first test that needs it prepares it.
func sharedAPIServer(t *testing.T, name string, prepare func(*testing.T, *envtest.Environment)) *envtest.Environment {
	t.Helper()
	if shared[name] == nil {
		shared[name] = startAPIServer(t)
		prepare(t, shared[name])
	}
	return shared[name]
}

func TestMain(m *testing.M) {
	utilruntime.Must(v1.AddToScheme(clientgoscheme.Scheme))
	code := m.Run()
	for name, environment := range shared {
		if err := environment.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stop kube-apiserver and etcd of %s: %v\n", name, err)
			code = 1
		}
	}
	os.Exit(code)
}

// newClient returns a client for a user without limits.
func newClient(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	mapper, err := mapperOf(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mappers cache the kinds of each API server for all clients.
var mappers = map[string]meta.RESTMapper{}

func mapperOf(config *rest.Config) (meta.RESTMapper, error) {
	if mapper := mappers[config.Host]; mapper != nil {
		return mapper, nil
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	mappers[config.Host] = mapper
	return mapper, err
}

// user is a user, and the pod of its token.
type user struct{ name, pod, uid string }

// client returns a client for the user, with the fields that the API server reads from the token of a pod. RBAC allows all
// requests of the client, so only the guards reject them.
func (u user) client(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	impersonating := rest.CopyConfig(config)
	impersonating.Impersonate = rest.ImpersonationConfig{UserName: u.name, Groups: []string{"system:masters"}, Extra: map[string][]string{}}
	if u.pod != "" {
		impersonating.Impersonate.Extra["authentication.kubernetes.io/pod-name"] = []string{u.pod}
	}
	if u.uid != "" {
		impersonating.Impersonate.Extra["authentication.kubernetes.io/pod-uid"] = []string{u.uid}
	}
	return newClient(t, impersonating)
}

func clientAs(t *testing.T, config *rest.Config, name string) client.Client {
	t.Helper()
	return user{name: name}.client(t, config)
}

// helmTemplate returns the objects of the given templates of the chart. The templates begin with flags for helm.
func helmTemplate(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	// The image in the pods of testdata.
	colon := strings.LastIndex(options.SidecarImage, ":")
	repository, tag := options.SidecarImage[:colon], options.SidecarImage[colon+1:]
	flags := []string{"--set", "image.gate.repository=" + repository, "--set-string", "image.gate.tag=" + tag}
	for _, arg := range args {
		if strings.HasSuffix(arg, ".yaml") {
			flags = append(flags, "--show-only")
			arg = "templates/" + arg
		}
		flags = append(flags, arg)
	}
	objects, err := helmTemplateWith(t, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// install creates the objects of the given templates of the chart.
func install(t *testing.T, c client.Client, args ...string) {
	t.Helper()
	for _, object := range helmTemplate(t, args...) {
		create(t, c, object)
	}
}

func helmTemplateWith(t *testing.T, args ...string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	var stderr bytes.Buffer
	command := exec.Command("helm", append([]string{"template", "demo", chart, "--namespace", releaseNamespace}, args...)...)
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("helm must be on PATH (`make test` sees to that) and render the chart with %v: %w\n%s", args, err, &stderr)
	}
	var objects []*unstructured.Unstructured
	for documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

func create(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatalf("create %T %s: %v", object, client.ObjectKeyFromObject(object), err)
		}
	}
}

// tryCreate creates the object in a server-side dry-run.
func tryCreate(t *testing.T, c client.Client, object client.Object) error {
	t.Helper()
	return c.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
}

func createNamespace(t *testing.T, c client.Client, name string) {
	t.Helper()
	create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// createSingleton creates s in a new namespace, after the API server serves the kind.
func createSingleton(t *testing.T, c client.Client, namespace string, s *v1.StatefulSingleton) *v1.StatefulSingleton {
	t.Helper()
	createNamespace(t, c, namespace)
	s.Namespace = namespace
	eventually(t, "create StatefulSingleton "+namespace+"/"+s.Name, func() error { return c.Create(t.Context(), s) })
	return s
}

// eventually waits until try returns nil, because the API server hears of guards, their parameters and kinds with a delay. It
// discovers the kinds of parameters every 30 seconds.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 90*time.Second, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

// waitForRefusal waits until the object is refused with the message.
func waitForRefusal(t *testing.T, c client.Client, object client.Object, message string) {
	t.Helper()
	eventually(t, "create an object", func() error { return wrongAnswer(tryCreate(t, c, object), message) })
}

// waitForAdmission waits until the object is admitted.
func waitForAdmission(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	waitForRefusal(t, c, object, "")
}

// waitForGuard waits until a guard rejects the write.
func waitForGuard(t *testing.T, write func() error) {
	t.Helper()
	eventually(t, "write what a guard rejects", func() error { return wrongAnswer(write(), "ValidatingAdmissionPolicy") })
}

// wrongAnswer returns nil if err is nil and refused is empty, or if err contains refused.
func wrongAnswer(err error, refused string) error {
	switch {
	case refused == "" && err != nil:
		return fmt.Errorf("refused: %w", err)
	case refused != "" && err == nil:
		return fmt.Errorf("admitted, want it refused: %q", refused)
	case refused != "" && !strings.Contains(err.Error(), refused):
		return fmt.Errorf("refused: %w\nwant %q in it", err, refused)
	}
	return nil
}

func wantAnswer(t *testing.T, err error, refused string) {
	t.Helper()
	if err := wrongAnswer(err, refused); err != nil {
		t.Error(err)
	}
}

// wantCreations creates what fresh returns, after each change, in a server-side dry-run.
func wantCreations[T client.Object](t *testing.T, c client.Client, fresh func() T, tests map[string]change[T]) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := fresh()
			if test.change != nil {
				test.change(object)
			}
			wantAnswer(t, tryCreate(t, c, object), test.wantRefused)
		})
	}
}

// change is a change of an object, and the answer to a write of the changed object. Empty: the write passes.
type change[T client.Object] struct {
	change      func(T)
	wantRefused string
}

// bare returns a pod that s selects and that was not injected.
func bare(namespace string, s *v1.StatefulSingleton) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "bare-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "debian"}}},
	}
	if s != nil {
		probe, err := policies.ProbePod(s, options)
		if err != nil {
			panic(err)
		}
		pod.Labels = maps.Clone(probe.Labels)
	}
	return pod
}

// podOf returns a pod with the labels that was not injected.
func podOf(namespace string, set map[string]string) *corev1.Pod {
	pod := bare(namespace, nil)
	pod.Labels = set
	return pod
}

// injectedPod returns a pod of testdata/injected in the namespace of s.
func injectedPod(t *testing.T, golden string, s *v1.StatefulSingleton) *corev1.Pod {
	t.Helper()
	pod := decoded[corev1.Pod](t, readFile(t, filepath.Join("testdata", "injected", golden+".yaml")))
	pod.Namespace = s.Namespace
	pod.Spec.ServiceAccountName = cmp.Or(pod.Spec.ServiceAccountName, "default") // the admission plugin does not run here
	pod.Annotations[v1.InjectedAnnotation] = s.Namespace + "/" + s.Name
	for _, c := range pod.Spec.InitContainers {
		for i := range c.Env {
			if c.Env[i].Name == signal.LeaseEnv {
				c.Env[i].Value = s.Namespace + "/" + signal.LeaseName(s.Name)
			}
		}
	}
	return &pod
}

func uninject(p *corev1.Pod) {
	p.Annotations = nil
	delete(p.Labels, v1.SingletonLabel)
	p.Spec.ReadinessGates, p.Spec.InitContainers, p.Spec.Volumes = nil, nil, nil
	for i := range p.Spec.Containers {
		release(&p.Spec.Containers[i])
	}
}

// enlarge adds as many containers and variables as a pod can have, which the guard checks.
func enlarge(p *corev1.Pod) {
	template := p.Spec.Containers[0]
	p.Spec.Containers = nil
	for i := range 100 {
		c := *template.DeepCopy()
		c.Name = fmt.Sprintf("c-%d", i)
		var env []corev1.EnvVar
		for j := range 100 {
			env = append(env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: "value"})
		}
		c.Env = slices.Concat(env, c.Env)
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}
