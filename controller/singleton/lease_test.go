package singleton_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// lease reads the Lease of the singleton. It returns nil if the Lease does not exist.
func (w *world) lease() *coordinationv1.Lease {
	w.t.Helper()
	return found(w, leaseName, &coordinationv1.Lease{})
}

// createLease creates a Lease as the executor does, with changes.
func (w *world) createLease(s *v1.StatefulSingleton, changes ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	w.t.Helper()
	lease := leases.OfSingleton(s).NewLease(15)
	for _, change := range changes {
		change(lease)
	}
	w.create(lease)
	return lease
}

// patchLease merges a patch into the Lease, like a pod or a person.
func (w *world) patchLease(patch string) {
	w.t.Helper()
	w.merge(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: leaseName}}, patch)
}

// renew writes the time of a renewal, like the holder.
func (w *world) renew() {
	w.t.Helper()
	w.patchLease(`{"spec":{"renewTime":"` + time.Now().UTC().Format(metav1.RFC3339Micro) + `"}}`)
}

// executeSteps executes the steps with the Lease in the Snapshot, or without a Lease if it is nil.
func (w *world) executeSteps(lease *coordinationv1.Lease, steps ...handoff.Step) error {
	w.t.Helper()
	s := w.singleton()
	s.Spec.LeaseDurationSeconds = new(int32(20))
	r := w.fresh()
	return r.Execute(w.t.Context(), handoff.Snapshot{Singleton: s, Lease: leases.Observed{Object: lease}}, handoff.Plan{Steps: steps})
}

// versionOf returns the resourceVersion of the Lease.
func versionOf(lease *coordinationv1.Lease) handoff.Version {
	return handoff.Version(lease.ResourceVersion)
}

// wantLease compares the spec and the annotations of the Lease. It compares only whether acquireTime exists.
func (w *world) wantLease(want coordinationv1.LeaseSpec, wantAnnotations map[string]string) {
	w.t.Helper()
	got := w.lease()
	w.Expect(got).NotTo(BeNil())
	times := cmpopts.IgnoreFields(coordinationv1.LeaseSpec{}, "AcquireTime")
	if diff := cmp.Diff(want, got.Spec, times); diff != "" {
		w.t.Errorf("Lease (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantAnnotations, got.Annotations, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("annotations of the Lease (-want +got):\n%s", diff)
	}
}

var (
	db1 = handoff.PodRef{Name: "db-1", UID: "1"}
	db2 = handoff.PodRef{Name: "db-2", UID: "2"}
)

// A Lease is created without a holder. The singleton owns it. A Lease that was created in the meantime is a conflict.
func TestLeaseIsCreated(t *testing.T) {
	w, _ := newSteps(t)
	s := w.singleton()
	create := handoff.WriteLease{}
	w.Expect(w.executeSteps(nil, create)).To(Succeed())
	w.wantLease(coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0)), LeaseDurationSeconds: new(int32(20))}, nil)
	lease := w.lease()
	w.Expect(lease.Labels).To(Equal(map[string]string{v1.SingletonLabel: singletonName}))
	w.Expect(lease.OwnerReferences).To(Equal([]metav1.OwnerReference{{
		APIVersion: "apps.statefulsingleton.com/v1", Kind: "StatefulSingleton", Name: s.Name, UID: s.UID, Controller: new(true),
	}}))

	w.Expect(w.executeSteps(nil, create)).To(MatchError(apierrors.IsConflict, "conflict"))
	w.Expect(w.executeSteps(lease, create)).To(MatchError(apierrors.IsConflict, "conflict"))
	w.Expect(w.lease()).To(Equal(lease))
}

// Each write of the Lease sets the holder, the epoch and all annotations of the controller. It keeps the time of the last renewal, and the
// duration unless another pod gets the Lease.
func TestLeaseIsWritten(t *testing.T) {
	w, _ := newSteps(t)
	w.createLease(w.singleton())
	write := func(step handoff.WriteLease) {
		t.Helper()
		lease := w.lease()
		step.Version = versionOf(lease)
		w.Expect(w.executeSteps(lease, step)).To(Succeed())
	}
	w.clock.advance(time.Hour)
	write(handoff.WriteLease{Holder: db1, Duration: 30 * time.Second, Epoch: 7})
	w.wantLease(coordinationv1.LeaseSpec{HolderIdentity: new("db-1_1"), LeaseTransitions: new(int32(7)), LeaseDurationSeconds: new(int32(30))}, nil)
	acquired := w.lease().Spec.AcquireTime
	w.Expect(acquired.Time).To(BeTemporally("~", w.clock.Now(), time.Minute))

	w.renew()
	renewed := w.lease().Spec.RenewTime
	write(handoff.WriteLease{Holder: db1, Duration: 5 * time.Second, Epoch: 7, Retire: "1", Next: "2", Delay: 1500 * time.Millisecond})
	w.wantLease(coordinationv1.LeaseSpec{HolderIdentity: new("db-1_1"), LeaseTransitions: new(int32(7)), LeaseDurationSeconds: new(int32(30)), RenewTime: renewed},
		map[string]string{signal.RetireAnnotation: "1", signal.NextAnnotation: "2", signal.DelayAnnotation: "1500"})
	w.Expect(w.lease().Spec.AcquireTime).To(Equal(acquired))

	write(handoff.WriteLease{Epoch: 7, Expired: "1"})
	w.wantLease(coordinationv1.LeaseSpec{HolderIdentity: new(""), LeaseTransitions: new(int32(7)), LeaseDurationSeconds: new(int32(30)), RenewTime: renewed},
		map[string]string{signal.ExpiredAnnotation: "1"})

	write(handoff.WriteLease{Holder: db2, Duration: 5 * time.Second, Epoch: 8})
	w.wantLease(coordinationv1.LeaseSpec{HolderIdentity: new("db-2_2"), LeaseTransitions: new(int32(8)), LeaseDurationSeconds: new(int32(5)), RenewTime: renewed}, nil)
}

