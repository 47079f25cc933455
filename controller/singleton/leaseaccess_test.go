package singleton_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leaseaccess"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// leaseName is the name of the Lease, the Role and the RoleBinding of the singleton of each test.
var leaseName = signal.LeaseName(singletonName)

// withLease makes the policy of the singleton fence new pods.
func withLease(s *v1.StatefulSingleton) { s.Spec.Fencing = v1.FencingLease }

// fencedAs makes a pod with the ServiceAccount a fenced pod.
func fencedAs(account string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		withCommand(pod)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1.FencingAnnotation, string(v1.FencingLease))
		pod.Spec.ServiceAccountName = account
	}
}

// newAccess returns a reconciler of the access to Leases. The test decides when it runs.
func newAccess(writes, live client.Client) (*leaseaccess.Reconciler, *events.FakeRecorder) {
	recorder := events.NewFakeRecorder(100)
	return &leaseaccess.Reconciler{Client: writes, Live: live, Recorder: recorder}, recorder
}

// setFencing changes spec.fencing of the singleton.
func (w *world) setFencing(fencing v1.Fencing) {
	w.t.Helper()
	patch := `{"spec":{"fencing":"` + string(fencing) + `"}}`
	w.Expect(c.Patch(w.t.Context(), w.singleton(), client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

// role and binding return new objects with the name of the Lease. The changes follow.
func (w *world) role(changes ...func(client.Object)) *rbacv1.Role {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: leaseName}}
	for _, change := range changes {
		change(role)
	}
	return role
}

func (w *world) binding(changes ...func(client.Object)) *rbacv1.RoleBinding {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: leaseName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "other"},
	}
	for _, change := range changes {
		change(binding)
	}
	return binding
}

// controlledBy makes a StatefulSingleton with the name of the test's singleton control an object.
func controlledBy(uid types.UID) func(client.Object) {
	return func(o client.Object) {
		o.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: singletonName, UID: uid, Controller: new(true),
		}})
	}
}

// exists returns whether an object exists, and reads the object.
func (w *world) exists(o client.Object) bool {
	w.t.Helper()
	err := c.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
	w.Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err == nil
}

// access returns the ServiceAccounts that the RoleBinding lets renew the Lease. It returns nil if the Role or the
// RoleBinding is missing, or grants anything else.
func (w *world) access() []string {
	w.t.Helper()
	role, binding := w.role(), w.binding()
	if !w.exists(role) || !w.exists(binding) {
		return nil
	}
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{leaseName},
		Verbs: []string{"get", "list", "watch", "patch"},
	}}
	if !equality.Semantic.DeepEqual(role.Rules, want) || binding.RoleRef != (rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: leaseName}) {
		return nil
	}
	accounts := []string{}
	for _, subject := range binding.Subjects {
		w.Expect(subject.Kind).To(Equal("ServiceAccount"))
		w.Expect(subject.Namespace).To(Equal(w.namespace))
		accounts = append(accounts, subject.Name)
	}
	return accounts
}

// may returns whether a ServiceAccount of the namespace has the permission for a Lease.
func (w *world) may(account, verb, lease string) bool {
	w.t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + w.namespace + ":" + account,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: w.namespace, Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Name: lease,
		},
	}}
	w.Expect(c.Create(w.t.Context(), review)).To(Succeed())
	return review.Status.Allowed
}

// The ServiceAccounts of the fenced pods may renew the Lease, and only this Lease, while a pod with the ServiceAccount
// exists.
func TestLeaseAccess(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	s := w.createSingleton(withLease)
	w.Eventually(w.access).Should(Equal([]string{}))
	for _, object := range []client.Object{w.role(), w.binding()} {
		w.Expect(w.exists(object)).To(BeTrue())
		w.Expect(metav1.IsControlledBy(object, s)).To(BeTrue(), "the garbage collector deletes the %T with the singleton", object)
	}
	first := w.createPod("db-1", fencedAs("first"))
	w.Eventually(w.access).Should(Equal([]string{"first"}))
	w.Eventually(func() bool { return w.may("first", "patch", leaseName) }).Should(BeTrue())
	w.Expect(w.may("first", "watch", leaseName)).To(BeTrue())
	w.Expect(w.may("first", "patch", "other")).To(BeFalse())
	w.Expect(w.may("first", "update", leaseName)).To(BeFalse())
	w.Expect(w.may("default", "patch", leaseName)).To(BeFalse())

	w.createPod("unfenced", withCommand, func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "unfenced" })
	second := w.createPod("db-2", fencedAs(""))
	w.Eventually(w.access).Should(Equal([]string{"default", "first"}))
	w.remove(first)
	w.Eventually(w.access).Should(Equal([]string{"default"}))
	w.remove(second)
	w.Eventually(w.access).Should(Equal([]string{}))
}

