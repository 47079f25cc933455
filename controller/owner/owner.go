// Package owner says which object controls another. metav1.IsControlledBy compares only the UID, which any user can copy into an
// owner reference with another kind, or with another name. The object then counts as controlled for one controller, while the
// garbage collector and the admission policies see an object that nothing controls. It is pure.
package owner

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The kinds of owners.
var (
	StatefulSingleton = v1.GroupVersion.WithKind("StatefulSingleton").GroupKind()
	StatefulSetLock   = v1.GroupVersion.WithKind("StatefulSetLock").GroupKind()
	StatefulCluster   = v1.GroupVersion.WithKind("StatefulCluster").GroupKind()
	Deployment        = appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind()
	ReplicaSet        = appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind()
	StatefulSet       = appsv1.SchemeGroupVersion.WithKind("StatefulSet").GroupKind()
	Job               = batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
)

// Of returns the owner reference to the controller of the object if the controller has the kind, or nil.
func Of(object metav1.Object, kind schema.GroupKind) *metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || version.Group != kind.Group {
		return nil
	}
	return ref
}

// Controls returns true if the owner, which has the kind, controls the object: the owner reference has its group, kind, name and
// UID.
func Controls(owner metav1.Object, kind schema.GroupKind, object metav1.Object) bool {
	ref := Of(object, kind)
	return ref != nil && ref.UID == owner.GetUID() && ref.Name == owner.GetName()
}

// References returns the owner references of an object that the owner controls. The kind is of this project. The garbage collector
// deletes the object with the owner.
func References(owner metav1.Object, kind schema.GroupKind) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: kind.Kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true),
	}}
}
