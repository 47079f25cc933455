package singleton_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

// slowProbes is a client whose dry-runs last until the test ends them. Dry-runs for the app "new" end at once.
type slowProbes struct {
	client.Client
	running atomic.Int32
	probed  sync.Map
	end     chan struct{}
}

func newSlowProbes() *slowProbes {
	s := &slowProbes{end: make(chan struct{})}
	s.Client = interceptor.NewClient(controllerClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, isPod := o.(*corev1.Pod); isPod && o.GetLabels()["app"] != "new" {
				s.probed.Store(o.GetLabels()["app"], true)
				s.running.Add(1)
				<-s.end
			}
			return c.Create(ctx, o, options...)
		},
	})
	return s
}

// Proofs never occupy all workers, and handoffs keep the rest. Repeated proofs wait for a slot, also after a restart.
// First proofs do not wait for repeated proofs.
func TestProofsTakeTurns(t *testing.T) {
	const workers, wantFirst, wantAgain = 16, 8, 4
	w := newWorld(t)
	w.kyverno(serves)
	var keys []client.ObjectKey
	for n := range workers {
		keys = append(keys, w.key(w.createNamed(fmt.Sprintf("s%d", n)).Name))
	}

	slow := newSlowProbes()
	r := newReconciler(slow, controllerClient, w.clock)
	woken := make(chan client.ObjectKey, 100)
	r.Injector.Wake = func(key client.ObjectKey) { woken <- key }
	end := w.reconcileAll(r, slow, keys)
	w.Expect(slow.running.Load()).To(BeEquivalentTo(wantFirst), "first proofs at once")
	var waiting []any
	for _, key := range keys {
		if !slow.probes(key) {
			waiting = append(waiting, key)
		}
	}
	end()
	var next []client.ObjectKey
	for len(woken) > 0 {
		next = append(next, <-woken)
	}
	w.Expect(next).To(ConsistOf(waiting...), "those in line, once the others had their turn")
	for _, key := range keys {
		w.Eventually(func() bool { w.reconcileOne(r, key); return w.isInstalled(key) }).Should(BeTrue())
	}

	tests := map[string]func() (*singleton.Reconciler, *slowProbes){
		"later": func() (*singleton.Reconciler, *slowProbes) { slow.reset(); return r, slow },
		"after a restart": func() (*singleton.Reconciler, *slowProbes) {
			s := newSlowProbes()
			return newReconciler(s, controllerClient, w.clock), s
		},
	}
	for name, begin := range tests {
		w.clock.advance(6 * time.Minute)
		r, slow := begin()
		end := w.reconcileAll(r, slow, keys)
		w.Expect(slow.running.Load()).To(BeEquivalentTo(wantAgain), "proofs at once, %s", name)
		for _, key := range keys {
			w.Expect(w.isInstalled(key)).To(BeTrue(), "%s, %s, before its turn", key, name)
		}
		fresh := client.ObjectKeyFromObject(w.createNamed("new"))
		w.reconcileOne(r, fresh)
		w.Expect(w.isInstalled(fresh)).To(BeTrue(), "one that is new, %s", name)
		end()
		w.Expect(c.DeleteAllOf(t.Context(), &v1.StatefulSingleton{}, client.InNamespace(w.namespace), client.MatchingFields{"metadata.name": "new"})).To(Succeed())
		w.reconcileOne(r, fresh)
	}
}

// After a long repeated proof, the slot stays idle. The idle time reduces the load on the API server.
func TestProofsRest(t *testing.T) {
	const wantAgain = 4
	w := newWorld(t)
	w.kyverno(serves)
	slow := newSlowProbes()
	close(slow.end)
	r := newReconciler(slow, controllerClient, w.clock)
	var keys []client.ObjectKey
	for n := range wantAgain + 1 {
		keys = append(keys, client.ObjectKeyFromObject(w.createNamed(fmt.Sprintf("s%d", n))))
		w.Eventually(func() bool { w.reconcileOne(r, keys[n]); return w.isInstalled(keys[n]) }).Should(BeTrue())
	}

	w.clock.advance(6 * time.Minute)
	slow.reset()
	end := w.reconcileAll(r, slow, keys)
	w.clock.advance(time.Hour)
	end()
	for _, key := range keys {
		w.reconcileOne(r, key)
	}

	w.Expect(slow.running.Load()).To(BeEquivalentTo(wantAgain), "proofs, the last of which waits for a turn to have rested")
}

// Repeated proofs of injections that do not work also need a slot. They do not overload the API server.
func TestRefutedProofsTakeTurns(t *testing.T) {
	const wantAgain = 4
	w := newWorld(t)
	w.kyverno(isDown)
	slow := newSlowProbes()
	close(slow.end)
	r := newReconciler(slow, controllerClient, w.clock)
	var keys []client.ObjectKey
	for n := range wantAgain + 1 {
		keys = append(keys, client.ObjectKeyFromObject(w.createNamed(fmt.Sprintf("s%d", n))))
		w.reconcileOne(r, keys[n])
	}
	w.clock.advance(time.Minute)
	for _, key := range keys {
		w.reconcileOne(r, key)
	}

	slow.reset()
	end := w.reconcileAll(r, slow, keys)

	w.Expect(slow.running.Load()).To(BeEquivalentTo(wantAgain), "proofs at once")
	end()
}

// A handoff does not wait for proofs, even for many slow proofs. Singletons in the queue are woken when a slot becomes
// free, because their requeue delay is long.
func TestHandoffBesidesProofs(t *testing.T) {
	const others = 40
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
	w.Eventually(slow.running.Load).Should(BeEquivalentTo(8), "first proofs at once")
	w.warmPod("db-2", withCommand)
	w.ask(first)
	w.report(first, ended)
	w.Eventually(w.holder).Should(Equal("db-2"))
	close(slow.end)
	for _, key := range keys {
		w.Eventually(func() bool { return w.isInstalled(key) }).Should(BeTrue())
	}

	w.clock.advance(6 * time.Minute)
	slow.reset()
	slow.probed.Clear()
	again := keys[:6]
	for _, key := range again {
		s := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		w.Expect(c.Patch(t.Context(), s, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"look":"again"}}}`)))).To(Succeed())
	}
	w.Eventually(slow.running.Load).Should(BeEquivalentTo(4), "proofs at once")
	close(slow.end)
	for _, key := range again {
		w.Eventually(func() bool { return slow.probes(key) }).Should(BeTrue(), "%s is woken", key)
	}
}

func (s *slowProbes) probes(key client.ObjectKey) bool {
	_, is := s.probed.Load(key.Name)
	return is
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

func (w *world) reconcileOne(r *singleton.Reconciler, key client.ObjectKey) ctrl.Result {
	w.t.Helper()
	result, err := r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key})
	w.Expect(err).NotTo(HaveOccurred())
	return result
}

// reconcileAll reconciles all singletons in parallel. It returns when each reconcile has ended or waits for its probe.
// end ends the probes.
func (w *world) reconcileAll(r *singleton.Reconciler, slow *slowProbes, keys []client.ObjectKey) (end func()) {
	w.t.Helper()
	var through atomic.Int32
	var all sync.WaitGroup
	for _, key := range keys {
		all.Go(func() { w.reconcileOne(r, key); through.Add(1) })
	}
	w.Eventually(func() int32 { return through.Load() + slow.running.Load() }).Should(BeEquivalentTo(len(keys)))
	return func() { close(slow.end); all.Wait() }
}
