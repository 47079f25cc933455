package singleton_test

import (
	"context"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// singletonName is the name of the singleton of each test. It selects pods with app=db.
const singletonName = "db"

// world is the namespace of one test, with functions that act for the kubelet and the workload controllers.
type world struct {
	*WithT
	t         *testing.T
	namespace string
	clock     *skewedClock
	// policyWrites is the client with which the manager writes policies, or nil for the client of the manager.
	policyWrites client.Client
	// kind is the policyKind of the managers. Empty means ClusterPolicy.
	kind policies.Kind
	// wrap wraps the transport of the managers, or is nil.
	wrap transport.WrapperFunc
	// room is the budget of the namespace for policies.
	room policies.Budget
	// policyReads counts the reads of policies from the API server by the managers.
	policyReads atomic.Int32
	// journal has every write since the world began.
	journal *journal
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newLonelyWorld(t)
}

// newLonelyWorld returns the world of a test that cannot run in parallel.
func newLonelyWorld(t *testing.T) *world {
	t.Helper()
	w := &world{WithT: NewWithT(t), t: t, clock: &skewedClock{}, room: policies.DefaultBudget}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	w.Expect(c.Create(t.Context(), namespace)).To(Succeed())
	w.namespace = namespace.Name
	w.journal = w.keepJournal()
	return w
}

// newSteps returns a world with a singleton, and controllers that run when the test says so.
func newSteps(t *testing.T, changes ...func(*v1.StatefulSingleton)) (*world, controllers) {
	t.Helper()
	w := newWorld(t)
	w.createSingleton(changes...)
	return w, w.fresh()
}

// newRunning returns a world with a running manager and a singleton.
func newRunning(t *testing.T, changes ...func(*v1.StatefulSingleton)) *world {
	t.Helper()
	w := newWorld(t)
	w.startManager()
	w.createSingleton(changes...)
	return w
}

// newServed returns a world with a singleton. Kyverno serves its policies.
func newServed(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.kyverno(serves)
	w.createSingleton()
	return w
}

// newInjected returns a world with a running manager and a singleton, after a check of its policy has succeeded.
func newInjected(t *testing.T, changes ...func(*v1.StatefulSingleton)) *world {
	t.Helper()
	w := newWorld(t)
	w.kyverno(serves)
	w.startManager()
	w.createSingleton(changes...)
	w.installed("Injected")
	return w
}

// skewedClock is a clock that the test can advance.
type skewedClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (s *skewedClock) Now() time.Time                  { return time.Now().Add(time.Duration(s.ahead.Load())) }
func (s *skewedClock) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
func (s *skewedClock) advance(by time.Duration)        { s.ahead.Add(int64(by)) }

// startManager runs the real manager until the end of the test, and returns its metrics registry.
func (w *world) startManager() *prometheus.Registry {
	w.t.Helper()
	registry, stop := w.runManager(policies.PerSingleton)
	w.t.Cleanup(stop)
	return registry
}

// runManager runs the real manager with its real watches. It returns the metrics registry and a function that stops the
// manager. The manager reconciles only the singletons of this namespace, because the policies that it watches are
// cluster-scoped.
func (w *world) runManager(per policies.Per) (registry *prometheus.Registry, stop func()) {
	w.t.Helper()
	options := singleton.CacheOptions()
	options.DefaultNamespaces = map[string]cache.Config{w.namespace: {}}
	config := rest.CopyConfig(controllerConfig)
	if w.wrap != nil {
		config.Wrap(w.wrap)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:     scheme.Scheme,
		Logger:     logger(w.t),
		Cache:      options,
		Metrics:    server.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	w.Expect(err).NotTo(HaveOccurred())
	live := inNamespace{mgr.GetAPIReader(), w.namespace, &w.policyReads}
	registry = prometheus.NewRegistry()
	reconciler := newReconciler(listsOf{mgr.GetClient(), w.namespace}, live, w.clock)
	reconciler.Injection.Per, reconciler.Injection.Budget = per, w.room
	if w.kind != "" {
		reconciler.Injection.Options.Kind = w.kind
	}
	if w.policyWrites != nil {
		reconciler.Injection.Client = w.policyWrites
	}
	reconciler.Recorder = mgr.GetEventRecorder("statefulsingleton")
	reconciler.Metrics = singleton.NewMetrics(registry, mgr.GetClient())
	w.Expect(reconciler.Injection.SetupWithManager(mgr)).To(Succeed())
	w.Expect(reconciler.SetupWithManager(mgr)).To(Succeed())
	gates := &singleton.ReadinessGates{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: w.clock}
	w.Expect(gates.SetupWithManager(mgr)).To(Succeed())
	access := &singleton.LeaseAccess{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: reconciler.Recorder}
	w.Expect(access.SetupWithManager(mgr)).To(Succeed())

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(ctx) }()
	return registry, func() {
		cancel()
		err := <-stopped
		if err == nil {
			return
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if queueHangs.Match(stacks) {
			w.t.Logf("the priority queue hangs: %v", err)
			return
		}
		w.t.Errorf("the manager stopped with: %v; what still runs:\n%s", err, stacks)
	}
}

// queueHangs matches the stack of a deadlock in controller-runtime's priority queue. The queue may hang when it is shut
// down while items are ready (https://github.com/kubernetes-sigs/controller-runtime/issues/3538). Release 0.25 has the
// fix.
var queueHangs = regexp.MustCompile(`goroutine \d+ \[chan send[^\n]*\n(?:[^\n]+\n)*?[^\n]*priorityqueue[^\n]*handleReadyItems`)

// logger logs to the test until the test ends. The event recorder of the manager ends later.
func logger(t *testing.T) logr.Logger {
	var mu sync.Mutex
	ended := false
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
	})
	return funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			t.Log(prefix, args)
		}
	}, funcr.Options{})
}

