package singleton_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

func (w *world) reconcile(r controllers) ctrl.Result {
	w.t.Helper()
	result, err := r.Reconcile(w.t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	return result
}

// reconcileHandoff runs only the reconciler of the handoffs.
func (w *world) reconcileHandoff(r controllers) ctrl.Result {
	w.t.Helper()
	result, err := r.Reconciler.Reconcile(w.t.Context(), w.request())
	w.Expect(err).NotTo(HaveOccurred())
	return result
}

// holdUp starts a reconcile of the named singleton in a separate controller. It returns when the controller is about to
// send the first write that which selects. proceed lets the controller continue, and returns the result of the
// reconcile.
func (w *world) holdUp(name string, which func(write) bool, changes ...func(controllers)) (proceed func() (ctrl.Result, error)) {
	w.t.Helper()
	var result ctrl.Result
	var err error
	reached, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	stop, resume := sync.OnceFunc(func() { close(reached); <-goOn }), sync.OnceFunc(func() { close(goOn) })
	w.t.Cleanup(resume)
	slow := w.controllersWith(writing(func(sent write) error {
		if which(sent) {
			stop()
		}
		return nil
	}))
	for _, change := range changes {
		change(slow)
	}
	go func() {
		defer close(done)
		result, err = slow.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.key(name)})
	}()
	w.Eventually(reached).Should(BeClosed(), "the controller is about to send the write that the test waits for")
	return func() (ctrl.Result, error) {
		w.t.Helper()
		resume()
		w.Eventually(done).Should(BeClosed(), "the controller continues")
		return result, err
	}
}

// If another controller writes between the reads and the write of a controller, the compare-and-swap fails. The
// controller then signals nothing.
func TestStaleReconciler(t *testing.T) {
	w, fresh := newSteps(t)
	a, b := w.createPod("a", withCommand), w.createPod("b", withCommand)
	w.report(a, pulling)
	w.report(b, pulling)
	w.reconcile(fresh)
	w.report(a, held)
	proceed := w.holdUp(singletonName, ofStatus) // about to record a

	w.report(a, pulling)
	w.report(b, held)
	w.reconcile(fresh)
	w.Expect(w.holder()).To(Equal("b"))
	before := []*corev1.Pod{w.pod("a"), w.pod("b")}
	result, err := proceed()

	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the controller decides again")
	w.Expect(w.holder()).To(Equal("b"))
	w.Expect([]*corev1.Pod{w.pod("a"), w.pod("b")}).To(Equal(before), "pods after a lost compare-and-swap")
	w.Expect(signalled(w.pod("a"))).To(BeFalse())
	w.Expect(signalled(w.pod("b"))).To(BeTrue())
	w.Expect(w.journal.wantOneAtATime()).To(Equal(1))
}

// A controller is delayed between its record and its signal, until another controller has released a different pod. The
// API server rejects the late signal.
func TestLateSignal(t *testing.T) {
	tests := map[string]func(w *world, a *corev1.Pod){
		"the deletion of the pod was requested": func(w *world, a *corev1.Pod) { w.delete(a) },
		"the singleton was recreated and has no record": func(w *world, _ *corev1.Pod) {
			w.removeSingleton()
			w.createSingleton()
		},
	}
	for name, writeOff := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newSteps(t)
			d := w.deployment()
			a := w.warmPod("a", withCommand, ownedBy(w.replicaSet(d, 1)))
			proceed := w.holdUp(singletonName, ofSignal)
			w.Expect(w.holder()).To(Equal("a"))

			writeOff(w, a)
			w.warmPod("b", withCommand, ownedBy(w.replicaSet(d, 2)))
			w.reconcile(w.fresh())
			w.Expect(w.holder()).To(Equal("b"))
			_, err := proceed()
			w.Expect(err).NotTo(HaveOccurred(), "being late is no error")
			if a = w.pod("a"); a != nil {
				w.Expect(signalled(a)).To(BeFalse())
			}
			w.Expect(signalled(w.pod("b"))).To(BeTrue())
			w.Expect(w.journal.wantOneAtATime()).To(Equal(1))
		})
	}
}

// A controller is delayed before it puts the finalizer on a pod, until the singleton is removed. The finalizer is
// removed after the pod has terminated, and not earlier.
func TestLateProtect(t *testing.T) {
	tests := map[string]struct {
		pod func(*world) *corev1.Pod
		// wantAtOnce is true if the pod counts as terminated as soon as its deletion is requested.
		wantAtOnce bool
	}{
		"held":    {pod: func(w *world) *corev1.Pod { return w.warmPod("db-1", withCommand) }, wantAtOnce: true},
		"running": {pod: func(w *world) *corev1.Pod { return w.legacy("db-1") }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, fresh := newSteps(t)
			pod := test.pod(w)
			proceed := w.holdUp(singletonName, ofPod)

			w.delete(w.singleton())
			w.reconcile(fresh)
			w.gone()
			_, err := proceed()
			w.Expect(err).To(MatchError(apierrors.IsNotFound, "not found"))
			w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())

			w.delete(pod)
			result := w.reconcile(fresh)
			w.Expect(hasFinalizer(w.pod("db-1"))).To(Equal(!test.wantAtOnce))
			if !test.wantAtOnce {
				w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "a taint of the node is no event of the pod")
				w.report(pod, ended)
				w.reconcile(fresh)
				w.Expect(hasFinalizer(w.pod("db-1"))).To(BeFalse())
			}
		})
	}
}

// between calls meanwhile after the lists of the first kind and before the lists of the next kind.
type between struct {
	client.Reader
	meanwhile func()

	mu    sync.Mutex
	first string
}

