package v1_test

import (
	"context"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// The tests use a real API server with the definitions of the chart.
var (
	config *rest.Config
	c      client.Client
)

func TestMain(m *testing.M) {
	testenv.Main(m, nil, func(_ context.Context, e *testenv.Env) error {
		config, c = e.Config, e.Client
		return nil
	})
}
