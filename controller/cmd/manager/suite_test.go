package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// The tests run a real etcd and kube-apiserver, at first without CRDs. The commands connect with KUBECONFIG, as service
// accounts with the permissions of the chart.
var (
	env    *testenv.Env
	config *rest.Config
	c      client.Client
	crds   = envtest.CRDInstallOptions{Paths: []string{testenv.Definitions}, ErrorIfPathMissing: true, MaxTime: time.Minute}
)

const release = testenv.Release

func TestMain(m *testing.M) {
	testenv.Main(m, &envtest.Environment{}, func(ctx context.Context, e *testenv.Env) error {
		env, config, c = e, e.Config, e.Client
		kyverno, err := testenv.KyvernoDefinitions(ctx)
		crds.Paths = append(crds.Paths, kyverno...)
		objects, failed := testenv.Chart(ctx, "rbac.yaml", "clusterroles.yaml", "uninstall.yaml")
		return errors.Join(err, failed, e.Create(ctx, objects))
	})
}

// as makes the commands connect to the API server as a service account of the chart.
func as(t testing.TB, serviceAccount string) {
	t.Helper()
	env.Connect(t, serviceAccount)
}