// listsOf returns empty lists for other namespaces, which are not in the cache of the manager.
type listsOf struct {
	client.Client
	namespace string
}

func (l listsOf) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if in := (&client.ListOptions{}).ApplyOptions(options).Namespace; in != "" && in != l.namespace {
		return nil
	}
	return l.Client.List(ctx, list, options...)
}

// inNamespace finds no objects in other namespaces, and counts the reads of policies.
type inNamespace struct {
	client.Reader
	namespace   string
	policyReads *atomic.Int32
}

func (r inNamespace) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if key.Namespace != "" && key.Namespace != r.namespace {
		return apierrors.NewNotFound(schema.GroupResource{}, key.String())
	}
	if o.GetObjectKind().GroupVersionKind() == policies.ClusterPolicy.GVK() {
		r.policyReads.Add(1)
	}
	return r.Reader.Get(ctx, key, o, options...)
}

// controllers are the reconcilers of the manager. The test decides when they run.
type controllers struct{ *singleton.Reconciler }

// fresh returns controllers without memory.
func (w *world) fresh() controllers { return w.controllersWith(controllerClient) }

// controllersWith returns controllers that use the client as their cache and for their writes.
func (w *world) controllersWith(writes client.Client) controllers {
	return newReconciler(writes, controllerClient, w.clock)
}

func newReconciler(writes client.Client, live client.Reader, clock clock.PassiveClock) controllers {
	return controllers{&singleton.Reconciler{
		Client: writes, Live: live, Clock: clock,
		Recorder: events.NewFakeRecorder(1000),
		Metrics:  singleton.NewMetrics(prometheus.NewRegistry(), writes),
		Injection: &injection.Reconciler{
			Kind:   injection.Singletons,
			Client: writes, Live: live, Clock: clock,
			Options: policies.Options{SidecarImage: "gate"},
			Budget:  policies.DefaultBudget,
			Watch:   func() (injection.Watched, error) { return injection.Watched{}, nil },
		},
	}}
}

// Reconcile runs both reconcilers. For a new singleton it runs them twice, because the policies wait for the finalizer.
func (r controllers) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &v1.StatefulSingleton{}
	if err := r.Injection.Live.Get(ctx, request.NamespacedName, s); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	isNew := s.UID != "" && len(s.Finalizers) == 0
	if isNew {
		if result, err := r.Reconciler.Reconcile(ctx, request); err != nil {
			return result, err
		}
	}
	installed, err := r.Injection.Reconcile(ctx, request)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := r.Reconciler.Reconcile(ctx, request)
	if installed.RequeueAfter > 0 && err == nil && (result.RequeueAfter == 0 || installed.RequeueAfter < result.RequeueAfter) {
		result.RequeueAfter = installed.RequeueAfter
	}
	return result, err
}

