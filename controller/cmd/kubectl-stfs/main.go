// Command kubectl-stfs is a plugin of kubectl: see `kubectl stfs --help`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // all authentication providers of a kubeconfig, as in kubectl

	"github.com/statefulsingleton/statefulsingleton/controller/plugin"
)

// version is set when the plugin is built.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := plugin.NewCommand(version, streams).ExecuteContext(ctx); err != nil {
		_ = printers.WriteEscaped(os.Stderr, fmt.Sprintf("error: %v\n", err)) // the cluster may have sent parts of it
		os.Exit(1)
	}
}
