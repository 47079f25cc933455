package lock_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leaseaccess"
)

// access returns the Role and the RoleBinding that let the pods of the lock renew the Lease.
func (w *world) access() (*rbacv1.Role, *rbacv1.RoleBinding) {
	w.t.Helper()
	name := metav1.ObjectMeta{Namespace: w.namespace, Name: "statefulsetlock-" + w.lock().Name}
	role, binding := &rbacv1.Role{ObjectMeta: name}, &rbacv1.RoleBinding{ObjectMeta: name}
	w.must(c.Get(w.t.Context(), client.ObjectKeyFromObject(role), role))
	w.must(c.Get(w.t.Context(), client.ObjectKeyFromObject(binding), binding))
	return role, binding
}

// The controller lets the ServiceAccounts of a lock renew its Lease, and no other. RBAC and the guards allow that.
func TestLeaseAccess(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 0)
	l := w.lock()
	grant := func(accounts ...string) {
		t.Helper()
		w.must(leaseaccess.Grant(t.Context(), controller, controller, leaseaccess.OfLock(l), accounts))
	}
	grant("db", "default")
	role, binding := w.access()
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{l.Spec.LeaseName},
		Verbs: []string{"get", "list", "watch", "patch"},
	}}
	if diff := cmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("rules of the Role (-want +got):\n%s", diff)
	}
	for _, object := range []client.Object{role, binding} {
		if !metav1.IsControlledBy(object, l) || object.GetLabels()[v1.LockLabel] != l.Name {
			t.Errorf("%T has owners %v and labels %v", object, object.GetOwnerReferences(), object.GetLabels())
		}
	}
	subjects := func(names ...string) (all []rbacv1.Subject) {
		for _, name := range names {
			all = append(all, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: name})
		}
		return all
	}
	if diff := cmp.Diff(subjects("db", "default"), binding.Subjects); diff != "" || binding.RoleRef.Name != role.Name {
		t.Errorf("binding of Role %s: subjects (-want +got):\n%s", binding.RoleRef.Name, diff)
	}

	grant("db", "default")
	sameRole, sameBinding := w.access()
	if sameRole.ResourceVersion != role.ResourceVersion || sameBinding.ResourceVersion != binding.ResourceVersion {
		t.Error("a grant that changes nothing writes")
	}
	grant("db")
	if _, binding = w.access(); cmp.Diff(subjects("db"), binding.Subjects) != "" {
		t.Errorf("subjects after the grant to one account: %v", binding.Subjects)
	}
}

// An object of somebody else is left alone, and no RoleBinding gives its rights to the pods.
func TestLeaseAccessOfForeignRole(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 0)
	l := w.lock()
	name := "statefulsetlock-" + l.Name
	w.must(c.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}))
	err := leaseaccess.Grant(t.Context(), controller, controller, leaseaccess.OfLock(l), []string{"db"})
	want := "write Role " + w.namespace + "/" + name + ": the pods can't renew the Lease: Role " + w.namespace + "/" + name + " exists, and StatefulSetLock " +
		l.Name + " does not control the Role. If nothing needs the Role, delete the Role: kubectl delete role -n " + w.namespace + " " + name +
		". Otherwise, create a StatefulSetLock with another name"
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %q", err, want)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &rbacv1.RoleBinding{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("there is a RoleBinding, or it cannot be read: %v", err)
	}
}

// The objects of a deleted lock of the same name are left to the garbage collector.
func TestLeaseAccessOfADeletedLock(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 0)
	l := w.lock()
	deleted := l.DeepCopy()
	deleted.UID = "deleted"
	w.must(leaseaccess.Grant(t.Context(), c, c, leaseaccess.OfLock(deleted), nil))
	if err := leaseaccess.Grant(t.Context(), controller, controller, leaseaccess.OfLock(l), nil); !errors.Is(err, leaseaccess.ErrOutdated) {
		t.Errorf("the error is %v, want ErrOutdated", err)
	}
}
