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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
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
	t          *testing.T
	namespace  string
	set        *appsv1.StatefulSet
	reconciler *lock.Reconciler
	fencing    v1.LockFencing
}

// newWorld creates a lock and a StatefulSet with so many Ready pods.
func newWorld(t *testing.T, fencing v1.LockFencing, pods int) *world {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lock-"}}
	w := &world{t: t, fencing: fencing}
	w.must(c.Create(t.Context(), namespace))
	w.namespace = namespace.Name
	labels := map[string]string{"app": "db"}
	w.set = &appsv1.StatefulSet{ObjectMeta: w.named("db"), Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: "db",
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
	}}
	w.must(c.Create(t.Context(), w.set))
	w.must(c.Create(t.Context(), &v1.StatefulSetLock{
		ObjectMeta: w.named("db"), Spec: v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db", LeaseDurationSeconds: 15, Fencing: fencing},
	}))
	w.reconciler = newReconciler(cached())
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

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: name}
}

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
	w.must(c.Create(w.t.Context(), pod))
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "db", ContainerID: "containerd://1", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	w.must(kubelet.Status().Update(w.t.Context(), pod))
}

// fence prepares the pod for fencing, as Kyverno does.
func (w *world) fence(pod *corev1.Pod) {
	pod.Annotations = map[string]string{v1.FencingAnnotation: string(v1.FencingLease)}
	pod.Spec.ServiceAccountName = "default"
	app := &pod.Spec.Containers[0]
	app.Command = append(slices.Clone(signal.Wrapper), "db")
	app.Env = []corev1.EnvVar{{Name: signal.ContainerEnv, Value: app.Name}}
	pod.Spec.Volumes = []corev1.Volume{{Name: signal.CredentialsVolume, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: injected.CredentialsSources()},
	}}}
	pod.Spec.InitContainers = []corev1.Container{{
		Name: v1.SidecarName, Image: "gate", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		VolumeMounts: []corev1.VolumeMount{{Name: signal.CredentialsVolume, MountPath: signal.CredentialsDir, ReadOnly: true}},
		Env: []corev1.EnvVar{
			{Name: signal.LeaseEnv, Value: w.namespace + "/db"}, {Name: signal.LeaseDurationEnv, Value: "15"}, {Name: signal.HeldEnv, Value: app.Name},
			{Name: signal.LockEnv, Value: "db"}, {Name: signal.PodNameEnv, Value: pod.Name},
			{Name: signal.APIServerEnv, Value: "https://10.96.0.1:443"}, {Name: signal.AuthoritiesEnv, Value: signal.Fingerprint(nil)},
		},
	}}
}

// sidecar writes the Lease, as the sidecar of the pod that it names does.
func (w *world) sidecar(change func(*coordinationv1.Lease)) {
	w.t.Helper()
	lease := w.lease()
	lease.Spec.RenewTime = new(metav1.NowMicro())
	change(lease)
	w.must(c.Update(w.t.Context(), lease))
}

func (w *world) lease() *coordinationv1.Lease {
	w.t.Helper()
	lease := &coordinationv1.Lease{}
	w.must(c.Get(w.t.Context(), w.key().NamespacedName, lease))
	return lease
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{}
	w.must(c.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, pod))
	return pod
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

func (w *world) lock() *v1.StatefulSetLock {
	w.t.Helper()
	got := &v1.StatefulSetLock{}
	w.must(c.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "db"}, got))
	return got
}

func (w *world) key() ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: w.namespace, Name: "db"}}
}

// settle reconciles until the outcome. It fails after ten reconciles.
func (w *world) settle(want tenure.Outcome) *v1.StatefulSetLock {
	w.t.Helper()
	reason := ""
	for range 10 {
		if _, err := w.reconciler.Reconcile(w.t.Context(), w.key()); err != nil {
			w.t.Fatal(err)
		}
		got := w.lock()
		if is := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionReady); is != nil {
			reason = is.Reason
		}
		if reason == string(want) {
			return got
		}
	}
	w.t.Fatalf("outcome %s, want %s", reason, want)
	return nil
}