// emitted returns the events since the last call.
func (r controllers) emitted() (all []string) {
	for recorded := r.Recorder.(*events.FakeRecorder).Events; ; {
		select {
		case event := <-recorded:
			all = append(all, event)
		default:
			return all
		}
	}
}

func (w *world) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: name}
}

func (w *world) request() ctrl.Request { return ctrl.Request{NamespacedName: w.key(singletonName)} }

// createSingleton creates the singleton of the test, with changes.
func (w *world) createSingleton(changes ...func(*v1.StatefulSingleton)) *v1.StatefulSingleton {
	w.t.Helper()
	s := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: singletonName},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}
	for _, change := range changes {
		change(s)
	}
	w.Expect(c.Create(w.t.Context(), s)).To(Succeed())
	// Policies are not deleted with their namespace.
	w.t.Cleanup(func() {
		for _, name := range []string{policies.Name(client.ObjectKeyFromObject(s)), policies.NamespaceName(s.Namespace)} {
			policy := policyMetadata()
			policy.Name = name
			_ = c.Delete(context.Background(), policy)
		}
	})
	return s
}

// singleton reads the singleton.
func (w *world) singleton() *v1.StatefulSingleton {
	w.t.Helper()
	return w.named(singletonName)
}

// named reads a singleton.
func (w *world) named(name string) *v1.StatefulSingleton {
	w.t.Helper()
	s := &v1.StatefulSingleton{}
	w.Expect(c.Get(w.t.Context(), w.key(name), s)).To(Succeed())
	return s
}

// reason returns the reason of a condition of the singleton, for example "HolderReady".
func (w *world) reason(conditionType string) func() string {
	return func() string {
		if c := meta.FindStatusCondition(w.singleton().Status.Conditions, conditionType); c != nil {
			return c.Reason
		}
		return ""
	}
}

// eventually waits until the singleton has the outcome.
func (w *world) eventually(outcome string) *v1.StatefulSingleton {
	w.t.Helper()
	w.Eventually(w.reason(v1.ConditionReady)).Should(Equal(outcome), func() string { return "message: " + w.singleton().Status.Message })
	return w.singleton()
}

// merge sends a merge patch.
func (w *world) merge(o client.Object, patch string) {
	w.t.Helper()
	w.Expect(c.Patch(w.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

// removed waits until the object does not exist.
func (w *world) removed(o client.Object) {
	w.t.Helper()
	w.Eventually(func() error { return c.Get(w.t.Context(), client.ObjectKeyFromObject(o), o) }).Should(MatchError(apierrors.IsNotFound, "not found"))
}

// gone waits until the singleton does not exist.
func (w *world) gone() {
	w.t.Helper()
	w.removed(&v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: singletonName}})
}

// delete requests the deletion of an object.
func (w *world) delete(o client.Object, options ...client.DeleteOption) {
	w.t.Helper()
	w.Expect(c.Delete(w.t.Context(), o, options...)).To(Succeed())
}

// create creates an object.
func (w *world) create(o client.Object) {
	w.t.Helper()
	w.Expect(c.Create(w.t.Context(), o)).To(Succeed())
}

// pod reads a pod. It returns nil if the pod does not exist.
func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	return found(w, name, &corev1.Pod{})
}

// exists returns true if an object exists, and reads the object.
func (w *world) exists(o client.Object) bool {
	w.t.Helper()
	err := c.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
	w.Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err == nil
}

// found reads an object of the namespace. It returns nil if the object does not exist.
func found[T client.Object](w *world, name string, o T) (none T) {
	w.t.Helper()
	o.SetNamespace(w.namespace)
	o.SetName(name)
	if !w.exists(o) {
		return none
	}
	return o
}

