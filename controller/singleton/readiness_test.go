package singleton_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

// withReadiness adds a readiness probe that asks the sidecar.
func withReadiness(pod *corev1.Pod) {
	withCommand(pod)
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: signal.ProbePathPrefix + pod.Spec.Containers[0].Name, Port: intstr.FromInt32(signal.ProbePort)},
	}}
}

// gateOf returns the reason of the open readiness gate of a pod. Empty: the gate is closed.
func (w *world) gateOf(name string) string {
	for _, c := range w.pod(name).Status.Conditions {
		if c.Type == v1.ReadyCondition && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// The readiness gate of a pod whose probes fail until its release opens before the kubelet reports anything, also if the pod was
// created while no controller ran.
func TestReadinessGateOpensEarly(t *testing.T) {
	w, _ := newSteps(t)
	first := w.createPod("db-1", withReadiness)
	w.startManager()
	w.Eventually(func() string { return w.gateOf("db-1") }).Should(Equal(v1.ReadyReasonStandby))
	w.report(first, held)
	w.Eventually(w.holder).Should(Equal("db-1"))
	w.serve(first)
	w.Expect(w.gateOf("db-1")).To(Equal(v1.ReadyReasonHolds))

	second := w.createPod("db-2", withReadiness)
	w.Eventually(func() string { return w.gateOf("db-2") }).Should(Equal(v1.ReadyReasonStandby))
	w.report(second, held)
	w.Eventually(func() bool { return hasFinalizer(w.pod("db-2")) }).Should(BeTrue())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())
	s := w.eventually("HolderReady")
	w.Expect(s.Status.ActivePod).To(Equal("db-1"))

	w.end(first)
	w.Eventually(func() string { return w.gateOf("db-2") }).Should(Equal(v1.ReadyReasonHolds))
	wantReleased(w, "db-2", 2)
	w.serve(second)
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
}

// gatesThatRead returns a reconciler of readiness gates that calls then after each read of a pod.
func (w *world) gatesThatRead(then func()) *singleton.ReadinessGates {
	return &singleton.ReadinessGates{Client: controllerClient, Clock: w.clock, Live: interceptor.NewClient(controllerClient, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := c.Get(ctx, key, o, options...)
			then()
			return err
		},
	})}
}

// A pod that is signalled between the read of the pod and the write of its gate keeps the reason of a released pod.
func TestReadinessGateOfAReleasedPod(t *testing.T) {
	w, _ := newSteps(t)
	w.warmPod("db-1", withReadiness)
	r := w.fresh()
	gates := w.gatesThatRead(func() { w.reconcile(r) })
	result, err := gates.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key("db-1")})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).NotTo(BeZero(), "the conflict is tried again")
	wantReleased(w, "db-1", 1)
	result, err = gates.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key("db-1")})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result).To(BeZero())
	w.Expect(w.gateOf("db-1")).To(Equal(v1.ReadyReasonHolds))
}

// A pod that is removed between the read and the write is no error.
func TestReadinessGateOfARemovedPod(t *testing.T) {
	w, _ := newSteps(t)
	old := w.createPod("db-1", withReadiness)
	gates := w.gatesThatRead(func() { w.remove(old) })
	result, err := gates.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key("db-1")})
	w.Expect(err).NotTo(HaveOccurred(), "the pod is gone")
	w.Expect(result).To(BeZero())
}
