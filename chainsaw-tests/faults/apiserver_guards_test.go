//go:build cluster && apiservers

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// An API server with late watches does not know the present holder, and guard "copied" compares the barrier of a copy with that of
// the earlier holder. The guard rejects a copy of the spec alone, and Kyverno gives a complete copy a barrier of its own. Without
// Kyverno, the server admits a complete copy of the holder, as all servers admit a complete copy of a standby.
func TestCopyOnLateServer(t *testing.T) {
	severalServers(t)
	t.Cleanup(func() { must(t, w.ScaleKyverno(context.Background(), w.KyvernoReplicas())) })
	s := singleton(t, world.Options{Barrier: true, Pod: onNode1})
	first := holder(t, s)
	must(t, s.Scale(t.Context(), 2))
	known, behind := through(t, 1), through(t, 2)
	leaderElsewhere(t, 2)
	second := nextHolderOnLateServer(t, s, first)

	wantCopyRejected(t, known, bareCopy(second), "this pod is a copy of the pod that holds")
	wantCopyRejected(t, behind, bareCopy(second), "this pod is a copy of a pod that a StatefulSingleton holds")
	for name, c := range map[string]client.Client{"known": known, "late": behind} {
		copied := completeCopy(second)
		must(t, c.Create(t.Context(), copied, client.DryRunAll))
		if got := barrierOf(copied); got == "" || got == barrierOf(second) {
			t.Errorf("server %s: the copy waits for ConfigMap %q, want another than %q", name, got, barrierOf(second))
		}
	}

	healServers(t)
	standby(t, s)
	leaderElsewhere(t, 2)
	must(t, w.ScaleKyverno(t.Context(), 0))
	everywhere(t, "no webhook of Kyverno, and the second holder is known", func(ctx context.Context, c client.Client) error {
		_, notInjected := tryHeld(ctx, c, s.Namespace)
		copied := c.Create(ctx, completeCopy(second), client.DryRunAll)
		if notInjected == nil || !strings.Contains(notInjected.Error(), "Kyverno has not injected it") || copied == nil {
			return errors.Join(errors.New("the guards do not reject both pods"), notInjected, copied)
		}
		return nil
	})
	third := nextHolderOnLateServer(t, s, second)
	wantCopyRejected(t, known, completeCopy(third), "this pod is a copy of the pod that holds")
	if err := behind.Create(t.Context(), completeCopy(third), client.DryRunAll); err != nil {
		t.Errorf("the late server rejects a complete copy without Kyverno, so docs/guarantees.md can exclude less: %v", err)
	}

	healServers(t)
	must(t, w.ScaleKyverno(t.Context(), w.KyvernoReplicas()))
	must(t, w.AwaitWhole(t.Context()))
	wantStarts(t, s, 3)
}

// nextHolderOnLateServer deletes the holder after server 2 has become late, and returns the next holder.
func nextHolderOnLateServer(t *testing.T, s *world.Singleton, old *corev1.Pod) *corev1.Pod {
	t.Helper()
	standby(t, s)
	got, err := s.Read(t.Context())
	must(t, err)
	cluster(t, "apiserver", "delay", "2", farBehind.String())
	deletePod(t, old, nil)
	must(t, s.AwaitHolder(t.Context(), got.Status.Epoch+1))
	return holder(t, s)
}

// onNode1 puts the pods on the node whose kubelet uses server 1.
func onNode1(spec *corev1.PodSpec) {
	spec.NodeSelector = map[string]string{corev1.LabelHostname: "node1"}
}

// bareCopy returns a copy of the pod without labels and annotations, as kubectl debug makes it.
func bareCopy(pod *corev1.Pod) *corev1.Pod {
	copied := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: "copy-"},
		Spec:       *pod.Spec.DeepCopy(),
	}
	copied.Spec.NodeName = ""
	return copied
}

// completeCopy returns a copy of the pod without the fields that no new pod can have.
func completeCopy(pod *corev1.Pod) *corev1.Pod {
	copied := bareCopy(pod)
	copied.Labels, copied.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	delete(copied.Labels, v1.RoleLabel)
	for _, key := range []string{signal.Annotation, v1.ChosenByAnnotation, v1.NudgeAnnotation} {
		delete(copied.Annotations, key)
	}
	return copied
}

// barrierOf returns the ConfigMap that the pod waits for.
func barrierOf(pod *corev1.Pod) string {
	for _, env := range pod.Spec.Containers[0].Env {
		if env.Name == signal.EpochEnv {
			return env.ValueFrom.ConfigMapKeyRef.Name
		}
	}
	return ""
}

