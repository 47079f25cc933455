package singleton_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testpod"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// fencedPod creates a warm pod that runs its main process only while it holds the Lease.
func (w *world) fencedPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := inject(w.bare(name, append(changes, fencedAs("default"))...), w.key(singletonName))
	testpod.Fence(pod, leaseName)
	w.create(pod)
	w.report(pod, held)
	return pod
}

// A decision after the release of the Lease needs no reads. If the record, a standby or the rest of the Lease has changed
// in the meantime, the controller reads everything again.
func TestDecisionAfterRelease(t *testing.T) {
	const (
		byRelease = "without reads"
		byReads   = "with reads"
	)
	tests := map[string]struct {
		meanwhile func(w *world, r controllers, standby *corev1.Pod)
		want      string
		// unproven is true if the Lease proves nothing, and the holder stays.
		unproven bool
	}{
		"nothing else happens": {meanwhile: func(*world, controllers, *corev1.Pod) {}, want: byRelease},
		"the record is written": {meanwhile: func(w *world, _ controllers, _ *corev1.Pod) {
			s := w.singleton()
			s.Status.Message = "another controller was here"
			w.Expect(c.Status().Update(w.t.Context(), s)).To(Succeed())
		}, want: byReads},
		"the standby is written": {meanwhile: func(w *world, _ controllers, standby *corev1.Pod) {
			w.report(standby, func(pod *corev1.Pod) { pod.Status.Message = "still warm" })
		}, want: byReads},
		"another standby is created":           {meanwhile: func(w *world, _ controllers, _ *corev1.Pod) { w.fencedPod("db-3") }, want: byReads},
		"a reconcile comes before the release": {meanwhile: func(w *world, r controllers, _ *corev1.Pod) { w.reconcileHandoff(r) }, want: byRelease},
		"the Lease was taken from another pod": {meanwhile: func(w *world, _ controllers, _ *corev1.Pod) {
			w.patchLease(`{"metadata":{"annotations":{"` + signal.ExpiredAnnotation + `":"somebody"}}}`)
		}, want: byReads, unproven: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w, sent, r := newRecorded(t, withLease)
			d := w.deployment()
			old := w.fencedPod("db-1", ownedBy(w.replicaSet(d, 1)))
			w.reconcileHandoff(r) // creates the Lease
			w.reconcileHandoff(r)
			w.Expect(w.lease().Spec.HolderIdentity).To(HaveValue(Equal(signal.HolderIdentity(old.Name, string(old.UID)))))
			w.report(old, ready)
			standby := w.fencedPod("db-2", ownedBy(w.replicaSet(d, 2)))
			w.reconcileHandoff(r)
			w.delete(old)
			w.reconcileHandoff(r)
			w.Expect(w.lease().Annotations).To(HaveKeyWithValue(signal.RetireAnnotation, string(old.UID)))

			tt.meanwhile(w, r, standby)
			sent.taken()
			w.patchLease(`{"spec":{"holderIdentity":""}}`)
			w.reconcileHandoff(r)
			got := byReads
			if len(sent.reads()) == 0 && signalled(w.pod("db-2")) {
				got = byRelease
			}
			w.Expect(got).To(Equal(tt.want))
			if tt.unproven {
				w.Expect(w.holder()).To(Equal("db-1"))
				return
			}
			w.reconcileHandoff(r)
			w.Expect(signalled(w.pod("db-2"))).To(BeTrue())
			w.Expect(w.lease().Spec.HolderIdentity).To(HaveValue(Equal(signal.HolderIdentity(standby.Name, string(standby.UID)))))
			last := w.singleton().Status.LastTransition
			w.Expect([]string{last.From, last.To, string(last.Proof)}).To(Equal([]string{"db-1", "db-2", string(v1.ProofLeaseReleased)}))
		})
	}
}
