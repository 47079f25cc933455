package policies_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kyverno/kyverno/pkg/engine/variables/regex"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// hostileNames are names of containers with which an attacker may try to inject an expression. The API server accepts
// all of them in spec.containers.
var hostileNames = []string{
	"proxy`], element.name) || contains(`[\"proxy\"]", "`", "\\`", "\\", "{{ request.object.metadata.name }}", "{{", "}}", "{", "}", "\\{{x}}",
	"$(./../name)", "\\$(x)", "$", "'", "\"", "\"]", "\u2028", "\x00", "é", "<&>", "*", "?", "--", " ", "~1", "../..", "%s", "#", "- x", "!!binary",
}

// harmless is a name of a container that needs no escaping, and is not in any other text of a policy.
const harmless = "harmless"

// The name of a container changes only the list of names in the rendered policy. Kyverno reads the same names, and
// evaluates none of them.
func FuzzNamesAreNotEvaluated(f *testing.F) {
	for _, name := range hostileNames {
		f.Add(name)
	}
	rendered := func(t *testing.T, name string) map[string]string {
		s := singletonOf(v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
		s.Spec.Containers = []string{name, "db"}
		s.Spec.Fencing = v1.FencingLease
		policy, err := policies.Render(s, policies.Options{SidecarImage: name})
		if err != nil {
			t.Fatal(err)
		}
		return leaves("", policy.Object["spec"])
	}
	f.Fuzz(func(t *testing.T, name string) {
		if !utf8.ValidString(name) {
			return // the API server rejects an empty name
		}
		baseline, got := rendered(t, harmless), rendered(t, name)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(baseline)), slices.Sorted(maps.Keys(got))); diff != "" {
			t.Fatalf("the policy's shape changes (-want +got):\n%s", diff)
		}
		for path, text := range got {
			if references := regex.RegexReferences.FindAllString(text, -1); len(references) > 0 {
				t.Errorf("%s has references %q", path, references)
			}
			switch want := baseline[path]; {
			case !strings.Contains(want, harmless):
				if diff := cmp.Diff(want, text); diff != "" {
					t.Errorf("%s (-want +got):\n%s", path, diff)
				}
			case strings.Contains(want, "contains(`"):
				wantNames(t, want, text, name)
			default:
				if diff := cmp.Diff(regex.RegexVariables.FindAllString(want, -1), regex.RegexVariables.FindAllString(text, -1)); diff != "" {
					t.Errorf("variables of %s (-want +got):\n%s", path, diff)
				}
				var patch []struct{ Value struct{ Image string } }
				if err := json.Unmarshal([]byte(text), &patch); err != nil || !slices.ContainsFunc(patch, func(op struct{ Value struct{ Image string } }) bool { return op.Value.Image == name }) {
					t.Errorf("%s does not add the image %q (error %v): %s", path, name, err, text)
				}
			}
		}
	})
}

// wantNames checks that an expression is the baseline's but for the names in its literals, and a variable of Kyverno as a
// whole or not at all, like the baseline. Literals are between backticks, which JSON needs nowhere, so none is escaped.
func wantNames(t *testing.T, baseline, expression, name string) {
	t.Helper()
	var want []string
	if regex.RegexVariables.FindString(baseline) == baseline {
		want = []string{expression}
	}
	if diff := cmp.Diff(want, regex.RegexVariables.FindAllString(expression, -1)); diff != "" {
		t.Errorf("variables of the expression with the name %q (-want +got):\n%s", name, diff)
	}
	decoded := func(expression string) []any {
		var parts []any
		for i, part := range strings.Split(expression, "`") {
			var literal any
			if i%2 == 0 || json.Unmarshal([]byte(part), &literal) != nil {
				literal = part
			}
			parts = append(parts, literal)
		}
		return parts
	}
	parts := decoded(baseline)
	for i, part := range parts {
		if cmp.Equal(part, []any{harmless, "db"}) {
			parts[i] = []any{name, "db"}
		}
	}
	if diff := cmp.Diff(parts, decoded(expression)); diff != "" {
		t.Errorf("parts of the expression with the name %q (-want +got):\n%s", name, diff)
	}
}

// leaves returns the strings of a decoded object by path.
func leaves(path string, value any) map[string]string {
	all := map[string]string{}
	switch value := value.(type) {
	case string:
		all[path] = value
	case map[string]any:
		for key, child := range value {
			maps.Copy(all, leaves(path+"."+key, child))
		}
	case []any:
		for i, child := range value {
			maps.Copy(all, leaves(fmt.Sprintf("%s[%d]", path, i), child))
		}
	}
	return all
}

// Kyverno's engine holds only the container db if the singleton names all of these names.
func TestHostileNamesHoldNoOtherContainer(t *testing.T) {
	s := singletonOf(v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
	s.Spec.Containers = append(slices.Clone(hostileNames), "db")
	pod := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-1", Labels: s.Spec.Selector.MatchLabels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "db", Image: "db", Command: []string{"/db"}}, {Name: "proxy", Image: "proxy", Command: []string{"/proxy"}},
		}},
	}
	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, pod), firstRequest))
	want := map[string][]string{"db": {"/var/run/signal/gate", "wrap", "--", "/db"}, "proxy": {"/proxy"}}
	commands := map[string][]string{}
	for _, c := range got.Spec.Containers {
		commands[c.Name] = c.Command
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if err := policies.CheckInjected(&got, s); err != nil {
		t.Error(err)
	}
}

// Kyverno's engine evaluates no string of the pod.
func TestHostilePodsAreNotEvaluated(t *testing.T) {
	s := singletonOf(v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
	hostile := corev1.Container{Name: "db", Image: "{{ request.object.metadata.name }}", Command: hostileNames, Args: hostileNames, WorkingDir: "$(./../name)"}
	for _, text := range hostileNames {
		hostile.Env = append(hostile.Env, corev1.EnvVar{Name: "HOSTILE", Value: text})
	}
	pod := corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "db-1", Labels: s.Spec.Selector.MatchLabels,
			Annotations: map[string]string{"a": "{{ request.object.metadata.name }}", "b": "$(./a)", v1.InjectedAnnotation: "{{ x }}"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{hostile}},
	}
	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, pod), firstRequest))
	c := *got.Spec.Containers[0].DeepCopy()
	if diff := cmp.Diff(append([]string{"/var/run/signal/gate", "wrap", "--"}, hostileNames...), c.Command); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	release(&c)
	if diff := cmp.Diff(hostile, c, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what is the user's own (-want +got):\n%s", diff)
	}
	if err := policies.CheckInjected(&got, s); err != nil {
		t.Error(err)
	}
}
