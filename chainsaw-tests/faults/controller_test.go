//go:build cluster

package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	controller "github.com/statefulsingleton/statefulsingleton/controller/singleton"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The controller is killed just before each of its writes. Each write has a singleton of its own, and all of them wait
// for the same kill. The next controller continues from what is stored.
func TestControllerKilledAtEachStep(t *testing.T) {
	alone(t)
	steps := map[string]struct {
		// step is the step that is refused, if it is not the name of the test case.
		step    string
		barrier bool
		// wantStarted is true if the new holder may have started before this step.
		wantStarted bool
	}{
		"Protect":     {},
		"Retire":      {},
		"Record":      {},
		"Signal":      {},
		"OpenBarrier": {barrier: true},
		// The kubelet checks the barrier by itself after a while.
		"Signal, its barrier open": {step: "Signal", barrier: true, wantStarted: true},
		"Unprotect":                {wantStarted: true},
	}
	var mu sync.Mutex
	var begin, complete []func()
	for name, tc := range steps {
		begin = append(begin, func() {
			s := singleton(t, world.Options{Barrier: tc.barrier})
			old, r := holder(t, s), refuse(t, s, cmp.Or(tc.step, name))
			must(t, s.Roll(t.Context()))
			r.await(t)
			mu.Lock()
			defer mu.Unlock()
			complete = append(complete, func() {
				r.await(t) // the next controller reaches the same step
				if !tc.wantStarted {
					wantNobodyElse(t, 0, old, s)
				}
				r.lift(t)
				wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
				podGone(t, old)
			})
		})
	}
	atOnce(t, begin...)
	must(t, w.KillController(t.Context()))
	atOnce(t, complete...)
}

