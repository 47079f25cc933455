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

// Render returns the object's own policy. It returns the errors of Validate.
func Render(s Subject, o Options) (*unstructured.Unstructured, error) {
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return renderLock(l, o)
	}
	return renderSingleton(s.(*v1.StatefulSingleton), o)
}

// Fences returns true if the policy of the object prepares pods for fencing by a Lease.
func Fences(s Subject) bool {
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return l.Spec.Fencing == v1.LockFencingLease
	}
	return s.(*v1.StatefulSingleton).Spec.Fencing == v1.FencingLease
}

// Validate returns an error if no policy can be rendered for the object: its selector is invalid, or, with an ErrSelectorTooLarge,
// too large.
func Validate(s Subject) error {
	singleton, is := s.(*v1.StatefulSingleton)
	if !is {
		return nil // the definition rejects other locks
	}
	if _, err := selectorCEL(&singleton.Spec.Selector); err != nil {
		return fmt.Errorf("no policy injects the pods of StatefulSingleton %s: %w", keyOf(s), err)
	}
	return nil
}

// ProbePod returns a pod of the object for a server-side dry-run. The result of the dry-run shows whether the policy mutates
// pods of the object. The pod meets Pod Security "restricted", and its image is never pulled. ProbePod returns an error if the
// selector of a singleton matches no possible pod.
func ProbePod(s Subject, o Options) (*corev1.Pod, error) {
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return lockProbe(l, o), nil
	}
	return singletonProbe(s.(*v1.StatefulSingleton), o)
}

// CheckProbe returns nil if the policy applied to the probe pod of the object: it holds a pod of a singleton and makes a pod of a
// lock a reader, and it fences the pod and prepares it for the queue if the object asks for it. Another policy may hold the pod
// and be about to be deleted.
func CheckProbe(pod *corev1.Pod, s Subject, policy Ref) error {
	if !Answered(pod, policy) {
		return fmt.Errorf("pod went through no rule of %s for %s", policy, keyOf(s))
	}
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return checkLockProbe(pod, l)
	}
	return checkSingletonProbe(pod, s.(*v1.StatefulSingleton))
}
