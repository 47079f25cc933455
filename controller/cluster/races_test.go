package cluster_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// stopping returns a client that stops the controller instead of one of its writes, or right after this write. The writes count from
// 0.
func stopping(write int, after bool, stop context.CancelFunc) client.WithWatch {
	count := 0
	send := func(ctx context.Context, request func(context.Context) error) error {
		count++
		switch {
		case count-1 != write:
			return request(ctx)
		case after:
			if err := request(ctx); err != nil {
				return err
			}
		}
		stop()
		return context.Canceled
	}
	return interceptor.NewClient(cached(), interceptor.Funcs{
		Create: func(ctx context.Context, writes client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return send(ctx, func(ctx context.Context) error { return writes.Create(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, writes client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			return send(ctx, func(ctx context.Context) error { return writes.Patch(ctx, o, patch, options...) })
		},
		Delete: func(ctx context.Context, writes client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return send(ctx, func(ctx context.Context) error { return writes.Delete(ctx, o, options...) })
		},
		SubResourceUpdate: func(ctx context.Context, writes client.Client, resource string, o client.Object, options ...client.SubResourceUpdateOption) error {
			return send(ctx, func(ctx context.Context) error { return writes.SubResource(resource).Update(ctx, o, options...) })
		},
		SubResourcePatch: func(ctx context.Context, writes client.Client, resource string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return send(ctx, func(ctx context.Context) error {
				return writes.SubResource(resource).Patch(ctx, o, patch, options...)
			})
		},
	})
}

// In replacements of a pod, the controller stops before and after each of its writes. No name is used twice, and no claim or pod is left
// behind.
func TestStoppedController(t *testing.T) {
	w := started(t, 2, func(spec *v1.StatefulClusterSpec) {
		spec.Replacement.State = v1.ReplacementFresh
		spec.PersistentVolumeClaimRetentionPolicy.WhenReplaced = v1.ClaimDelete
	})
	stops := 0
	const writes = 8
	const deletions = 2 * writes
	for i := range deletions {
		pods := w.pods()
		w.must(c.Delete(t.Context(), &pods[i%len(pods)]))
		ctx, stop := context.WithCancel(t.Context())
		w.reconciler = w.newReconciler(stopping(i%writes, i < writes, stop))
		for range 10 {
			if ctx.Err() != nil {
				break
			}
			if _, err := w.reconciler.Reconcile(ctx, w.request()); err != nil {
				t.Fatal(err)
			}
			w.play()
		}
		if ctx.Err() != nil {
			stops++
		}
		stop()
		w.reconciler = w.newReconciler(cached()) // the next leader
		w.settled()
	}
	if stops < deletions*3/4 {
		t.Errorf("the controller stopped in %d of %d replacements", stops, deletions)
	}
	got := w.cluster()
	if len(w.uids) != 2+deletions || got.Status.Next != 2+deletions {
		t.Errorf("%d names were used, and the next number is %d, want %d", len(w.uids), got.Status.Next, 2+deletions)
	}
	wantOnlyMembers(w, got)
}

// removeUnmounted deletes the claims that no member has and that no pod ever used. A controller that acts late creates them after the
// other controller has removed their member.
func (w *world) removeUnmounted(got *v1.StatefulCluster) {
	w.t.Helper()
	for _, claim := range w.allClaims() {
		has := func(m v1.ClusterMember) bool { return m.Claims[0].Name == claim.Name }
		if !w.mounted[claim.Name] && !slices.ContainsFunc(got.Status.Members, has) {
			w.t.Logf("claim %s was created late", claim.Name)
			w.must(c.Delete(w.t.Context(), &claim))
		}
	}
	w.play()
}

// wantOnlyMembers checks that the pods and claims are those of the members.
func wantOnlyMembers(w *world, got *v1.StatefulCluster) {
	w.t.Helper()
	var pods, claims []string
	for _, m := range got.Status.Members {
		pods = append(pods, m.Name)
		claims = append(claims, m.Claims[0].Name)
	}
	w.wantPods(pods...)
	w.wantClaims(claims...)
}

// A pod that is created after another controller has removed its member never runs, and is removed.
func TestLateCreation(t *testing.T) {
	w := newWorld(t)
	w.must(c.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+lateGuard+`":""}}}`))))
	w.create(1)
	overtaken := false
	late := w.newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Create: func(ctx context.Context, writes client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if o.GetName() == "coder-0" && !overtaken {
				overtaken = true
				w.scale(0)
				w.settled()
			}
			return writes.Create(ctx, o, options...)
		},
	}))
	if _, err := late.Reconcile(t.Context(), w.request()); err != nil {
		t.Fatal(err)
	}
	w.wantPods("coder-0")
	if w.play(); w.pod("coder-0").Spec.NodeName != "" {
		t.Error("the pod runs")
	}
	w.settled()
	w.wantPods()
	w.scale(1)
	w.settled()
	w.wantPods("coder-1")
}

