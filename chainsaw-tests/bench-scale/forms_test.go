package main

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Whatever the form, the policies hold the same pods by the same rules.
func TestForms(t *testing.T) {
	all := []singleton{{Namespace: "a", Name: "one"}, {Namespace: "b", Name: "two"}, {Namespace: "a", Name: "three"}}
	// of each policy the conditions of its webhook, and how many rules it has
	tests := [][][]string{
		{
			{`request.namespace == "a"`, selects("one")},
			{`request.namespace == "b"`, selects("two")},
			{`request.namespace == "a"`, selects("three")},
		},
		{{}, {}, {}},
		{
			{`request.namespace == "a"`, "(" + selects("one") + ") || (" + selects("three") + ")"},
			{`request.namespace == "b"`, "(" + selects("two") + ")"},
		},
	}
	// the last form has rules of another kind
	for i, want := range tests {
		t.Run(forms[i].name, func(t *testing.T) {
			rendered, err := forms[i].of(all)
			if err != nil {
				t.Fatal(err)
			}
			var got [][]string
			names := map[string]bool{}
			for _, policy := range rendered {
				got = append(got, conditionsOf(t, policy))
				rules, _, err := unstructured.NestedSlice(policy.Object, "spec", "rules")
				if err != nil {
					t.Fatal(err)
				}
				for _, rule := range rules {
					names[policy.GetName()+rule.(map[string]any)["name"].(string)] = true
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if each := len(names) / len(all); each*len(all) != len(names) || each == 0 {
				t.Errorf("%d rules for %d singletons: %v", len(names), len(all), names)
			}
		})
	}
}

func selects(app string) string {
	labels := "(has(object.metadata.labels) ? object.metadata.labels : {})"
	return fmt.Sprintf("%q in %s && %s[%q] in [%q]", "app", labels, labels, "app", app)
}

// conditionsOf leaves out the one that all have.
func conditionsOf(t *testing.T, policy *unstructured.Unstructured) []string {
	t.Helper()
	conditions, _, err := unstructured.NestedSlice(policy.Object, "spec", "webhookConfiguration", "matchConditions")
	if err != nil {
		t.Fatal(err)
	}
	expressions := []string{}
	for _, c := range conditions {
		if c := c.(map[string]any); c["name"] != "not-a-mirror-pod" {
			expressions = append(expressions, c["expression"].(string))
		}
	}
	return expressions
}