// Several writes of the Lease in one plan depend on each other, and on nobody else's writes.
func TestLeaseWritesChain(t *testing.T) {
	w, _ := newSteps(t)
	grant := handoff.WriteLease{Holder: db1, Duration: 20 * time.Second, Epoch: 1}
	w.Expect(w.executeSteps(nil, handoff.WriteLease{}, grant)).To(Succeed())
	w.wantLease(coordinationv1.LeaseSpec{HolderIdentity: new("db-1_1"), LeaseTransitions: new(int32(1)), LeaseDurationSeconds: new(int32(20))}, nil)

	lease := w.lease()
	take := handoff.WriteLease{Version: versionOf(lease), Epoch: 1, Expired: "1"}
	next := handoff.WriteLease{Version: versionOf(lease), Holder: db2, Duration: 20 * time.Second, Epoch: 2, Expired: "1"}
	w.Expect(w.executeSteps(lease, take, next)).To(Succeed())
	w.wantLease(coordinationv1.LeaseSpec{HolderIdentity: new("db-2_2"), LeaseTransitions: new(int32(2)), LeaseDurationSeconds: new(int32(20))},
		map[string]string{signal.ExpiredAnnotation: "1"})
}

// A write of the Lease fails if any client wrote, deleted or replaced the Lease since the Snapshot. A renewal therefore
// prevents that the Lease is taken from its holder.
func TestLeaseConflicts(t *testing.T) {
	w, _ := newSteps(t)
	replace := func(lease *coordinationv1.Lease) { w.delete(lease); w.createLease(w.singleton()) }
	for name, meanwhile := range map[string]func(*coordinationv1.Lease){
		"a renewal": func(*coordinationv1.Lease) { w.renew() }, "another Lease of the name": replace,
		"a removed Lease": func(lease *coordinationv1.Lease) { w.delete(lease) },
	} {
		lease := w.createLease(w.singleton(), func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("db-1_1") })
		meanwhile(lease.DeepCopy())
		before := w.lease()
		w.Expect(w.executeSteps(lease, handoff.WriteLease{Version: versionOf(lease), Expired: "1"})).To(MatchError(apierrors.IsConflict, "conflict"), name)
		w.Expect(w.lease()).To(Equal(before), name)
		_ = c.Delete(t.Context(), lease)
	}
}

// A Lease of another owner, here of an earlier singleton, is not written. The error names the Lease, and has the command that removes it.
func TestForeignLease(t *testing.T) {
	w, _ := newSteps(t)
	lease := w.createLease(w.singleton(), func(lease *coordinationv1.Lease) { lease.OwnerReferences[0].UID = "earlier" })
	err := w.executeSteps(lease, handoff.WriteLease{Version: versionOf(lease), Holder: db1, Duration: 20 * time.Second, Epoch: 1})
	w.Expect(err).To(MatchError(ContainSubstring("kubectl delete lease -n " + w.namespace + " statefulsingleton-db")))
	w.Expect(err).NotTo(MatchError(apierrors.IsConflict, "conflict"), "the status reports the error")
	w.Expect(w.lease()).To(Equal(lease))
}

