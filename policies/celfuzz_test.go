package policies_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/parser"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

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
	l := fencedLock(&v1.LockHooks{Promote: []string{text, "a"}, Demote: []string{text}})
	l.Spec.StatefulSetName, l.Spec.LeaseName = text, text
	o := policies.Options{Kind: policies.NamespacedMutatingPolicy, SidecarImage: text, SidecarPullSecrets: []string{text}}
	rendered := map[string]json.RawMessage{}
	for name, subject := range map[string]policies.Subject{"a singleton": s, "a lock": l} {
		policy, err := policies.RenderOf(subject, o)
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

// wantNodes fails unless two expressions have the same nodes. A literal may be any of those that allowed returns.
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

// nodesOf returns the nodes of an expression, and its string literals.
func nodesOf(t *testing.T, expression string) (nodes, literals []string) {
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
		node := fmt.Sprint(e.Kind())
		switch e.Kind() {
		case ast.LiteralKind:
			if text, ok := e.AsLiteral().Value().(string); ok {
				literals = append(literals, text)
			} else {
				node = fmt.Sprint(node, e.AsLiteral().Value())
			}
		case ast.IdentKind:
			node += e.AsIdent()
		case ast.CallKind:
			node = fmt.Sprint(node, e.AsCall().FunctionName(), len(e.AsCall().Args()))
		case ast.SelectKind:
			node += e.AsSelect().FieldName()
		case ast.ListKind:
			node = fmt.Sprint(node, e.AsList().Size())
		case ast.MapKind:
			node = fmt.Sprint(node, e.AsMap().Size())
		case ast.StructKind:
			node = fmt.Sprint(node, e.AsStruct().TypeName(), len(e.AsStruct().Fields()))
		}
		nodes = append(nodes, node)
	}))
	return nodes, literals
}
