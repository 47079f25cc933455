package singleton_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// restsOnProof returns a description of a write that is safe only after live reads, or "" for other writes.
func restsOnProof(s sentRequest) string {
	finalizersGo := s.has("metadata", "$deleteFromPrimitiveList/finalizers") ||
		s.has("metadata", "finalizers") && !strings.Contains(fmt.Sprint(s.body["metadata"]), v1.HandoffFinalizer)
	switch {
	case s.isRead() || !s.succeeded():
		return ""
	case s.resource == "statefulsingletons" && s.subresource == "status" && s.has("status", "activePodUID"):
		return "records the holder"
	case s.resource == "configmaps" && s.verb == "create":
		return "opens the barrier"
	case s.resource == "pods" && s.subresource == "status" && s.has("metadata", "annotations", signal.Annotation):
		return "signals the pod"
	case s.resource == "pods" && s.subresource == "" && finalizersGo:
		return "lets go of the pod"
	}
	return ""
}

// wantLiveReads checks the requests of one reconcile. Each write that is safe only after live reads must come after all
// of these reads. needed are the reads that this reconcile needs in addition. wantLiveReads returns the descriptions of
// these writes.
func (w *world) wantLiveReads(sent []sentRequest, needed ...string) (did []string) {
	w.t.Helper()
	needed = append([]string{
		"get statefulsingletons/" + singletonName,
		"list statefulsingletons",
		"list pods app=db",
		"list pods " + v1.SingletonLabel + "=" + singletonName,
	}, needed...)
	read := map[string]bool{}
	for _, s := range sent {
		if s.isRead() {
			if s.from == fromLive && !s.isLive() && !s.metadataOnly {
				w.t.Errorf("%s: the API server may answer from its watch cache", s)
			}
			if s.isLive() {
				read[strings.TrimSpace(strings.TrimSuffix(s.verb+" "+s.resource+"/"+s.name, "/")+" "+s.query.Get("labelSelector"))] = true
			}
			continue
		}
		what := restsOnProof(s)
		if what == "" {
			continue
		}
		did = append(did, what)
		for _, need := range needed {
			if !read[need] {
				w.t.Errorf("%s: %s before a live read %q", s, what, need)
			}
		}
	}
	return did
}

// Live reads precede each write that releases a pod or removes its finalizer. A cache may lag behind a kubelet that has
// just started a process.
func TestProofsRestOnLiveReads(t *testing.T) {
	w, sent, r := newRecorded(t)
	d := w.deployment()
	first := w.warmPod("db-1", ownedBy(w.replicaSet(d, 1)), withCommand)
	var second *corev1.Pod
	for _, step := range []struct {
		what   string
		do     func()
		needed []string
		want   []string
	}{
		{"the first pod is released", func() {}, nil, []string{"records the holder", "signals the pod"}},
		{"the holder stops", func() {
			w.report(first, ready)
			second = w.warmPod("db-2", ownedBy(w.replicaSet(d, 2)))
			w.delete(first)
		}, nil, nil},
		{"the next pod is released", func() { w.report(first, ended) },
			[]string{"get nodes/" + nodeName, "get replicasets/db-1", "get replicasets/db-2", "get deployments/db"},
			[]string{"records the holder", "opens the barrier", "signals the pod", "lets go of the pod"}},
		{"the singleton is deleted", func() {
			w.report(second, ready)
			w.delete(w.singleton())
		}, nil, []string{"lets go of the pod"}},
	} {
		step.do()
		_, err := r.Injection.Reconcile(t.Context(), w.request())
		w.Expect(err).NotTo(HaveOccurred())
		sent.taken() // without the reads of that reconciler
		w.reconcileHandoff(r)
		did := w.wantLiveReads(sent.taken(), step.needed...)
		for _, want := range step.want {
			w.Expect(did).To(ContainElement(want), step.what)
		}
	}
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
}

// Live reads also precede a release if the cache still shows a running holder, which has ended without a deletion.
func TestEndRestsOnLiveReads(t *testing.T) {
	w, sent, r := newRecorded(t)
	first := w.holdBy(r, "db-1", withCommand)
	w.warmPod("db-2", withCommand)
	w.report(first, ended)
	sent.taken()
	w.reconcileHandoff(r)
	w.Expect(w.wantLiveReads(sent.taken(), "get nodes/"+nodeName)).To(ContainElement("signals the pod"))
	w.Expect(w.holder()).To(Equal("db-2"))
}

// Live reads also precede the removal of finalizers from the pods of a removed singleton.
func TestOrphansRestOnLiveReads(t *testing.T) {
	w, sent, r := newRecorded(t)
	first, _ := w.handoffDue()
	w.removeSingleton()
	w.reconcile(r)
	w.Expect(hasFinalizer(w.pod(first.Name))).To(BeFalse())
	did := 0
	read := map[string]bool{}
	for _, s := range sent.taken() {
		if s.isRead() {
			read[s.verb+" "+s.resource] = read[s.verb+" "+s.resource] || s.isLive()
		}
		if restsOnProof(s) != "" {
			did++
			w.Expect(read).To(And(HaveKeyWithValue("list pods", true), HaveKeyWithValue("get statefulsingletons", true), HaveKeyWithValue("get nodes", true)), s.String())
		}
	}
	w.Expect(did).To(Equal(1))
}

// A holder whose labels were removed is not selected, but the controller reads it by its name. The holder stays, and no
// other pod is released.
func TestHolderWithoutLabels(t *testing.T) {
	w, sent, r := newRecorded(t)
	first := w.holdBy(r, "db-1", withCommand)
	w.reconcile(r)
	w.merge(first, `{"metadata":{"labels":null}}`)
	second := w.warmPod("db-2", withCommand)

	w.reconcile(r)
	status := w.singleton().Status
	w.Expect(status.ActivePodUID).To(Equal(first.UID))
	w.Expect(status.Phase).NotTo(Equal(v1.PhaseFailed), status.Message)
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())

	w.end(first)
	sent.taken()
	w.reconcileHandoff(r)
	w.wantLiveReads(sent.taken(), "get pods/db-1", "get nodes/"+nodeName)
	w.Expect(w.singleton().Status.ActivePodUID).To(Equal(second.UID), "the end of db-1 is proven")
	w.Expect(hasFinalizer(w.pod("db-1"))).To(BeFalse())
}

// A running pod that has the label of the singleton but is no longer selected blocks the release of another pod.
func TestRunningPodWithoutSelectedLabels(t *testing.T) {
	w, r := newSteps(t)
	first := w.holdBy(r, "db-1", withCommand)
	w.reconcile(r)
	w.removeSingleton()
	w.merge(first, `{"metadata":{"labels":{"app":"other"}}}`)
	w.createSingleton()
	w.warmPod("db-2", withCommand)

	w.reconcile(r)
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse(), "db-1 runs")
	w.Expect(w.singleton().Status.Message).To(ContainSubstring("db-1"))
}