// A pod that is created after the end of the StatefulCluster does not keep the finalizer. A pod of a new StatefulCluster does.
func TestCreationAfterDeletion(t *testing.T) {
	w := started(t, 1)
	late := w.pod("coder-0")
	w.must(c.Delete(t.Context(), w.cluster()))
	w.until("the StatefulCluster is removed", w.isRemoved)
	late.ObjectMeta = metav1.ObjectMeta{
		Namespace: w.namespace, Name: "coder-9", Labels: late.Labels, Finalizers: late.Finalizers, OwnerReferences: late.OwnerReferences,
	}
	late.Spec.NodeName, late.Spec.Hostname, late.Spec.SchedulingGates = "", late.Name, []corev1.PodSchedulingGate{{Name: v1.MemberGate}}
	w.must(controller.Create(t.Context(), late))
	w.must(c.Delete(t.Context(), late)) // as the garbage collector does
	recreated := false
	w.reconciler.Live = interceptor.NewClient(controller, interceptor.Funcs{
		List: func(ctx context.Context, reads client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := reads.List(ctx, list, options...); err != nil || recreated {
				return err
			}
			recreated = true
			w.create(1)
			return nil
		},
	})
	if w.reconcile(); !recreated || !slices.Contains(w.podNames(), "coder-9") {
		t.Errorf("pods %v: a StatefulCluster exists, and its pods keep their finalizers", w.podNames())
	}
	w.must(c.Delete(t.Context(), w.cluster()))
	w.reconcile()
	w.wantPods()
}

// Two controllers that both believe that they are the leader, with pods that are deleted, and replicas that change. The world checks
// that no two pods run with one claim, and that no name is used twice.
func TestTwoControllers(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(spec *v1.StatefulClusterSpec) {
		spec.PersistentVolumeClaimRetentionPolicy = v1.ClaimRetentionPolicy{WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete}
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var reconciles atomic.Int64
	for range 2 {
		reconciler := w.newReconciler(cached())
		running.Go(func() {
			for ctx.Err() == nil {
				reconciles.Add(1)
				// Without the delays of a queue, there can be so many conflicts in a row that one is an error.
				if _, err := reconciler.Reconcile(ctx, w.request()); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
					t.Errorf("reconcile: %v", err)
					return
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	deletions := 0
	for deletions < 100 {
		w.play()
		pods := w.pods()
		if len(pods) == 0 {
			continue
		}
		switch p := &pods[random.IntN(len(pods))]; {
		case random.IntN(10) == 0:
			w.scale(int32(1 + random.IntN(4)))
		case p.DeletionTimestamp == nil && random.IntN(3) == 0:
			deletions++
			options := []client.DeleteOption{client.Preconditions{UID: &p.UID}}
			if random.IntN(3) == 0 {
				options = append(options, client.GracePeriodSeconds(0))
			}
			w.done(c.Delete(ctx, p, options...))
		}
	}
	stop()
	running.Wait()
	w.scale(3)
	got := w.settled()
	w.removeUnmounted(got)
	wantOnlyMembers(w, got)
	if slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return len(p.Spec.SchedulingGates) > 0 }) || len(w.uids) < deletions {
		t.Errorf("pods %v after %d deletions", w.podNames(), deletions)
	}
	t.Logf("%d deletions, %d reconciles, %d names", deletions, reconciles.Load(), len(w.uids))
}
