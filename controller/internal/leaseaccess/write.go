package leaseaccess

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Kinds of the objects.
const (
	roleKind    = "Role"
	bindingKind = "RoleBinding"
)

// access writes the Role and the RoleBinding of one owner.
type access struct {
	client client.Client
	live   client.Reader
	owner  Owner
}

// Grant lets the ServiceAccounts renew the Lease of the owner. It writes the Role and the RoleBinding if they differ from
// those that it reads with live. The error is ErrOutdated if the objects belong to a deleted owner of the same name.
func Grant(ctx context.Context, c client.Client, live client.Reader, owner Owner, accounts []string) error {
	return access{c, live, owner}.grant(ctx, accounts)
}

// grant writes the Role, and then the RoleBinding. If another object has the name of the Role, grant writes no
// RoleBinding, which would give the rights of that object to the pods.
func (a access) grant(ctx context.Context, accounts []string) error {
	if err := a.writeRole(ctx); err != nil {
		return fmt.Errorf("write Role %s: %w", a.owner.key(), err)
	}
	if err := a.writeBinding(ctx, accounts); err != nil {
		return fmt.Errorf("write RoleBinding %s: %w", a.owner.key(), err)
	}
	return nil
}

func (a access) writeRole(ctx context.Context) error {
	want, found := a.owner.role(), &rbacv1.Role{}
	if exists, err := a.read(ctx, found); err != nil {
		return err
	} else if !exists {
		return a.client.Create(ctx, want)
	}
	if err := a.owner.check(roleKind, &found.ObjectMeta); err != nil {
		return err
	}
	changed := found.DeepCopy()
	changed.Labels, changed.OwnerReferences = labels.Merge(found.Labels, want.Labels), want.OwnerReferences
	changed.Rules = want.Rules
	return a.patch(ctx, found, changed)
}

// writeBinding replaces a RoleBinding of another Role, because the API server rejects changes of the roleRef.
func (a access) writeBinding(ctx context.Context, accounts []string) error {
	want, found := a.owner.binding(accounts), &rbacv1.RoleBinding{}
	if exists, err := a.read(ctx, found); err != nil {
		return err
	} else if !exists {
		return a.client.Create(ctx, want)
	}
	if err := a.owner.check(bindingKind, &found.ObjectMeta); err != nil {
		return err
	}
	if found.RoleRef != want.RoleRef {
		if err := a.delete(ctx, found); err != nil {
			return err
		}
		return a.client.Create(ctx, want)
	}
	changed := found.DeepCopy()
	changed.Labels, changed.OwnerReferences = labels.Merge(found.Labels, want.Labels), want.OwnerReferences
	changed.Subjects = want.Subjects
	return a.patch(ctx, found, changed)
}

// revoke deletes the RoleBinding and the Role, if the owner controls them.
func (a access) revoke(ctx context.Context) error {
	for _, found := range []client.Object{&rbacv1.RoleBinding{}, &rbacv1.Role{}} {
		exists, err := a.read(ctx, found)
		if err == nil && exists && a.owner.controls(found) {
			err = a.delete(ctx, found)
		}
		if err != nil {
			return fmt.Errorf("delete %T %s: %w", found, a.owner.key(), err)
		}
	}
	return nil
}

// read reads the object with the owner's key. It returns false if the object does not exist.
func (a access) read(ctx context.Context, found client.Object) (exists bool, err error) {
	err = a.live.Get(ctx, a.owner.key(), found)
	return err == nil, client.IgnoreNotFound(err)
}

// patch writes the changes, if there are any. It fails with a conflict if the object was written since the read.
func (a access) patch(ctx context.Context, found, changed client.Object) error {
	if equality.Semantic.DeepEqual(found, changed) {
		return nil
	}
	return a.client.Patch(ctx, changed, client.MergeFromWithOptions(found, client.MergeFromWithOptimisticLock{}))
}

// delete deletes the object, unless it was written since the read.
func (a access) delete(ctx context.Context, found client.Object) error {
	uid, version := found.GetUID(), found.GetResourceVersion()
	return client.IgnoreNotFound(a.client.Delete(ctx, found, client.Preconditions{UID: &uid, ResourceVersion: &version}))
}

// role returns the Role that lets pods renew the owner's Lease.
func (o Owner) role() *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: o.metadata(),
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{o.lease},
			Verbs: []string{"get", "list", "watch", "patch"},
		}},
	}
}

// binding returns the RoleBinding of the ServiceAccounts.
func (o Owner) binding(accounts []string) *rbacv1.RoleBinding {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: o.metadata(),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: roleKind, Name: o.name},
	}
	for _, account := range accounts {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: o.GetNamespace(), Name: account})
	}
	return binding
}

// metadata returns the metadata of a new Role or RoleBinding. The cache has only objects with the label of singletons.
func (o Owner) metadata() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.name,
		Labels: map[string]string{o.label: o.GetName(), v1.ManagedByLabel: v1.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: o.kind.Kind, Name: o.GetName(), UID: o.GetUID(),
			Controller: new(true),
		}},
	}
}