// wantCopyRejected checks that the server rejects the copy, for this reason.
func wantCopyRejected(t *testing.T, c client.Client, copied *corev1.Pod, reason string) {
	t.Helper()
	if err := c.Create(t.Context(), copied, client.DryRunAll); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("create a copy: error %v, want %q", err, reason)
	}
}

// An API server with late watches does not know a new StatefulSingleton, and guard "finalizer" lets a user remove the finalizer of its
// holder. The controller adds the finalizer again. The server also still knows an attestation that the controller has refused.
func TestFinalizerOnLateServer(t *testing.T) {
	severalServers(t)
	s := singleton(t, world.Options{Plain: true, Pod: onNode1})
	awaitStarts(t, s, 1)
	leaderElsewhere(t, 2)
	cluster(t, "apiserver", "delay", "2", farBehind.String())
	create(t, s)
	must(t, s.AwaitHolder(t.Context(), 1))
	pod := holder(t, s)
	removal := func(c client.Client) func(context.Context) error {
		return func(ctx context.Context) error { return removeFinalizers(ctx, c, pod) }
	}
	known, behind := removal(client.NewDryRunClient(through(t, 1))), removal(client.NewDryRunClient(through(t, 2)))
	awaitGuarded(t, known)
	must(t, removeFinalizers(t.Context(), through(t, 2), pod))
	must(t, world.Await(t.Context(), "the finalizer is there again", func(ctx context.Context) error {
		got := &corev1.Pod{}
		err := w.Get(ctx, client.ObjectKeyFromObject(pod), got)
		if err == nil && !slices.Contains(got.Finalizers, v1.HandoffFinalizer) {
			err = fmt.Errorf("finalizers %v", got.Finalizers)
		}
		return err
	}))
	healServers(t)
	awaitGuarded(t, behind)
	must(t, s.Await(t.Context(), "the policy is installed", policyInstalled("Injected")))

	leaderElsewhere(t, 2)
	t.Cleanup(func() { _ = w.Cluster(context.Background(), "process", "continue", "manager") }) // it may run
	cluster(t, "process", "stop", "manager")
	must(t, s.Attest(t.Context(), pod.UID))
	everywhere(t, "the attestation is known", func(ctx context.Context, c client.Client) error {
		return removeFinalizers(ctx, client.NewDryRunClient(c), pod)
	})
	cluster(t, "apiserver", "delay", "2", farBehind.String())
	cluster(t, "process", "continue", "manager")
	must(t, s.Await(t.Context(), "the controller refuses the attestation", func(got *v1.StatefulSingleton) bool {
		return got.Annotations[v1.AttestAnnotation] == ""
	}))
	awaitGuarded(t, known)
	if err := behind(t.Context()); err != nil {
		t.Errorf("the late server does not accept the refused attestation, so docs/guarantees.md can promise more: %v", err)
	}
	healServers(t)
	deletePod(t, pod, nil)
	wantHandedOver(t, s, 2, v1.CauseDeletion, v1.ProofKubeletReported)
}

// removeFinalizers removes all finalizers of the pod, as a user does.
func removeFinalizers(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	return c.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

// awaitGuarded waits until a guard rejects the request.
func awaitGuarded(t *testing.T, request func(context.Context) error) {
	t.Helper()
	must(t, world.Await(t.Context(), "a guard that rejects the request", func(ctx context.Context) error {
		err := request(ctx)
		if err != nil && strings.Contains(err.Error(), "only the StatefulSingleton controller") {
			return nil
		}
		return errors.Join(errors.New("no guard rejects the request"), err)
	}))
}

// An API server with late watches does not know a new StatefulSetLock, and guard "readers" lets a user create a writer. The other
// servers reject the pod.
func TestReaderOnLateServer(t *testing.T) {
	severalServers(t)
	namespace := emptyNamespace(t).Namespace
	createWriter := func(c client.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			pod := plainPod(namespace, "app")
			pod.Labels = map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}
			return c.Create(ctx, pod, client.DryRunAll)
		}
	}
	known, behind := createWriter(through(t, 1)), createWriter(through(t, 2))
	must(t, world.Await(t.Context(), "the namespace on API server 2", behind))
	cluster(t, "apiserver", "delay", "2", farBehind.String())
	must(t, w.Create(t.Context(), &v1.StatefulSetLock{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: world.LockName},
		Spec:       v1.StatefulSetLockSpec{StatefulSetName: world.LockName, LeaseName: world.LockName, LeaseDurationSeconds: 15},
	}))
	awaitGuarded(t, known)
	must(t, behind(t.Context()))
	healServers(t)
	awaitGuarded(t, behind)
}
