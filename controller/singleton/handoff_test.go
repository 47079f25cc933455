package singleton_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

func TestFirstRelease(t *testing.T) {
	tests := map[string]struct{ change func(*corev1.Pod) }{
		"wrapper": {change: withCommand},
		"barrier": {change: func(*corev1.Pod) {}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			journal := w.keepJournal()
			w.startManager()
			w.createSingleton()

			pod := w.createPod("db-1", test.change)
			w.report(pod, pulling)
			s := w.eventually("WarmingUp")
			w.Expect(s.Status.Message).To(ContainSubstring("pod db-1 container db waits: ImagePullBackOff"))
			w.Expect(s.Status.Phase).To(Equal(v1.PhaseTransitioning))
			w.Expect(s.Status.StandbyPods).To(Equal([]string{"db-1"}))
			w.Expect(signalled(w.pod("db-1"))).To(BeFalse())

			w.report(pod, held)
			w.Eventually(w.holder).Should(Equal("db-1"))
			steps := []writeStep{
				{"the record names db-1", recordIs("db-1", 1)},
			}
			if configMap := barrierOf(pod); configMap != "" {
				steps = append(steps, writeStep{"the barrier is opened", configMapIs(configMap)})
			}
			journal.wantOrder(append(steps, writeStep{"db-1 is signalled", podIs("db-1", signalled)})...)
			wantReleased(w, "db-1", 1)

			w.serve(pod)
			s = w.singleton()
			w.Expect(s.Status.Phase).To(Equal(v1.PhaseRunning))
			w.Expect(s.Status.ActivePodUID).To(Equal(pod.UID))
			w.Expect(s.Status.StandbyPods).To(BeEmpty())
			w.Expect(meta.IsStatusConditionTrue(s.Status.Conditions, v1.ConditionReady)).To(BeTrue())
			wantTransition(t, s, v1.Transition{To: "db-1", Cause: v1.CauseCreated})
		})
	}
}

// If the kubelet misses the signal, the controller changes the pod once more, because the kubelet reads the signal with
// the next change.
func TestMissedSignal(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	w.createSingleton()

	pod := w.warmPod("db-1", withCommand)
	w.Eventually(func() string { return w.pod("db-1").Annotations[v1.NudgeAnnotation] }).Should(Equal("1"), "the epoch with which the pod is changed once more")
	w.serve(pod)
	w.Expect(w.singleton().Status.Phase).To(Equal(v1.PhaseRunning))
}

// wantReleased checks the signal, the finalizer, the label and the ConfigMap of a holder.
func wantReleased(w *world, name string, epoch int64) {
	w.t.Helper()
	pod := w.pod(name)
	given, err := signal.Parse([]byte(pod.Annotations[signal.Annotation]))
	w.Expect(err).NotTo(HaveOccurred())
	if given.UID != string(pod.UID) || given.Epoch != epoch || given.Time.IsZero() {
		w.t.Errorf("pod %s of uid %s has signal %s, want its own signal with epoch %d and a time", name, pod.UID, given, epoch)
	}
	w.Expect(hasFinalizer(pod)).To(BeTrue(), "finalizer of pod %s", name)
	w.Expect(pod.Labels).To(HaveKeyWithValue(v1.RoleLabel, v1.RoleActive))
	if barrierOf(pod) == "" {
		return
	}
	configMap := &corev1.ConfigMap{}
	w.Expect(c.Get(w.t.Context(), w.key(barrierOf(pod)), configMap)).To(Succeed())
	w.Expect(configMap.Data).To(Equal(map[string]string{"epoch": "1"}), "the epoch that the application reads")
	w.Expect(configMap.OwnerReferences).To(HaveLen(1))
	w.Expect(configMap.OwnerReferences[0].UID).To(Equal(pod.UID))
}

// wantTransition compares the last transition without its times. It checks that the expected times exist and are in
// order.
func wantTransition(t *testing.T, s *v1.StatefulSingleton, want v1.Transition) {
	t.Helper()
	got := s.Status.LastTransition
	if got == nil {
		t.Fatal("lastTransition is missing")
	}
	if (got.FromUID == "") != (got.From == "") {
		t.Errorf("lastTransition is from %q with uid %q", got.From, got.FromUID)
	}
	times := cmpopts.IgnoreFields(v1.Transition{}, "FromUID", "Started", "Terminated", "Signalled", "Ready", "GapMilliseconds")
	if diff := cmp.Diff(want, *got, times); diff != "" {
		t.Errorf("lastTransition (-want +got):\n%s", diff)
	}
	recorded := []*metav1.MicroTime{got.Started, got.Terminated, got.Signalled, got.Ready}
	if want.Proof == "" {
		recorded = slices.Delete(recorded, 1, 2)
		if got.Terminated != nil || got.GapMilliseconds != nil {
			t.Errorf("lastTransition has a gap although there was no holder before: terminated %s", got.Terminated)
		}
	} else if got.GapMilliseconds == nil || *got.GapMilliseconds < 0 {
		t.Errorf("gapMilliseconds is missing or negative")
	}
	if slices.Contains(recorded, nil) || !slices.IsSortedFunc(recorded, func(a, b *metav1.MicroTime) int { return a.Compare(b.Time) }) {
		t.Errorf("times are missing or out of order: started %s, terminated %s, signalled %s, ready %s", got.Started, got.Terminated, got.Signalled, got.Ready)
	}
}