// wantWriter checks which pods have the label of a writer.
func (w *world) wantWriter(want ...string) {
	w.t.Helper()
	var pods corev1.PodList
	w.must(c.List(w.t.Context(), &pods, client.InNamespace(w.namespace), client.MatchingLabels{v1.StsRoleLabel: v1.StsRoleWriter}))
	var got []string
	for _, pod := range pods.Items {
		got = append(got, pod.Name)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		w.t.Errorf("writers %v, want %v", got, want)
	}
}

// The first writer has the label, the Lease, the finalizer and a budget. The other pods become readers.
func TestGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingTermination, 2)
	got := w.settle(tenure.WriterReady)
	w.wantWriter("db-0")
	if got.Status.WriterPod != "db-0" || got.Status.Epoch != 1 || got.Status.LastTransition.Labelled == nil {
		t.Errorf("status %+v", got.Status)
	}
	if role := w.pod("db-1").Labels[v1.StsRoleLabel]; role != v1.StsRoleReader {
		t.Errorf("role %q of db-1", role)
	}
	if finalizers := w.pod("db-0").Finalizers; len(finalizers) != 1 {
		t.Errorf("finalizers %v of the writer", finalizers)
	}
	lease := &coordinationv1.Lease{}
	w.must(c.Get(t.Context(), w.key().NamespacedName, lease))
	if *lease.Spec.HolderIdentity != "db-0" || *lease.Spec.LeaseTransitions != 1 || lease.Spec.RenewTime == nil {
		t.Errorf("Lease %+v", lease.Spec)
	}
	budget := &policyv1.PodDisruptionBudget{}
	w.must(c.Get(t.Context(), types.NamespacedName{Namespace: w.namespace, Name: "statefulsetlock-db"}, budget))
	if budget.Spec.MinAvailable.IntValue() != 1 {
		t.Errorf("budget %+v", budget.Spec)
	}
	before := lease.ResourceVersion
	if _, err := w.reconciler.Reconcile(t.Context(), w.key()); err != nil {
		t.Fatal(err)
	}
	if w.must(c.Get(t.Context(), w.key().NamespacedName, lease)); lease.ResourceVersion != before || w.lock().ResourceVersion != got.ResourceVersion {
		t.Error("a reconcile without a change writes")
	}
}

// evictions reconciles once, and returns condition EvictionBlocked and the PodDisruptionBudget, which is nil if it does not exist.
func (w *world) evictions() (metav1.Condition, *policyv1.PodDisruptionBudget) {
	w.t.Helper()
	_, err := w.reconciler.Reconcile(w.t.Context(), w.key())
	w.must(err)
	budget := &policyv1.PodDisruptionBudget{}
	if err := c.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: "statefulsetlock-db"}, budget); err != nil {
		w.must(client.IgnoreNotFound(err))
		budget = nil
	}
	condition := meta.FindStatusCondition(w.lock().Status.Conditions, v1.ConditionEvictionBlocked)
	if condition == nil {
		w.t.Fatal("no condition EvictionBlocked")
	}
	return *condition, budget
}

// The controller reverts changes of its PodDisruptionBudget.
func TestBudgetIsRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 2)
	w.settle(tenure.WriterReady)
	is, budget := w.evictions()
	if is.Status != metav1.ConditionTrue || budget == nil {
		t.Fatalf("condition %+v, budget %v", is, budget)
	}
	budget.Spec.Selector.MatchLabels[v1.StsRoleLabel] = "nobody"
	w.must(c.Update(t.Context(), budget))
	w.evictions()
	if _, got := w.evictions(); got == nil || got.UID == budget.UID || got.Spec.Selector.MatchLabels[v1.StsRoleLabel] != v1.StsRoleWriter {
		t.Errorf("budget %+v, want a new one that selects the writer", got)
	}
}

