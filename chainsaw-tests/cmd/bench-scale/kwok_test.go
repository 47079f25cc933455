package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// kwok reports an injected pod's state as a kubelet does, as far as the controller reads it.
func TestKwokPlaysTheKubelet(t *testing.T) {
	r := newCluster(t)
	if err := r.addNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	pod := injectedPod(t)
	if err := r.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	isTrue := func(kind corev1.PodConditionType) bool { return world.IsTrue(pod, kind) }

	r.await(t, pod, "held", func() bool { return world.Warm(pod) })
	if isTrue(corev1.PodReady) || isTrue(corev1.ContainersReady) || isTrue(v1.ReadyCondition) {
		t.Errorf("a held pod is Ready: %+v", pod.Status.Conditions)
	}
	if c := pod.Status.ContainerStatuses[0]; *c.Started {
		t.Errorf("a held container's startup probe has succeeded: %+v", c)
	}

	r.release(t, pod)
	r.await(t, pod, "released", func() bool { return isTrue(corev1.PodReady) })
	if !isTrue(v1.ReadyCondition) || !*pod.Status.ContainerStatuses[0].Started {
		t.Errorf("what released it is lost: %+v", pod.Status)
	}

	if err := r.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	r.await(t, pod, "ended", func() bool { return pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 })
	holder := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "db"},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
		Status:     v1.StatefulSingletonStatus{ActivePod: pod.Name, ActivePodUID: pod.UID, Epoch: 1},
	}
	plan := handoff.Decide(handoff.Snapshot{Singleton: holder, Pods: []corev1.Pod{*pod}}, time.Now())
	if last := plan.Status.LastTransition; last == nil || last.Proof != v1.ProofKubeletReported {
		t.Errorf("it does not count as dead: %s, %+v", plan.Outcome, last)
	}

	if err := r.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("its object stays: %v", err)
	}
}

// newCluster starts etcd and an API server in which kwok manages one node.
func newCluster(t *testing.T) *run {
	t.Helper()
	environment := &envtest.Environment{}
	config, err := environment.Start()
	t.Cleanup(func() { _ = environment.Stop() })
	if err != nil {
		t.Fatalf("start etcd and kube-apiserver, by KUBEBUILDER_ASSETS (run `make unit`): %v", err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, environment.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", file)
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	stop, err := startKwok(directory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if log, _ := os.ReadFile(filepath.Join(directory, "kwok.log")); t.Failed() {
			t.Logf("kwok:\n%s", log)
		}
	})
	return &run{World: &world.World{WithWatch: c, Config: config}, results: &figures.Scale{Nodes: 1}}
}

// injectedPod returns a pod that the policy has injected, bound to kwok's node.
func injectedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := heldPod(t, singleton{Namespace: "default", Name: "db"})
	pod.Spec.NodeName = "kwok-0"
	pod.Spec.AutomountServiceAccountToken = new(false) // no controller creates service accounts here
	return pod
}

// release makes the writes of a release in one write.
func (r *run) release(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"finalizers":  []string{v1.HandoffFinalizer},
			"annotations": map[string]any{signal.Annotation: signal.Signal{UID: string(pod.UID), Epoch: 1}.String()},
		},
		"status": map[string]any{"conditions": []map[string]any{{"type": v1.ReadyCondition, "status": "True"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Status().Patch(t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(pod.Finalizers, v1.HandoffFinalizer) {
		t.Fatalf("the finalizer is not there: %v", pod.Finalizers)
	}
}

func (r *run) await(t *testing.T, pod *corev1.Pod, what string, so func() bool) {
	t.Helper()
	err := world.AwaitFor(t.Context(), 30*time.Second, "a pod that is "+what, func(ctx context.Context) error {
		err := r.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if err == nil && !so() {
			err = errors.New(fmt.Sprint(pod.Status))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
