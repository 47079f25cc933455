package policies_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/debug"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
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
		s.Spec.Fencing, s.Spec.Connections = v1.FencingLease, v1.ConnectionsQueue
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
	t.Parallel()
	s, pod := readSingleton(t, "default"), readPod(t, "shell", nil)
	texts := append(randomStrings(), hostileNames...)
	hostile := corev1.Container{Name: "db", Image: "{{ request.object.metadata.name }}", Command: texts, Args: texts, WorkingDir: "$(./../name)"}
	for _, text := range hostileNames {
		hostile.Env = append(hostile.Env, corev1.EnvVar{Name: "HOSTILE", Value: text})
	}
	pod.Annotations = map[string]string{"a": "{{ request.object.metadata.name }}", "b": "$(./a)", v1.InjectedAnnotation: "{{ x }}"}
	pod.Spec.Containers = []corev1.Container{hostile}
	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, pod), firstRequest))
	c := *got.Spec.Containers[0].DeepCopy()
	if diff := cmp.Diff(append([]string{"/var/run/signal/gate", "wrap", "--"}, texts...), c.Command); diff != "" {
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

// hostileCEL are strings with which an attacker may try to inject CEL.
var hostileCEL = []string{
	`"] || true || c.name in ["`, `") + [JSONPatch{op: "remove", path: "/spec"}] + ("`, `\`, `\"`, `\\`, `'`, `"""`, `r"`, `b'`, `${x}`, "`", "\n", "\r", "\t", "\v",
	"\x00", "\x7f", "\u0085", "\u2028", "\ufeff", "\U0001f600", "\ufffd", "//", `"//`, "variables.x", "dyn(request).uid", "http.Get", "globalContext.Get", "}})", "?", "[?", "~1", "$(X)", "$$",
}

// A string of a user is one literal in the rendered policy, and changes nothing else. Kyverno compiles the policy.
func FuzzStringsAreNotEvaluatedAsCEL(f *testing.F) {
	for _, text := range slices.Concat(hostileNames, hostileCEL) {
		f.Add(text)
	}
	const harmless = "harmless"
	baseline := map[string][]string{}
	for name, policy := range policiesWith(f, harmless) {
		baseline[name] = expressionsOf(f, policy)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" || !utf8.ValidString(text) {
			return // the API server has only valid strings, and rejects empty names
		}
		for name, policy := range policiesWith(t, text) {
			if err := engine.validate(policy); err != nil {
				t.Fatalf("Kyverno rejects the policy of %s: %v", name, err)
			}
			got := expressionsOf(t, policy)
			if len(got) != len(baseline[name]) {
				t.Fatalf("%s: %d expressions, want %d", name, len(got), len(baseline[name]))
			}
			for i, want := range baseline[name] {
				wantNodes(t, want, got[i], func(literal string) []string {
					return []string{strings.ReplaceAll(literal, harmless, text), strings.ReplaceAll(literal, harmless, inHooks(t, text))}
				})
			}
		}
	})
}

// inHooks returns the text as it is in a variable with hooks.
func inHooks(t *testing.T, text string) string {
	quoted := string(mustJSON(t, text))
	return strings.ReplaceAll(quoted[1:len(quoted)-1], "$", "$$")
}

// policiesWith returns NamespacedMutatingPolicies as JSON, with the text in each place that a user can fill freely.
func policiesWith(t testing.TB, text string) map[string]json.RawMessage {
	t.Helper()
	s := singletonOf(v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
	s.Spec.Containers, s.Spec.HoldInitContainers, s.Spec.Fencing = []string{text, "db"}, true, v1.FencingLease
	s.Spec.Connections = v1.ConnectionsQueue
	l := fencedLock(&v1.LockHooks{Promote: []string{text, "a"}, Demote: []string{text}})
	l.Spec.StatefulSetName, l.Spec.LeaseName = text, text
	o := policies.Options{Kind: policies.NamespacedMutatingPolicy, SidecarImage: text, SidecarPullSecrets: []string{text}}
	rendered := map[string]json.RawMessage{}
	for name, subject := range map[string]policies.Subject{"a singleton": s, "a lock": l} {
		policy, err := policies.Render(subject, o)
		if err != nil {
			t.Fatal(err)
		}
		rendered[name], err = policy.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
	}
	return rendered
}

// expressionsOf returns the expressions of a NamespacedMutatingPolicy.
func expressionsOf(t testing.TB, policy json.RawMessage) (all []string) {
	t.Helper()
	type expression struct{ Expression string }
	var decoded struct {
		Spec struct {
			MatchConditions, Variables []expression
			Mutations                  []struct{ JSONPatch expression }
		}
	}
	if err := json.Unmarshal(policy, &decoded); err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Concat(decoded.Spec.MatchConditions, decoded.Spec.Variables) {
		all = append(all, e.Expression)
	}
	for _, m := range decoded.Spec.Mutations {
		all = append(all, m.JSONPatch.Expression)
	}
	return all
}

// wantNodes fails unless two expressions are equal but for their string literals. A literal may be any of those that allowed returns.
func wantNodes(t *testing.T, want, got string, allowed func(literal string) []string) {
	t.Helper()
	wantNodes, wantLiterals := nodesOf(t, want)
	gotNodes, gotLiterals := nodesOf(t, got)
	if diff := cmp.Diff(wantNodes, gotNodes); diff != "" {
		t.Fatalf("another expression (-want +got):\n%s", diff)
	}
	for i, literal := range wantLiterals {
		if !slices.Contains(allowed(literal), gotLiterals[i]) {
			t.Errorf("literal %q, want one of %q", gotLiterals[i], allowed(literal))
		}
	}
}

// nodesOf returns an expression with empty string literals, and these literals.
func nodesOf(t *testing.T, expression string) (nodes string, literals []string) {
	t.Helper()
	p, err := parser.NewParser(parser.EnableOptionalSyntax(true))
	if err != nil {
		t.Fatal(err)
	}
	parsed, problems := p.Parse(common.NewTextSource(expression))
	if len(problems.GetErrors()) > 0 {
		t.Fatalf("parse %s: %s", expression, problems.ToDisplayString())
	}
	ast.PreOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.LiteralKind {
			return
		}
		if text, ok := e.AsLiteral().(types.String); ok {
			literals = append(literals, string(text))
			e.SetKindCase(ast.NewExprFactory().NewLiteral(e.ID(), types.String("")))
		}
	}))
	return debug.ToDebugString(parsed.Expr()), literals
}