// The leader is suspended during a handoff until another leader has completed the handoff. It then continues with its
// old view.
func TestLeaderStandsStill(t *testing.T) {
	alone(t)
	s := singleton(t, world.Options{})
	old := holder(t, s)
	leader := leaderApart(t)
	r := refuse(t, s, "Signal")
	must(t, s.Roll(t.Context()))
	r.await(t)
	wantNobodyElse(t, 0, old, s)
	cluster(t, "process", "stop", "manager", "--on", leader.Spec.NodeName)
	r.lift(t)
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
	next := holder(t, s)
	cluster(t, "process", "continue", "manager", "--on", leader.Spec.NodeName)
	must(t, world.Await(t.Context(), "the end of the late leader", func(ctx context.Context) error {
		pod := &corev1.Pod{}
		if err := w.Get(ctx, client.ObjectKeyFromObject(leader), pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		if pod.Status.ContainerStatuses[0].RestartCount == leader.Status.ContainerStatuses[0].RestartCount {
			return errors.New("it runs on")
		}
		return nil
	}))
	must(t, w.AwaitWhole(t.Context()))
	wantStays(t, next, s)
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
	deletePod(t, next, nil)
	wantHandedOver(t, s, 3, v1.CauseDeletion, v1.ProofKubeletReported)
}

// Both replicas are cut off from the API server, and from each other, during a handoff. Then one returns, and after it
// the former leader.
func TestControllersCutOff(t *testing.T) {
	alone(t)
	leader := leaderApart(t)
	other := otherNode(leader.Spec.NodeName)
	s := singleton(t, world.Options{Node: other})
	old := holder(t, s)
	r := refuse(t, s, "Record")
	must(t, s.Roll(t.Context()))
	r.await(t)
	cluster(t, "node", "partition", "1")
	cluster(t, "node", "partition", "2")
	r.lift(t)
	wantNobodyElse(t, 12*time.Second, old, s) // the controller decides every 10 s at the latest
	cluster(t, "node", "heal", other)
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
	cluster(t, "node", "heal", leader.Spec.NodeName)
	must(t, w.AwaitWhole(t.Context()))
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
}

func otherNode(node string) string {
	if node == "node1" {
		return "node2"
	}
	return "node1"
}

// leaderApart returns the leader's pod, which runs on another node than the second replica.
func leaderApart(t *testing.T) *corev1.Pod {
	t.Helper()
	leader, err := w.LeaderApart(t.Context())
	must(t, err)
	return leader
}

// jumpingClock moves by hours, forward or back, between two reads.
type jumpingClock struct {
	clock.RealClock
	mu   sync.Mutex
	next int
}

func (c *jumpingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	jumps := []time.Duration{0, 7 * time.Hour, -5 * time.Hour, 40 * 24 * time.Hour, -time.Second, -400 * 24 * time.Hour}
	c.next++
	return time.Now().Add(jumps[c.next%len(jumps)])
}

func (c *jumpingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// The reconcilers run with the controller's rights and another clock, in place of the controller.
func TestClockSetBackAndForth(t *testing.T) {
	alone(t)
	s := singleton(t, world.Options{})
	deployment, _ := stopController(t)
	runController(t, gateImage(t, deployment), &jumpingClock{})
	for epoch := int64(2); epoch <= 5; epoch += 2 {
		must(t, s.Roll(t.Context()))
		wantHandedOver(t, s, epoch, v1.CauseRollout, v1.ProofKubeletReported)
		deletePod(t, holder(t, s), nil)
		wantHandedOver(t, s, epoch+1, v1.CauseDeletion, v1.ProofKubeletReported)
	}
}

// stopController ends all replicas of the controller until the end of the test, or until restart is called.
func stopController(t *testing.T) (deployment *appsv1.Deployment, restart func()) {
	t.Helper()
	name := types.NamespacedName{Namespace: world.ControllerNamespace, Name: "statefulsingleton"}
	deployment = &appsv1.Deployment{}
	must(t, w.Get(t.Context(), name, deployment))
	scale := func(replicas int32) {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
		must(t, w.Patch(context.Background(), deployment.DeepCopy(), patch))
	}
	restart = func() { scale(*deployment.Spec.Replicas) }
	t.Cleanup(restart)
	scale(0)
	must(t, world.Await(t.Context(), "the end of the controller", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.List(ctx, &pods, client.InNamespace(world.ControllerNamespace), world.ControllerPods); err != nil || len(pods.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d pods are there", len(pods.Items)))
		}
		return nil
	}))
	return deployment, restart
}

func gateImage(t *testing.T, deployment *appsv1.Deployment) string {
	t.Helper()
	for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
		if image, ok := strings.CutPrefix(arg, "--gate-image="); ok {
			return image
		}
	}
	t.Fatal("the controller has no --gate-image")
	return ""
}

// runController runs the reconcilers until the end of the test.
func runController(t *testing.T, gateImage string, c clock.WithDelayedExecution) {
	t.Helper()
	mgr := newManager(t)
	policyReconciler := &injection.Reconciler{
		Kind: injection.Singletons, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c,
		Options: policies.Options{SidecarImage: gateImage, SidecarPullPolicy: corev1.PullIfNotPresent},
	}
	must(t, policyReconciler.SetupWithManager(mgr))
	r := &controller.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c,
		Recorder:  mgr.GetEventRecorder("statefulsingleton"),
		Metrics:   controller.NewMetrics(prometheus.NewRegistry(), mgr.GetClient()),
		Injection: policyReconciler,
	}
	must(t, r.SetupWithManager(mgr))
	start(t, mgr)
}

// newManager returns a manager with the controller's rights, without leader election.
func newManager(t *testing.T) ctrl.Manager {
	t.Helper()
	as := rest.CopyConfig(w.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: world.ControllerUser, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	mgr, err := ctrl.NewManager(as, ctrl.Options{
		Scheme: w.Scheme(), Cache: controller.CacheOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	must(t, err)
	return mgr
}

// start runs the manager until the end of the test.
func start(t *testing.T, mgr ctrl.Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
}
