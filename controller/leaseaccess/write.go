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
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// Kinds of the objects.
const (
	roleKind    = "Role"
	bindingKind = "RoleBinding"
	ownerKind   = "StatefulSingleton"
)

// grant writes the Role, and then the RoleBinding. If another object has the name of the Role, grant writes no
// RoleBinding, which would give the rights of that object to the pods.
func (r *Reconciler) grant(ctx context.Context, singleton *v1.StatefulSingleton, accounts []string) error {
	if err := r.writeRole(ctx, singleton); err != nil {
		return fmt.Errorf("write Role %s: %w", keyOf(singleton), err)
	}
	if err := r.writeBinding(ctx, singleton, accounts); err != nil {
		return fmt.Errorf("write RoleBinding %s: %w", keyOf(singleton), err)
	}
	return nil
}

func (r *Reconciler) writeRole(ctx context.Context, singleton *v1.StatefulSingleton) error {
	want, found := roleOf(singleton), &rbacv1.Role{}
	if exists, err := r.read(ctx, singleton, found); err != nil {
		return err
	} else if !exists {
		return r.Client.Create(ctx, want)
	}
	if err := checkOwner(singleton, roleKind, &found.ObjectMeta); err != nil {
		return err
	}
	changed := found.DeepCopy()
	changed.Labels, changed.OwnerReferences = labels.Merge(found.Labels, want.Labels), want.OwnerReferences
	changed.Rules = want.Rules
	return r.patch(ctx, found, changed)
}

// writeBinding replaces a RoleBinding of another Role, because the API server rejects changes of the roleRef.
func (r *Reconciler) writeBinding(ctx context.Context, singleton *v1.StatefulSingleton, accounts []string) error {
	want, found := bindingOf(singleton, accounts), &rbacv1.RoleBinding{}
	if exists, err := r.read(ctx, singleton, found); err != nil {
		return err
	} else if !exists {
		return r.Client.Create(ctx, want)
	}
	if err := checkOwner(singleton, bindingKind, &found.ObjectMeta); err != nil {
		return err
	}
	if found.RoleRef != want.RoleRef {
		if err := r.delete(ctx, found); err != nil {
			return err
		}
		return r.Client.Create(ctx, want)
	}
	changed := found.DeepCopy()
	changed.Labels, changed.OwnerReferences = labels.Merge(found.Labels, want.Labels), want.OwnerReferences
	changed.Subjects = want.Subjects
	return r.patch(ctx, found, changed)
}

// revoke deletes the RoleBinding and the Role, if the singleton controls them.
func (r *Reconciler) revoke(ctx context.Context, singleton *v1.StatefulSingleton) error {
	for _, found := range []client.Object{&rbacv1.RoleBinding{}, &rbacv1.Role{}} {
		exists, err := r.read(ctx, singleton, found)
		if err == nil && exists && metav1.IsControlledBy(found, singleton) {
			err = r.delete(ctx, found)
		}
		if err != nil {
			return fmt.Errorf("delete %T %s: %w", found, keyOf(singleton), err)
		}
	}
	return nil
}

// read reads the object with the singleton's key. It returns false if the object does not exist.
func (r *Reconciler) read(ctx context.Context, singleton *v1.StatefulSingleton, found client.Object) (exists bool, err error) {
	err = r.Live.Get(ctx, keyOf(singleton), found)
	return err == nil, client.IgnoreNotFound(err)
}

// patch writes the changes, if there are any. It fails with a conflict if the object was written since the read.
func (r *Reconciler) patch(ctx context.Context, found, changed client.Object) error {
	if equality.Semantic.DeepEqual(found, changed) {
		return nil
	}
	return r.Client.Patch(ctx, changed, client.MergeFromWithOptions(found, client.MergeFromWithOptimisticLock{}))
}

// delete deletes the object, unless it was written since the read.
func (r *Reconciler) delete(ctx context.Context, found client.Object) error {
	uid, version := found.GetUID(), found.GetResourceVersion()
	return client.IgnoreNotFound(r.Client.Delete(ctx, found, client.Preconditions{UID: &uid, ResourceVersion: &version}))
}

// roleOf returns the Role that lets pods renew the singleton's Lease.
func roleOf(singleton *v1.StatefulSingleton) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metadataOf(singleton),
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{keyOf(singleton).Name},
			Verbs: []string{"get", "list", "watch", "patch"},
		}},
	}
}

// bindingOf returns the RoleBinding of the ServiceAccounts.
func bindingOf(singleton *v1.StatefulSingleton, accounts []string) *rbacv1.RoleBinding {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metadataOf(singleton),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: roleKind, Name: keyOf(singleton).Name},
	}
	for _, account := range accounts {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: singleton.Namespace, Name: account})
	}
	return binding
}

// metadataOf returns the metadata of a new Role or RoleBinding. The cache has only objects with the singleton's label.
func metadataOf(singleton *v1.StatefulSingleton) metav1.ObjectMeta {
	key := keyOf(singleton)
	return metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name,
		Labels: map[string]string{v1.SingletonLabel: singleton.Name, policies.ManagedByLabel: policies.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: ownerKind, Name: singleton.Name, UID: singleton.UID,
			Controller: new(true),
		}},
	}
}
