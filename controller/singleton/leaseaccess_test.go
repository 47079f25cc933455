package singleton_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
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

// reconcileAccess reconciles the access to the Lease of the singleton. It returns the result, and the recorded events.
func (w *world) reconcileAccess(writes, live client.Client) (ctrl.Result, <-chan string) {
	w.t.Helper()
	recorder := events.NewFakeRecorder(100)
	access := &singleton.LeaseAccess{Client: writes, Live: live, Recorder: recorder}
	result, err := access.Reconcile(w.t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	return result, recorder.Events
}

// setFencing changes spec.fencing of the singleton.
func (w *world) setFencing(fencing v1.Fencing) {
	w.t.Helper()
	w.merge(w.singleton(), `{"spec":{"fencing":"`+string(fencing)+`"}}`)
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

// The ServiceAccounts of the fenced pods may renew the Lease, and only this Lease, while a pod with the ServiceAccount exists. Fenced
// pods keep their access after fencing is turned off. The access is removed after the last fenced pod.
func TestLeaseAccess(t *testing.T) {
	w := newRunning(t, withLease)
	w.Eventually(w.access).Should(Equal([]string{}))
	for _, object := range []client.Object{w.role(), w.binding()} {
		w.Expect(w.exists(object)).To(BeTrue())
		w.Expect(metav1.IsControlledBy(object, w.singleton())).To(BeTrue(), "the garbage collector deletes the %T with the singleton", object)
	}
	first := w.createPod("db-1", fencedAs("first"))
	w.Eventually(w.access).Should(Equal([]string{"first"}))
	w.createPod("unfenced", withCommand, func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "unfenced" })
	second := w.createPod("db-2", fencedAs(""))
	w.Eventually(w.access).Should(Equal([]string{"default", "first"}))
	w.remove(first)
	w.Eventually(w.access).Should(Equal([]string{"default"}))

	w.setFencing(v1.FencingKubelet)
	third := w.createPod("db-3", fencedAs("third")) // created before the policy changed
	w.Eventually(w.access).Should(Equal([]string{"default", "third"}))
	w.remove(second)
	w.Eventually(w.access).Should(Equal([]string{"third"}))
	w.remove(third)
	w.Eventually(func() bool { return w.exists(w.binding()) || w.exists(w.role()) }).Should(BeFalse())
}

// A Role or RoleBinding that somebody deletes or changes is restored.
func TestLeaseAccessComesBack(t *testing.T) {
	w := newRunning(t, withLease)
	w.createPod("db-1", fencedAs("first"))
	w.Eventually(w.access).Should(Equal([]string{"first"}))
	for i, change := range []func(){
		func() { w.delete(w.role()) },
		func() { w.delete(w.binding()) },
		func() {
			w.merge(w.role(), `{"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get"]}]}`)
		},
		func() { w.merge(w.role(), `{"metadata":{"labels":null},"rules":[]}`) },
		func() { w.merge(w.binding(), `{"subjects":[]}`) },
	} {
		change()
		w.Eventually(w.access).Should(Equal([]string{"first"}), "change %d", i)
	}
}

// A RoleBinding of another Role is replaced, because its roleRef is immutable.
func TestLeaseAccessOfAnotherRole(t *testing.T) {
	w, _ := newSteps(t, withLease)
	w.createPod("db-1", fencedAs("first"))
	w.create(w.binding(controlledBy(w.singleton().UID)))
	result, _ := w.reconcileAccess(controllerClient, controllerClient)
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
			w.create(object)
			version := object.GetResourceVersion()
			w.startManager()
			w.createSingleton(withLease)
			w.createPod("db-1", fencedAs("first"))
			w.Expect(w.wantEvent(corev1.EventTypeWarning, "LeaseAccessRefused").Note).To(ContainSubstring(kind + " " + w.namespace + "/" + leaseName + " exists"))
			w.Expect(w.exists(object)).To(BeTrue())
			w.Expect(object.GetResourceVersion()).To(Equal(version))
			w.Expect(w.exists(w.binding())).To(Equal(kind == "RoleBinding"))
			w.delete(object)
			w.Eventually(w.access).Should(Equal([]string{"first"}))
		})
	}
}

