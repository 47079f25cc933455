package leaseaccess

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Owner is a StatefulSingleton or a StatefulSetLock whose pods renew a Lease. The owner controls the Role and the
// RoleBinding.
type Owner struct {
	client.Object

	kind schema.GroupKind
	// label is the label of the Role and the RoleBinding with the name of the owner.
	label string
	// name is the name of the Role and the RoleBinding.
	name string
	// lease is the name of the Lease.
	lease string
}

// OfSingleton returns the owner of the Lease of a StatefulSingleton. Role, RoleBinding and Lease have the same name.
func OfSingleton(s *v1.StatefulSingleton) Owner {
	name := signal.LeaseName(s.Name)
	return Owner{s, owner.StatefulSingleton, v1.SingletonLabel, name, name}
}

// OfLock returns the owner of the Lease of a StatefulSetLock. A user chooses the name of the Lease.
func OfLock(l *v1.StatefulSetLock) Owner {
	return Owner{l, owner.StatefulSetLock, v1.LockLabel, "statefulsetlock-" + l.Name, l.Spec.LeaseName}
}

// key returns the namespace and the name of the Role and the RoleBinding.
func (o Owner) key() client.ObjectKey {
	return client.ObjectKey{Namespace: o.GetNamespace(), Name: o.name}
}

// controls returns true if the owner controls the object.
func (o Owner) controls(object metav1.Object) bool { return owner.Controls(o.Object, o.kind, object) }

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
	controller := owner.Of(object, o.kind)
	switch {
	case o.controls(object):
		return nil
	case controller != nil && controller.Name == o.GetName():
		key := o.key()
		return fmt.Errorf("use %[1]s %[2]s: %[3]w. If it stays, see its finalizers: kubectl get %[4]s -n %[5]s %[6]s -o yaml",
			kind, key, ErrOutdated, strings.ToLower(kind), key.Namespace, key.Name)
	}
	return &foreignError{kind, o}
}
