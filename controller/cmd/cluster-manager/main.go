// Command cluster-manager runs the controller of StatefulClusters.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/statefulsingleton/statefulsingleton/controller/cluster"
	"github.com/statefulsingleton/statefulsingleton/controller/cmd/internal/program"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// version is set when an image is built.
var version = "unknown"

func main() {
	root := &cobra.Command{
		Use:           "cluster-manager",
		Short:         "Run the controller of StatefulClusters",
		Long:          "The controller of StatefulClusters. It creates and deletes their pods and claims, and records which claims each pod has.",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand())
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "cluster-manager:", err)
		os.Exit(1)
	}
}

func runCommand() *cobra.Command {
	var o program.Options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the controller",
		Example: `  # In the cluster, as in the chart
  cluster-manager run

  # On a workstation, against the cluster of the current kubeconfig
  cluster-manager run --leader-elect=false --log-format=console --log-level=debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			return run(cmd.Context(), &o)
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func run(ctx context.Context, o *program.Options) error {
	log, err := o.SetLogger()
	if err != nil {
		return err
	}
	log.Info("Starting the controller", "version", version)
	config, err := program.RESTConfig()
	if err != nil {
		return err
	}
	observe.LimitLargeResponses(config)
	mgr, err := o.NewManager("statefulclusters", config, cluster.CacheOptions())
	if err != nil {
		return err
	}
	program.RegisterVersion(version)
	reconciler := &cluster.Reconciler{
		Client: mgr.GetClient(), Live: observe.Limited(mgr.GetAPIReader()), Clock: clock.RealClock{}, Recorder: mgr.GetEventRecorder("statefulsingleton-clusters"),
		Metrics: cluster.NewMetrics(metrics.Registry, mgr.GetClient()),
	}
	if err := reconciler.SetupWithManager(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