// An object of somebody else with the name of the PodDisruptionBudget stays, and is reported.
func TestForeignBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 2)
	foreign := &policyv1.PodDisruptionBudget{ObjectMeta: w.named("statefulsetlock-db")}
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "StatefulSetLock", Name: "db", UID: w.lock().UID, Controller: new(true)}}
	w.must(c.Create(t.Context(), foreign))
	w.settle(tenure.WriterReady)
	if is, got := w.evictions(); is.Reason != "OtherBudget" || got == nil || got.UID != foreign.UID {
		t.Errorf("condition %+v, budget %+v", is, got)
	}
	w.must(c.Delete(t.Context(), foreign))
	if is, got := w.evictions(); is.Status != metav1.ConditionTrue || got == nil {
		t.Errorf("condition %+v, budget %+v", is, got)
	}
}

// If the PodDisruptionBudget cannot be created, condition EvictionBlocked and an event report the error, once.
func TestBudgetIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 2)
	none := corev1.ResourceList{"count/poddisruptionbudgets.policy": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: w.named("none"), Spec: corev1.ResourceQuotaSpec{Hard: none}}
	w.must(c.Create(t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	w.must(c.Status().Update(t.Context(), quota))
	w.settle(tenure.WriterReady)
	w.evictions()
	before := w.lock().ResourceVersion
	is, got := w.evictions()
	if is.Status != metav1.ConditionFalse || is.Reason != "BudgetRefused" || got != nil {
		t.Errorf("condition %+v, budget %+v", is, got)
	}
	for _, part := range []string{w.namespace + "/statefulsetlock-db", "quota", "kubectl "} {
		if !strings.Contains(is.Message, part) {
			t.Errorf("message %q, want %q in it", is.Message, part)
		}
	}
	if w.lock().ResourceVersion != before {
		t.Error("what was said is written again")
	}
	reported := 0
	for recorded := w.reconciler.Recorder.(*events.FakeRecorder).Events; len(recorded) > 0; {
		if strings.HasPrefix(<-recorded, corev1.EventTypeWarning+" BudgetRefused ") {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("%d events, want 1", reported)
	}
}

// With Termination, another pod becomes the writer only after the kubelet has reported the end of the old writer.
func TestTermination(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingTermination, 2)
	w.settle(tenure.WriterReady)
	w.must(c.Delete(t.Context(), w.pod("db-0")))
	if got := w.settle(tenure.WriterStopping); got.Status.WriterPod != "db-0" {
		t.Errorf("writer %s", got.Status.WriterPod)
	}
	w.wantWriter()
	w.terminate("db-0")
	got := w.settle(tenure.WriterReady)
	w.wantWriter("db-1")
	if last := got.Status.LastTransition; last.Proof != v1.ProofKubeletReported || last.From != "db-0" || last.To != "db-1" || got.Status.Epoch != 2 {
		t.Errorf("status %+v, transition %+v", got.Status, last)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "db-0"}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("pod db-0: %v, want it to be removed", err)
	}
}

// A fenced pod gets its label after it has said that it is the writer. Another pod becomes the writer after a release of the
// Lease, and after the Lease has expired.
func TestFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingLease, 2)
	writes := func(name string, epoch int) {
		t.Helper()
		w.settle(tenure.Granted)
		w.wantWriter()
		if got, want := leases.HolderOf(w.lease()), name+"_"+string(w.pod(name).UID); got != want {
			t.Fatalf("the Lease names %q, want %q", got, want)
		}
		w.sidecar(func(l *coordinationv1.Lease) {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, signal.WritingAnnotation, strconv.Itoa(epoch))
		})
		w.settle(tenure.WriterReady)
		w.wantWriter(name)
	}
	writes("db-0", 1)
	w.sidecar(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") })
	writes("db-1", 2)
	if last := w.lock().Status.LastTransition; last.Cause != v1.TenureRelease || last.Proof != v1.ProofLeaseReleased {
		t.Errorf("transition %+v", last)
	}
	if finalizers := w.pod("db-1").Finalizers; len(finalizers) > 0 {
		t.Errorf("finalizers %v", finalizers)
	}
	_, err := w.reconciler.Reconcile(t.Context(), w.key()) // nothing else is to be written
	w.must(err)
	access := &rbacv1.RoleBinding{}
	w.must(c.Get(t.Context(), types.NamespacedName{Namespace: w.namespace, Name: "statefulsetlock-db"}, access))
	if len(access.Subjects) != 1 || access.Subjects[0].Name != "default" || !metav1.IsControlledBy(access, w.lock()) {
		t.Errorf("RoleBinding %+v", access)
	}
	clock := w.reconciler.Clock.(*clocktesting.FakeClock)
	clock.Step(14 * time.Second)
	w.settle(tenure.WriterReady)
	clock.Step(2 * time.Second)
	writes("db-0", 3)
	if last := w.lock().Status.LastTransition; last.Cause != v1.TenureExpiry || last.Proof != v1.ProofLeaseExpired {
		t.Errorf("transition %+v", last)
	}
}

