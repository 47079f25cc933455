package singleton_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// counting counts reads from the API server. It does not count reads of policies.
type counting struct {
	client.Reader

	mu    sync.Mutex
	reads map[string]int
}

func (r *counting) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, policy := o.(*metav1.PartialObjectMetadata); !policy {
		r.count("get", o)
	}
	return r.Reader.Get(ctx, key, o, options...)
}

func (r *counting) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	r.count("list", list)
	return r.Reader.List(ctx, list, options...)
}

func (r *counting) count(verb string, o any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reads == nil {
		r.reads = map[string]int{}
	}
	r.reads[fmt.Sprintf("%s %T", verb, o)]++
}

// taken returns the reads since the last call.
func (r *counting) taken() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.reads
	r.reads = nil
	return taken
}

// A reconcile that may release a pod reads everything from the API server. More frequent reconciles read less.
func TestReads(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	live := &counting{Reader: controllerClient}
	r := newReconciler(controllerClient, live, w.clock)
	d := w.deployment()
	old, next := w.replicaSet(d, 1), w.replicaSet(d, 2)
	first := w.warmPod("db-1", ownedBy(old), withCommand)
	var second *corev1.Pod
	for _, step := range []struct {
		what string
		do   func()
		want map[string]int
	}{
		{"the first pod is released", func() {}, map[string]int{
			"get *v1.StatefulSingleton": 1, "list *v1.PodList": 2, "list *v1.StatefulSingletonList": 1,
		}},
		{"the pod is Ready, and no other pod exists", func() { w.report(first, ready) }, map[string]int{
			"get *v1.StatefulSingleton": 1, "list *v1.PodList": 1, "get *v1.ReplicaSet": 1, "get *v1.Deployment": 1,
		}},
		{"another pod warms up", func() {
			second = w.createPod("db-2", ownedBy(next), withCommand)
			w.report(second, pulling)
		}, map[string]int{
			"get *v1.StatefulSingleton": 1, "list *v1.PodList": 1, "get *v1.ReplicaSet": 2, "get *v1.Deployment": 1,
		}},
		{"a pod is created that the selector does not match", func() {
			w.createPod("db-0", func(p *corev1.Pod) { p.Labels["app"] = "other" })
		}, map[string]int{
			"get *v1.StatefulSingleton": 1, "list *v1.PodList": 2, "get *v1.ReplicaSet": 2, "get *v1.Deployment": 1,
		}},
		{"the holder is terminating", func() { w.ask(first) }, map[string]int{
			"get *v1.StatefulSingleton": 1, "list *v1.PodList": 2, "list *v1.StatefulSingletonList": 1,
			"get *v1.Node": 1, "get *v1.ReplicaSet": 2, "get *v1.Deployment": 1,
		}},
		{"the other pod is released", func() {
			w.report(second, held)
			w.report(first, ended)
		}, map[string]int{
			"get *v1.StatefulSingleton": 1, "list *v1.PodList": 2, "list *v1.StatefulSingletonList": 1,
			"get *v1.Node": 1, "get *v1.ReplicaSet": 2, "get *v1.Deployment": 1,
		}},
	} {
		step.do()
		w.reconcileHandoff(r)
		if diff := cmp.Diff(step.want, live.taken()); diff != "" {
			t.Errorf("%s: reads (-want +got):\n%s", step.what, diff)
		}
	}
	w.Expect(w.holder()).To(Equal("db-2"))
}

// While another pod is the holder, the controller does not reconcile for each status change of a standby.
func TestStandbyCausesFewReconciles(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	live := w.countReads()
	w.startManager()
	w.createSingleton()
	w.installed("Injected")
	w.hold("db-1", withCommand)
	live.taken()

	const reports = 30
	began := time.Now()
	pod := w.createPod("db-2", withCommand)
	for i := range reports {
		w.report(pod, func(pod *corev1.Pod) {
			pulling(pod)
			pod.Status.ContainerStatuses[0].State.Waiting.Message = fmt.Sprint("attempt ", i)
		})
	}
	w.report(pod, held)
	w.Eventually(func() bool { return hasFinalizer(w.pod("db-2")) }).Should(BeTrue())
	most := 3 + int(time.Since(began)/time.Second)
	if looks := live.taken()["get *v1.StatefulSingleton"]; looks > most {
		t.Errorf("%d reconciles for %d reports within %s, want at most %d", looks, reports, time.Since(began), most)
	}
}
