package main

import "testing"

// Handoffs are measured where the page shows them, and restarts of Kyverno with the kind that needs them.
func TestParts(t *testing.T) {
	r := &run{options: options{singletons: []int{1, 100, 500, 1000}}}
	tests := map[string]struct {
		form         form
		n            int
		wantHandoffs bool
		wantRestart  bool
	}{
		"few by default":       {form: form{"ClusterPolicy", "singleton"}, n: 100, wantHandoffs: true},
		"many by default":      {form: form{"ClusterPolicy", "singleton"}, n: 1000},
		"most share policies":  {form: form{"ClusterPolicy", "namespace"}, n: 1000, wantHandoffs: true},
		"few share policies":   {form: form{"ClusterPolicy", "namespace"}, n: 100},
		"few of the new kind":  {form: form{"NamespacedMutatingPolicy", "singleton"}, n: 100, wantRestart: true},
		"most of the new kind": {form: form{"NamespacedMutatingPolicy", "namespace"}, n: 1000, wantHandoffs: true, wantRestart: true},
		"without singletons":   {form: form{"NamespacedMutatingPolicy", "namespace"}, n: 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			parts := map[string]bool{}
			for _, part := range r.parts(test.form, test.n) {
				parts[part.name] = true
			}
			if parts["handoffs by deletion"] != test.wantHandoffs || parts["restart of Kyverno"] != test.wantRestart || !parts["Kyverno"] {
				t.Errorf("parts %v", parts)
			}
		})
	}
}