func TestRollout(t *testing.T) {
	w := newWorld(t)
	journal := w.keepJournal()
	registry := w.startManager()
	w.createSingleton()
	d := w.deployment()
	old := w.replicaSet(d, 1)
	first := w.hold("db-1", ownedBy(old), withCommand)

	second := w.createPod("db-2", ownedBy(w.replicaSet(d, 2)))
	w.report(second, pulling)
	s := w.eventually("StandbyNotWarm")
	w.Expect(s.Status.Message).To(ContainSubstring("pod db-1 keeps running until pod db-2 is warm"))
	w.Expect(s.Status.ActivePod).To(Equal("db-1"))

	w.report(second, held)
	w.eventually("Retiring")
	// The controller uses the scale subresource, because the chart grants no other permission.
	w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(old), old)).To(Succeed())
	w.Expect(*old.Spec.Replicas).To(BeZero())
	w.ask(first)
	w.eventually("HolderStopping")
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse(), "db-2 is released while db-1 runs")

	w.report(first, ended)
	w.Eventually(w.holder).Should(Equal("db-2"))
	journal.wantOrder(
		writeStep{"db-2 is warm", podIs("db-2", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
		})},
		writeStep{"the ReplicaSet of db-1 is scaled to zero", scaledToZero(old.Name)},
		writeStep{"db-1 has terminated", podIs("db-1", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })},
		writeStep{"the record names db-2", recordIs("db-2", 2)},
		writeStep{"the barrier of db-2 is opened", configMapIs(barrierOf(second))},
		writeStep{"db-2 is signalled", podIs("db-2", signalled)},
		writeStep{"the finalizer of db-1 is removed", podIs("db-1", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded && !hasFinalizer(p) && p.Labels[v1.RoleLabel] == "" && p.Annotations[signal.Annotation] == ""
		})},
	)
	w.remove(first)
	w.Eventually(func() *corev1.Pod { return w.pod("db-1") }).Should(BeNil())

	w.serve(second)
	s = w.singleton()
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseRunning))
	wantTransition(t, s, v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported})
	if released := journal.wantOneAtATime(); released != 2 {
		t.Errorf("%d pods were released, want 2", released)
	}
	wantEvents(w, "Installing", "HandoffStarted", "HandoffCompleted", "StandbyNotWarm", "Retiring", "HolderStopping")
	wantMetrics(t, registry)
}

// wantEvents waits for events with these reasons for the singleton.
func wantEvents(w *world, reasons ...string) {
	w.t.Helper()
	w.Eventually(func() []string {
		var list eventsv1.EventList
		w.Expect(c.List(w.t.Context(), &list, client.InNamespace(w.namespace))).To(Succeed())
		var got []string
		for _, e := range list.Items {
			if e.Regarding.Kind == "StatefulSingleton" && e.Regarding.Name == singletonName && e.Note != "" {
				got = append(got, e.Reason)
			}
		}
		return got
	}).Should(ContainElements(reasons))
}

