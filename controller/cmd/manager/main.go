// Command manager runs the controller of StatefulSingletons.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// version is set when an image is built.
var version = "unknown"

func main() {
	root := &cobra.Command{
		Use:           "manager",
		Short:         "Run or uninstall the controller of StatefulSingletons",
		Long:          "The controller of StatefulSingletons. It decides when a standby may take over, signals the standby, and reports the handoff.",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(), uninstallCommand())
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

// newScheme returns a scheme with the kinds that the manager reads and writes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("add the kinds of Kubernetes to the scheme: %w", err)
	}
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("add StatefulSingleton to the scheme: %w", err)
	}
	return scheme, nil
}
