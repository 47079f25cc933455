// Package testenv runs the tests of a package with a real etcd and API server, and with what the chart installs there. There is no
// kubelet, no controller of Kubernetes and no Kyverno: the tests do what these do.
package testenv

import (
	"bytes"
	"context"
	"errors"
	"flag"
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
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	// Release is the name of the chart's release, and of its namespace.
	Release = "statefulsingleton"
	// User is the user of the controller.
	User = "system:serviceaccount:" + Release + ":" + Release
)

// Env is an etcd with an API server.
type Env struct {
	// Config has all permissions.
	Config *rest.Config
	// Client has all permissions, and knows the kinds of Kubernetes, of the project and of definitions.
	Client client.WithWatch
	// Check runs after all tests of the package have passed, unless -run selects some. Nil checks nothing.
	Check func() error
}

// Main starts etcd and an API server as the environment says, prepares it, runs the tests and ends the process. It needs
// KUBEBUILDER_ASSETS. The environment may be nil: then the API server has the definitions of the chart.
func Main(m *testing.M, environment *envtest.Environment, prepare func(context.Context, *Env) error) {
	code, err := run(m, environment, prepare)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M, environment *envtest.Environment, prepare func(context.Context, *Env) error) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 0, errors.New("KUBEBUILDER_ASSETS is not set: run `make unit`, or set it to the directory that `bin/cluster tools` prints")
	}
	if environment == nil {
		environment = &envtest.Environment{CRDDirectoryPaths: []string{Definitions}, ErrorIfCRDPathMissing: true}
	}
	defer func() { _ = environment.Stop() }() // also after a failed start
	config, err := environment.Start()
	if err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	e := &Env{Config: config}
	if err := errors.Join(v1.AddToScheme(scheme.Scheme), apiextensionsv1.AddToScheme(scheme.Scheme)); err != nil {
		return 0, err
	}
	if e.Client, err = ClientOf(config); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := e.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Release}}); err != nil {
		return 0, err
	}
	gomega.SetDefaultEventuallyTimeout(time.Minute) // the tests may share the machine with others
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	if err := prepare(ctx, e); err != nil {
		return 0, fmt.Errorf("prepare the API server: %w", err)
	}
	code = m.Run()
	if code == 0 && e.Check != nil && flag.Lookup("test.run").Value.String() == "" {
		err = e.Check()
	}
	return code, err
}

// ClientOf returns a client of the configuration.
func ClientOf(config *rest.Config) (client.WithWatch, error) {
	return client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
}

// As returns a configuration with the permissions of a user and its groups.
func (e *Env) As(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return config
}

// Kubelet returns a client whose writes look like those of a kubelet, because proofs depend on the field manager.
func (e *Env) Kubelet() (client.WithWatch, error) {
	config := rest.CopyConfig(e.Config)
	config.UserAgent = "kubelet"
	return ClientOf(config)
}

// Connect makes a command connect to the API server as a service account of the chart, by KUBECONFIG.
func (e *Env) Connect(t testing.TB, serviceAccount string) {
	t.Helper()
	const name = "test"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{Server: e.Config.Host, CertificateAuthorityData: e.Config.CAData}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: e.Config.CertData, ClientKeyData: e.Config.KeyData,
		Impersonate: "system:serviceaccount:" + Release + ":" + serviceAccount, ImpersonateGroups: []string{"system:authenticated"},
	}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.CurrentContext = name
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
}

// CreateNode creates a Ready node.
func (e *Env) CreateNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := e.Client.Create(ctx, node); err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return e.Client.Status().Update(ctx, node)
}

// Create creates the objects.
func (e *Env) Create(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if err := e.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// Chart renders templates of the chart, with StatefulClusters, and returns their objects without Jobs.
func Chart(ctx context.Context, templates ...string) (objects []*unstructured.Unstructured, err error) {
	args := []string{"template", Release, chart, "--namespace", Release, "--set", "statefulClusters.enabled=true"}
	for _, template := range templates {
		args = append(args, "--show-only", "templates/"+template)
	}
	rendered, err := exec.CommandContext(ctx, filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"), args...).Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(rendered), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if object.GetKind() != "Job" {
			objects = append(objects, object)
		}
	}
}

// chart is found from the working directory, because a test that is built with -trimpath does not know where its source is.
var chart = func() string {
	dir, _ := os.Getwd()
	for dir != "/" && !isFile(filepath.Join(dir, "go.mod")) {
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "charts/statefulsingleton")
}()

func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// Definitions is the directory of the chart's CustomResourceDefinitions.
var Definitions = filepath.Join(chart, "files/crds")

// Guards are the names of all templates with guards.
func Guards() (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(chart, "templates/guards*.yaml"))
	for _, file := range files {
		names = append(names, filepath.Base(file))
	}
	return names, err
}

// KyvernoDefinitions returns the files of the CustomResourceDefinitions of Kyverno's policies.
func KyvernoDefinitions(ctx context.Context) (files []string, err error) {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kyverno/kyverno").Output()
	if err != nil {
		return nil, fmt.Errorf("find Kyverno's definitions in the module cache: %w", err)
	}
	for _, file := range []string{"kyverno/kyverno.io_clusterpolicies.yaml", "policies.kyverno.io/policies.kyverno.io_namespacedmutatingpolicies.yaml"} {
		files = append(files, filepath.Join(strings.TrimSpace(string(module)), "config/crds", file))
	}
	return files, nil
}
