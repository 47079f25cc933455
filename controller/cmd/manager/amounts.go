package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// amounts is the value of a flag with resources, for example cpu=10m,memory=32Mi. Empty: no resources. Set rejects
// resources that a sidecar cannot request, which the string map of pflag would accept.
type amounts corev1.ResourceList

// countable are the resources that a sidecar can request.
var countable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// String returns the value in the syntax of Set.
func (a *amounts) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(*a)) {
		quantity := (*a)[name]
		pairs = append(pairs, string(name)+"="+quantity.String())
	}
	return strings.Join(pairs, ",")
}

// Set replaces all amounts.
func (a *amounts) Set(text string) error {
	*a = amounts{}
	if text == "" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, amount, _ := strings.Cut(pair, "=")
		quantity, err := resource.ParseQuantity(amount)
		if err != nil || quantity.Sign() < 0 || !slices.Contains(countable, corev1.ResourceName(name)) {
			return fmt.Errorf("%q is not a quantity of cpu, memory or ephemeral-storage: use, for example, cpu=10m,memory=32Mi", pair)
		}
		(*a)[corev1.ResourceName(name)] = quantity
	}
	return nil
}

// Type is the placeholder of the value in the help.
func (a *amounts) Type() string { return "amounts" }
