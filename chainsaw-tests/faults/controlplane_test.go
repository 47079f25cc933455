//go:build cluster

package faults_test

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// All API servers are killed twice: while the holder stops, and while the next pod starts. With -v, the log has the time
// for which the starting API servers reject pods.
func TestAPIServerKilled(t *testing.T) {
	alone(t)
	s := singleton(t, world.Options{Env: map[string]string{"STOP_SECONDS": "10", "START_SECONDS": "5"}})
	image := holder(t, s).Spec.Containers[0].Image
	must(t, s.Roll(t.Context()))
	must(t, s.Await(t.Context(), "the holder stops", func(got *v1.StatefulSingleton) bool { return reason(got) == "HolderStopping" }))
	cluster(t, "process", "kill", "kube-apiserver")
	must(t, s.Await(t.Context(), "the next one starts", func(got *v1.StatefulSingleton) bool { return got.Status.Epoch == 2 }))
	cluster(t, "process", "kill", "kube-apiserver")
	awaitAdmission(t, s.Namespace, image)
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
}

// awaitAdmission waits until the API servers, which were just killed, admit a pod of the namespace. It logs how many
// pods were rejected before, because the guards could not read their parameters. In kube-system, no pod may be
// rejected.
func awaitAdmission(t *testing.T, namespace, image string) {
	t.Helper()
	refused, killed := 0, time.Now()
	everywhere(t, "a pod that is admitted", func(ctx context.Context, c client.Client) error {
		if err := tryPod(ctx, c, metav1.NamespaceSystem, image); guardsCannotAsk(err) {
			t.Errorf("a pod of %s is refused: %v", metav1.NamespaceSystem, err)
		}
		err := tryPod(ctx, c, namespace, image)
		if guardsCannotAsk(err) {
			refused++
		}
		return err
	})
	t.Logf("%d pods were refused, and one admitted %s after the kill", refused, time.Since(killed).Round(time.Millisecond))
}

// reason returns the reason of condition Ready.
func reason(s *v1.StatefulSingleton) string {
	for _, c := range s.Status.Conditions {
		if c.Type == v1.ConditionReady {
			return c.Reason
		}
	}
	return ""
}

// Kyverno is killed, scaled to zero and started again during handoffs, while pods are created that the singleton
// selects. Each pod is held or rejected, and other pods are admitted. While Kyverno is away, a deleted pod of a StatefulCluster gets
// its successor, and other singletons report that pods are rejected.
func TestKyvernoDown(t *testing.T) {
	alone(t)
	t.Cleanup(func() { must(t, w.ScaleKyverno(context.Background(), w.KyvernoReplicas())) })
	var s, reports *world.Singleton
	var members *world.Cluster
	atOnce(t,
		func() { s = singleton(t, world.Options{}) },
		func() { reports = singleton(t, world.Options{}) },
		func() {
			members, _ = statefulCluster(t, world.ClusterOptions{Spec: v1.StatefulClusterSpec{Replicas: new(int32(1))}, Volumes: 1})
		},
	)
	empty := emptyNamespace(t)
	wantHeld := watchPods(t, s.Namespace)
	create := keepCreating(t, s)

	must(t, s.Roll(t.Context()))
	must(t, w.KillKyverno(t.Context()))
	create(3 * time.Second)
	must(t, s.AwaitHolder(t.Context(), 2))

	awaitLeaderOfKyverno(t)
	must(t, w.ScaleKyverno(t.Context(), 0))
	must(t, world.Await(t.Context(), "the end of Kyverno", w.KyvernoGone))
	pods, err := members.Pods(t.Context())
	must(t, err)
	deletePod(t, pods["db-0"], nil)
	must(t, members.AwaitAvailable(t.Context(), "db-0"))
	wantPods(t, members, "db-1")
	wantMember(t, members, "db-1", v1.MemberActive, "data-db-0")
	before, err := s.Read(t.Context())
	must(t, err)
	must(t, s.Roll(t.Context()))
	old := holder(t, s)
	create(3 * time.Second)
	must(t, tryPod(t.Context(), w, s.Namespace, old.Spec.Containers[0].Image))
	wantGitOpsWithoutKyverno(t, empty, reports)
	wantStays(t, old, s)
	if got := holder(t, s); got.DeletionTimestamp != nil {
		t.Errorf("pod %s is stopped, while its successor can't come", got.Name)
	}
	must(t, w.ScaleKyverno(t.Context(), w.KyvernoReplicas()))
	must(t, w.AwaitWhole(t.Context()))
	for _, s := range []*world.Singleton{s, reports, empty} {
		must(t, s.Await(t.Context(), "pods are held again", policyInstalled("Injected")))
	}
	must(t, s.TryAgain(t.Context()))
	must(t, s.AwaitHolder(t.Context(), before.Status.Epoch+1))
	if held := create(time.Second); held == 0 {
		t.Error("no pod was held, though Kyverno is back")
	}
	wantHeld(t)
}

// awaitLeaderOfKyverno waits until a running pod leads Kyverno. Only a leader that is stopped removes the webhooks that reject policies
// while no Kyverno runs, and a killed leader is followed only after its Lease has expired.
func awaitLeaderOfKyverno(t *testing.T) {
	t.Helper()
	must(t, world.Await(t.Context(), "a leader of Kyverno", func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		if err := w.Get(ctx, client.ObjectKey{Namespace: "kyverno", Name: "kyverno"}, lease); err != nil {
			return err
		}
		return w.Get(ctx, client.ObjectKey{Namespace: "kyverno", Name: ptr.Deref(lease.Spec.HolderIdentity, "")}, &corev1.Pod{})
	}))
}

// keepCreating returns a function that creates selected pods for the duration and counts the pods that were not
// rejected. It deletes them at once, because they are standbys.
func keepCreating(t *testing.T, s *world.Singleton) func(time.Duration) (held int) {
	image := holder(t, s).Spec.Containers[0].Image
	return func(during time.Duration) (held int) {
		t.Helper()
		refused := 0
		for deadline := time.Now().Add(during); time.Now().Before(deadline); {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, GenerateName: "stray-", Labels: map[string]string{"app": "db"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image, Command: []string{"/app"}}}},
			}
			if err := w.Create(t.Context(), pod); err != nil {
				refused++
				continue
			}
			held++
			deletePod(t, pod, force)
		}
		t.Logf("%d pods were held, %d refused", held, refused)
		return held
	}
}

// watchPods watches every pod of the namespace. The returned function checks that all pods were held from the
// beginning.
func watchPods(t *testing.T, namespace string) func(*testing.T) {
	t.Helper()
	events, err := w.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace))
	must(t, err)
	t.Cleanup(events.Stop)
	// The API server ends the watch of a client that does not read.
	read := make(chan watch.Event, 1<<16)
	go func() {
		defer close(read)
		for e := range events.ResultChan() {
			read <- e
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		seen := 0
		for {
			select {
			case e, open := <-read:
				pod, ok := e.Object.(*corev1.Pod)
				if !open || !ok {
					t.Fatalf("the watch of the pods ended: %+v", e)
				}
				if e.Type != watch.Added {
					continue
				}
				seen++
				if pod.Annotations[v1.InjectedAnnotation] == "" || len(pod.Spec.InitContainers) == 0 {
					t.Errorf("pod %s is not held", pod.Name)
				}
			case <-time.After(time.Second): // events of earlier pods have arrived by now
				if seen < 3 {
					t.Errorf("%d pods were created, want 3 at least", seen)
				}
				return
			}
		}
	}
}
