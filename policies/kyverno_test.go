package policies_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

var options = policies.Options{SidecarImage: "example.com/statefulsingleton/gate:1.0", SidecarPullPolicy: corev1.PullIfNotPresent}

const (
	firstRequest  = "11111111-1111-4111-8111-111111111111"
	secondRequest = "22222222-2222-4222-8222-222222222222"
)

// kyverno mutates pods with the engine of Kyverno, without a cluster.
type kyverno struct {
	program string
	policy  string
}

func newKyverno(t *testing.T, policy *unstructured.Unstructured) kyverno {
	t.Helper()
	program, err := exec.LookPath("kubectl-kyverno")
	if err != nil {
		t.Fatalf("Kyverno's command line program must be on PATH as kubectl-kyverno (`make test` sees to that): %v", err)
	}
	policy = policy.DeepCopy()
	// The API server evaluates matchConditions, and Kyverno's command line program crashes on them without a cluster.
	unstructured.RemoveNestedField(policy.Object, "spec", "webhookConfiguration", "matchConditions")
	file := filepath.Join(t.TempDir(), "policy.yaml")
	writeYAML(t, file, policy.Object)
	return kyverno{program: program, policy: file}
}

var (
	summary   = regexp.MustCompile(`fail: 0, warn: 0, error: 0, skip: \d+`)
	separator = regexp.MustCompile(`(?m)^---$`)
)

// mutate returns the pod as YAML after an admission request with the UID.
func (k kyverno) mutate(t *testing.T, pod []byte, requestUID string) []byte {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "pod.yaml"), filepath.Join(dir, "mutated.yaml")
	writeFile(t, in, pod)
	report, err := exec.Command(k.program, "apply", k.policy, "--resource", in, "--output", out, "--set", "request.uid="+requestUID).CombinedOutput()
	if err != nil || !summary.Match(report) {
		t.Fatalf("kubectl-kyverno apply: %v\n%s", err, report)
	}
	mutated := bytes.TrimSpace(separator.ReplaceAll(readFile(t, out), nil))
	if len(mutated) == 0 {
		// No rule changed the pod.
		return pod
	}
	return mutated
}

func render(t *testing.T, s *v1.StatefulSingleton) *unstructured.Unstructured {
	t.Helper()
	return renderWith(t, s, options)
}

func renderWith(t *testing.T, s *v1.StatefulSingleton, o policies.Options) *unstructured.Unstructured {
	t.Helper()
	policy, err := policies.Render(s, o)
	if err != nil {
		t.Fatalf("Render: %v", err)
	}
	return policy
}

func readSingleton(t *testing.T, name string) *v1.StatefulSingleton {
	t.Helper()
	s := &v1.StatefulSingleton{}
	decode(t, readFile(t, filepath.Join("testdata", "singletons", name+".yaml")), s)
	return s
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("decode %T: %v\n%s", into, err, data)
	}
}

func encode(t *testing.T, object any) []byte {
	t.Helper()
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatalf("encode %T: %v", object, err)
	}
	return data
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeYAML(t *testing.T, file string, object any) {
	t.Helper()
	writeFile(t, file, encode(t, object))
}

func writeFile(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
