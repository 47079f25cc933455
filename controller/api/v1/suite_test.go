package v1_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The tests use a real API server with the CRD of the chart.
var (
	config *rest.Config
	c      client.Client
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
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{"../../../charts/statefulsingleton/files/crds"},
		ErrorIfCRDPathMissing: true,
	}
	defer func() { _ = environment.Stop() }() // also what was half started
	if config, err = environment.Start(); err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return 0, err
	}
	if c, err = client.New(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return 0, fmt.Errorf("connect to kube-apiserver: %w", err)
	}
	return m.Run(), nil
}