// A pod that has lost the Lease is a standby again. Demote fails if any client wrote the pod since the Snapshot.
func TestDemote(t *testing.T) {
	w, r := newSteps(t)
	w.warmPod("db-1", withCommand)
	w.reconcile(r)
	pod := w.pod("db-1")
	w.Expect(signalled(pod)).To(BeTrue())
	demote := func(uid types.UID, version string) handoff.Demote {
		return handoff.Demote{Pod: handoff.PodRef{Name: pod.Name, UID: uid}, Version: handoff.Version(version)}
	}
	outdated := pod.ResourceVersion
	w.report(pod, ready)
	w.Expect(w.executeSteps(nil, demote(pod.UID, outdated))).To(MatchError(apierrors.IsConflict, "conflict"))
	w.Expect(w.executeSteps(nil, demote("another", w.pod("db-1").ResourceVersion))).NotTo(Succeed())
	w.Expect(signalled(w.pod("db-1"))).To(BeTrue())

	w.Expect(w.executeSteps(nil, demote(pod.UID, w.pod("db-1").ResourceVersion))).To(Succeed())
	pod = w.pod("db-1")
	w.Expect(signalled(pod)).To(BeFalse())
	w.Expect(hasFinalizer(pod)).To(BeFalse())
	w.Expect(pod.Labels).NotTo(HaveKey(v1.RoleLabel))
	w.Expect(pod.Labels).To(HaveKeyWithValue(v1.SingletonLabel, singletonName))
	conditions := map[corev1.PodConditionType][]any{}
	for _, c := range pod.Status.Conditions {
		conditions[c.Type] = []any{c.Status, c.Reason}
	}
	w.Expect(conditions).To(HaveKeyWithValue(corev1.PodConditionType(v1.ReadyCondition), []any{corev1.ConditionFalse, v1.ReadyReasonStandby}))
	w.Expect(conditions).To(HaveKeyWithValue(corev1.PodReady, []any{corev1.ConditionFalse, "ReadinessGatesNotReady"}), "Services send it nothing")
	w.Expect(proof.IsTrue(pod, corev1.PodScheduled)).To(BeTrue(), "Demote keeps the conditions of other clients")
}

// The Lease is read live if the spec, the cache or a pod shows that it can matter, and once. Singletons that never used
// fencing cause no request for a Lease. A Lease that does not exist is never silent.
func TestLeaseIsObserved(t *testing.T) {
	fenced := func(pod *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1.FencingAnnotation, string(v1.FencingLease))
	}
	unselected := func(pod *corev1.Pod) { fenced(pod); pod.Labels["app"] = "other" }
	unfenced := func(*corev1.Pod) {}
	for name, test := range map[string]struct {
		fencing         v1.Fencing
		cached, missing bool
		pod             func(*corev1.Pod)
		want            int
	}{
		"no fencing":         {pod: unfenced},
		"the spec":           {fencing: v1.FencingLease, pod: unfenced, want: 1},
		"the cache":          {cached: true, pod: unfenced, want: 1},
		"a pod":              {pod: fenced, want: 1},
		"a pod with a label": {pod: unselected, want: 1},
		"all":                {fencing: v1.FencingLease, cached: true, pod: fenced, want: 1},
		"no Lease":           {fencing: v1.FencingLease, missing: true, pod: fenced, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, sent, _ := newRecorded(t)
			s := w.singleton()
			w.createPod("db-1", withCommand, test.pod)
			if !test.missing {
				w.createLease(s)
			}
			s.Spec.Fencing = test.fencing
			live := sent.client(t, fromLive)
			o := observe.Observer{Client: without[*coordinationv1.Lease]{controllerClient}, Live: live, Silent: func(*coordinationv1.Lease) time.Duration { return time.Minute }}
			if test.cached {
				o.Client = controllerClient
			}
			snapshot, err := o.Observe(t.Context(), s)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(sent.reads()["get leases"]).To(Equal(test.want))
			if test.want == 0 || test.missing {
				w.Expect(snapshot.Lease).To(BeZero())
				return
			}
			w.Expect(snapshot.Lease.Object.ResourceVersion).To(Equal(w.lease().ResourceVersion))
			w.Expect(snapshot.Lease.Silent).To(Equal(time.Minute))
		})
	}
}

// A release of the Lease causes a reconcile. Renewals cause none.
func TestLeaseIsWatched(t *testing.T) {
	w := newWorld(t)
	w.kyverno(serves)
	sent := &requests{}
	w.wrap = func(next http.RoundTripper) http.RoundTripper { return &recorder{sent, fromLive, next} }
	w.startManager()
	w.createSingleton()
	w.installed("Injected")
	w.eventually("NoPods")
	reads := func() int { return sent.reads()["get leases"] } // a singleton without fencing reads only a Lease in the cache
	w.createLease(w.singleton(), func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("db-1_1") })
	w.Eventually(reads).ShouldNot(BeZero(), "the controller knows the Lease")
	w.Eventually(reads).WithPolling(time.Second).Should(BeZero(), "no event is left")
	for range 10 {
		w.renew()
	}
	w.Consistently(reads).WithTimeout(time.Second).Should(BeZero())
	w.patchLease(`{"spec":{"holderIdentity":""}}`)
	w.Eventually(reads).ShouldNot(BeZero(), "the controller knows that the Lease is released")
}

// The Deployment of a pod that lost the Lease is read even if the pod is the only one, because it must be rolled.
func TestDeploymentOfLostPodIsObserved(t *testing.T) {
	w, _ := newSteps(t)
	s := w.singleton()
	pod := w.createPod("db-1", ownedBy(w.replicaSet(w.deployment(), 1)), withCommand)
	o := observe.Observer{Client: controllerClient, Live: controllerClient}
	for uid, want := range map[types.UID]int{"another": 0, pod.UID: 1} {
		s.Status.LastTransition = &v1.Transition{FromUID: uid, Proof: v1.ProofLeaseExpired}
		snapshot, err := o.Observe(t.Context(), s)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(snapshot.Deployments).To(HaveLen(want))
	}
}
