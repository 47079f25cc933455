package singleton_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// probes is a client that counts its dry-runs. After hold, they last until the test closes end.
type probes struct {
	client.Client
	running atomic.Int32
	end     chan struct{}
}

func newProbes() *probes {
	p := &probes{end: make(chan struct{})}
	close(p.end)
	p.Client = writing(func(sent write) error {
		if ofProbe(sent) {
			p.running.Add(1)
			<-p.end
		}
		return nil
	})
	return p
}

func (p *probes) hold() {
	p.running.Store(0)
	p.end = make(chan struct{})
}

// A handoff does not wait for checks of policies, even for many slow checks.
func TestHandoffBesideChecks(t *testing.T) {
	const others, workers = 40, 8
	w := newWorld(t)
	w.kyverno(serves)
	slow := newProbes()
	w.policyWrites = slow
	w.startManager()
	w.createSingleton()
	first := w.hold("db-1", withCommand)
	w.installed("Injected")

	slow.hold()
	var names []string
	for n := range others {
		names = append(names, w.createNamed(fmt.Sprintf("s%d", n)).Name)
	}
	w.Eventually(slow.running.Load).Should(BeEquivalentTo(workers), "concurrent checks")
	w.warmPod("db-2", withCommand)
	w.end(first)
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.Expect(slow.running.Load()).To(BeEquivalentTo(workers), "concurrent checks")
	close(slow.end)
	w.allInstalled(names...)
}

// After a restart, the condition in the status stays valid, and the controller checks each policy again within the
// normal period.
func TestRestartKeepsChecks(t *testing.T) {
	w := newServed(t)
	w.checked(w.fresh(), singletonName)
	w.clock.advance(time.Hour)

	probes := newProbes()
	r := w.controllersWith(probes)
	result := w.reconcile(r)
	w.Expect(w.isInstalled(singletonName)).To(BeTrue())
	w.Expect(probes.running.Load()).To(BeZero(), "a check right after the restart")
	w.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", 5*time.Minute)))
	w.clock.advance(5 * time.Minute)
	w.reconcile(r)
	w.Expect(probes.running.Load()).To(BeEquivalentTo(1))
}

// The policies of singletons that are created together are not checked together again. New pods would wait for the API
// server during each burst of dry-runs.
func TestChecksAreSpread(t *testing.T) {
	const singletons = 20
	w := newWorld(t)
	w.kyverno(serves)
	probes := newProbes()
	r := w.controllersWith(probes)
	var next, due []time.Duration // since now, and since before the first check
	for n := range singletons {
		key := client.ObjectKeyFromObject(w.createNamed(fmt.Sprintf("s%d", n)))
		began := w.clock.Now()
		w.checked(r, key.Name)
		result, err := r.Injection.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		w.Expect(err).NotTo(HaveOccurred())
		next = append(next, result.RequeueAfter)
		due = append(due, w.clock.Now().Add(next[n]).Sub(began))
	}
	w.Expect(slices.Max(next)).To(BeNumerically("<=", 6*time.Minute))
	w.Expect(slices.Min(due)).To(BeNumerically(">=", 4*time.Minute))
	w.Expect(slices.Max(next)-slices.Min(next)).To(BeNumerically(">", 30*time.Second), "time over which %d checks are spread", singletons)

	probes.running.Store(0)
	w.clock.advance(next[0] - time.Minute)
	w.reconcileOne(r, w.key("s0"))
	w.Expect(probes.running.Load()).To(BeZero(), "a check before it is due")
	w.clock.advance(time.Minute)
	w.reconcileOne(r, w.key("s0"))
	w.Expect(probes.running.Load()).To(BeEquivalentTo(1), "a check when it is due")
}

// Another client changes the policy all the time, and every other dry-run fails. Therefore condition PolicyInstalled changes
// all the time. The write of the record never fails because of that.
func TestInstallationsCauseNoConflicts(t *testing.T) {
	const handoffs = 5
	w := newWorld(t)
	w.kyverno(serves)
	var probes, conflicts atomic.Int32
	w.wrap = countAnswers(http.StatusConflict, "/statefulsingletons/"+singletonName+"/status", &conflicts)
	w.policyWrites = writing(func(sent write) error {
		if ofProbe(sent) && probes.Add(1)%2 == 0 {
			return errors.New("no webhook answers")
		}
		return nil
	})
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
		change := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"background":true}}`))
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			_ = c.Patch(ctx, policy, change)
		}
	})
	for n := range handoffs {
		next := w.warmPod(fmt.Sprintf("db-%d", n+2), withCommand)
		w.end(holder)
		w.Eventually(w.holder).Should(Equal(next.Name))
		w.serve(next)
		holder = next
	}
	w.Eventually(func() (changes int) {
		last := ""
		for _, e := range w.journal.sorted() {
			if s, ok := e.object.(*v1.StatefulSingleton); ok {
				if is := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionPolicyInstalled); is != nil && is.Reason != last {
					last = is.Reason
					changes++
				}
			}
		}
		return changes
	}).Should(BeNumerically(">", 5), "changes of PolicyInstalled")
	w.Expect(conflicts.Load()).To(BeZero())
}

// createNamed creates a singleton with another name, which selects the pods of the app with that name.
func (w *world) createNamed(name string) *v1.StatefulSingleton {
	w.t.Helper()
	return w.createSingleton(func(s *v1.StatefulSingleton) {
		s.Name, s.Spec.Selector.MatchLabels = name, map[string]string{"app": name}
	})
}

// isInstalled returns true if the last check of the singleton's policy has succeeded.
func (w *world) isInstalled(name string) bool {
	w.t.Helper()
	return w.installedCondition(name).Status == metav1.ConditionTrue
}

func (w *world) reconcileOne(r controllers, key client.ObjectKey) ctrl.Result {
	w.t.Helper()
	result, err := r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key})
	w.Expect(err).NotTo(HaveOccurred())
	return result
}
