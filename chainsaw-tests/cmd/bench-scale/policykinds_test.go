package main

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// With each kind, each singleton has a policy, which the controller does not change.
func TestPolicyKinds(t *testing.T) {
	all := []singleton{{Namespace: "a", Name: "one"}, {Namespace: "b", Name: "two"}, {Namespace: "a", Name: "three"}}
	for _, kind := range policyKinds {
		t.Run(kind.name, func(t *testing.T) {
			rendered, err := kind.of(all)
			if err != nil {
				t.Fatal(err)
			}
			names := map[string]bool{}
			for _, policy := range rendered {
				names[policy.GetName()] = true
				if labels := policy.GetLabels(); len(labels) != 1 || labels[benchLabel] != benchName {
					t.Errorf("policy %s has labels %v", policy.GetName(), labels)
				}
				if conditions, _, _ := unstructured.NestedSlice(policy.Object, "spec", "webhookConfiguration", "matchConditions"); len(conditions) > 0 {
					t.Errorf("policy %s has a webhook of its own", policy.GetName())
				}
			}
			if len(names) != len(all) {
				t.Errorf("policies %v for %d singletons", names, len(all))
			}
		})
	}
}
