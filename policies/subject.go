package policies

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Subject is an object whose pods a policy mutates: a StatefulSingleton or a StatefulSetLock.
type Subject interface {
	metav1.Object
	runtime.Object
	// GetConditions returns the conditions in the status.
	GetConditions() []metav1.Condition
}

// keyOf returns namespace and name of the object.
func keyOf(s Subject) types.NamespacedName {
	return types.NamespacedName{Namespace: s.GetNamespace(), Name: s.GetName()}
}

// NameOf returns the name of the object's own policy.
func NameOf(s Subject) string {
	if _, isLock := s.(*v1.StatefulSetLock); isLock {
		return shorten("ssl-"+s.GetNamespace()+"-"+s.GetName(), "lock/"+keyOf(s).String())
	}
	return Name(keyOf(s))
}

// RenderOf returns the object's own policy. It returns the errors of ValidateOf.
func RenderOf(s Subject, o Options) (*unstructured.Unstructured, error) {
	switch s := s.(type) {
	case *v1.StatefulSingleton:
		return Render(s, o)
	case *v1.StatefulSetLock:
		return renderLock(s, o)
	}
	panic(fmt.Sprintf("no policy mutates the pods of a %T", s))
}

// Fences returns true if the policy of the object prepares pods for fencing by a Lease.
func Fences(s Subject) bool {
	switch s := s.(type) {
	case *v1.StatefulSingleton:
		return s.Spec.Fencing == v1.FencingLease
	case *v1.StatefulSetLock:
		return s.Spec.Fencing == v1.LockFencingLease
	}
	return false
}

// ValidateOf returns an error if no policy can be rendered for the object.
func ValidateOf(s Subject) error {
	if s, is := s.(*v1.StatefulSingleton); is {
		return Validate(s)
	}
	return nil // the definition rejects other locks
}

// ProbePodOf returns a pod of the object for a server-side dry-run.
func ProbePodOf(s Subject, o Options) (*corev1.Pod, error) {
	switch s := s.(type) {
	case *v1.StatefulSingleton:
		return ProbePod(s, o)
	case *v1.StatefulSetLock:
		return lockProbe(s, o), nil
	}
	panic(fmt.Sprintf("no policy mutates the pods of a %T", s))
}

// CheckProbeOf returns nil if the policy has mutated the probe pod of the object.
func CheckProbeOf(pod *corev1.Pod, s Subject, policy Ref) error {
	switch s := s.(type) {
	case *v1.StatefulSingleton:
		return CheckProbe(pod, s, policy)
	case *v1.StatefulSetLock:
		return checkLockProbe(pod, s, policy)
	}
	panic(fmt.Sprintf("no policy mutates the pods of a %T", s))
}