// Fenced pods keep their access after fencing is turned off. The access is removed after the last fenced pod.
func TestLeaseAccessWithoutFencing(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	w.createSingleton(withLease)
	first := w.createPod("db-1", fencedAs("first"))
	w.Eventually(w.access).Should(Equal([]string{"first"}))
	w.setFencing(v1.FencingKubelet)
	second := w.createPod("db-2", fencedAs("second")) // created before the policy changed
	w.Eventually(w.access).Should(Equal([]string{"first", "second"}))
	w.remove(first)
	w.Eventually(w.access).Should(Equal([]string{"second"}))
	w.remove(second)
	w.Eventually(func() bool { return w.exists(w.binding()) || w.exists(w.role()) }).Should(BeFalse())
}

// A Role or RoleBinding that somebody deletes or changes is restored.
func TestLeaseAccessComesBack(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	w.createSingleton(withLease)
	w.createPod("db-1", fencedAs("first"))
	complete := func() {
		t.Helper()
		w.Eventually(w.access).Should(Equal([]string{"first"}))
	}
	complete()
	for _, object := range []client.Object{w.role(), w.binding()} {
		w.Expect(w.exists(object)).To(BeTrue())
		old := object.GetUID()
		w.Expect(c.Delete(t.Context(), object)).To(Succeed())
		w.Eventually(func() bool { return w.exists(object) && object.GetUID() != old }).Should(BeTrue(), "%T", object)
		complete()
	}
	for name, patch := range map[string]string{
		"rules":  `{"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get"]}]}`,
		"labels": `{"metadata":{"labels":null},"rules":[]}`,
	} {
		w.Expect(c.Patch(t.Context(), w.role(), client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed(), name)
		complete()
	}
	w.Expect(c.Patch(t.Context(), w.binding(), client.RawPatch(types.MergePatchType, []byte(`{"subjects":[]}`)))).To(Succeed())
	complete()
}

// A RoleBinding of another Role is replaced, because its roleRef is immutable.
func TestLeaseAccessOfAnotherRole(t *testing.T) {
	w := newWorld(t)
	s := w.createSingleton(withLease)
	w.createPod("db-1", fencedAs("first"))
	w.Expect(c.Create(t.Context(), w.binding(controlledBy(s.UID)))).To(Succeed())
	access, _ := newAccess(controllerClient, controllerClient)
	result, err := access.Reconcile(t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).To(BeZero())
	w.Expect(w.access()).To(Equal([]string{"first"}))
}

// An object that somebody else created is left alone and reported. No RoleBinding gives the rights of a foreign Role to
// the pods. The pods have access after the object is deleted.
func TestLeaseAccessOfForeignObjects(t *testing.T) {
	for kind, foreign := range map[string]func(*world) client.Object{
		"Role":        func(w *world) client.Object { return w.role() },
		"RoleBinding": func(w *world) client.Object { return w.binding() },
	} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			object := foreign(w)
			w.Expect(c.Create(t.Context(), object)).To(Succeed())
			version := object.GetResourceVersion()
			w.startManager()
			w.createSingleton(withLease)
			w.createPod("db-1", fencedAs("first"))
			event := w.wantEvent(corev1.EventTypeWarning, "LeaseAccessRefused")
			w.Expect(event.Note).To(And(HavePrefix("the pods can't renew the Lease: "+kind+" "+w.namespace+"/"+leaseName+" exists"),
				ContainSubstring("kubectl delete "), ContainSubstring(" -n "+w.namespace+" "+leaseName)))
			w.Expect(w.exists(object)).To(BeTrue())
			w.Expect(object.GetResourceVersion()).To(Equal(version))
			w.Expect(w.access()).To(BeNil())
			if kind == "Role" {
				w.Expect(w.exists(w.binding())).To(BeFalse())
			}
			w.Expect(c.Delete(t.Context(), object)).To(Succeed())
			w.Eventually(w.access).Should(Equal([]string{"first"}))
		})
	}
}

// After fencing is turned off, foreign objects are left alone.
func TestLeaseAccessRevokesOnlyItsOwn(t *testing.T) {
	w := newWorld(t)
	s := w.createSingleton()
	w.Expect(c.Create(t.Context(), w.role())).To(Succeed())
	w.Expect(c.Create(t.Context(), w.binding(controlledBy(s.UID)))).To(Succeed())
	access, recorder := newAccess(controllerClient, controllerClient)
	result, err := access.Reconcile(t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).To(BeZero())
	w.Expect(recorder.Events).To(BeEmpty())
	w.Expect(w.exists(w.role())).To(BeTrue())
	w.Expect(w.exists(w.binding())).To(BeFalse())
}