// An old writer that a Service for writers lists as serving delays the next writer.
func TestServing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 2)
	w.settle(tenure.WriterReady)
	for name, role := range map[string]string{"writer": v1.StsRoleWriter, "reader": v1.StsRoleReader} {
		w.must(c.Create(t.Context(), &corev1.Service{ObjectMeta: w.named(name), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "db", v1.StsRoleLabel: role}, Ports: []corev1.ServicePort{{Port: 80}},
		}}))
	}
	slice := func(service string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: w.named(service), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-0", UID: w.pod("db-0").UID},
		}}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		return s
	}
	served := slice("writer")
	w.must(c.Create(t.Context(), served))
	w.must(c.Create(t.Context(), slice("reader"))) // readers may be served
	w.must(c.Delete(t.Context(), w.pod("db-0")))
	w.settle(tenure.AwaitingEndpoints)
	w.wantWriter()
	served.Endpoints[0].Conditions.Serving = new(false)
	w.must(c.Update(t.Context(), served))
	w.settle(tenure.WriterReady)
	w.wantWriter("db-1")
}

// A decision from before another controller's record changes nothing.
func TestStaleRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 2)
	w.settle(tenure.WriterReady)
	w.must(c.Delete(t.Context(), w.pod("db-0"), client.GracePeriodSeconds(30)))
	w.settle(tenure.LabelRemoved)
	other := newReconciler(cached())
	overtaken := false
	late := newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, writes client.Client, resource string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if !overtaken { // the other controller records first
				overtaken = true
				if _, err := other.Reconcile(ctx, w.key()); err != nil {
					return err
				}
			}
			return writes.SubResource(resource).Update(ctx, o, options...)
		},
	}))
	if result, err := late.Reconcile(t.Context(), w.key()); err != nil || result.RequeueAfter > time.Second {
		t.Errorf("result %v, error %v, want a retry after the conflict", result, err)
	}
	got := w.settle(tenure.WriterReady)
	w.wantWriter("db-1")
	if got.Status.Epoch != 2 {
		t.Errorf("epoch %d, want 2", got.Status.Epoch)
	}
}

// A controller that reads the lock before the first record, and the Lease after it, does not end the first tenure.
func TestReadBeforeRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingLease, 2)
	other, late, overtaken := newReconciler(cached()), newReconciler(cached()), false
	late.Live = interceptor.NewClient(controller, interceptor.Funcs{
		Get: func(ctx context.Context, reads client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, isLease := o.(*coordinationv1.Lease); isLease && !overtaken {
				overtaken = true
				if _, err := other.Reconcile(ctx, w.key()); err != nil {
					return err
				}
			}
			return reads.Get(ctx, key, o, options...)
		},
	})
	if result, err := late.Reconcile(t.Context(), w.key()); err != nil || result.RequeueAfter > time.Second {
		t.Errorf("result %v, error %v, want a retry after the conflict", result, err)
	}
	if ended := w.pod("db-0").Annotations[v1.TenureEndedAnnotation]; ended != "" {
		t.Errorf("the tenure of db-0 ends with epoch %s", ended)
	}
	if got := w.settle(tenure.Granted); got.Status.WriterPod != "db-0" || got.Status.Epoch != 1 {
		t.Errorf("writer %s with epoch %d, want db-0 with epoch 1", got.Status.WriterPod, got.Status.Epoch)
	}
}

