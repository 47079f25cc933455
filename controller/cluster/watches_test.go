package cluster_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// The manager with its real cache reconciles after events of pods, claims, revisions, nodes and the StatefulCluster. While all pods are
// available, the controller does not poll within the time of the test.
func TestWatches(t *testing.T) {
	w := newWorld(t)
	g := NewWithT(t)
	w.startManager(g)
	w.create(3, func(spec *v1.StatefulClusterSpec) { spec.RevisionHistoryLimit = new(int32(0)) })
	eventually := func(what string, condition func() bool) {
		t.Helper()
		g.Eventually(func() bool {
			w.play()
			return condition()
		}).Should(BeTrue(), what)
	}
	settled := func() bool { return w.has(w.cluster(), membership.AllAvailable) }
	eventually("all pods are available", settled)

	w.deletePod("coder-0")
	eventually("pod coder-0 is replaced", func() bool { return w.member("coder-3") != nil && settled() })
	w.wantClaim("coder-3", "data-coder-0")

	revision := &appsv1.ControllerRevision{ObjectMeta: w.named(w.cluster().Status.UpdateRevision)}
	w.must(c.Delete(t.Context(), revision))
	eventually("the revision is created again", func() bool { return w.exists(&appsv1.ControllerRevision{}, revision.Name) })

	w.lose("coder-1")
	eventually("pod coder-1 is lost", func() bool { return w.member("coder-4") != nil && settled() })
	delete(w.claims, w.pod("coder-1").UID)
	node := w.node(w.pod("coder-1").Spec.NodeName)
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
	w.must(c.Update(t.Context(), node))
	eventually("the member of the node that is off ends", func() bool { return w.member("coder-1") == nil })
	w.must(c.Delete(t.Context(), w.pod("coder-1"), client.GracePeriodSeconds(0))) // as the pod garbage collector does

	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete
		spec.Replicas = new(int32(2))
	})
	eventually("a pod is removed, and its claim", func() bool {
		return len(w.podNames()) == 2 && settled() && len(w.cluster().Status.Released) == 1 // the claim of coder-1 is retained
	})
	w.must(c.Delete(t.Context(), w.cluster()))
	eventually("the StatefulCluster is removed", w.isRemoved)
	w.wantPods()
}

// startManager runs the reconciler in a manager until the end of the test.
func (w *world) startManager(g *WithT) {
	w.t.Helper()
	options := cluster.CacheOptions()
	options.DefaultNamespaces = map[string]cache.Config{w.namespace: {}}
	mgr, err := ctrl.NewManager(controllerConfig, ctrl.Options{
		Scheme: scheme.Scheme, Cache: options, Metrics: server.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	g.Expect(err).NotTo(HaveOccurred())
	reconciler := w.newReconciler(mgr.GetClient())
	reconciler.Recorder = mgr.GetEventRecorder("statefulsingleton-clusters")
	g.Expect(reconciler.SetupWithManager(mgr)).To(Succeed())
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(ctx) }()
	w.t.Cleanup(func() {
		stop()
		g.Expect(<-stopped).To(Succeed())
	})
}
