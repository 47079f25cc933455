package leases

import (
	"context"
	"errors"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// Key returns the namespace and the name of the Role and the RoleBinding.
func (o Owner) Key() client.ObjectKey {
	return client.ObjectKey{Namespace: o.GetNamespace(), Name: o.name}
}

// ErrOutdated is the error if an object belongs to a deleted owner of the same name.
var ErrOutdated = errors.New("the object belongs to a deleted owner of the same name, and will be garbage-collected")

// ForeignError is the error if an object has the name of the Role or the RoleBinding, and belongs to no owner of the name.
type ForeignError struct {
	kind  string
	owner Owner
}

// Error says which object it is, and what to do.
func (e *ForeignError) Error() string {
	key := e.owner.Key()
	return fmt.Sprintf("the pods can't renew the Lease: %[1]s %[2]s exists, and %[3]s %[4]s does not control the %[1]s. "+
		"If nothing needs the %[1]s, delete the %[1]s: kubectl delete %[5]s -n %[6]s %[7]s. Otherwise, create a %[3]s with another name",
		e.kind, key, e.owner.kind.Kind, e.owner.GetName(), strings.ToLower(e.kind), key.Namespace, key.Name)
}

// NewLease returns the Lease of the owner, which names no pod.
func (o Owner) NewLease(durationSeconds int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.lease, Labels: map[string]string{o.label: o.GetName()}, OwnerReferences: owner.References(o.Object, o.kind),
		},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0)), LeaseDurationSeconds: &durationSeconds},
	}
}

// check returns an error unless the owner controls the object.
func (o Owner) check(kind string, object client.Object) error {
	if owner.Controls(o.Object, o.kind, object) {
		return nil
	}
	if controller := owner.Of(object, o.kind); controller != nil && controller.Name == o.GetName() {
		key := o.Key()
		return fmt.Errorf("use %[1]s %[2]s: %[3]w. If it stays, see its finalizers: kubectl get %[4]s -n %[5]s %[6]s -o yaml",
			kind, key, ErrOutdated, strings.ToLower(kind), key.Namespace, key.Name)
	}
	return &ForeignError{kind, o}
}

// Grant lets the ServiceAccounts renew the Lease of the owner. It writes the Role and the RoleBinding if they differ from
// those that it reads with live. The error is ErrOutdated if the objects belong to a deleted owner of the same name, and a
// ForeignError if they belong to somebody else.
//
// If another object has the name of the Role, Grant writes no RoleBinding, which would give the rights of that object to the pods.
// It replaces a RoleBinding of another Role, because the API server rejects changes of the roleRef.
func Grant(ctx context.Context, c client.Client, live client.Reader, owner Owner, accounts []string) error {
	role := &rbacv1.Role{ObjectMeta: owner.metadata(), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{owner.lease},
		Verbs: []string{"get", "list", "watch", "patch"},
	}}}
	foundRole := &rbacv1.Role{}
	err := owner.write(ctx, c, live, "Role", foundRole, role, func() (canChange bool) {
		foundRole.Rules = role.Rules
		return true
	})
	if err != nil {
		return fmt.Errorf("write Role %s: %w", owner.Key(), err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: owner.metadata(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: owner.name}}
	for _, account := range accounts {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: owner.GetNamespace(), Name: account})
	}
	found := &rbacv1.RoleBinding{}
	err = owner.write(ctx, c, live, "RoleBinding", found, binding, func() (canChange bool) {
		found.Subjects = binding.Subjects
		return found.RoleRef == binding.RoleRef
	})
	if err != nil {
		return fmt.Errorf("write RoleBinding %s: %w", owner.Key(), err)
	}
	return nil
}

// metadata returns the metadata of a new Role or RoleBinding. The cache has only objects with the label of singletons.
func (o Owner) metadata() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.name,
		Labels:          map[string]string{o.label: o.GetName(), v1.ManagedByLabel: v1.ManagedBy},
		OwnerReferences: owner.References(o.Object, o.kind),
	}
}

// write creates the object that is wanted. If it exists, write reads it into found, and changes it by change if it differs. If change
// returns false, the object is replaced. It fails with a conflict if the object was written since the read.
func (o Owner) write(ctx context.Context, c client.Client, live client.Reader, kind string, found, want client.Object, change func() bool) error {
	if err := live.Get(ctx, o.Key(), found); apierrors.IsNotFound(err) {
		return c.Create(ctx, want)
	} else if err != nil {
		return err
	}
	if err := o.check(kind, found); err != nil {
		return err
	}
	before := found.DeepCopyObject().(client.Object)
	if !change() {
		if err := deleteRead(ctx, c, before); err != nil {
			return err
		}
		return c.Create(ctx, want)
	}
	found.SetLabels(labels.Merge(found.GetLabels(), want.GetLabels()))
	found.SetOwnerReferences(want.GetOwnerReferences())
	if equality.Semantic.DeepEqual(before, found) {
		return nil
	}
	return c.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// Revoke deletes the RoleBinding and the Role, if the owner controls them.
func Revoke(ctx context.Context, c client.Client, live client.Reader, o Owner) error {
	for _, found := range []client.Object{&rbacv1.RoleBinding{}, &rbacv1.Role{}} {
		err := live.Get(ctx, o.Key(), found)
		if err == nil && owner.Controls(o.Object, o.kind, found) {
			err = deleteRead(ctx, c, found)
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", found, o.Key(), err)
		}
	}
	return nil
}

// deleteRead deletes an object, unless it was written since the read.
func deleteRead(ctx context.Context, c client.Client, found client.Object) error {
	uid, version := found.GetUID(), found.GetResourceVersion()
	return client.IgnoreNotFound(c.Delete(ctx, found, client.Preconditions{UID: &uid, ResourceVersion: &version}))
}
