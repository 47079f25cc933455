package injection

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// contentOf changes with everything that can change a policy, including the variant of a singleton. It does not depend on the order of the singletons.
func TestContentOf(t *testing.T) {
	one := func(name, uid string, generation int64) policies.Subject {
		return &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation}}
	}
	db, queue := one("db", "1", 1), one("queue", "2", 1)
	r := &Reconciler{}
	contentOf := r.contentOf
	if contentOf(db, queue) != contentOf(queue, db) {
		t.Error("the order counts")
	}
	fenced := db.DeepCopyObject().(*v1.StatefulSingleton)
	fenced.Spec.Fencing = v1.FencingLease
	all := []string{contentOf(), contentOf(db), contentOf(fenced), contentOf(db, queue), contentOf(one("db", "3", 1)), contentOf(one("db", "1", 2)), contentOf(one("other", "1", 1))}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("two are taken for the same: %v", all)
	}
}

// Locks have policies of their own. They never read, change or delete the policy that the singletons of a namespace share.
func TestLocksShareNoPolicy(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	policyNamed := func(name string) *unstructured.Unstructured {
		policy := &unstructured.Unstructured{}
		policy.SetGroupVersionKind(policies.ClusterPolicy.GVK())
		policy.SetName(name)
		return policy
	}
	lock := &v1.StatefulSetLock{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "1", Finalizers: []string{v1.PolicyFinalizer}}}
	shared, own := policyNamed(policies.NamespaceName("shop")), policyNamed(policies.NameOf(lock))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(lock, shared, own).Build()
	r := &Reconciler{Kind: Locks, Budget: policies.DefaultBudget, Client: c, Live: c, Clock: clocktesting.NewFakeClock(time.Now())}
	r.watched.Store(&Watched{Reader: c, HasSynced: func() bool { return true }})
	if old, exists := r.oldPolicy(t.Context(), lock); exists {
		t.Errorf("the old policy is %s", old)
	}
	if err := r.removeFromPolicies(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(shared), shared); err != nil {
		t.Errorf("the shared policy: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(own), own); !apierrors.IsNotFound(err) {
		t.Errorf("the policy of the lock: %v, want it to be deleted", err)
	}
}

// A lock without room in the budget of its namespace gets no policy. The condition says why.
func TestLockInFullNamespace(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	objects := fake.NewClientBuilder().WithScheme(scheme)
	var newest *v1.StatefulSetLock
	for i := range 100 {
		newest = &v1.StatefulSetLock{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("db-%d", i), UID: types.UID(fmt.Sprint(i)),
			CreationTimestamp: metav1.Unix(int64(i), 0), Finalizers: []string{v1.PolicyFinalizer},
		}}
		objects.WithObjects(newest)
	}
	c := objects.Build()
	r := &Reconciler{Kind: Locks, Budget: policies.DefaultBudget, Client: c, Live: c, Clock: clocktesting.NewFakeClock(time.Now())}
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(newest)})
	if err != nil || result.RequeueAfter < checkPeriod/2 {
		t.Errorf("Reconcile: requeue after %s, error %v, want a requeue after about %s", result.RequeueAfter, err, checkPeriod)
	}
	got := r.Condition(newest)
	want := "StatefulSetLock shop/db-99 gets no policy: other objects fill the 157286 bytes that namespace shop gets of Kyverno's webhooks, which all namespaces share. " +
		"Create this StatefulSetLock in another namespace, or delete others (kubectl get statefulsetlock -n shop --sort-by=.metadata.creationTimestamp)"
	if got.Status != metav1.ConditionFalse || got.Reason != "NamespaceFull" || got.Message != want {
		t.Errorf("condition %s %s: %s\nwant False NamespaceFull: %s", got.Status, got.Reason, got.Message, want)
	}
}

// While the watch starts, which can take long, other workers can read the state of the reconciler. All workers that need the
// watch wait for one start.
func TestWatchStartsOnce(t *testing.T) {
	var starts atomic.Int32
	r := &Reconciler{}
	subject := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}
	r.Watch = func() (Watched, error) {
		starts.Add(1)
		read := make(chan struct{})
		go func() {
			r.checks.get(client.ObjectKeyFromObject(subject))
			close(read)
		}()
		select {
		case <-read:
			return Watched{}, nil
		case <-time.After(time.Second):
			return Watched{}, errors.New("no other worker could read the last check")
		}
	}
	var workers errgroup.Group
	for range 8 {
		workers.Go(r.watch)
	}
	if err := workers.Wait(); err != nil {
		t.Error(err)
	}
	if got := starts.Load(); got != 1 {
		t.Errorf("%d starts of the watch, want 1", got)
	}
}
