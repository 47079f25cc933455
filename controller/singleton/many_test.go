package singleton_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// evictedSize is the size in bytes of each pod that evicted creates.
const evictedSize = 200 << 10

// evicted creates evicted pods. Half of the size of each pod is an annotation, and half is an environment variable.
func (w *world) evicted(pods int) {
	w.t.Helper()
	long := strings.Repeat("x", evictedSize/2)
	var creates errgroup.Group
	creates.SetLimit(8)
	for i := range pods {
		creates.Go(func() error {
			pod := inject(w.bare(fmt.Sprintf("evicted-%d", i), withCommand), w.key(singletonName))
			pod.Annotations["long"] = long
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LONG", Value: long}}
			if err := c.Create(w.t.Context(), pod); err != nil {
				return err
			}
			pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
			return c.Status().Update(w.t.Context(), pod)
		})
	}
	w.Expect(creates.Wait()).To(Succeed())
}

// wantTooMany checks that the status says why no decision was made, and that the record is unchanged.
func (w *world) wantTooMany(holder *corev1.Pod, why string) {
	w.t.Helper()
	status := w.singleton().Status
	w.Expect(status.Phase).To(Equal(v1.PhaseFailed))
	w.Expect(status.ActivePodUID).To(Equal(holder.UID))
	w.Expect(status.Message).To(And(HavePrefix(why+". The controller releases no pod and removes no finalizer until fewer pods match."),
		ContainSubstring("kubectl delete pod -n "+w.namespace+" -l 'app=db' --field-selector=status.phase=Failed")))
	for kind, want := range map[string]metav1.ConditionStatus{
		v1.ConditionReady: metav1.ConditionFalse, v1.ConditionReconciling: metav1.ConditionFalse, v1.ConditionStalled: metav1.ConditionTrue,
	} {
		condition := meta.FindStatusCondition(status.Conditions, kind)
		w.Expect(condition).To(And(HaveField("Status", want), HaveField("Reason", "TooManyPods"), HaveField("Message", status.Message)), kind)
	}
}

// allocated returns the memory that do allocates, and the part that is in use afterwards, in MiB.
func allocated(do func()) (total, kept uint64) {
	var before, after, collected runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&collected)
	return (after.TotalAlloc - before.TotalAlloc) >> 20, (max(collected.HeapAlloc, before.HeapAlloc) - before.HeapAlloc) >> 20
}

// If more pods match than the controller reads, it decides nothing, and the status says what to do. The controller
// continues after pods are deleted. The memory for reading and keeping pods is bounded. The test cannot run in
// parallel, because it measures memory.
func TestTooManyPods(t *testing.T) {
	w := newLonelyWorld(t)
	w.createSingleton()
	sent := &requests{}
	live := sent.client(t, fromLive)
	r := newReconciler(sent.client(t, fromCache), live, w.clock)
	first := w.holdBy(r, "db-1", withCommand)
	w.reconcile(r)
	w.clock.advance(time.Hour)
	second := w.warmPod("db-2", withCommand)
	w.end(first)
	w.evicted(observe.MaxPods - 1) // plus db-1 and db-2

	sent.taken()
	var result ctrl.Result
	total, _ := allocated(func() { result = w.reconcile(r) })
	t.Logf("the reconcile allocates a total of %d MiB", total)
	var whole, largest int
	for _, s := range sent.taken() {
		w.Expect(restsOnProof(s)).To(Or(BeEmpty(), Equal("records the holder")), "it writes no pod: %s", s)
		if s.verb == "list" && s.resource == "pods" && s.from == fromLive {
			w.Expect(s.query.Get("limit")).To(Equal("16"), s.String())
			largest = max(largest, *s.received)
			if !s.metadataOnly {
				whole++
			}
		}
	}
	w.Expect(whole).To(BeNumerically("<=", 2), "pages of whole pods")
	w.Expect(largest).To(And(BeNumerically(">", 10*evictedSize), BeNumerically("<", 18*evictedSize)), "bytes of the largest answer")
	w.Expect(result.RequeueAfter).To(BeNumerically("<=", 10*time.Second))
	w.wantTooMany(first, "more than 250 pods match spec.selector or have the label apps.statefulsingleton.com/singleton=db")
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())

	// With one pod fewer, all pods are read, page by page.
	w.delete(w.pod("evicted-0"), client.GracePeriodSeconds(0))
	var snapshot handoff.Snapshot
	stored := w.singleton()
	_, kept := allocated(func() {
		var err error
		snapshot, err = observe.Observer{Client: live, Live: live}.Observe(t.Context(), stored)
		w.Expect(err).NotTo(HaveOccurred())
	})
	w.Expect(snapshot.Pods).To(HaveLen(observe.MaxPods))
	w.Expect(kept).To(BeNumerically("<", 16), "MiB")
	w.reconcile(r)
	status := w.singleton().Status
	w.Expect(status.ActivePodUID).To(Equal(second.UID))
	w.Expect(status.Phase).To(Equal(v1.PhaseTransitioning))
	w.Expect(status.Message).NotTo(ContainSubstring("takes longer"))
	w.Expect(signalled(w.pod("db-2"))).To(BeTrue())
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeFalse())
	w.journal.wantOrder(writeStep{"the signal of db-2", wrote("db-2", signalled)}) // the watch brings many large pods first
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
}

// A few pods can also exceed the limits, through fields that are not trimmed or through references to many objects.
func TestTooLargePods(t *testing.T) {
	tests := map[string]struct {
		bloat func(i int, pod *corev1.Pod)
		want  string
	}{
		"many variables": {func(_ int, pod *corev1.Pod) {
			for i := range 8000 {
				pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: strings.Repeat("x", 100)})
			}
		}, "the pods, and the objects that they refer to, take more than 3 MiB"},
		"many claims": {func(pod int, p *corev1.Pod) {
			for i := range 60 {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d-%d", pod, i)},
				}})
			}
		}, "the pods refer to more than 250 objects of the kind v1.PersistentVolumeClaim"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, r := newSteps(t)
			first := w.holdBy(r, "db-1", withCommand)
			var large []*corev1.Pod
			for i := range 5 {
				large = append(large, w.createPod(fmt.Sprintf("large-%d", i), withCommand, func(pod *corev1.Pod) { test.bloat(i, pod) }))
			}
			w.reconcile(r)
			w.wantTooMany(first, test.want)

			for _, pod := range large[1:] {
				w.delete(pod, client.GracePeriodSeconds(0))
			}
			w.reconcile(r)
			w.Expect(w.singleton().Status.Phase).NotTo(Equal(v1.PhaseFailed))
		})
	}
}
