package policies

import (
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
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return renderLock(l, o)
	}
	return Render(s.(*v1.StatefulSingleton), o)
}

// Fences returns true if the policy of the object prepares pods for fencing by a Lease.
func Fences(s Subject) bool {
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return l.Spec.Fencing == v1.LockFencingLease
	}
	return s.(*v1.StatefulSingleton).Spec.Fencing == v1.FencingLease
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
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return lockProbe(l, o), nil
	}
	return ProbePod(s.(*v1.StatefulSingleton), o)
}

// CheckProbeOf returns nil if the policy has mutated the probe pod of the object.
func CheckProbeOf(pod *corev1.Pod, s Subject, policy Ref) error {
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return checkLockProbe(pod, l, policy)
	}
	return CheckProbe(pod, s.(*v1.StatefulSingleton), policy)
}
