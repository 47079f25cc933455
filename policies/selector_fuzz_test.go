package policies

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/cel-go/cel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// A selector is rejected exactly if Kubernetes rejects it. Otherwise its CEL expression selects exactly the pods that
// Kubernetes selects.
func FuzzSelectorCEL(f *testing.F) {
	// The arguments are a selector and a pod's labels as text: see selectorOfText and labelsOfText.
	for _, seed := range [][2]string{
		{"app=db", "app=db"}, {"app=db", "app=other"}, {"app=db", ""}, {"app=", "app="}, {"app=,tier=gold", "app=\ntier=gold"}, {"", "app=db"},
		{"app In db other", "app=other"}, {"app In ", "app="}, {"app NotIn db", ""}, {"app NotIn db", "app=db"}, {"app NotIn db,app Exists", "app=x"},
		{"app Exists", "app="}, {"app DoesNotExist", "app=db"}, {"app DoesNotExist,app Exists", ""}, {"app Like db", "app=db"}, {"app Exists x", "app=x"},
		{"example.com/app=db", "example.com/app=db"}, {"a\" || true || \"=b", "app=db"}, {"app=\"] || true || [\"", "app=db"}, {"app={{ request.object }}", "app=db"},
		{"app=*", "app=db"}, {"app In db db,app In db", "app=db"}, {"app=db,app NotIn db", "app=db"}, {"App=db", "app=db"}, {"app=\xff", "app=\xff"},
		{"app=" + strings.Repeat("a", 63), "app=" + strings.Repeat("a", 63)}, {"app=" + strings.Repeat("a", 64), "app=" + strings.Repeat("a", 64)},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, selectorText, labelsText string) {
		checkSelector(t, selectorOfText(selectorText), labelsOfText(labelsText))
	})
}

// TestSelectorCELEqualsKubernetes uses few keys and values. Many selectors then match, and many contradict themselves.
func TestSelectorCELEqualsKubernetes(t *testing.T) {
	key, value := rapid.SampledFrom([]string{"a", "b", "any-0"}), rapid.SampledFrom([]string{"", "a", "any-0", "any-1"})
	operators := []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
	}
	rapid.Check(t, func(t *rapid.T) {
		selector := &v1.LabelSelector{MatchLabels: rapid.MapOfN(key, value, 0, 1).Draw(t, "matchLabels")}
		for range rapid.IntRange(0, 4).Draw(t, "expressions") {
			e := v1.LabelSelectorRequirement{Key: key.Draw(t, "key"), Operator: rapid.SampledFrom(operators).Draw(t, "operator")}
			if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
				e.Values = rapid.SliceOfN(value, 1, 3).Draw(t, "values")
			}
			selector.MatchExpressions = append(selector.MatchExpressions, e)
		}
		checkSelector(t, selector, rapid.MapOf(key, value).Draw(t, "labels"))
	})
}

// podCEL is the CEL environment of the API server for expressions over a pod.
var podCEL = sync.OnceValues(func() (*cel.Env, error) { return cel.NewEnv(cel.Variable("object", cel.DynType)) })

func checkSelector(t rapid.TB, selector *v1.LabelSelector, podLabels labels.Set) {
	t.Helper()
	expression, err := selectorCEL(selector)
	if errors.Is(err, ErrSelectorTooLarge) {
		return // TestSelectorSize
	}
	want, wantErr := metav1.LabelSelectorAsSelector(selector.Meta())
	if refused := wantErr != nil || want.Empty(); (err != nil) != refused {
		t.Fatalf("selector %+v: error %v, want one: %t (%v)", selector, err, refused, wantErr)
	}
	if err != nil {
		return
	}
	for _, set := range []labels.Set{podLabels, nil} {
		if got := picks(t, expression, set); got != want.Matches(set) {
			t.Errorf("%s\npicks labels %v: %t, Kubernetes' own reading of selector %s says %t", expression, set, got, want, want.Matches(set))
		}
	}
	if set, err := selectedLabels(selector); err != nil {
		if want.Matches(podLabels) {
			t.Errorf("selector %s is said to pick no pod (%v), and picks labels %v", want, err, podLabels)
		}
	} else if !picks(t, expression, set) {
		t.Errorf("selector %s does not pick the labels %v that were made for it", want, set)
	}
	if _, err := Render(&v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: v1.StatefulSingletonSpec{Selector: *selector}}, Options{}); err != nil {
		t.Errorf("Render: %v", err)
	}
}

// picks evaluates the expression for a pod, as the API server does.
func picks(t rapid.TB, expression string, podLabels labels.Set) bool {
	t.Helper()
	environment, err := podCEL()
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := environment.Compile(expression)
	if issues.Err() != nil {
		t.Fatalf("compile %s: %v", expression, issues.Err())
	}
	program, err := environment.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	metadata := map[string]any{"name": "db-1"}
	if podLabels != nil {
		metadata["labels"] = map[string]string(podLabels)
	}
	out, _, err := program.Eval(map[string]any{"object": map[string]any{"metadata": metadata}})
	if err != nil {
		t.Fatalf("evaluate %s over labels %v: %v", expression, podLabels, err)
	}
	return out.Value() == true
}

// selectorOfText parses terms between commas: key=value is a label, and "key operator values" is an expression.
func selectorOfText(text string) *v1.LabelSelector {
	selector := &v1.LabelSelector{MatchLabels: map[string]string{}}
	for term := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(term, "="); ok {
			selector.MatchLabels[key] = value
		} else if words := strings.Split(term, " "); len(words) > 1 {
			selector.MatchExpressions = append(selector.MatchExpressions, v1.LabelSelectorRequirement{
				Key: words[0], Operator: metav1.LabelSelectorOperator(words[1]), Values: words[2:],
			})
		}
	}
	return selector
}

// labelsOfText parses lines of key=value.
func labelsOfText(text string) labels.Set {
	set := labels.Set{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		set[key] = value
	}
	return set
}
