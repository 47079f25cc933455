package leaseaccess

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
)

// Owner is a StatefulSingleton or a StatefulSetLock whose pods renew a Lease. The owner controls the Role and the
// RoleBinding.
type Owner struct {
	client.Object

	kind schema.GroupVersionKind
	// label is the label of the Role and the RoleBinding with the name of the owner.
	label string
	// name is the name of the Role and the RoleBinding.
	name string
	// lease is the name of the Lease.
	lease string
}

// OfSingleton returns the owner of the Lease of a StatefulSingleton. Role, RoleBinding and Lease have the same name.
func OfSingleton(s *v1.StatefulSingleton) Owner {
	name := fencing.LeaseName(s.Name)
	return Owner{s, v1.GroupVersion.WithKind("StatefulSingleton"), v1.SingletonLabel, name, name}
}

// OfLock returns the owner of the Lease of a StatefulSetLock. A user chooses the name of the Lease.
func OfLock(l *v1.StatefulSetLock) Owner {
	return Owner{l, v1.GroupVersion.WithKind("StatefulSetLock"), v1.LockLabel, "statefulsetlock-" + l.Name, l.Spec.LeaseName}
}

// key returns the namespace and the name of the Role and the RoleBinding.
func (o Owner) key() client.ObjectKey {
	return client.ObjectKey{Namespace: o.GetNamespace(), Name: o.name}
}

// ErrOutdated is the error if an object belongs to a deleted owner of the same name.
var ErrOutdated = errors.New("the object belongs to a deleted owner of the same name, and will be garbage-collected")

// foreignError is the error if an object has the name of the Role or the RoleBinding, and belongs to no owner of the name.
type foreignError struct {
	kind  string
	owner Owner
}

func (e *foreignError) Error() string {
	key := e.owner.key()
	return fmt.Sprintf("the pods can't renew the Lease: %[1]s %[2]s exists, and %[3]s %[4]s does not control the %[1]s. "+
		"If nothing needs the %[1]s, delete the %[1]s: kubectl delete %[5]s -n %[6]s %[7]s. Otherwise, create a %[3]s with another name",
		e.kind, key, e.owner.kind.Kind, e.owner.GetName(), strings.ToLower(e.kind), key.Namespace, key.Name)
}

// check returns an error unless the owner controls the object.
func (o Owner) check(kind string, object *metav1.ObjectMeta) error {
	controller := metav1.GetControllerOf(object)
	switch {
	case metav1.IsControlledBy(object, o.Object):
		return nil
	case controller != nil && controller.Kind == o.kind.Kind && controller.Name == o.GetName():
		return fmt.Errorf("%s %s: %w", kind, o.key(), ErrOutdated)
	}
	return &foreignError{kind, o}
}