// The objects of a deleted singleton of the same name are left to the garbage collector, without a warning.
func TestLeaseAccessOfADeletedSingleton(t *testing.T) {
	w := newWorld(t)
	role := w.role(controlledBy("deleted"))
	w.Expect(c.Create(t.Context(), role)).To(Succeed())
	version := role.ResourceVersion
	w.createSingleton(withLease)
	w.createPod("db-1", fencedAs("first"))
	access, recorder := newAccess(controllerClient, controllerClient)
	result, err := access.Reconcile(t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).NotTo(BeZero(), "the reconcile is tried again")
	w.Expect(recorder.Events).To(BeEmpty())
	w.Expect(w.exists(role)).To(BeTrue())
	w.Expect(role.ResourceVersion).To(Equal(version))

	w.Expect(c.Delete(t.Context(), role)).To(Succeed()) // the garbage collector
	result, err = access.Reconcile(t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).To(BeZero())
	w.Expect(w.access()).To(Equal([]string{"first"}))
}

// A reconcile that finds nothing to change writes nothing. Without fencing and fenced pods, it reads only from the cache.
func TestLeaseAccessRequests(t *testing.T) {
	w := newWorld(t)
	w.createSingleton(withLease)
	pod := w.createPod("db-1", fencedAs("first"))
	sent := &requests{}
	access, _ := newAccess(sent.client(t, fromCache), sent.client(t, fromLive))
	reconcile := func() (writes, live int) {
		t.Helper()
		_, err := access.Reconcile(t.Context(), w.request())
		w.Expect(err).NotTo(HaveOccurred())
		for _, request := range sent.taken() {
			switch {
			case !request.isRead():
				writes++
			case request.from == fromLive:
				live++
			default:
				w.Expect(request.resource == "statefulsingletons" || request.metadataOnly).To(BeTrue(), "the cache has only metadata: %s", request)
			}
		}
		return writes, live
	}
	writes, _ := reconcile()
	w.Expect(writes).To(Equal(2), "the Role and the RoleBinding are created")
	writes, live := reconcile()
	w.Expect(writes).To(BeZero())
	w.Expect(live).To(Equal(3), "pods, Role and RoleBinding")

	w.setFencing(v1.FencingKubelet)
	writes, _ = reconcile()
	w.Expect(writes).To(BeZero(), "the fenced pod keeps its access")
	w.remove(pod)
	writes, _ = reconcile()
	w.Expect(writes).To(Equal(2), "the RoleBinding and the Role are deleted")
	writes, live = reconcile()
	w.Expect(writes).To(BeZero())
	w.Expect(live).To(BeZero())
}

// A change between the read and the write is not overwritten: the patch fails with a conflict, and is tried again.
func TestLeaseAccessConflict(t *testing.T) {
	w := newWorld(t)
	s := w.createSingleton(withLease)
	w.Expect(c.Create(t.Context(), w.role(controlledBy(s.UID)))).To(Succeed())
	overtaken := interceptor.NewClient(controllerClient, interceptor.Funcs{
		Get: func(ctx context.Context, reads client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := reads.Get(ctx, key, o, options...)
			if role, isRole := o.(*rbacv1.Role); isRole && err == nil {
				foreign := role.DeepCopy()
				foreign.OwnerReferences = nil
				w.Expect(c.Update(ctx, foreign)).To(Succeed())
			}
			return err
		},
	})
	access, _ := newAccess(controllerClient, overtaken)
	result, err := access.Reconcile(t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).NotTo(BeZero(), "the conflict is tried again")
	role := w.role()
	w.Expect(w.exists(role)).To(BeTrue())
	w.Expect(role.Rules).To(BeEmpty(), "the Role is foreign now")
}

// A singleton that is being deleted gets no new objects, which the garbage collector could delete at once.
func TestLeaseAccessOfATerminatingSingleton(t *testing.T) {
	w := newWorld(t)
	s := w.createSingleton(withLease, func(s *v1.StatefulSingleton) { s.Finalizers = []string{"example.com/kept"} })
	w.t.Cleanup(func() {
		_ = c.Patch(context.Background(), s, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	})
	w.Expect(c.Delete(t.Context(), s)).To(Succeed())
	access, _ := newAccess(controllerClient, controllerClient)
	_, err := access.Reconcile(t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.exists(w.role())).To(BeFalse())

	_, err = access.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key("missing")})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(apierrors.IsNotFound(c.Get(t.Context(), w.key("statefulsingleton-missing"), &rbacv1.Role{}))).To(BeTrue())
}
