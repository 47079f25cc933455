package main

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

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/statefulsingleton/statefulsingleton/controller/program"
)

// The tests run a real etcd and kube-apiserver, at first without CRDs. The commands connect with KUBECONFIG, as service
// accounts with the permissions of the chart.
var (
	config *rest.Config
	c      client.Client
	crds   = envtest.CRDInstallOptions{Paths: []string{"../../../charts/statefulsingleton/files/crds"}, ErrorIfPathMissing: true}
)

const release = "statefulsingleton"

func TestMain(m *testing.M) {
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
		crds.Paths = append(crds.Paths, filepath.Join(strings.TrimSpace(string(kyverno)), "config/crds", file))
	}
	environment := &envtest.Environment{}
	defer func() { _ = environment.Stop() }() // also after a failed start
	if config, err = environment.Start(); err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	config.WarningHandler = rest.NoWarnings{}
	scheme, err := program.NewScheme()
	if err != nil {
		return 0, err
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return 0, err
	}
	if c, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 0, fmt.Errorf("connect to kube-apiserver: %w", err)
	}
	if err := applyPermissions(context.Background()); err != nil {
		return 0, fmt.Errorf("grant the permissions of the chart: %w", err)
	}
	gomega.SetDefaultEventuallyTimeout(30 * time.Second)
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	return m.Run(), nil
}

// as makes the commands connect to the API server as a service account of the chart.
func as(t *testing.T, serviceAccount string) {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Impersonate: "system:serviceaccount:" + release + ":" + serviceAccount, ImpersonateGroups: []string{"system:authenticated"},
	}
	kubeconfig.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	kubeconfig.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
}

// applyPermissions creates the service accounts of the chart and their permissions, but not the Job.
func applyPermissions(ctx context.Context) error {
	helm := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"),
		"template", release, "../../../charts/statefulsingleton", "--namespace", release, "--set", "statefulClusters.enabled=true",
		"--show-only", "templates/rbac.yaml", "--show-only", "templates/clusterroles.yaml", "--show-only", "templates/uninstall.yaml")
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
			return nil
		} else if err != nil {
			return err
		}
		if object.GetKind() == "Job" {
			continue
		}
		if err := c.Create(ctx, object); err != nil {
			return err
		}
	}
}
