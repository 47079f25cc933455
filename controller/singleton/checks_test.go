package singleton_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// slowProbes is a client whose dry-runs last until the test ends them.
type slowProbes struct {
	client.Client
	running atomic.Int32
	end     chan struct{}
}

func newSlowProbes() *slowProbes {
	s := &slowProbes{end: make(chan struct{})}
	s.Client = interceptor.NewClient(controllerClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, isPod := o.(*corev1.Pod); isPod {
				s.running.Add(1)
				<-s.end
			}
			return c.Create(ctx, o, options...)
		},
	})
	return s
}

// A handoff does not wait for checks of policies, even for many slow checks.
func TestHandoffBesideChecks(t *testing.T) {
	const others, workers = 40, 8
	w := newWorld(t)
	w.kyverno(serves)
	slow := newSlowProbes()
	close(slow.end)
	w.policyWrites = slow
	w.startManager()
	w.createSingleton()
	first := w.hold("db-1", withCommand)
	w.installed("Injected")

	slow.reset()
	var keys []client.ObjectKey
	for n := range others {
		keys = append(keys, client.ObjectKeyFromObject(w.createNamed(fmt.Sprintf("s%d", n))))
	}
	w.Eventually(slow.running.Load).Should(BeEquivalentTo(workers), "concurrent checks")
	w.warmPod("db-2", withCommand)
	w.ask(first)
	w.report(first, ended)
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.Expect(slow.running.Load()).To(BeEquivalentTo(workers), "concurrent checks")
	close(slow.end)
	for _, key := range keys {
		w.Eventually(func() bool { return w.isInstalled(key) }).Should(BeTrue())
	}
}

// After a restart, the condition in the status stays valid, and the controller checks each policy again within the
// normal period.
func TestRestartKeepsChecks(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	slow := newSlowProbes()
	close(slow.end)
	w.createSingleton()
	key := w.key(singletonName)
	r := newReconciler(slow, controllerClient, w.clock)
	w.Eventually(func() bool { w.reconcileOne(r, key); return w.isInstalled(key) }).Should(BeTrue())
	w.clock.advance(time.Hour)

	slow.running.Store(0)
	r = newReconciler(slow, controllerClient, w.clock)
	result := w.reconcileOne(r, key)
	w.Expect(w.isInstalled(key)).To(BeTrue())
	w.Expect(slow.running.Load()).To(BeZero(), "a check right after the restart")
	w.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", 5*time.Minute)))
	w.clock.advance(5 * time.Minute)
	w.reconcileOne(r, key)
	w.Expect(slow.running.Load()).To(BeEquivalentTo(1))
}

// The policies of singletons that are created together are not checked together again. New pods would wait for the API
// server during each burst of dry-runs.
func TestChecksAreSpread(t *testing.T) {
	const singletons = 20
	w := newWorld(t)
	w.kyverno(serves)
	slow := newSlowProbes()
	close(slow.end)
	r := newReconciler(slow, controllerClient, w.clock)
	var next, due []time.Duration // since now, and since before the first check
	for n := range singletons {
		key := client.ObjectKeyFromObject(w.createNamed(fmt.Sprintf("s%d", n)))
		began := w.clock.Now()
		w.Eventually(func() bool { w.reconcileOne(r, key); return w.isInstalled(key) }).Should(BeTrue())
		result, err := r.Injection.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		w.Expect(err).NotTo(HaveOccurred())
		next = append(next, result.RequeueAfter)
		due = append(due, w.clock.Now().Add(next[n]).Sub(began))
	}
	w.Expect(slices.Max(next)).To(BeNumerically("<=", 6*time.Minute))
	w.Expect(slices.Min(due)).To(BeNumerically(">=", 4*time.Minute))
	w.Expect(slices.Max(next)-slices.Min(next)).To(BeNumerically(">", 30*time.Second), "time over which %d checks are spread", singletons)

	first := w.key("s0")
	slow.running.Store(0)
	w.clock.advance(next[0] - time.Minute)
	w.reconcileOne(r, first)
	w.Expect(slow.running.Load()).To(BeZero(), "a check before it is due")
	w.clock.advance(time.Minute)
	w.reconcileOne(r, first)
	w.Expect(slow.running.Load()).To(BeEquivalentTo(1), "a check when it is due")
}