// wantMetrics checks the metrics after a first release and a rollout.
func wantMetrics(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	want := `
# HELP statefulsingleton_singletons StatefulSingletons by phase (Idle: no pod exists and none is expected).
# TYPE statefulsingleton_singletons gauge
statefulsingleton_singletons{phase="Failed"} 0
statefulsingleton_singletons{phase="Idle"} 0
statefulsingleton_singletons{phase="Running"} 1
statefulsingleton_singletons{phase="Transitioning"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "statefulsingleton_singletons"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	handoffs, observed, labels := map[string]float64{}, map[string]uint64{}, map[string]bool{}
	for _, family := range families {
		for _, metric := range family.Metric {
			observed[family.GetName()] += metric.GetHistogram().GetSampleCount()
			for _, label := range metric.Label {
				labels[label.GetName()] = true
			}
			if count := metric.GetCounter().GetValue(); count > 0 {
				handoffs[metric.Label[0].GetValue()+" "+metric.Label[1].GetValue()] = count
			}
		}
	}
	if diff := cmp.Diff(map[string]float64{"Created None": 1, "Rollout KubeletReported": 1}, handoffs); diff != "" {
		t.Errorf("handoffs by cause and proof (-want +got):\n%s", diff)
	}
	if gaps, durations := observed["statefulsingleton_handoff_gap_seconds"], observed["statefulsingleton_handoff_seconds"]; gaps != 1 || durations != 2 {
		t.Errorf("observed %d gaps and %d durations, want 1 and 2: there was no holder before the first pod", gaps, durations)
	}
	if diff := cmp.Diff(map[string]bool{"cause": true, "proof": true, "phase": true, "namespace": true, "type": true, "status": true, "reason": true}, labels); diff != "" {
		t.Errorf("labels, which must name no object but the namespace (-want +got):\n%s", diff)
	}
}

// A holder that is deleted by force keeps its object until the kubelet reports its termination.
func TestForcedDeletion(t *testing.T) {
	w := newWorld(t)
	journal := w.keepJournal()
	w.startManager()
	w.createSingleton()
	first := w.hold("db-1", withCommand)
	w.warmPod("db-2", withCommand)
	w.Eventually(func() []string { return w.singleton().Status.StandbyPods }).Should(Equal([]string{"db-2"}))

	w.remove(first)
	w.eventually("HolderStopping")
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse(), "db-2 is released without proof")

	w.report(first, ended)
	w.Eventually(w.holder).Should(Equal("db-2"))
	journal.wantOrder(
		writeStep{"db-1 has terminated", podIs("db-1", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })},
		writeStep{"the record names db-2", recordIs("db-2", 2)},
		writeStep{"db-2 is signalled", podIs("db-2", signalled)},
		writeStep{"db-1 is removed", podGone("db-1")},
	)
	journal.wantOneAtATime()
}

// If a person removes the finalizer of a running holder, only an attestation releases the next pod.
func TestAttestation(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	w.createSingleton()
	first := w.hold("db-1", withCommand)
	second := w.warmPod("db-2", withCommand)
	w.Eventually(func() []string { return w.singleton().Status.StandbyPods }).Should(Equal([]string{"db-2"}))
	w.remove(first)
	w.eventually("HolderStopping")
	w.Expect(c.Patch(t.Context(), first, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())

	s := w.eventually("HolderLost")
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseFailed))
	attest := v1.AttestAnnotation + "=" + string(first.UID)
	w.Expect(s.Status.Message).To(ContainSubstring("kubectl annotate -n " + w.namespace + " stfs db " + attest))
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())

	patch := `{"metadata":{"annotations":{"` + v1.AttestAnnotation + `":"` + string(first.UID) + `"}}}`
	w.Expect(c.Patch(t.Context(), s, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.serve(second)
	wantTransition(t, w.singleton(), v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseDeletion, Proof: v1.ProofAttested})
	w.Expect(w.wantEvent(corev1.EventTypeWarning, "Attested").Note).To(Equal("pod db-1 counts as terminated: a person attested it"))
	w.Eventually(func() map[string]string { return w.singleton().Annotations }).ShouldNot(HaveKey(v1.AttestAnnotation), "the attestation is used")

	// An attestation that is not valid now is removed.
	patch = `{"metadata":{"annotations":{"` + v1.AttestAnnotation + `":"` + string(second.UID) + `"}}}`
	w.Expect(c.Patch(t.Context(), s, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
	refused := w.wantEvent(corev1.EventTypeWarning, "AttestationRefused")
	w.Expect(refused.Note).To(ContainSubstring("pod db-2 is not terminating"))
	w.Expect(w.singleton().Annotations).NotTo(HaveKey(v1.AttestAnnotation))
}

// A pod that ran before the singleton existed is adopted.
func TestAdoption(t *testing.T) {
	w := newWorld(t)
	pod := w.bare("legacy")
	w.Expect(c.Create(t.Context(), pod)).To(Succeed())
	w.report(pod, ready)
	w.startManager()
	w.createSingleton()

	w.Eventually(w.holder).Should(Equal("legacy"))
	s := w.eventually("HolderReady")
	wantTransition(t, s, v1.Transition{To: "legacy", Cause: v1.CauseAdopted})
	adopted := w.pod("legacy")
	w.Expect(hasFinalizer(adopted)).To(BeTrue())
	w.Expect(adopted.Labels).To(HaveKeyWithValue(v1.SingletonLabel, singletonName))
	w.Expect(adopted.Labels).To(HaveKeyWithValue(v1.RoleLabel, v1.RoleActive))
	w.Expect(adopted.Annotations).NotTo(HaveKey(signal.Annotation))

	next := w.warmPod("db-1", withCommand)
	w.ask(pod)
	w.eventually("HolderStopping")
	w.report(pod, ended)
	w.Eventually(w.holder).Should(Equal("db-1"))
	w.serve(next)
	wantTransition(t, w.singleton(), v1.Transition{From: "legacy", To: "db-1", Cause: v1.CauseDeletion, Proof: v1.ProofKubeletReported})
}

// The names of many pods make a message that the API server would reject together with the status. The controller cuts the message,
// and writes it once.
func TestMessageOfManyPods(t *testing.T) {
	w := newWorld(t)
	w.createSingleton()
	var creates errgroup.Group
	creates.SetLimit(8)
	for i := range 150 {
		creates.Go(func() error {
			return c.Create(t.Context(), w.bare(fmt.Sprintf("legacy-%s-%d", strings.Repeat("x", 220), i)))
		})
	}
	w.Expect(creates.Wait()).To(Succeed())
	r := newReconciler(controllerClient, controllerClient, w.clock)
	w.reconcile(r)
	w.Expect(w.reason(v1.ConditionReady)()).To(Equal("SeveralRun"))
	w.Expect(w.singleton().Status.Message).To(And(HavePrefix("pods legacy-"), HaveSuffix(" delete -n "+w.namespace+" pod <name>")))
	w.reconcile(r)
	written := w.singleton().ResourceVersion
	w.reconcile(r)
	w.Expect(w.singleton().ResourceVersion).To(Equal(written))
}

// While two pods run, no pod is released. When one running pod is left, it becomes the holder.
func TestSeveralRun(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"legacy-1", "legacy-2"} {
		pod := w.bare(name)
		w.Expect(c.Create(t.Context(), pod)).To(Succeed())
		w.report(pod, ready)
	}
	w.warmPod("db-1", withCommand)
	w.startManager()
	w.createSingleton()

	s := w.eventually("SeveralRun")
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseFailed))
	w.Expect(s.Status.Message).To(ContainSubstring("pods legacy-1, legacy-2 are not held, and no record names the holder"))
	w.Expect(s.Status.ActivePod).To(BeEmpty())
	for _, name := range []string{"legacy-1", "legacy-2"} {
		w.Expect(hasFinalizer(w.pod(name))).To(BeTrue(), "%s could be removed unnoticed", name)
	}
	w.Expect(signalled(w.pod("db-1"))).To(BeFalse())

	going := w.pod("legacy-2")
	w.ask(going)
	w.report(going, ended)
	w.Eventually(w.holder).Should(Equal("legacy-1"))
	w.eventually("HolderReady")
	w.Eventually(func() bool { return hasFinalizer(w.pod("legacy-2")) }).Should(BeFalse())
	w.Expect(signalled(w.pod("db-1"))).To(BeFalse())
}

// If two singletons select the same pod, neither signals it, and both report the overlap.
func TestOverlap(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	w.createSingleton()
	other := w.createSingleton(func(s *v1.StatefulSingleton) { s.Name = "other" })
	pod := w.warmPod("db-1", withCommand)

	s := w.eventually("Overlapping")
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseFailed))
	w.Expect(s.Status.Message).To(ContainSubstring("StatefulSingleton other also selects pod db-1"))
	w.Eventually(func() string {
		w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(other), other)).To(Succeed())
		return other.Status.Message
	}).Should(ContainSubstring("StatefulSingleton db also selects pod db-1"))
	w.Expect(signalled(w.pod("db-1"))).To(BeFalse())

	w.Expect(c.Delete(t.Context(), other)).To(Succeed())
	w.Eventually(w.holder).Should(Equal("db-1"))
	w.serve(pod)
}

// Two singletons select the same pod, and the singleton that holds it is deleted. The pod always keeps a finalizer, and
// then belongs to the other singleton.
func TestOverlapEnds(t *testing.T) {
	w := newWorld(t)
	journal := w.keepJournal()
	w.startManager()
	holding := w.createSingleton()
	pod := w.hold("db-1", withCommand)
	other := w.createSingleton(func(s *v1.StatefulSingleton) { s.Name = "other" })
	status := func() v1.StatefulSingletonStatus {
		w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(other), other)).To(Succeed())
		return other.Status
	}
	w.Eventually(func() string { return status().Message }).Should(ContainSubstring("StatefulSingleton db also selects pod db-1"))

	w.Expect(c.Delete(t.Context(), holding)).To(Succeed())
	w.Eventually(func() string { return string(status().ActivePodUID) }).Should(Equal(string(pod.UID)))
	journal.wantOrder(writeStep{"db-1 belongs to the other singleton", podIs("db-1", func(p *corev1.Pod) bool { return p.Labels[v1.SingletonLabel] == "other" })})
	journal.wantKept("db-1")
	w.Expect(journal.wantOneAtATime()).To(Equal(1))
}
