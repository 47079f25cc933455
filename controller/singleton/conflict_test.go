package singleton_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// conflictingClient returns a client that rejects patches of pods with code 409 while denies is true, as a webhook can.
func conflictingClient(denies *bool) client.Client {
	return interceptor.NewClient(controllerClient, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, isPod := o.(*corev1.Pod); isPod && *denies {
				return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New(notOnMyWatch))
			}
			return c.Patch(ctx, o, patch, options...)
		},
	})
}

// A conflict is retried at once, because another writer was faster. Repeated conflicts are retried with backoff, and
// then reported like other errors.
func TestRepeatedConflicts(t *testing.T) {
	w := newWorld(t)
	journal := w.keepJournal()
	w.createSingleton()
	w.handoffDue()
	denies := true
	r := newReconciler(conflictingClient(&denies), controllerClient, w.clock)
	next := func() (time.Duration, error) {
		result, err := r.Reconciler.Reconcile(t.Context(), w.request())
		return result.RequeueAfter, err
	}
	before := w.singleton().Status.Message
	for i := range 8 {
		after, err := next()
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(after).To(Equal(10*time.Millisecond<<i), "delay after conflict %d in a row", i+1)
		w.Expect(w.singleton().Status.Message).To(Equal(before), "other writers cause a few conflicts")
	}
	_, err := next()
	w.Expect(err).To(MatchError(apierrors.IsConflict, "conflict"), "the queue waits longer and longer after an error, and the log has it")
	w.Expect(w.singleton().Status.Message).To(And(ContainSubstring("; can't patch pod "), ContainSubstring(notOnMyWatch), ContainSubstring("kubectl get ")))
	w.Expect(w.singleton().Status.Phase).To(Equal(v1.PhaseTransitioning))

	denies = false
	w.reconcile(r)
	w.Expect(w.holder()).To(Equal("db-2"))
	w.Expect(w.singleton().Status.Message).NotTo(ContainSubstring(notOnMyWatch))
	w.Expect(journal.wantOneAtATime()).To(Equal(2))

	// The backoff of the next conflict starts from the beginning.
	w.warmPod("db-3", withCommand)
	w.ask(w.pod("db-2"))
	w.report(w.pod("db-2"), ended)
	denies = true
	after, err := next()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(after).To(Equal(10 * time.Millisecond))
}