// Without fencing, foreign objects are left alone.
func TestLeaseAccessRevokesOnlyItsOwn(t *testing.T) {
	w, _ := newSteps(t)
	w.create(w.role())
	w.create(w.binding(controlledBy(w.singleton().UID)))
	result, recorded := w.reconcileAccess(controllerClient, controllerClient)
	w.Expect(result).To(BeZero())
	w.Expect(recorded).To(BeEmpty())
	w.Expect(w.exists(w.role())).To(BeTrue())
	w.Expect(w.exists(w.binding())).To(BeFalse())
}

// The objects of a deleted singleton of the same name are left to the garbage collector, without a warning.
func TestLeaseAccessOfADeletedSingleton(t *testing.T) {
	w, _ := newSteps(t, withLease)
	role := w.role(controlledBy("deleted"))
	w.create(role)
	version := role.ResourceVersion
	w.createPod("db-1", fencedAs("first"))
	result, recorded := w.reconcileAccess(controllerClient, controllerClient)
	w.Expect(result).NotTo(BeZero(), "the reconcile is tried again")
	w.Expect(recorded).To(BeEmpty())
	w.Expect(w.exists(role)).To(BeTrue())
	w.Expect(role.ResourceVersion).To(Equal(version))

	w.delete(role) // the garbage collector
	result, _ = w.reconcileAccess(controllerClient, controllerClient)
	w.Expect(result).To(BeZero())
	w.Expect(w.access()).To(Equal([]string{"first"}))
}

// A reconcile that finds nothing to change writes nothing. Without fencing and fenced pods, it reads only from the cache.
func TestLeaseAccessRequests(t *testing.T) {
	w, sent, _ := newRecorded(t, withLease)
	pod := w.createPod("db-1", fencedAs("first"))
	cached, read := sent.client(t, fromCache), sent.client(t, fromLive)
	for _, step := range []struct {
		what             string
		do               func()
		wantWrites, live int
	}{
		{"the Role and the RoleBinding are created", func() {}, 2, 3},
		{"nothing changes", func() {}, 0, 3},
		{"the fenced pod keeps its access", func() { w.setFencing(v1.FencingKubelet) }, 0, 3},
		{"the RoleBinding and the Role are deleted", func() { w.remove(pod) }, 2, 3},
		{"nothing is left", func() {}, 0, 0},
	} {
		step.do()
		w.reconcileAccess(cached, read)
		writes, live := 0, 0
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
		w.Expect(writes).To(Equal(step.wantWrites), step.what)
		w.Expect(live).To(BeNumerically("<=", step.live), "live reads: %s", step.what)
	}
}

// A change between the read and the write is not overwritten: the patch fails with a conflict, and is tried again.
func TestLeaseAccessConflict(t *testing.T) {
	w, _ := newSteps(t, withLease)
	w.create(w.role(controlledBy(w.singleton().UID)))
	overtaken := w.meanwhile(isOf[*rbacv1.Role], func() { w.merge(w.role(), `{"metadata":{"ownerReferences":null}}`) })
	result, _ := w.reconcileAccess(overtaken, controllerClient)
	w.Expect(result).NotTo(BeZero(), "the conflict is tried again")
	role := w.role()
	w.Expect(w.exists(role)).To(BeTrue())
	w.Expect(role.Rules).To(BeEmpty(), "the Role is foreign now")
}

// A singleton that is being deleted gets no new objects, which the garbage collector could delete at once.
func TestLeaseAccessOfATerminatingSingleton(t *testing.T) {
	w, _ := newSteps(t, withLease, func(s *v1.StatefulSingleton) { s.Finalizers = []string{"example.com/kept"} })
	w.delete(w.singleton())
	w.reconcileAccess(controllerClient, controllerClient)
	w.Expect(w.exists(w.role())).To(BeFalse())
	w.merge(w.singleton(), `{"metadata":{"finalizers":null}}`)
	w.reconcileAccess(controllerClient, controllerClient)
	w.Expect(w.exists(w.role())).To(BeFalse(), "a missing singleton")
}