// Another client changes the policy all the time, and every other dry-run fails. Therefore condition PolicyInstalled changes
// all the time. The write of the record never fails because of that.
func TestInstallationsCauseNoConflicts(t *testing.T) {
	const handoffs = 5
	w := newWorld(t)
	w.kyverno(serves)
	w.statusWrites = &statusWrites{}
	w.policyWrites = flakyProbes()
	w.startManager()
	w.createSingleton()
	holder := w.hold("db-1", withCommand)
	w.installed("Injected")

	var changing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); changing.Wait() })
	changing.Go(func() {
		policy := policyMetadata()
		policy.Name = policies.Name(w.key(singletonName))
		change := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"background":true}}`))
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			_ = c.Patch(ctx, policy, change)
		}
	})
	for n := range handoffs {
		next := w.warmPod(fmt.Sprintf("db-%d", n+2), withCommand)
		w.ask(holder)
		w.report(holder, ended)
		w.Eventually(w.holder).Should(Equal(next.Name))
		w.report(next, running)
		w.Eventually(func() bool { return proof.IsTrue(w.pod(next.Name), v1.ReadyCondition) }).Should(BeTrue())
		w.report(next, ready)
		w.Eventually(w.reason(v1.ConditionReady)).Should(Equal("HolderReady"))
		holder = w.pod(next.Name)
	}
	w.Eventually(w.statusWrites.installations.Load).Should(BeNumerically(">", 5), "changes of PolicyInstalled")
	w.Expect(w.statusWrites.conflicts.Load()).To(BeZero())
}

// flakyProbes returns a client whose dry-runs fail every other time.
func flakyProbes() client.Client {
	var probes atomic.Int32
	return interceptor.NewClient(controllerClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, isPod := o.(*corev1.Pod); isPod && probes.Add(1)%2 == 0 {
				return errProbe
			}
			return c.Create(ctx, o, options...)
		},
	})
}

var errProbe = errors.New("no webhook answers")

// statusWrites is a client that counts conflicts of status writes, and writes that change condition PolicyInstalled.
type statusWrites struct {
	client.Client
	conflicts, installations atomic.Int32
	last                     atomic.Value
}

func (s *statusWrites) Status() client.SubResourceWriter { return countedWriter{s.Client.Status(), s} }

type countedWriter struct {
	client.SubResourceWriter
	counts *statusWrites
}

func (w countedWriter) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	if s, ok := o.(*v1.StatefulSingleton); ok {
		if installed := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionPolicyInstalled); installed != nil && w.counts.last.Swap(installed.Reason) != installed.Reason {
			w.counts.installations.Add(1)
		}
	}
	err := w.SubResourceWriter.Update(ctx, o, options...)
	if apierrors.IsConflict(err) {
		w.counts.conflicts.Add(1)
	}
	return err
}

func (s *slowProbes) reset() {
	s.running.Store(0)
	s.end = make(chan struct{})
}

// createNamed creates a singleton with another name, which selects the pods of the app with that name.
func (w *world) createNamed(name string) *v1.StatefulSingleton {
	w.t.Helper()
	return w.createSingleton(func(s *v1.StatefulSingleton) {
		s.Name, s.Spec.Selector.MatchLabels = name, map[string]string{"app": name}
	})
}

func (w *world) isInstalled(key client.ObjectKey) bool {
	w.t.Helper()
	s := &v1.StatefulSingleton{}
	w.Expect(c.Get(w.t.Context(), key, s)).To(Succeed())
	return meta.IsStatusConditionTrue(s.Status.Conditions, v1.ConditionPolicyInstalled)
}

func (w *world) reconcileOne(r controllers, key client.ObjectKey) ctrl.Result {
	w.t.Helper()
	result, err := r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key})
	w.Expect(err).NotTo(HaveOccurred())
	return result
}
