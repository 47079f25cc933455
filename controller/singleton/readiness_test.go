package singleton_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/readiness"
)

// withReadiness adds a readiness probe that asks the sidecar.
func withReadiness(pod *corev1.Pod) {
	withCommand(pod)
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: readiness.PathPrefix + pod.Spec.Containers[0].Name, Port: intstr.FromInt32(readiness.Port)},
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

// The readiness gate of a standby whose probes fail until its release opens before the holder stops.
func TestReadinessGateOpensEarly(t *testing.T) {
	w := newWorld(t)
	journal := w.keepJournal()
	w.startManager()
	w.createSingleton()
	first := w.hold("db-1", withReadiness)
	w.Expect(w.gateOf("db-1")).To(Equal(v1.ReadyReasonHolds))

	second := w.createPod("db-2", withReadiness)
	w.report(second, pulling)
	w.report(second, held)
	w.Eventually(func() string { return w.gateOf("db-2") }).Should(Equal(v1.ReadyReasonWarm))
	w.Expect(hasFinalizer(w.pod("db-2"))).To(BeTrue())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())
	s := w.eventually("HolderReady")
	w.Expect(s.Status.ActivePod).To(Equal("db-1"))

	w.ask(first)
	w.report(first, ended)
	w.Eventually(func() string { return w.gateOf("db-2") }).Should(Equal(v1.ReadyReasonHolds))
	wantReleased(w, "db-2", 2)
	w.serve(second)
	if released := journal.wantOneAtATime(); released != 2 {
		t.Errorf("%d pods were released, want 2", released)
	}
}

// If the kubelet runs the probe, it can succeed at any time. The readiness gate stays closed until the release.
func TestReadinessGateOpensWithTheSignal(t *testing.T) {
	w := newWorld(t)
	w.startManager()
	w.createSingleton()
	first := w.hold("db-1", withCommand)
	second := w.warmPod("db-2", withCommand)
	w.Eventually(func() bool { return hasFinalizer(w.pod("db-2")) }).Should(BeTrue())
	w.Expect(w.gateOf("db-2")).To(BeEmpty())

	w.ask(first)
	w.report(first, ended)
	w.Eventually(func() string { return w.gateOf("db-2") }).Should(Equal(v1.ReadyReasonHolds))
	w.serve(second)
}