// A pod that another client writes after the decision does not become the writer by that decision.
func TestStalePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.NoLease)
	overtaken := false
	w.reconciler = newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Patch: func(ctx context.Context, writes client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, isPod := o.(*corev1.Pod); isPod && !overtaken {
				overtaken = true
				pod := w.pod("db-0")
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/note", "mine")
				if err := c.Update(ctx, pod); err != nil {
					return err
				}
			}
			return writes.Patch(ctx, o, patch, options...)
		},
	}))
	if _, err := w.reconciler.Reconcile(t.Context(), w.key()); err != nil {
		t.Fatal(err)
	}
	w.wantWriter()
	w.settle(tenure.WriterReady)
	w.wantWriter("db-0")
}

// A write that the API server rejects is reported in the status.
func TestWriteRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 1)
	w.reconciler = newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Patch: func(ctx context.Context, writes client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, isPod := o.(*corev1.Pod); isPod {
				return apierrors.NewForbidden(corev1.Resource("pods"), o.GetName(), errors.New("no labels here"))
			}
			return writes.Patch(ctx, o, patch, options...)
		},
	}))
	var err error
	for range 3 {
		_, err = w.reconciler.Reconcile(t.Context(), w.key())
	}
	if !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want the rejection", err)
	}
	got := w.lock()
	is := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionError)
	if is == nil || is.Status != metav1.ConditionTrue || !strings.Contains(got.Status.Message, "no labels here") {
		t.Errorf("message %q, condition %+v", got.Status.Message, is)
	}
	if meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady) {
		t.Error("condition Ready is True")
	}
}

// A webhook can answer each write with 409. The writes are retried less and less often. After a few conflicts, the status, an event and
// the error report them.
func TestRepeatedConflicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.WriterReady)
	w.addPod("db-1")
	denies := true
	w.reconciler = newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Patch: func(ctx context.Context, writes client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, isPod := o.(*corev1.Pod); isPod && denies {
				return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), errors.New("no labels here"))
			}
			return writes.Patch(ctx, o, patch, options...)
		},
	}))
	w.settle(tenure.WriterReady) // still, because a few conflicts are not reported
	for want := 20 * time.Millisecond; want < 2*time.Second; want *= 2 {
		if result, err := w.reconciler.Reconcile(t.Context(), w.key()); err != nil || result.RequeueAfter != want {
			t.Errorf("the next reconcile is after %s with error %v, want %s", result.RequeueAfter, err, want)
		}
	}
	stalled := func() bool { return meta.IsStatusConditionTrue(w.lock().Status.Conditions, v1.ConditionStalled) }
	if stalled() {
		t.Errorf("the lock is stalled after eight conflicts: %q", w.lock().Status.Message)
	}
	if _, err := w.reconciler.Reconcile(t.Context(), w.key()); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want the conflict", err)
	}
	wantReport := func(message string) {
		t.Helper()
		for _, part := range []string{"can't patch pod " + w.namespace + "/db-1: ", "no labels here", "kubectl get "} {
			if !strings.Contains(message, part) {
				t.Errorf("report %q, want %q in it", message, part)
			}
		}
	}
	wantReport(w.lock().Status.Message)
	select {
	case event := <-w.reconciler.Recorder.(*events.FakeRecorder).Events:
		wantReport(event)
	default:
		t.Error("no event reports the conflicts")
	}
	if !stalled() {
		t.Error("the lock is not stalled")
	}
	w.wantWriter("db-0")

	denies = false
	w.settle(tenure.WriterReady)
	if stalled() {
		t.Error("the lock is stalled without conflicts")
	}
	w.addPod("db-2")
	denies = true
	if result, err := w.reconciler.Reconcile(t.Context(), w.key()); err != nil || result.RequeueAfter != 10*time.Millisecond {
		t.Errorf("after new conflicts, the next reconcile is after %s with error %v, want 10ms", result.RequeueAfter, err)
	}
}

