package singleton_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// journal has every write in the namespace of the test. The API server numbers the writes of all kinds in one order.
type journal struct {
	w *world

	mu      sync.Mutex
	entries []entry
}

type entry struct {
	version uint64
	deleted bool
	object  client.Object
}

// keepJournal starts to record writes.
func (w *world) keepJournal() *journal {
	w.t.Helper()
	j := &journal{w: w}
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.ConfigMapList{}, &v1.StatefulSingletonList{}, &appsv1.ReplicaSetList{}} {
		watching, err := c.Watch(ctx, list, client.InNamespace(w.namespace))
		w.Expect(err).NotTo(HaveOccurred())
		go func() {
			for event := range watching.ResultChan() {
				j.add(event)
			}
		}()
	}
	return j
}

func (j *journal) add(event watch.Event) {
	object, ok := event.Object.(client.Object)
	if !ok {
		return // the watch has ended
	}
	version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("resourceVersion of %s: %v", object.GetName(), err))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{version, event.Type == watch.Deleted, object})
}

// sorted returns the recorded writes in the order of the API server.
func (j *journal) sorted() []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(slices.Values(j.entries), func(a, b entry) int { return cmp.Compare(a.version, b.version) })
}

// writeStep is the first write for which is returns true.
type writeStep struct {
	what string
	is   func(entry) bool
}

// wantOrder waits for all of the writes, and checks their order.
func (j *journal) wantOrder(steps ...writeStep) {
	j.w.t.Helper()
	versions := make([]uint64, len(steps))
	for i, m := range steps {
		j.w.Eventually(func() bool {
			for _, e := range j.sorted() {
				if m.is(e) {
					versions[i] = e.version
					return true
				}
			}
			return false
		}).Should(BeTrue(), "in the journal: %s", m.what)
	}
	if slices.IsSorted(versions) && len(slices.Compact(slices.Clone(versions))) == len(versions) {
		return
	}
	var came []string
	for i, m := range steps {
		came = append(came, fmt.Sprintf("%d\t%s", versions[i], m.what))
	}
	j.w.t.Errorf("written in the wrong order:\n%s", strings.Join(came, "\n"))
}

// wantOneAtATime checks that at most one pod that has not terminated has a signal at any time, and that each epoch
// belongs to one pod. It returns the number of released pods.
func (j *journal) wantOneAtATime() (released int) {
	j.w.t.Helper()
	live := map[string]bool{}
	podOfEpoch := map[int64]string{}
	for _, e := range j.sorted() {
		pod, ok := e.object.(*corev1.Pod)
		if !ok {
			continue
		}
		s, err := signal.Parse([]byte(pod.Annotations[signal.Annotation]))
		if err != nil || e.deleted || pod.Status.Phase == corev1.PodSucceeded {
			delete(live, pod.Name)
			continue
		}
		live[pod.Name] = true
		if len(live) > 1 {
			j.w.t.Fatalf("two pods have a signal at resourceVersion %d: %v", e.version, live)
		}
		if other, given := podOfEpoch[s.Epoch]; given && other != pod.Name {
			j.w.t.Fatalf("epoch %d belongs to pod %s and to pod %s", s.Epoch, other, pod.Name)
		}
		podOfEpoch[s.Epoch] = pod.Name
	}
	return len(podOfEpoch)
}

// wantKept checks that the pod always has the finalizer after it first received the finalizer.
func (j *journal) wantKept(name string) {
	j.w.t.Helper()
	kept := false
	for _, e := range j.sorted() {
		pod, ok := e.object.(*corev1.Pod)
		if !ok || pod.Name != name {
			continue
		}
		if kept && !hasFinalizer(pod) {
			j.w.t.Errorf("pod %s is without the finalizer at resourceVersion %d", name, e.version)
		}
		kept = kept || hasFinalizer(pod)
	}
	if !kept {
		j.w.t.Errorf("pod %s never had the finalizer", name)
	}
}

// signalled returns true if the pod has its own signal.
func signalled(pod *corev1.Pod) bool {
	s, err := signal.Parse([]byte(pod.Annotations[signal.Annotation]))
	return err == nil && s.UID == string(pod.UID)
}

// wrote selects the writes of the object with the name, except for its deletion, after which is returns true.
func wrote[T client.Object](name string, is func(T) bool) func(entry) bool {
	return func(e entry) bool {
		o, ok := e.object.(T)
		return ok && o.GetName() == name && !e.deleted && is(o)
	}
}

// removes selects the deletion of the object with the name.
func removes[T client.Object](name string) func(entry) bool {
	return func(e entry) bool {
		o, ok := e.object.(T)
		return ok && o.GetName() == name && e.deleted
	}
}

// recordIs selects the writes of the record of the singleton with the holder and the epoch.
func recordIs(name string, epoch int64) func(entry) bool {
	return wrote(singletonName, func(s *v1.StatefulSingleton) bool { return s.Status.ActivePod == name && s.Status.Epoch == epoch })
}
