package singleton_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// A reconcile that may release a pod reads everything from the API server. More frequent reconciles read less.
func TestReads(t *testing.T) {
	w, sent, r := newRecorded(t)
	d := w.deployment()
	old, next := w.replicaSet(d, 1), w.replicaSet(d, 2)
	first := w.warmPod("db-1", ownedBy(old), withCommand)
	var second *corev1.Pod
	everything := map[string]int{
		"get statefulsingletons": 1, "list pods": 2, "list statefulsingletons": 1, "get nodes": 1, "get replicasets": 2, "get deployments": 1,
	}
	for _, step := range []struct {
		what string
		do   func()
		want map[string]int
	}{
		{"the first pod is released", func() {}, map[string]int{"get statefulsingletons": 1, "list pods": 2, "list statefulsingletons": 1}},
		{"the pod is Ready, and no other pod exists", func() { w.report(first, ready) },
			map[string]int{"get statefulsingletons": 1, "list pods": 1, "get replicasets": 1, "get deployments": 1}},
		{"another pod warms up", func() {
			second = w.createPod("db-2", ownedBy(next), withCommand)
			w.report(second, pulling)
		}, map[string]int{"get statefulsingletons": 1, "list pods": 1, "get replicasets": 2, "get deployments": 1}},
		{"a pod is created that the selector does not match", func() {
			w.createPod("db-0", func(p *corev1.Pod) { p.Labels["app"] = "other" })
		}, map[string]int{"get statefulsingletons": 1, "list pods": 2, "get replicasets": 2, "get deployments": 1}},
		{"the holder is terminating", func() { w.delete(first) }, everything},
		{"the other pod is released", func() {
			w.report(second, held)
			w.report(first, ended)
		}, everything},
	} {
		step.do()
		sent.taken()
		w.reconcileHandoff(r)
		if diff := cmp.Diff(step.want, sent.reads()); diff != "" {
			t.Errorf("%s: reads (-want +got):\n%s", step.what, diff)
		}
	}
	w.Expect(w.holder()).To(Equal("db-2"))
}