// If the pods of a lock take too much memory, the controller makes no decision and reports what to do. The writer stays.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.WriterReady)
	w.reconciler.Live = interceptor.NewClient(controller, interceptor.Funcs{
		List: func(ctx context.Context, live client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := live.List(ctx, list, options...)
			if pods, ok := list.(*corev1.PodList); ok {
				for i := range 10 {
					pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{v1.LockLabel: "db"}}}
					pod.Labels["large"] = strings.Repeat("x", 1<<20)
					pods.Items = append(pods.Items, pod)
				}
			}
			return err
		},
	})
	before := w.lock()
	result, err := w.reconciler.Reconcile(t.Context(), w.key())
	w.must(err)
	got := w.lock()
	is := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionStalled)
	if is == nil || is.Status != metav1.ConditionTrue || is.Reason != "TooManyPods" || !strings.Contains(got.Status.Message, "kubectl delete pod -n "+w.namespace) {
		t.Errorf("message %q, condition %+v", got.Status.Message, is)
	}
	if got.Status.WriterPodUID != before.Status.WriterPodUID || got.Status.Epoch != before.Status.Epoch || result.RequeueAfter == 0 {
		t.Errorf("record %s of epoch %d, requeue after %s", got.Status.WriterPodUID, got.Status.Epoch, result.RequeueAfter)
	}
}

// A record that the API server rejects names no writer, also not together with the report of the error. It is reported even if
// the reason is too long for a message.
func TestRecordRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.NoLease)
	refused := false
	w.reconciler = newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, writes client.Client, resource string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if !refused {
				refused = true
				return apierrors.NewForbidden(corev1.Resource("statefulsetlocks"), o.GetName(), errors.New("not now"+strings.Repeat(", and not later", 10_000)))
			}
			return writes.SubResource(resource).Update(ctx, o, options...)
		},
	}))
	if _, err := w.reconciler.Reconcile(t.Context(), w.key()); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want the rejection", err)
	}
	if got := w.lock(); got.Status.WriterPod != "" || !strings.Contains(got.Status.Message, "not now") {
		t.Errorf("writer %q, message %q", got.Status.WriterPod, got.Status.Message)
	}
	w.wantWriter()
	w.settle(tenure.WriterReady)
	w.wantWriter("db-0")
}

// A second lock, or one whose Lease belongs to another object, writes only its own status.
func TestRefusedLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, v1.LockFencingNone, 1)
	w.settle(tenure.WriterReady)
	foreign := &coordinationv1.Lease{ObjectMeta: w.named("mine")}
	w.must(c.Create(t.Context(), foreign))
	for name, lease := range map[string]string{"second": "second", "foreign": "mine"} {
		other := &v1.StatefulSetLock{ObjectMeta: w.named(name), Spec: v1.StatefulSetLockSpec{StatefulSetName: "db-" + name, LeaseName: lease, LeaseDurationSeconds: 15}}
		if name == "second" {
			other.Spec.StatefulSetName = "db" // of two locks of the same second, the first by name is the older one
		}
		w.must(c.Create(t.Context(), other))
		key := client.ObjectKeyFromObject(other)
		if _, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		w.must(c.Get(t.Context(), key, other))
		if !meta.IsStatusConditionTrue(other.Status.Conditions, v1.ConditionStalled) || len(other.Finalizers) > 0 {
			t.Errorf("%s: finalizers %v, conditions %+v", name, other.Finalizers, other.Status.Conditions)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "second"}, &coordinationv1.Lease{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease of the second lock: %v", err)
	}
	after := &coordinationv1.Lease{}
	if w.must(c.Get(t.Context(), client.ObjectKeyFromObject(foreign), after)); after.ResourceVersion != foreign.ResourceVersion {
		t.Error("the foreign Lease was written")
	}
	if name := w.pod("db-0").Labels[v1.LockLabel]; name != "db" {
		t.Errorf("the pod belongs to lock %q", name)
	}
}
