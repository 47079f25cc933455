package singleton_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

func TestFirstRelease(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){"wrapper": withCommand, "barrier": func(*corev1.Pod) {}} {
		t.Run(name, func(t *testing.T) {
			w := newRunning(t)
			pod := w.createPod("db-1", change)
			w.report(pod, pulling)
			s := w.eventually("WarmingUp")
			w.Expect(s.Status.Message).To(ContainSubstring("pod db-1 container db waits: ImagePullBackOff"))
			w.Expect(s.Status.Phase).To(Equal(v1.PhaseTransitioning))
			w.Expect(s.Status.StandbyPods).To(Equal([]string{"db-1"}))
			w.Expect(signalled(w.pod("db-1"))).To(BeFalse())

			w.report(pod, held)
			w.Eventually(w.holder).Should(Equal("db-1"))
			steps := []writeStep{{"the record names db-1", recordIs("db-1", 1)}}
			if configMap := barrierOf(pod); configMap != "" {
				steps = append(steps, writeStep{"the barrier is opened", wrote(configMap, func(*corev1.ConfigMap) bool { return true })})
			}
			w.journal.wantOrder(append(steps, writeStep{"db-1 is signalled", wrote("db-1", signalled)})...)
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
	times := cmpopts.IgnoreFields(v1.Transition{}, "FromUID", "FromNode", "Started", "Terminated", "Signalled", "Ready", "GapMilliseconds")
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
	w := newRunning(t)
	d := w.deployment()
	first := w.hold("db-1", ownedBy(w.replicaSet(d, 1)), withCommand)

	second := w.createPod("db-2", ownedBy(w.replicaSet(d, 2)))
	w.report(second, pulling)
	s := w.eventually("StandbyNotWarm")
	w.Expect(s.Status.Message).To(ContainSubstring("pod db-1 keeps running until pod db-2 is warm"))
	w.Expect(s.Status.ActivePod).To(Equal("db-1"))

	w.report(second, held)
	w.retired()
	w.delete(first)
	w.eventually("HolderStopping")
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse(), "db-2 is released while db-1 runs")

	w.report(first, ended)
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.journal.wantOrder(
		writeStep{"db-2 is warm", wrote("db-2", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
		})},
		writeStep{"the ReplicaSet of db-1 is scaled to zero", wrote("db-1", func(rs *appsv1.ReplicaSet) bool { return *rs.Spec.Replicas == 0 })},
		writeStep{"db-1 has terminated", wrote("db-1", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })},
		writeStep{"the record names db-2", recordIs("db-2", 2)},
		writeStep{"the barrier of db-2 is opened", wrote(barrierOf(second), func(*corev1.ConfigMap) bool { return true })},
		writeStep{"db-2 is signalled", wrote("db-2", signalled)},
		writeStep{"the finalizer of db-1 is removed", wrote("db-1", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded && !hasFinalizer(p) && p.Labels[v1.RoleLabel] == "" && p.Annotations[signal.Annotation] == ""
		})},
	)
	w.remove(first)
	w.Eventually(func() *corev1.Pod { return w.pod("db-1") }).Should(BeNil())

	w.serve(second)
	s = w.singleton()
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseRunning))
	wantTransition(t, s, v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported})
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
	for _, reason := range []string{"Installing", "HandoffStarted", "HandoffCompleted", "StandbyNotWarm", "Retiring", "HolderStopping"} {
		w.wantEvent(corev1.EventTypeNormal, reason)
	}
}

// A holder that is deleted by force keeps its object until the kubelet reports its termination.
func TestForcedDeletion(t *testing.T) {
	w := newRunning(t)
	first := w.hold("db-1", withCommand)
	w.warmPod("db-2", withCommand)
	w.Eventually(func() []string { return w.singleton().Status.StandbyPods }).Should(Equal([]string{"db-2"}))

	w.remove(first)
	w.eventually("HolderStopping")
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeTrue())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse(), "db-2 is released without proof")
	w.Expect(w.gateOf("db-2")).To(BeEmpty(), "the kubelet runs its probe, which can succeed at any time")

	w.report(first, ended)
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.journal.wantOrder(
		writeStep{"db-1 has terminated", wrote("db-1", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })},
		writeStep{"the record names db-2", recordIs("db-2", 2)},
		writeStep{"db-2 is signalled", wrote("db-2", signalled)},
		writeStep{"db-1 is removed", removes[*corev1.Pod]("db-1")},
	)
	w.Expect(w.gateOf("db-2")).To(Equal(v1.ReadyReasonHolds))
	w.journal.wantOneAtATime()
}

