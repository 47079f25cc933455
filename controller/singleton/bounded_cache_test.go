package singleton_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

// The cache keeps at most a few KiB of each object, even if users make the object large.
func TestCacheIsBounded(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	metadata := metav1.ObjectMeta{
		Name:          "db",
		Annotations:   map[string]string{"long": long, v1.HandoverAnnotation: long, "short": "x"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}},
	}
	budget := func(value string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: *metadata.DeepCopy(), Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}},
		}}
	}
	options := singleton.CacheOptions()
	kinds := append(slices.Collect(maps.Keys(options.ByObject)), &v1.StatefulSingleton{}, &v1.StatefulSetLock{})
	for _, kind := range kinds {
		transform := options.ByObject[kind].Transform
		if transform == nil {
			transform = options.DefaultTransform
		}
		var objects []client.Object
		switch kind.(type) {
		case *v1.StatefulSetLock:
			objects = []client.Object{&v1.StatefulSetLock{ObjectMeta: *metadata.DeepCopy()}}
		case *v1.StatefulSingleton:
			objects = []client.Object{&v1.StatefulSingleton{ObjectMeta: *metadata.DeepCopy()}}
		case *metav1.PartialObjectMetadata:
			objects = []client.Object{&metav1.PartialObjectMetadata{ObjectMeta: *metadata.DeepCopy()}}
		case *policyv1.PodDisruptionBudget:
			objects = []client.Object{budget(long), budget("db")}
		default:
			continue // users do not create nodes
		}
		for i, o := range objects {
			out, err := transform(o)
			if err != nil {
				t.Fatal(err)
			}
			kept := out.(client.Object)
			size := 0
			for key, value := range kept.GetAnnotations() {
				size += len(key) + len(value)
			}
			_, isBudget := out.(*policyv1.PodDisruptionBudget)
			if size > 1000 || len(kept.GetManagedFields()) > 0 || !isBudget && (kept.GetAnnotations()["short"] != "x" || kept.GetAnnotations()[v1.HandoverAnnotation] == "") {
				t.Errorf("of %T, the cache keeps annotations of %d bytes, %d managed fields and %d annotations", out, size, len(kept.GetManagedFields()), len(kept.GetAnnotations()))
			}
			if isBudget && (out.(*policyv1.PodDisruptionBudget).Spec.Selector == nil) != (i == 0) {
				t.Errorf("budget %d: selector kept: %t, want only the short selector", i, i == 0)
			}
		}
	}
}
