package singleton_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The tests use a real etcd and kube-apiserver, with the chart's CRD, RBAC and guards for the controller, and with
// Kyverno's CRDs. There is no kubelet and no Kyverno. The tests write the status that the kubelet reports, and
// kyverno_test.go stands in for Kyverno.
var (
	// config and c have all permissions.
	config *rest.Config
	c      client.WithWatch
	// controllerConfig and controllerClient have the permissions of the controller in the chart.
	controllerConfig *rest.Config
	controllerClient client.WithWatch
	kyvernoCRDs      envtest.CRDInstallOptions
)

// nodeName is the node of every pod.
const nodeName = "node"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // each manager logs to its test
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
	for _, file := range []string{"kyverno/kyverno.io_clusterpolicies.yaml", "policies.kyverno.io/policies.kyverno.io_namespacedmutatingpolicies.yaml"} {
		kyvernoCRDs.Paths = append(kyvernoCRDs.Paths, filepath.Join(strings.TrimSpace(string(kyverno)), "config/crds", file))
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths:     append([]string{"../../charts/statefulsingleton/files/crds"}, kyvernoCRDs.Paths...),
		ErrorIfCRDPathMissing: true,
	}
	environment.WebhookInstallOptions.MutatingWebhooks = kyvernoWebhooks()
	defer func() { _ = environment.Stop() }() // also stops a partly started environment
	if config, err = environment.Start(); err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return 0, err
	}
	if c, err = client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return 0, fmt.Errorf("connect to kube-apiserver: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	serveKyverno(ctx, environment.WebhookInstallOptions)
	if err := createNode(ctx); err != nil {
		return 0, fmt.Errorf("create the node: %w", err)
	}
	if err := applyRights(ctx); err != nil {
		return 0, fmt.Errorf("give the controller the chart's rights: %w", err)
	}
	if err := grantAccess(ctx); err != nil {
		return 0, fmt.Errorf("give the controller the rights for the access to Leases: %w", err)
	}
	gomega.SetDefaultEventuallyTimeout(30 * time.Second)
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	return m.Run(), nil
}

func createNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if err := c.Create(ctx, node); err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return c.Status().Update(ctx, node)
}

// applyRights gives the controller's service account the permissions and the guards of the chart. A test fails if a
// guard rejects a write of the controller.
func applyRights(ctx context.Context) error {
	const release = "statefulsingleton"
	helm := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"),
		"template", release, "../../charts/statefulsingleton", "--namespace", release,
		"--show-only", "templates/rbac.yaml", "--show-only", "templates/guards-controller.yaml", "--show-only", "templates/guards-policies.yaml")
	rendered, err := helm.Output()
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
			break
		} else if err != nil {
			return err
		}
		if err := c.Create(ctx, object); err != nil {
			return err
		}
	}
	controllerConfig = rest.CopyConfig(config)
	controllerConfig.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + release + ":" + release, Groups: []string{"system:authenticated"},
	}
	controllerClient, err = client.NewWithWatch(controllerConfig, client.Options{Scheme: scheme.Scheme})
	return err
}

// grantAccess gives the controller the rights for the access to Leases, which are not in the chart. The API server
// accepts a Role only from a client that has all rights of the Role. With the chart, the controller may create policies of
// one kind, and some tests use both.
func grantAccess(ctx context.Context) error {
	const name = "leaseaccess"
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{"policies.kyverno.io"}, Resources: []string{"namespacedmutatingpolicies"}, Verbs: []string{"create"}},
	}}
	if err := c.Create(ctx, role); err != nil {
		return err
	}
	return c.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: controllerConfig.Impersonate.UserName}},
	})
}
