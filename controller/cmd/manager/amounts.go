package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// amounts are a flag's: how much of each resource, as cpu=10m,memory=32Mi. Empty: of none. A map of strings, which
// pflag has, would take what no sidecar can ask for, and pods would be refused for it later.
type amounts corev1.ResourceList

// countable are the resources that a sidecar may need.
var countable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// String is what Set takes.
func (a *amounts) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(*a)) {
		quantity := (*a)[name]
		pairs = append(pairs, string(name)+"="+quantity.String())
	}
	return strings.Join(pairs, ",")
}

// Set replaces all of them.
func (a *amounts) Set(text string) error {
	*a = amounts{}
	if text == "" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, amount, _ := strings.Cut(pair, "=")
		quantity, err := resource.ParseQuantity(amount)
		if err != nil || quantity.Sign() < 0 || !slices.Contains(countable, corev1.ResourceName(name)) {
			return fmt.Errorf("%q is no amount of cpu, memory or ephemeral-storage: give them as cpu=10m,memory=32Mi", pair)
		}
		(*a)[corev1.ResourceName(name)] = quantity
	}
	return nil
}

// Type stands for a value in the help.
func (a *amounts) Type() string { return "amounts" }
