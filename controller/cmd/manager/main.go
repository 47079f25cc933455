// Command manager runs the controller of StatefulSingletons.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
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
