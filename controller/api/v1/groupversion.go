// Package v1 is the API of apps.statefulsingleton.com/v1.
//
// +kubebuilder:object:generate=true
// +groupName=apps.statefulsingleton.com
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "apps.statefulsingleton.com", Version: "v1"}

// AddToScheme makes this package's types known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &StatefulSingleton{}, &StatefulSingletonList{}, &StatefulSetLock{}, &StatefulSetLockList{},
		&StatefulCluster{}, &StatefulClusterList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