func (r *between) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind := fmt.Sprintf("%T", list)
	r.mu.Lock()
	r.first = cmp.Or(r.first, kind)
	if kind != r.first {
		r.meanwhile()
	}
	r.mu.Unlock()
	return r.Reader.List(ctx, list, options...)
}

// Another singleton selects the same pods. Its delayed controller releases a pod, and the other singleton is deleted,
// while this controller reads. This controller sees the released pod or the other singleton, and releases no second
// pod.
func TestOtherSingletonIsDeletedMeanwhile(t *testing.T) {
	w := newWorld(t)
	other := w.createSingleton(func(s *v1.StatefulSingleton) { s.Name = "other" })
	theirs := inject(w.bare("theirs", withCommand), w.key("other"))
	w.create(theirs)
	w.report(theirs, held)
	proceed := w.holdUp("other", ofPod) // about to choose its pod

	w.createSingleton()
	w.warmPod("ours", withCommand)
	live := &between{Reader: controllerClient, meanwhile: sync.OnceFunc(func() {
		_, err := proceed()
		w.Expect(err).NotTo(HaveOccurred())
		w.delete(other)
		w.reconcileOne(w.fresh(), w.key("other"))
	})}
	w.reconcile(newReconciler(controllerClient, live, w.clock))
	w.Expect(apierrors.IsNotFound(c.Get(t.Context(), w.key("other"), other))).To(BeTrue())
	w.Expect(signalled(w.pod("theirs"))).To(BeTrue())
	w.Expect(signalled(w.pod("ours"))).To(BeFalse())
}

// removeSingleton removes the singleton and its finalizer by hand. The finalizers of the pods stay.
func (w *world) removeSingleton() {
	w.t.Helper()
	s := w.singleton()
	w.delete(s)
	w.merge(s, `{"metadata":{"finalizers":null}}`)
}

// If a controller crashes before any write of a handoff, the next controller continues from the record.
func TestCrash(t *testing.T) {
	tests := map[string]struct {
		writes        int
		wantRecorded  bool
		wantSignalled bool
	}{
		"before the finalizer":                           {writes: 0},
		"before the record":                              {writes: 1},
		"before the barrier is opened":                   {writes: 2, wantRecorded: true},
		"before the signal":                              {writes: 3, wantRecorded: true},
		"before the finalizer of the old pod is removed": {writes: 4, wantRecorded: true, wantSignalled: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newSteps(t)
			first, second := w.handoffDue()

			left := test.writes
			dying := w.controllersWith(writing(func(write) error {
				if left--; left < 0 {
					return errDied
				}
				return nil
			}))
			_, err := dying.Reconciler.Reconcile(t.Context(), w.request())
			w.Expect(err).To(MatchError(errDied))
			w.Expect(w.holder() == "db-2").To(Equal(test.wantRecorded), "db-2 is recorded")
			w.Expect(signalled(w.pod("db-2"))).To(Equal(test.wantSignalled), "db-2 is signalled")
			w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue(), "db-1 is kept")

			w.reconcile(w.fresh())
			s := w.singleton()
			w.Expect(s.Status.ActivePodUID).To(Equal(second.UID))
			w.Expect(s.Status.Epoch).To(Equal(int64(2)))
			w.Expect(signalled(w.pod("db-2"))).To(BeTrue())
			w.Expect(hasFinalizer(w.pod("db-2"))).To(BeTrue())
			var configMap corev1.ConfigMap
			w.Expect(c.Get(t.Context(), w.key(barrierOf(second)), &configMap)).To(Succeed())
			w.Expect(configMap.Data).To(HaveKeyWithValue(signal.EpochKey, "2"))
			w.Expect(hasFinalizer(w.pod(first.Name))).To(BeFalse(), "the finalizer of db-1 is removed")
			w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
		})
	}
}

// handoffDue creates a holder that has terminated and a standby that waits at a barrier. The next handoff needs all of
// its writes.
func (w *world) handoffDue() (first, second *corev1.Pod) {
	w.t.Helper()
	r := w.fresh()
	first = w.holdBy(r, "db-1", withCommand)
	w.reconcile(r)
	second = w.warmPod("db-2")
	w.end(first)
	w.Expect(w.holder()).To(Equal("db-1"))
	return first, second
}

var errDied = errors.New("the controller has died")

// Two managers work on the same objects without leader election.
func TestTwoManagers(t *testing.T) {
	const handoffs = 5
	w := newWorld(t)
	registries := []*prometheus.Registry{w.startManager(), w.startManager()}
	w.createSingleton()
	names := []string{"p0", "p1", "p2"}
	for _, name := range names {
		w.warmPod(name, withCommand)
	}
	for range handoffs {
		w.Eventually(w.holder).ShouldNot(BeEmpty())
		holder := w.pod(w.holder())
		w.serve(holder)
		w.end(holder)
		w.remove(holder)
		w.Eventually(func() *corev1.Pod { return w.pod(holder.Name) }).Should(BeNil())
		w.warmPod(holder.Name+"x", withCommand)
		w.Eventually(w.holder).ShouldNot(Or(BeEmpty(), Equal(holder.Name)))
	}
	w.Expect(w.singleton().Status.Epoch).To(Equal(int64(handoffs + 1)))
	w.Expect(w.journal.wantOneAtATime()).To(Equal(handoffs + 1))

	counted := 0.0
	for _, registry := range registries {
		families, err := registry.Gather()
		w.Expect(err).NotTo(HaveOccurred())
		for _, family := range families {
			for _, metric := range family.Metric {
				counted += metric.GetCounter().GetValue()
			}
		}
	}
	w.Expect(counted).To(Equal(float64(handoffs)), "each completed handoff is counted by one of the two")
}
