package policies_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// etcdLimit is the size in bytes of the largest object that etcd stores by default.
const etcdLimit = 3 << 19

// largestSelector returns the largest selector that the definition accepts, with the maximum number and length of labels,
// expressions and values.
func largestSelector() v1.LabelSelector {
	s := v1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 16 {
		s.MatchLabels[longKey("label", i)] = longText("value", i, 63)
		e := v1.LabelSelectorRequirement{Key: longKey("expression", i), Operator: metav1.LabelSelectorOpNotIn}
		for j := range 32 {
			e.Values = append(e.Values, longText("value", j, 63))
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// longKey returns a label key of the maximum length: a prefix of 253 characters and a name of 63.
func longKey(kind string, i int) string {
	return strings.Repeat("a", 61) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 63) + "/" + longText(kind, i, 63)
}

// longText returns a text with the given length, which differs for each i.
func longText(kind string, i, length int) string {
	text := fmt.Sprintf("%s-%d-", kind, i)
	return text + strings.Repeat("x", length-len(text))
}

// selectorOfValues returns a selector with the given number of values, which the definition accepts.
func selectorOfValues(values int) (s v1.LabelSelector) {
	for i := 0; values > 0; i++ {
		e := v1.LabelSelectorRequirement{Key: longKey("expression", i), Operator: metav1.LabelSelectorOpNotIn}
		for ; values > 0 && len(e.Values) < 32; values-- {
			e.Values = append(e.Values, longText("value", values, 63))
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// largestRendered returns the largest selector of selectorOfValues that is rendered.
func largestRendered(t *testing.T) v1.LabelSelector {
	t.Helper()
	for values := 1; values < 16*32; values++ {
		if policies.Validate(singletonOf(selectorOfValues(values+1))) != nil {
			return selectorOfValues(values)
		}
	}
	t.Fatal("every selector is rendered")
	return v1.LabelSelector{}
}

func mustJSON(t testing.TB, o any) []byte {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Kyverno stores the selectors of all policies in one object. The share of one singleton is limited. TestWithinBudget and
// TestSharedPolicyFits limit the share of a namespace.
func TestSelectorSize(t *testing.T) {
	admitted := singletonOf(largestSelector())
	for what, err := range map[string]error{
		"Validate":        policies.Validate(admitted),
		"Render":          second(policies.Render(admitted, options)),
		"RenderNamespace": second(policies.RenderNamespace("shop", []v1.StatefulSingleton{*admitted}, options)),
	} {
		if !errors.Is(err, policies.ErrSelectorTooLarge) || !strings.Contains(err.Error(), "Create another StatefulSingleton with fewer or shorter labels and values") {
			t.Errorf("%s of the largest selector that the definition admits: %v, want that it is too large, and what to do", what, err)
		}
	}
	conditions := mustJSON(t, matchConditions(t, render(t, singletonOf(largestRendered(t)))))
	if most := etcdLimit / 8 / 16; len(conditions) > most {
		t.Errorf("the matchConditions of the largest selector that is rendered have %d bytes, want at most %d", len(conditions), most)
	}
}

// The guard rejects the pods of a singleton whose selector is too large to be rendered, and admits the other pods of
// its namespace. The cost of CEL is limited.
func testLargeSelector(t *testing.T, c client.Client) {
	s := createSingleton(t, c, "large-selector", singletonOf(largestSelector()))
	waitForRefusal(t, c, bare(s.Namespace, s), notInjected)
	if err := c.Create(t.Context(), podOf(s.Namespace, map[string]string{"app": "other"}), client.DryRunAll); err != nil {
		t.Errorf("a pod that the selector does not select: %v", err)
	}
	almost := bare(s.Namespace, s)
	almost.Labels[longKey("expression", 15)] = longText("value", 31, 63)
	if err := c.Create(t.Context(), almost, client.DryRunAll); err != nil {
		t.Errorf("a pod that fails the last value of the last expression: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }
