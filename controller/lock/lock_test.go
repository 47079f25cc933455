package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testpod"
	"github.com/statefulsingleton/statefulsingleton/controller/lock"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// c has all permissions, controller those of the controller, and kubelet writes as the kubelet does. The API server has the chart's
// RBAC and guards for the controller.
var c, controller, kubelet client.WithWatch

const nodeName = "node"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	testenv.Main(m, nil, func(ctx context.Context, e *testenv.Env) (err error) {
		c = e.Client
		if controller, err = testenv.ClientOf(e.As(testenv.User)); err != nil {
			return err
		}
		if kubelet, err = e.Kubelet(); err != nil {
			return err
		}
		objects, err := testenv.Chart(ctx, "rbac.yaml", "guards-controller.yaml")
		return errors.Join(err, e.CreateNode(ctx, nodeName), e.Create(ctx, objects))
	})
}

// world is a lock with its StatefulSet in a namespace of its own.
type world struct {
	*WithT
	t          *testing.T
	namespace  string
	set        *appsv1.StatefulSet
	reconciler *lock.Reconciler
	fencing    v1.LockFencing
}

// newWorld creates a lock and a StatefulSet with so many Ready pods.
func newWorld(t *testing.T, fencing v1.LockFencing, pods int) *world {
	t.Parallel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lock-"}}
	w := &world{WithT: NewWithT(t), t: t, fencing: fencing, reconciler: newReconciler(cached())}
	w.create(namespace)
	w.namespace = namespace.Name
	labels := map[string]string{"app": "db"}
	w.set = &appsv1.StatefulSet{ObjectMeta: w.named("db"), Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: "db",
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
	}}
	w.create(w.set)
	w.create(&v1.StatefulSetLock{
		ObjectMeta: w.named("db"), Spec: v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db", LeaseDurationSeconds: 15, Fencing: fencing},
	})
	if fencing == v1.LockFencingLease { // otherwise the Lease is held, because a pod may follow an earlier one
		w.settle(tenure.NoReadyPod)
	}
	for i := range pods {
		w.addPod(fmt.Sprintf("db-%d", i))
	}
	return w
}

// cached returns a client that writes with the rights of the controller, and reads without them, as from a cache.
func cached() client.WithWatch {
	return interceptor.NewClient(controller, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			return c.List(ctx, list, options...)
		},
	})
}

func newReconciler(writes client.Client) *lock.Reconciler {
	clock := clocktesting.NewFakeClock(time.Now())
	return &lock.Reconciler{
		Client: writes, Live: controller, Clock: clock, Recorder: events.NewFakeRecorder(100),
		Injection: &injection.Reconciler{Kind: injection.Locks, Budget: policies.DefaultBudget, Client: writes, Live: controller, Clock: clock},
	}
}

// patching returns a reconciler that calls before with the name of each pod that it patches. An error is the API server's answer.
func patching(before func(pod string) error) *lock.Reconciler {
	return newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Patch: func(ctx context.Context, writes client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, isPod := o.(*corev1.Pod); isPod {
				if err := before(o.GetName()); err != nil {
					return err
				}
			}
			return writes.Patch(ctx, o, patch, options...)
		},
	}))
}

// recording returns a reconciler that calls before ahead of its first write of the status. An error is the API server's answer.
func recording(before func() error) *lock.Reconciler {
	first := true
	return newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, writes client.Client, resource string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if first {
				first = false
				if err := before(); err != nil {
					return err
				}
			}
			return writes.SubResource(resource).Update(ctx, o, options...)
		},
	}))
}

func (w *world) create(o client.Object) { w.must(c.Create(w.t.Context(), o)) }

func (w *world) must(err error) {
	w.t.Helper()
	w.Expect(err).NotTo(HaveOccurred())
}

func (w *world) named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: name}
}

// get reads an object of the namespace.
func get[T any, P interface {
	*T
	client.Object
}](w *world, name string) P {
	w.t.Helper()
	o := P(new(T))
	w.must(c.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, o))
	return o
}

func (w *world) pod(name string) *corev1.Pod { w.t.Helper(); return get[corev1.Pod](w, name) }

func (w *world) lock() *v1.StatefulSetLock { w.t.Helper(); return get[v1.StatefulSetLock](w, "db") }

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "db", Image: "db"}}}
}

// addPod creates a Ready pod of the StatefulSet, as without Kyverno.
func (w *world) addPod(name string) {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: w.named(name), Spec: podSpec()}
	pod.Labels = map[string]string{"app": "db"}
	if w.fencing == v1.LockFencingLease {
		w.fence(pod)
	}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(w.set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	w.create(pod)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "db", ContainerID: "containerd://1", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	w.must(kubelet.Status().Update(w.t.Context(), pod))
}

// fence prepares the pod for fencing, as Kyverno does.
func (w *world) fence(pod *corev1.Pod) {
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Containers[0].Command = append(slices.Clone(signal.Wrapper), "db")
	pod.Spec.InitContainers = []corev1.Container{{Name: v1.SidecarName, Image: "gate", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	testpod.Fence(pod, "db", corev1.EnvVar{Name: signal.LockEnv, Value: "db"})
}

// sidecar writes the Lease, as the sidecar of the pod that it names does.
func (w *world) sidecar(change func(*coordinationv1.Lease)) {
	w.t.Helper()
	lease := get[coordinationv1.Lease](w, "db")
	lease.Spec.RenewTime = new(metav1.NowMicro())
	change(lease)
	w.must(c.Update(w.t.Context(), lease))
}

// terminate reports that the processes of the pod have ended, and removes the pod as the kubelet does.
func (w *world) terminate(name string) {
	w.t.Helper()
	pod := w.pod(name)
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://1"}}
	w.must(kubelet.Status().Update(w.t.Context(), pod))
	w.must(client.IgnoreNotFound(c.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0))))
}

func (w *world) reconcile(r *lock.Reconciler) (ctrl.Result, error) {
	return r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: w.namespace, Name: "db"}})
}

// condition returns a condition of the lock. It is empty if the lock does not have it.
func (w *world) condition(conditionType string) metav1.Condition {
	w.t.Helper()
	return ptr.Deref(meta.FindStatusCondition(w.lock().Status.Conditions, conditionType), metav1.Condition{})
}

// settle reconciles until the outcome. It fails after ten reconciles.
func (w *world) settle(want tenure.Outcome) *v1.StatefulSetLock {
	w.t.Helper()
	for range 10 {
		_, err := w.reconcile(w.reconciler)
		w.must(err)
		if w.condition(v1.ConditionReady).Reason == string(want) {
			return w.lock()
		}
	}
	w.t.Fatalf("outcome %s, want %s", w.condition(v1.ConditionReady).Reason, want)
	return nil
}

// wantWriter checks which pods have the label of a writer.
func (w *world) wantWriter(want ...string) {
	w.t.Helper()
	var pods corev1.PodList
	w.must(c.List(w.t.Context(), &pods, client.InNamespace(w.namespace), client.MatchingLabels{v1.StsRoleLabel: v1.StsRoleWriter}))
	got := []string{}
	for _, pod := range pods.Items {
		got = append(got, pod.Name)
	}
	w.Expect(got).To(ConsistOf(want))
}

// The first writer has the label, the Lease, the finalizer and a budget. The other pods become readers. A reconcile without a change
// writes nothing.
func TestGrant(t *testing.T) {
	w := newWorld(t, v1.LockFencingTermination, 2)
	got := w.settle(tenure.WriterReady)
	w.wantWriter("db-0")
	w.Expect(got.Status.WriterPod).To(Equal("db-0"))
	w.Expect(got.Status.Epoch).To(BeEquivalentTo(1))
	w.Expect(got.Status.LastTransition.Labelled).NotTo(BeNil())
	w.Expect(w.pod("db-1").Labels).To(HaveKeyWithValue(v1.StsRoleLabel, v1.StsRoleReader))
	w.Expect(w.pod("db-0").Finalizers).To(HaveLen(1))
	lease := get[coordinationv1.Lease](w, "db")
	w.Expect(leases.HolderOf(lease)).To(Equal("db-0"))
	w.Expect(*lease.Spec.LeaseTransitions).To(BeEquivalentTo(1))
	w.Expect(lease.Spec.RenewTime).NotTo(BeNil())
	w.Expect(get[policyv1.PodDisruptionBudget](w, "statefulsetlock-db").Spec.MinAvailable.IntValue()).To(Equal(1))
	_, err := w.reconcile(w.reconciler)
	w.must(err)
	w.Expect(get[coordinationv1.Lease](w, "db").ResourceVersion).To(Equal(lease.ResourceVersion))
	w.Expect(w.lock().ResourceVersion).To(Equal(got.ResourceVersion))
}

// evictions reconciles once, and returns condition EvictionBlocked and the PodDisruptionBudget, which is nil if it does not exist.
func (w *world) evictions() (metav1.Condition, *policyv1.PodDisruptionBudget) {
	w.t.Helper()
	_, err := w.reconcile(w.reconciler)
	w.must(err)
	var all policyv1.PodDisruptionBudgetList
	w.must(c.List(w.t.Context(), &all, client.InNamespace(w.namespace)))
	if len(all.Items) == 0 {
		return w.condition(v1.ConditionEvictionBlocked), nil
	}
	return w.condition(v1.ConditionEvictionBlocked), &all.Items[0]
}

// The controller reverts changes of its PodDisruptionBudget.
func TestBudgetIsRepaired(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 2)
	w.settle(tenure.WriterReady)
	is, budget := w.evictions()
	w.Expect(is.Status).To(Equal(metav1.ConditionTrue))
	budget.Spec.Selector.MatchLabels[v1.StsRoleLabel] = "nobody"
	w.must(c.Update(t.Context(), budget))
	w.evictions()
	_, got := w.evictions()
	w.Expect(got.UID).NotTo(Equal(budget.UID))
	w.Expect(got.Spec.Selector.MatchLabels).To(HaveKeyWithValue(v1.StsRoleLabel, v1.StsRoleWriter))
}

// If the PodDisruptionBudget cannot be created, condition EvictionBlocked and an event report the error, once.
func TestBudgetIsRefused(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 2)
	none := corev1.ResourceList{"count/poddisruptionbudgets.policy": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: w.named("none"), Spec: corev1.ResourceQuotaSpec{Hard: none}}
	w.create(quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	w.must(c.Status().Update(t.Context(), quota))
	w.settle(tenure.WriterReady)
	w.evictions()
	before := w.lock().ResourceVersion
	is, got := w.evictions()
	w.Expect(got).To(BeNil())
	w.Expect(is.Status).To(Equal(metav1.ConditionFalse))
	w.Expect(is.Reason).To(Equal("BudgetRefused"))
	w.Expect(is.Message).To(And(ContainSubstring(w.namespace+"/statefulsetlock-db"), ContainSubstring("quota"), ContainSubstring("kubectl ")))
	w.Expect(w.lock().ResourceVersion).To(Equal(before), "what was said is written again")
	reported := 0
	for recorded := w.reconciler.Recorder.(*events.FakeRecorder).Events; len(recorded) > 0; {
		if strings.HasPrefix(<-recorded, corev1.EventTypeWarning+" BudgetRefused ") {
			reported++
		}
	}
	w.Expect(reported).To(Equal(1))
}

// With Termination, another pod becomes the writer only after the kubelet has reported the end of the old writer.
func TestTermination(t *testing.T) {
	w := newWorld(t, v1.LockFencingTermination, 2)
	w.settle(tenure.WriterReady)
	w.must(c.Delete(t.Context(), w.pod("db-0")))
	w.Expect(w.settle(tenure.WriterStopping).Status.WriterPod).To(Equal("db-0"))
	w.wantWriter()
	w.terminate("db-0")
	status := w.settle(tenure.WriterReady).Status
	w.wantWriter("db-1")
	last := status.LastTransition
	w.Expect([]string{string(last.Proof), last.From, last.To}).To(Equal([]string{string(v1.ProofKubeletReported), "db-0", "db-1"}))
	w.Expect(status.Epoch).To(BeEquivalentTo(2))
	err := c.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "db-0"}, &corev1.Pod{})
	w.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the finalizer of db-0 is removed: %v", err)
}

// A fenced pod gets its label after it has said that it is the writer. Another pod becomes the writer after a release of the
// Lease, and after the Lease has expired. The ServiceAccounts of the fenced pods may renew this Lease.
func TestFenced(t *testing.T) {
	w := newWorld(t, v1.LockFencingLease, 2)
	writes := func(name string, epoch int) {
		t.Helper()
		w.settle(tenure.Granted)
		w.wantWriter()
		w.Expect(leases.HolderOf(get[coordinationv1.Lease](w, "db"))).To(Equal(name + "_" + string(w.pod(name).UID)))
		w.sidecar(func(l *coordinationv1.Lease) {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, signal.WritingAnnotation, strconv.Itoa(epoch))
		})
		w.settle(tenure.WriterReady)
		w.wantWriter(name)
	}
	wantLast := func(cause v1.TenureCause, proof v1.Proof) {
		t.Helper()
		last := w.lock().Status.LastTransition
		w.Expect(last.Cause).To(Equal(cause))
		w.Expect(last.Proof).To(Equal(proof))
	}
	writes("db-0", 1)
	w.sidecar(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") })
	writes("db-1", 2)
	wantLast(v1.TenureRelease, v1.ProofLeaseReleased)
	w.Expect(w.pod("db-1").Finalizers).To(BeEmpty())
	_, err := w.reconcile(w.reconciler) // nothing else is to be written
	w.must(err)
	role, binding := get[rbacv1.Role](w, "statefulsetlock-db"), get[rbacv1.RoleBinding](w, "statefulsetlock-db")
	for _, o := range []client.Object{role, binding} {
		w.Expect(metav1.IsControlledBy(o, w.lock())).To(BeTrue())
		w.Expect(o.GetLabels()).To(HaveKeyWithValue(v1.LockLabel, "db"))
	}
	w.Expect(role.Rules).To(HaveLen(1))
	w.Expect(role.Rules[0].ResourceNames).To(Equal([]string{"db"}))
	w.Expect(binding.Subjects).To(Equal([]rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: "default"}}))
	clock := w.reconciler.Clock.(*clocktesting.FakeClock)
	clock.Step(14 * time.Second)
	w.settle(tenure.WriterReady)
	clock.Step(2 * time.Second)
	writes("db-0", 3)
	wantLast(v1.TenureExpiry, v1.ProofLeaseExpired)
}

// An old writer that a Service for writers lists as serving delays the next writer.
func TestServing(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 2)
	w.settle(tenure.WriterReady)
	served := map[string]*discoveryv1.EndpointSlice{}
	for name, role := range map[string]string{"writer": v1.StsRoleWriter, "reader": v1.StsRoleReader} { // readers may be served
		w.create(&corev1.Service{ObjectMeta: w.named(name), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "db", v1.StsRoleLabel: role}, Ports: []corev1.ServicePort{{Port: 80}},
		}})
		served[name] = &discoveryv1.EndpointSlice{ObjectMeta: w.named(name), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-0", UID: w.pod("db-0").UID},
		}}}
		served[name].Labels = map[string]string{discoveryv1.LabelServiceName: name}
		w.create(served[name])
	}
	w.must(c.Delete(t.Context(), w.pod("db-0")))
	w.settle(tenure.AwaitingEndpoints)
	w.wantWriter()
	served["writer"].Endpoints[0].Conditions.Serving = new(false)
	w.must(c.Update(t.Context(), served["writer"]))
	w.settle(tenure.WriterReady)
	w.wantWriter("db-1")
}

// wantRetry reconciles, and wants a retry after a conflict.
func (w *world) wantRetry(r *lock.Reconciler) {
	w.t.Helper()
	result, err := w.reconcile(r)
	w.must(err)
	w.Expect(result.RequeueAfter).To(BeNumerically("<", time.Second))
}

// A decision from before another controller's record changes nothing.
func TestStaleRecord(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 2)
	w.settle(tenure.WriterReady)
	w.must(c.Delete(t.Context(), w.pod("db-0"), client.GracePeriodSeconds(30)))
	w.settle(tenure.LabelRemoved)
	w.wantRetry(recording(func() error { // the other controller records first
		_, err := w.reconcile(newReconciler(cached()))
		return err
	}))
	w.Expect(w.settle(tenure.WriterReady).Status.Epoch).To(BeEquivalentTo(2))
	w.wantWriter("db-1")
}

// A controller that reads the lock before the first record, and the Lease after it, does not end the first tenure.
func TestReadBeforeRecord(t *testing.T) {
	w := newWorld(t, v1.LockFencingLease, 2)
	late, overtaken := newReconciler(cached()), false
	late.Live = interceptor.NewClient(controller, interceptor.Funcs{
		Get: func(ctx context.Context, reads client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, isLease := o.(*coordinationv1.Lease); isLease && !overtaken {
				overtaken = true
				if _, err := w.reconcile(newReconciler(cached())); err != nil {
					return err
				}
			}
			return reads.Get(ctx, key, o, options...)
		},
	})
	w.wantRetry(late)
	w.Expect(w.pod("db-0").Annotations).NotTo(HaveKey(v1.TenureEndedAnnotation))
	status := w.settle(tenure.Granted).Status
	w.Expect(status.WriterPod).To(Equal("db-0"))
	w.Expect(status.Epoch).To(BeEquivalentTo(1))
}

// A pod that another client writes after the decision does not become the writer by that decision.
func TestStalePod(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.NoLease)
	overtaken := false
	w.reconciler = patching(func(string) error {
		if overtaken {
			return nil
		}
		overtaken = true
		pod := w.pod("db-0")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/note", "mine")
		return c.Update(t.Context(), pod)
	})
	w.wantRetry(w.reconciler)
	w.wantWriter()
	w.settle(tenure.WriterReady)
	w.wantWriter("db-0")
}

// A write that the API server rejects is reported in the status.
func TestWriteRefused(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 1)
	w.reconciler = patching(func(pod string) error {
		return apierrors.NewForbidden(corev1.Resource("pods"), pod, errors.New("no labels here"))
	})
	var err error
	for range 3 {
		_, err = w.reconcile(w.reconciler)
	}
	w.Expect(err).To(Satisfy(apierrors.IsForbidden))
	w.Expect(w.condition(v1.ConditionError).Status).To(Equal(metav1.ConditionTrue))
	w.Expect(w.condition(v1.ConditionReady).Status).To(Equal(metav1.ConditionFalse))
	w.Expect(w.lock().Status.Message).To(ContainSubstring("no labels here"))
}

// A webhook can answer each write with 409. The writes are retried less and less often. After a few conflicts, the status, an event and
// the error report them.
func TestRepeatedConflicts(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.WriterReady)
	w.addPod("db-1")
	denies := true
	w.reconciler = patching(func(pod string) error {
		if !denies {
			return nil
		}
		return apierrors.NewConflict(corev1.Resource("pods"), pod, errors.New("no labels here"))
	})
	wantDelay := func(want time.Duration) {
		t.Helper()
		result, err := w.reconcile(w.reconciler)
		w.must(err)
		w.Expect(result.RequeueAfter).To(Equal(want))
	}
	stalled := func() bool { return w.condition(v1.ConditionStalled).Status == metav1.ConditionTrue }
	w.settle(tenure.WriterReady) // still, because a few conflicts are not reported
	for want := 20 * time.Millisecond; want < 2*time.Second; want *= 2 {
		wantDelay(want)
	}
	w.Expect(stalled()).To(BeFalse(), "after eight conflicts")
	_, err := w.reconcile(w.reconciler)
	w.Expect(err).To(Satisfy(apierrors.IsConflict))
	report := And(ContainSubstring("can't patch pod "+w.namespace+"/db-1: "), ContainSubstring("no labels here"), ContainSubstring("kubectl get "))
	w.Expect(w.lock().Status.Message).To(report)
	w.Expect(w.reconciler.Recorder.(*events.FakeRecorder).Events).To(Receive(report))
	w.Expect(stalled()).To(BeTrue())
	w.wantWriter("db-0")

	denies = false
	w.settle(tenure.WriterReady)
	w.Expect(stalled()).To(BeFalse())
	w.addPod("db-2")
	denies = true
	wantDelay(10 * time.Millisecond)
}

// If the pods of a lock take too much memory, the controller makes no decision and reports what to do. The writer stays.
func TestTooLarge(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 1)
	before := w.settle(tenure.WriterReady).Status
	w.reconciler.Live = interceptor.NewClient(controller, interceptor.Funcs{
		List: func(ctx context.Context, live client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := live.List(ctx, list, options...)
			if pods, ok := list.(*corev1.PodList); ok {
				for i := range 10 {
					pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i), UID: types.UID(fmt.Sprint(i))}}
					pod.Labels = map[string]string{v1.LockLabel: "db", "large": strings.Repeat("x", 1<<20)}
					pods.Items = append(pods.Items, pod)
				}
			}
			return err
		},
	})
	result, err := w.reconcile(w.reconciler)
	w.must(err)
	w.Expect(result.RequeueAfter).NotTo(BeZero())
	is, got := w.condition(v1.ConditionStalled), w.lock().Status
	w.Expect(is.Status).To(Equal(metav1.ConditionTrue))
	w.Expect(is.Reason).To(Equal("TooManyPods"))
	w.Expect(got.Message).To(ContainSubstring("kubectl delete pod -n " + w.namespace))
	w.Expect(got.WriterPodUID).To(Equal(before.WriterPodUID))
	w.Expect(got.Epoch).To(Equal(before.Epoch))
}

// A record that the API server rejects names no writer, also not together with the report of the error. It is reported even if
// the reason is too long for a message.
func TestRecordRefused(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.NoLease)
	w.reconciler = recording(func() error {
		return apierrors.NewForbidden(corev1.Resource("statefulsetlocks"), "db", errors.New("not now"+strings.Repeat(", and not later", 10_000)))
	})
	_, err := w.reconcile(w.reconciler)
	w.Expect(err).To(Satisfy(apierrors.IsForbidden))
	status := w.lock().Status
	w.Expect(status.WriterPod).To(BeEmpty())
	w.Expect(status.Message).To(ContainSubstring("not now"))
	w.wantWriter()
	w.settle(tenure.WriterReady)
	w.wantWriter("db-0")
}

// A second lock, or one whose Lease belongs to another object, writes only its own status.
func TestRefusedLocks(t *testing.T) {
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.WriterReady)
	foreign := &coordinationv1.Lease{ObjectMeta: w.named("mine")}
	w.create(foreign)
	for name, lease := range map[string]string{"second": "second", "foreign": "mine"} {
		other := &v1.StatefulSetLock{ObjectMeta: w.named(name), Spec: v1.StatefulSetLockSpec{StatefulSetName: "db-" + name, LeaseName: lease, LeaseDurationSeconds: 15}}
		if name == "second" {
			other.Spec.StatefulSetName = "db" // of two locks of the same second, the first by name is the older one
		}
		w.create(other)
		_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		w.must(err)
		other = get[v1.StatefulSetLock](w, name)
		w.Expect(meta.IsStatusConditionTrue(other.Status.Conditions, v1.ConditionStalled)).To(BeTrue(), name)
		w.Expect(other.Finalizers).To(BeEmpty(), name)
	}
	err := c.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "second"}, &coordinationv1.Lease{})
	w.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the Lease of the second lock: %v", err)
	w.Expect(get[coordinationv1.Lease](w, "mine").ResourceVersion).To(Equal(foreign.ResourceVersion))
	w.Expect(w.pod("db-0").Labels).To(HaveKeyWithValue(v1.LockLabel, "db"))
}
