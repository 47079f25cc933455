package injection

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// failing is a reconciler of one singleton whose installation fails. Its clock advances by the delays that Reconcile
// returns.
type failing struct {
	t          *testing.T
	reconciler *Reconciler
	clock      *clocktesting.FakeClock
	singleton  *v1.StatefulSingleton
	// policyErr is the error of each read of a policy.
	policyErr error
	// podErr is the error of each dry-run.
	podErr error
}

// newFailing returns a reconciler whose dry-runs fail. If policyErr is not nil, each read of a policy fails too.
func newFailing(t *testing.T, policyErr error) *failing {
	t.Helper()
	f := &failing{t: t, clock: clocktesting.NewFakeClock(time.Now()), policyErr: policyErr, podErr: errors.New("no webhook answers")}
	f.singleton = &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "1", Generation: 1, Finalizers: []string{v1.PolicyFinalizer}},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.singleton).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, isPolicy := o.(*metav1.PartialObjectMetadata); isPolicy && f.policyErr != nil {
				return f.policyErr
			}
			return c.Get(ctx, key, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, isPod := o.(*corev1.Pod); isPod {
				return f.podErr
			}
			return c.Create(ctx, o, options...)
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return nil
		},
	}).Build()
	f.reconciler = &Reconciler{
		Kind:   Singletons,
		Client: c, Live: c, Clock: f.clock,
		Options: policies.Options{SidecarImage: "gate"},
		Budget:  policies.DefaultBudget,
		Watch:   func() (Watched, error) { return Watched{}, nil },
	}
	return f
}

// reconcile reconciles the singleton once, and returns the reason of the condition and the requeue delay.
func (f *failing) reconcile() (reason string, delay time.Duration) {
	f.t.Helper()
	key := client.ObjectKeyFromObject(f.singleton)
	result, err := f.reconciler.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: key})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.reconciler.Live.Get(f.t.Context(), key, f.singleton); err != nil {
		f.t.Fatal(err)
	}
	f.clock.Step(result.RequeueAfter)
	return f.reconciler.Condition(f.singleton).Reason, result.RequeueAfter
}

// install reconciles while the reason is Installing. It returns the other reason, the delays while the policy was new,
// and the first delay with the other reason.
func (f *failing) install() (reason string, isNew []time.Duration, first time.Duration) {
	f.t.Helper()
	for range 1000 {
		reason, delay := f.reconcile()
		if reason != ReasonInstalling {
			return reason, isNew, delay
		}
		isNew = append(isNew, delay)
	}
	f.t.Fatalf("the reason is still %s after the delays %v", ReasonInstalling, isNew)
	return "", nil, 0
}

// The delays between retries of a failure grow, because each dry-run makes the API server evaluate all webhooks. They
// start again when the spec changes.
func TestRetriesBackOff(t *testing.T) {
	tests := map[string]struct {
		policyErr  error
		wantReason string
	}{
		"Kyverno is missing":        {&meta.NoKindMatchError{}, reasonKyvernoMissing},
		"the policy is refused":     {errors.New("not on my watch"), reasonPolicyRefused},
		"the probe pod is rejected": {nil, reasonProbeRefused},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFailing(t, tc.policyErr)
			reason, _, first := f.install()
			delays := []time.Duration{first}
			for range 7 {
				next, delay := f.reconcile()
				reason, delays = next, append(delays, delay)
			}
			if reason != tc.wantReason {
				t.Errorf("reason %s, want %s", reason, tc.wantReason)
			}
			const s = time.Second
			want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, time.Minute, time.Minute}
			if diff := cmp.Diff(want, delays); diff != "" {
				t.Errorf("delays (-want +got):\n%s", diff)
			}

			f.policyErr = nil
			f.singleton.Generation++
			if err := f.reconciler.Client.Update(t.Context(), f.singleton); err != nil {
				t.Fatal(err)
			}
			if _, isNew, first := f.install(); len(isNew) == 0 || first != time.Second {
				t.Errorf("delays after the change: %v, then %s, want delays of a new policy, then 1s", isNew, first)
			}
		})
	}
}

// Kyverno needs a second or two to serve a new policy. Until then, checks are frequent, because the first pod cannot be
// held before.
func TestNewPolicyIsCheckedOften(t *testing.T) {
	f := newFailing(t, nil)
	created := f.clock.Now()
	_, isNew, _ := f.install()
	if installed := f.clock.Since(created); installed < installTimeout {
		t.Errorf("the failure was reported after %s, want %s", installed, installTimeout)
	}
	if got := slices.Max(isNew); got != time.Second {
		t.Errorf("longest delay %s, want 1s", got)
	}
	var age time.Duration
	for _, delay := range isNew {
		if age < 2*time.Second && delay > time.Second/2 {
			t.Errorf("delay %s at the age of %s, want at most 500ms", delay, age)
		}
		age += delay
	}
}
