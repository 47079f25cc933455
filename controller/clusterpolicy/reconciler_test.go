package clusterpolicy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/clusterpolicy"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// The tests use a real etcd and kube-apiserver, with the chart's CRDs, RBAC and guards, and with Kyverno's CRD of
// ClusterPolicies. Kyverno does not run: the client of the reconcilers mutates the pods of dry-runs.
var (
	// c has all permissions, and clusterManager those of the manager of StatefulClusters.
	c, clusterManager client.WithWatch
	// controllerConfig has the permissions of the controller.
	controllerConfig *rest.Config
)

const release = "statefulsingleton"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code, err := runWithAPIServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runWithAPIServer(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 0, errors.New("KUBEBUILDER_ASSETS is not set: run `make unit`, or set it to the directory that `bin/cluster tools` prints")
	}
	kyverno, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kyverno/kyverno").Output()
	if err != nil {
		return 0, fmt.Errorf("find Kyverno's CRDs in the module cache: %w", err)
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths: []string{
			"../../charts/statefulsingleton/files/crds",
			filepath.Join(strings.TrimSpace(string(kyverno)), "config/crds/kyverno/kyverno.io_clusterpolicies.yaml"),
		},
		ErrorIfCRDPathMissing: true,
	}
	defer func() { _ = environment.Stop() }() // also stops a partly started environment
	config, err := environment.Start()
	if err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return 0, err
	}
	as := func(account string) *rest.Config {
		user := rest.CopyConfig(config)
		user.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + release + ":" + account, Groups: []string{"system:authenticated"}}
		return user
	}
	controllerConfig = as(release)
	for to, of := range map[*client.WithWatch]*rest.Config{&c: config, &clusterManager: as(release + "-clusters")} {
		if *to, err = client.NewWithWatch(of, client.Options{Scheme: scheme.Scheme}); err != nil {
			return 0, err
		}
	}
	if err := applyChart(context.Background()); err != nil {
		return 0, fmt.Errorf("apply the permissions and the guards of the chart: %w", err)
	}
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	return m.Run(), nil
}

// applyChart creates the permissions of both controllers, and the guards that reject their other writes.
func applyChart(ctx context.Context) error {
	args := []string{"template", release, "../../charts/statefulsingleton", "--namespace", release, "--set", "statefulClusters.enabled=true"}
	for _, template := range []string{"rbac", "clusters", "guards-controller", "guards-clusters"} {
		args = append(args, "--show-only", "templates/"+template+".yaml")
	}
	rendered, err := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"), args...).Output()
	if err != nil {
		return fmt.Errorf("render the chart: %w", err)
	}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: release}}); err != nil {
		return err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(rendered), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := c.Create(ctx, object); err != nil {
			return err
		}
	}
}

// kyverno mutates the pods of dry-runs while it is up.
type kyverno struct{ up atomic.Bool }

func (k *kyverno) create(ctx context.Context, next client.WithWatch, o client.Object, options ...client.CreateOption) error {
	pod, isPod := o.(*corev1.Pod)
	if err := next.Create(ctx, o, options...); err != nil || !isPod || !k.up.Load() {
		return err
	}
	cluster := &v1.StatefulCluster{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: pod.Labels[v1.ClusterLabel]}, cluster); err != nil {
		return err
	}
	maps.Copy(pod.Labels, cluster.Spec.Selector.MatchLabels)
	pod.Spec.Hostname = pod.Name
	pod.Annotations["policy.statefulsingleton.com/"+policies.NameOf(cluster)] = "true"
	return nil
}

// start runs the reconcilers until the end of the test.
func start(t *testing.T, k *kyverno) {
	t.Helper()
	mgr, err := ctrl.NewManager(controllerConfig, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		NewClient: func(config *rest.Config, options client.Options) (client.Client, error) {
			watching, err := client.NewWithWatch(config, options)
			return interceptor.NewClient(watching, interceptor.Funcs{Create: k.create}), err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	installer := &injection.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Kind: injection.Clusters,
		Options: policies.Options{Kind: policies.ClusterPolicy, SidecarImage: "gate"}, Per: policies.PerSingleton,
	}
	reporter := &clusterpolicy.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Injection: installer}
	if err := errors.Join(installer.SetupWithManager(mgr), reporter.SetupWithManager(mgr)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("the manager stops with an error: %v", err)
		}
	})
}