// If a person removes the finalizer of a running holder, only an attestation releases the next pod.
func TestAttestation(t *testing.T) {
	w := newRunning(t)
	first := w.hold("db-1", withCommand)
	second := w.warmPod("db-2", withCommand)
	w.Eventually(func() []string { return w.singleton().Status.StandbyPods }).Should(Equal([]string{"db-2"}))
	w.remove(first)
	w.eventually("HolderStopping")
	w.merge(first, `{"metadata":{"finalizers":null}}`)

	s := w.eventually("HolderLost")
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseFailed))
	attest := v1.AttestAnnotation + "=" + string(first.UID)
	w.Expect(s.Status.Message).To(ContainSubstring("kubectl annotate -n " + w.namespace + " stfs db " + attest))
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())

	w.annotate(v1.AttestAnnotation, string(first.UID))
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.serve(second)
	wantTransition(t, w.singleton(), v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseDeletion, Proof: v1.ProofAttested})
	w.Expect(w.wantEvent(corev1.EventTypeWarning, "Attested").Note).To(Equal("pod db-1 counts as terminated: a person attested it"))
	w.Eventually(func() map[string]string { return w.singleton().Annotations }).ShouldNot(HaveKey(v1.AttestAnnotation), "the attestation is used")

	// An attestation that is not valid now is removed.
	w.annotate(v1.AttestAnnotation, string(second.UID))
	refused := w.wantEvent(corev1.EventTypeWarning, "AttestationRefused")
	w.Expect(refused.Note).To(ContainSubstring("pod db-2 is not terminating"))
	w.Expect(w.singleton().Annotations).NotTo(HaveKey(v1.AttestAnnotation))
}

// A pod that ran before the singleton existed is adopted.
func TestAdoption(t *testing.T) {
	w := newWorld(t)
	pod := w.legacy("legacy")
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
	w.delete(pod)
	w.eventually("HolderStopping")
	w.report(pod, ended)
	w.Eventually(w.holder).Should(Equal("db-1"))
	w.serve(next)
	wantTransition(t, w.singleton(), v1.Transition{From: "legacy", To: "db-1", Cause: v1.CauseDeletion, Proof: v1.ProofKubeletReported})
}

// The names of many pods make a message and a note that the API server would reject, the message together with the status. The
// controller cuts both, and writes the status once.
func TestMessageOfManyPods(t *testing.T) {
	w, r := newSteps(t)
	var creates errgroup.Group
	creates.SetLimit(8)
	for i := range 150 {
		creates.Go(func() error {
			return c.Create(t.Context(), w.bare(fmt.Sprintf("legacy-%s-%d", strings.Repeat("x", 220), i)))
		})
	}
	w.Expect(creates.Wait()).To(Succeed())
	w.reconcile(r)
	w.Expect(w.reason(v1.ConditionReady)()).To(Equal("SeveralRun"))
	w.Expect(w.singleton().Status.Message).To(And(HavePrefix("pods legacy-"), HaveSuffix(" delete -n "+w.namespace+" pod <name>")))
	w.Expect(r.emitted()).To(And(ContainElement(HavePrefix("Warning SeveralRun ")), HaveEach(WithTransform(func(e string) int { return len(e) }, BeNumerically("<", 1100)))))
	w.reconcile(r)
	written := w.singleton().ResourceVersion
	w.reconcile(r)
	w.Expect(w.singleton().ResourceVersion).To(Equal(written))
}

// While two pods run, no pod is released. When one running pod is left, it becomes the holder.
func TestSeveralRun(t *testing.T) {
	w := newWorld(t)
	w.legacy("legacy-1")
	w.legacy("legacy-2")
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

	w.end(w.pod("legacy-2"))
	w.Eventually(w.holder).Should(Equal("legacy-1"))
	w.eventually("HolderReady")
	w.Eventually(func() bool { return hasFinalizer(w.pod("legacy-2")) }).Should(BeFalse())
	w.Expect(signalled(w.pod("db-1"))).To(BeFalse())
}

// If two singletons select the same pod, neither signals it, and both report the overlap.
func TestOverlap(t *testing.T) {
	w := newRunning(t)
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

	w.delete(other)
	w.Eventually(w.holder).Should(Equal("db-1"))
	w.serve(pod)
}

// Two singletons select the same pod, and the singleton that holds it is deleted. The pod always keeps a finalizer, and
// then belongs to the other singleton.
func TestOverlapEnds(t *testing.T) {
	w := newRunning(t)
	pod := w.hold("db-1", withCommand)
	other := w.createSingleton(func(s *v1.StatefulSingleton) { s.Name = "other" })
	status := func() v1.StatefulSingletonStatus {
		w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(other), other)).To(Succeed())
		return other.Status
	}
	w.Eventually(func() string { return status().Message }).Should(ContainSubstring("StatefulSingleton db also selects pod db-1"))

	w.delete(w.singleton())
	w.Eventually(func() string { return string(status().ActivePodUID) }).Should(Equal(string(pod.UID)))
	w.journal.wantOrder(writeStep{"db-1 belongs to the other singleton", wrote("db-1", func(p *corev1.Pod) bool { return p.Labels[v1.SingletonLabel] == "other" })})
	w.journal.wantKept("db-1")
	w.Expect(w.journal.wantOneAtATime()).To(Equal(1))
}
