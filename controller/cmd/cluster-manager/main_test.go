package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/program"
)

// The tests run a real etcd and kube-apiserver with the CRDs and the guards of the chart. The command connects as its service account,
// with the permissions of the chart. Kyverno does not run.
var (
	config *rest.Config
	c      client.Client
)

const (
	namespace = "clusters"
	release   = "statefulsingleton"
)

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
	environment := &envtest.Environment{CRDDirectoryPaths: []string{"../../../charts/statefulsingleton/files/crds"}, ErrorIfCRDPathMissing: true}
	defer func() { _ = environment.Stop() }() // also stops a partly started environment
	if config, err = environment.Start(); err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	scheme, err := program.NewScheme()
	if err != nil {
		return 0, err
	}
	if c, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 0, fmt.Errorf("connect to kube-apiserver: %w", err)
	}
	for _, name := range []string{namespace, release} {
		if err := c.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
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

// applyChart creates the permissions of the command, and the guards.
func applyChart(ctx context.Context) error {
	args := []string{"template", release, "../../../charts/statefulsingleton", "--namespace", release, "--set", "statefulClusters.enabled=true", "--show-only", "templates/clusters.yaml"}
	guards, err := filepath.Glob("../../../charts/statefulsingleton/templates/guards*.yaml")
	if err != nil {
		return err
	}
	for _, guard := range guards {
		args = append(args, "--show-only", "templates/"+filepath.Base(guard))
	}
	rendered, err := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"), args...).Output()
	if err != nil {
		return fmt.Errorf("render the chart: %w", err)
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

// connect makes the command connect to the API server as its service account.
func connect(t *testing.T) {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Impersonate: "system:serviceaccount:" + release + ":" + release + "-clusters", ImpersonateGroups: []string{"system:authenticated"},
	}
	kubeconfig.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	kubeconfig.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
}

func execute(ctx context.Context, args ...string) error {
	command := runCommand()
	command.SetArgs(args)
	command.SilenceErrors, command.SilenceUsage = true, true
	return command.ExecuteContext(ctx)
}

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"a short lease":  {[]string{"--leader-election-renew-deadline=15s"}, "the lease duration must be longer than the renew deadline"},
		"log level":      {[]string{"--log-level=loud"}, `--log-level is "loud": use debug, info or error`},
		"no certificate": {[]string{"--metrics-cert-dir=/nowhere"}, "load the certificate of the metrics endpoint from --metrics-cert-dir /nowhere"},
		"an argument":    {[]string{"now"}, `unknown command "now" for "run"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := execute(t.Context(), tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

// The manager becomes the leader, records the pod of a StatefulCluster, serves its endpoints, and stops when its context ends. Without
// Kyverno, no policy is installed, and the manager creates no pod.
func TestRun(t *testing.T) {
	g := NewWithT(t)
	connect(t)
	health := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() {
		stopped <- execute(ctx, "--leader-election-namespace="+release, "--health-probe-bind-address="+health, "--metrics-bind-address=0")
	}()
	for _, path := range []string{"/healthz", "/readyz"} {
		g.Eventually(func() (int, error) { return get("http://" + health + path) }).Should(Equal(http.StatusOK))
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: "statefulclusters"}}
	db := &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"},
		Spec: v1.StatefulClusterSpec{
			Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{"app":"db"}},"spec":{"containers":[{"name":"db","image":"db"}]}}`)},
		},
	}
	g.Expect(c.Create(t.Context(), db)).To(Succeed())
	g.Eventually(func() (string, error) {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(db), db)
		return db.Status.Message, err
	}).Should(HavePrefix("the first pods wait until condition PolicyInstalled is True"))
	g.Expect(db.Status.Members).To(HaveExactElements(HaveField("Name", "db-0")))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	renewed := lease.Spec.RenewTime.Time
	g.Eventually(func() (time.Time, error) {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)
		return lease.Spec.RenewTime.Time, err
	}).Should(BeTemporally(">", renewed), "the manager renews the Lease")

	stop()
	g.Eventually(stopped).Should(Receive(BeNil()))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	g.Expect(lease.Spec.HolderIdentity).To(HaveValue(BeEmpty()), "the manager releases the Lease")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// get returns the status of the response.
func get(url string) (int, error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