func createCluster(g *WithT, t *testing.T, name string) *v1.StatefulCluster {
	t.Helper()
	cluster := &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: v1.StatefulClusterSpec{
			Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"db","image":"db"}]}}`)},
		},
	}
	g.Expect(c.Create(t.Context(), cluster)).To(Succeed())
	return cluster
}

// reason returns the reason of condition PolicyInstalled.
func reason(g *WithT, t *testing.T, cluster *v1.StatefulCluster) func() string {
	return func() string {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		if installed := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionPolicyInstalled); installed != nil {
			return installed.Reason
		}
		return ""
	}
}

func policyOf(cluster *v1.StatefulCluster) *unstructured.Unstructured {
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	policy.SetName(policies.NameOf(cluster))
	return policy
}

// The policy is installed and reported, and deleted together with the StatefulCluster. Finalizers of other controllers stay.
func TestPolicyOfCluster(t *testing.T) {
	g, k := NewWithT(t), &kyverno{}
	start(t, k)
	cluster := createCluster(g, t, "db")
	g.Eventually(reason(g, t, cluster)).Should(Equal(injection.ReasonInstalling))
	k.up.Store(true)
	g.Eventually(reason(g, t, cluster)).Should(Equal("Injected"))
	g.Expect(cluster.Finalizers).To(Equal([]string{v1.PolicyFinalizer}))
	policy := policyOf(cluster)
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(policy), policy)).To(Succeed())

	const theirs = `{"metadata":{"finalizers":["apps.statefulsingleton.com/policy","example.com/theirs"]}}`
	g.Expect(c.Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(theirs)))).To(Succeed())
	g.Expect(c.Delete(t.Context(), cluster)).To(Succeed())
	g.Eventually(func() []string {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		return cluster.Finalizers
	}).Should(Equal([]string{"example.com/theirs"}))
	g.Expect(apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))).To(BeTrue(), "the policy is deleted")
	g.Expect(c.Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
}

// The manager of StatefulClusters records by compare-and-swap, while the condition changes again and again. No write is lost.
func TestTwoWritersOfStatus(t *testing.T) {
	g, k := NewWithT(t), &kyverno{}
	k.up.Store(true)
	start(t, k)
	cluster := createCluster(g, t, "two-writers")
	g.Eventually(reason(g, t, cluster)).Should(Equal("Injected"))

	const records = 100
	name, done := cluster.Name, make(chan error, 1)
	go func() {
		for written := int64(0); written < records; {
			err := record(t.Context(), name)
			switch {
			case err == nil:
				written++
			case !apierrors.IsConflict(err):
				done <- err
				return
			}
		}
		done <- nil
	}()
	changes, last := 0, int64(0)
	for finished := false; !finished; {
		select {
		case err := <-done:
			g.Expect(err).NotTo(HaveOccurred())
			finished = true
		default:
			// Each generation of the spec has a condition of its own.
			changes++
			replicas := fmt.Sprintf(`{"spec":{"replicas":%d}}`, changes%10)
			patched := cluster.DeepCopy()
			g.Expect(c.Patch(t.Context(), patched, client.RawPatch(types.MergePatchType, []byte(replicas)))).To(Succeed())
			g.Eventually(func() int64 {
				g.Expect(reason(g, t, cluster)()).NotTo(BeEmpty())
				return meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionPolicyInstalled).ObservedGeneration
			}).Should(Equal(patched.Generation))
			g.Expect(cluster.Status.Next).To(BeNumerically(">=", last), "the counter goes back")
			last = cluster.Status.Next
		}
	}
	g.Expect(changes).To(BeNumerically(">", 5), "the writes do not overlap")
	g.Expect(reason(g, t, cluster)()).To(Equal("Injected"))
	g.Expect(cluster.Status.Next).To(BeEquivalentTo(records))
	g.Expect(cluster.Status.Members).To(HaveLen(records))
	g.Expect(meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionReady)).NotTo(BeNil())
	g.Expect(c.Delete(t.Context(), cluster)).To(Succeed())
}

// record adds one member to the record, as the manager of StatefulClusters does.
func record(ctx context.Context, name string) error {
	cluster := &v1.StatefulCluster{}
	if err := clusterManager.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, cluster); err != nil {
		return err
	}
	member := fmt.Sprintf("%s-%d", name, cluster.Status.Next)
	cluster.Status.Members = append(cluster.Status.Members, v1.ClusterMember{Name: member, State: v1.MemberPending, Revision: "1"})
	cluster.Status.Next++
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Scaling", Message: member,
	})
	return clusterManager.Status().Update(ctx, cluster)
}
