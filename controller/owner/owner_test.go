package owner_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// An owner controls an object only if the owner reference has its group, kind, name and UID, and is that of the controller.
func TestControls(t *testing.T) {
	cluster := &v1.StatefulCluster{ObjectMeta: metav1.ObjectMeta{Name: "db", UID: "1"}}
	for name, test := range map[string]struct {
		change func(*metav1.OwnerReference)
		want   bool
	}{
		"its owner reference":      {func(*metav1.OwnerReference) {}, true},
		"another version":          {func(r *metav1.OwnerReference) { r.APIVersion = v1.GroupVersion.Group + "/v2" }, true},
		"another group":            {func(r *metav1.OwnerReference) { r.APIVersion = "example.com/v1" }, false},
		"the group as a version":   {func(r *metav1.OwnerReference) { r.APIVersion = v1.GroupVersion.Group }, false},
		"no group":                 {func(r *metav1.OwnerReference) { r.APIVersion = "v1" }, false},
		"an invalid version":       {func(r *metav1.OwnerReference) { r.APIVersion = v1.GroupVersion.Group + "/v1/v1" }, false},
		"another kind":             {func(r *metav1.OwnerReference) { r.Kind = "StatefulSetLock" }, false},
		"another name":             {func(r *metav1.OwnerReference) { r.Name = "db2" }, false},
		"another UID":              {func(r *metav1.OwnerReference) { r.UID = "2" }, false},
		"not the controller":       {func(r *metav1.OwnerReference) { r.Controller = new(false) }, false},
		"says not who controls it": {func(r *metav1.OwnerReference) { r.Controller = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			ref := owner.References(cluster, owner.StatefulCluster)[0]
			test.change(&ref)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{ref}}}
			if got := owner.Controls(cluster, owner.StatefulCluster, pod); got != test.want {
				t.Errorf("StatefulCluster controls the pod: %t, want %t", got, test.want)
			}
		})
	}
	if owner.Controls(cluster, owner.StatefulCluster, &corev1.Pod{}) {
		t.Error("StatefulCluster controls a pod without owners")
	}
}