// deployment creates a Deployment with one replica.
func (w *world) deployment() *appsv1.Deployment {
	w.t.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "db"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: podTemplate(),
		},
	}
	w.Expect(c.Create(w.t.Context(), d)).To(Succeed())
	return d
}

// replicaSet creates the ReplicaSet for a revision of the Deployment.
func (w *world) replicaSet(d *appsv1.Deployment, revision int) *appsv1.ReplicaSet {
	w.t.Helper()
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: "db-" + strconv.Itoa(revision),
			Annotations:     map[string]string{"deployment.kubernetes.io/revision": strconv.Itoa(revision)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: podTemplate(),
		},
	}
	w.Expect(c.Create(w.t.Context(), rs)).To(Succeed())
	return rs
}

func podTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db"}}},
	}
}

func ownedBy(rs *appsv1.ReplicaSet) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	}
}

// withCommand adds a command: the wrapper holds the pod. A barrier holds a pod without a command.
func withCommand(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"serve"} }

// bare returns a pod that is not injected.
func (w *world) bare(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	template := podTemplate()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name, pod.Spec.NodeName = w.namespace, name, nodeName
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// createPod creates an injected pod.
func (w *world) createPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := inject(w.bare(name, changes...), w.key(singletonName))
	w.Expect(c.Create(w.t.Context(), pod)).To(Succeed())
	return pod
}

// warmPod creates an injected pod that waits only for the signal.
func (w *world) warmPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := w.createPod(name, changes...)
	w.report(pod, held)
	return pod
}

// report writes the status of a pod, like the kubelet.
func (w *world) report(pod *corev1.Pod, state func(*corev1.Pod)) {
	w.t.Helper()
	w.Eventually(func() error {
		stored := &corev1.Pod{}
		if err := c.Get(w.t.Context(), client.ObjectKeyFromObject(pod), stored); err != nil {
			return err
		}
		state(stored)
		return c.Status().Update(w.t.Context(), stored)
	}).Should(Succeed())
}

// remove deletes the object of a pod without a grace period, like the kubelet after all processes have ended.
func (w *world) remove(pod *corev1.Pod) {
	w.t.Helper()
	err := c.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	w.Expect(client.IgnoreNotFound(err)).To(Succeed())
}

// hold creates a pod and makes it a Ready holder.
func (w *world) hold(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := w.warmPod(name, changes...)
	w.Eventually(w.holder).Should(Equal(name))
	w.serve(pod)
	return pod
}

// holdBy creates a pod and makes it a Ready holder by one reconcile, which does not see that it is Ready.
func (w *world) holdBy(r controllers, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := w.warmPod(name, changes...)
	w.reconcile(r)
	w.report(pod, ready)
	return pod
}

// legacy creates a pod that is not injected, and is Ready.
func (w *world) legacy(name string) *corev1.Pod {
	w.t.Helper()
	pod := w.bare(name)
	w.create(pod)
	w.report(pod, ready)
	return pod
}

// retired waits until ReplicaSet db-1 is scaled to zero. The controller uses the scale subresource, because the chart grants no other
// permission.
func (w *world) retired() {
	w.t.Helper()
	w.eventually("Retiring")
	w.Eventually(func() int32 { return *found(w, "db-1", &appsv1.ReplicaSet{}).Spec.Replicas }).Should(BeZero())
}

// end deletes a pod, whose kubelet then reports that it has terminated.
func (w *world) end(pod *corev1.Pod) {
	w.t.Helper()
	w.delete(pod)
	w.report(pod, ended)
}

// serve starts a released pod and waits until the pod is Ready.
func (w *world) serve(pod *corev1.Pod) {
	w.t.Helper()
	w.report(pod, running)
	w.Eventually(func() bool { return proof.IsTrue(w.pod(pod.Name), v1.ReadyCondition) }).Should(BeTrue(), "readiness gate of pod %s", pod.Name)
	w.report(pod, ready)
	w.eventually("HolderReady")
}

func (w *world) holder() string { return w.singleton().Status.ActivePod }

func hasFinalizer(pod *corev1.Pod) bool {
	return pod != nil && slices.Contains(pod.Finalizers, v1.HandoffFinalizer)
}
