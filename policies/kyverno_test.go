package policies_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

var options = policies.Options{
	SidecarImage: "example.com/statefulsingleton/gate:1.0", SidecarPullPolicy: corev1.PullIfNotPresent,
	APIServer: signal.APIServer{URL: "https://10.96.0.1:443", Authorities: []string{signal.Fingerprint([]byte("old")), signal.Fingerprint([]byte("new"))}},
}

const (
	firstRequest  = "11111111-1111-4111-8111-111111111111"
	secondRequest = "22222222-2222-4222-8222-222222222222"
)

// kyverno mutates pods with the engines of Kyverno, without a cluster: with a ClusterPolicy and with a
// NamespacedMutatingPolicy, each as JSON. Both must give the same pod.
type kyverno struct{ clusterPolicy, mutatingPolicy json.RawMessage }

// rendering renders one policy as each kind.
type rendering func(policies.Kind) (*unstructured.Unstructured, error)

// ownPolicy returns the rendering of the object's own policy.
func ownPolicy(s policies.Subject, o policies.Options) rendering {
	return func(kind policies.Kind) (*unstructured.Unstructured, error) {
		o.Kind = kind
		return policies.Render(s, o)
	}
}

// sharedPolicy returns the rendering of the policy of a namespace.
func sharedPolicy(singletons ...v1.StatefulSingleton) rendering {
	return func(kind policies.Kind) (*unstructured.Unstructured, error) {
		o := options
		o.Kind = kind
		return policies.RenderNamespace(singletons[0].Namespace, singletons, o)
	}
}

func (r rendering) render(t testing.TB, kind policies.Kind) *unstructured.Unstructured {
	t.Helper()
	policy, err := r(kind)
	if err != nil {
		t.Fatalf("render the %s: %v", kind, err)
	}
	return policy
}

func newKyverno(t testing.TB, policy rendering) kyverno {
	t.Helper()
	clusterPolicy := policy.render(t, policies.ClusterPolicy)
	// Kyverno accepts matchConditions only with a cluster. The API server evaluates them.
	unstructured.RemoveNestedField(clusterPolicy.Object, "spec", "webhookConfiguration", "matchConditions")
	return kyverno{mustJSON(t, clusterPolicy.Object), mustJSON(t, policy.render(t, policies.NamespacedMutatingPolicy).Object)}
}

// mutate returns the pod as YAML after an admission request with the UID.
func (k kyverno) mutate(t testing.TB, pod []byte, requestUID string) []byte {
	t.Helper()
	mutated := mutateBy(t, k.clusterPolicy, pod, requestUID)
	if diff := cmp.Diff(normalized(t, mutated), normalized(t, mutateBy(t, k.mutatingPolicy, pod, requestUID))); diff != "" {
		t.Errorf("the two kinds of policies give different pods (-ClusterPolicy +NamespacedMutatingPolicy):\n%s", diff)
	}
	return mutated
}

// mutateBy returns the pod as one of the policies mutates it.
func mutateBy(t testing.TB, policy json.RawMessage, pod []byte, requestUID string) []byte {
	t.Helper()
	podJSON, err := yaml.YAMLToJSON(pod)
	if err != nil {
		t.Fatal(err)
	}
	mutated, err := engine.mutate(policy, podJSON, requestUID)
	if err != nil {
		t.Fatalf("mutate: %v\n%s", err, pod)
	}
	if mutated, err = yaml.JSONToYAML(mutated); err != nil {
		t.Fatal(err)
	}
	return mutated
}

var (
	// randomAddress is a random loopback address, and answerOfMutatingPolicy begins the answer to a probe.
	randomAddress          = regexp.MustCompile(`127(\.1\d\d){3}`)
	answerOfMutatingPolicy = []byte("mutatingpolicy.statefulsingleton.com/")
)

// normalized returns a pod that is the same for both kinds of policies.
func normalized(t testing.TB, pod []byte) map[string]any {
	t.Helper()
	pod = bytes.ReplaceAll(pod, answerOfMutatingPolicy, []byte("policy.statefulsingleton.com/"))
	return decoded[map[string]any](t, randomAddress.ReplaceAll(pod, []byte("127.100.100.100")))
}

// render returns the policy of s. It is a ClusterPolicy, except on a cluster.
func render(t testing.TB, s *v1.StatefulSingleton) *unstructured.Unstructured {
	t.Helper()
	return ownPolicy(s, options).render(t, options.Kind)
}

func readSingleton(t testing.TB, name string) *v1.StatefulSingleton {
	t.Helper()
	s := &v1.StatefulSingleton{}
	decode(t, readFile(t, filepath.Join("testdata", "singletons", name+".yaml")), s)
	return s
}

func decode(t testing.TB, data []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("decode %T: %v\n%s", into, err, data)
	}
}

func encode(t testing.TB, object any) []byte {
	t.Helper()
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatalf("encode %T: %v", object, err)
	}
	return data
}

func readFile(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// engine mutates pods with Kyverno's engines.
var engine mutatingEngine

// mutatingEngine is a process of kyverno-mutate, which starts with the first request.
type mutatingEngine struct {
	mu  sync.Mutex
	in  *json.Encoder
	out *json.Decoder
}

// mutate returns the pod as JSON after an admission request with the UID.
func (e *mutatingEngine) mutate(policy, pod json.RawMessage, requestUID string) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.in == nil {
		if err := e.start(); err != nil {
			return nil, err
		}
	}
	request := map[string]any{"policy": policy, "uid": requestUID}
	if pod != nil {
		request["pod"] = pod
	}
	if err := e.in.Encode(request); err != nil {
		return nil, err
	}
	var result struct {
		Pod   json.RawMessage
		Error string
	}
	if err := e.out.Decode(&result); err != nil {
		return nil, err
	}
	if result.Error != "" {
		return nil, errors.New(result.Error)
	}
	return result.Pod, nil
}

// validate returns the error of Kyverno's webhook for policies.
func (e *mutatingEngine) validate(policy json.RawMessage) error {
	_, err := e.mutate(policy, nil, "")
	return err
}

func (e *mutatingEngine) start() error {
	program, err := exec.LookPath("kyverno-mutate")
	if err != nil {
		return fmt.Errorf("kyverno-mutate of chainsaw-tests/tools/kyverno must be on PATH (`make test` sees to that): %w", err)
	}
	c := exec.Command(program) // it ends with the test, because its input ends
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	var out io.Reader
	if out, err = c.StdoutPipe(); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	e.in, e.out = json.NewEncoder(in), json.NewDecoder(out)
	return nil
}
