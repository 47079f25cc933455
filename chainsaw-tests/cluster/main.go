// Command cluster runs a real Kubernetes on one machine, without Docker: see `cluster --help`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const defaultName = "statefulsingleton"

func main() {
	if len(os.Args) == 3 && os.Args[1] == machineCommand {
		fmt.Fprintln(os.Stderr, "Error:", runMachine(os.Args[2]))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cluster",
		Short: "A real Kubernetes with a real Kyverno on this machine",
		Long: `cluster runs etcd, the Kubernetes control plane, two nodes (kubelet, containerd, kube-proxy) and Kyverno's admission
controller on this machine: no Docker, no image registry. It needs Debian, root and Go.

Environment:
  CLUSTER=current  use the cluster of the current kubeconfig instead of one of one's own
  CLUSTER_NAME     which cluster, as --name does: several can run at once`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	name := os.Getenv("CLUSTER_NAME")
	if name == "" {
		name = defaultName
	}
	root.PersistentFlags().StringVar(&name, "name", name, "name of the cluster")
	open := func() (cluster, error) { return openCluster(name) }
	root.AddCommand(upCommand(open), downCommand(open), execCommand(open), toolsCommand())
	return root
}

type opener func() (cluster, error)

func upCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or repair it, or change nothing if it runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, unlock, err := openLocked(open)
			if err != nil {
				return err
			}
			defer unlock()
			source, err := toolsSource()
			if err != nil {
				return err
			}
			t, err := ensureTools(cmd.Context(), source)
			if err != nil {
				return err
			}
			return c.up(cmd.Context(), t)
		},
	}
}

func downCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the cluster and remove everything of it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, unlock, err := openLocked(open)
			if err != nil {
				return err
			}
			defer unlock()
			return c.down(cmd.Context())
		},
	}
}

func execCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "exec -- COMMAND [ARG...]",
		Short: "Run a command against the cluster: with its KUBECONFIG, in its network, its kubectl, helm and chainsaw first on PATH",
		Example: `  cluster exec -- kubectl get pods -A
  cluster exec -- bash`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			control, err := c.machinePID(controlMachine)
			if err != nil {
				return err
			}
			if control == 0 {
				return fmt.Errorf("the cluster %s does not run: run `cluster up`", c.name)
			}
			line := outside(control, args)
			program, err := exec.LookPath(line[0])
			if err != nil {
				return err
			}
			return syscall.Exec(program, line, c.environment())
		},
	}
}

// openLocked opens the cluster for a change.
func openLocked(open opener) (cluster, func(), error) {
	if err := checkMachine(); err != nil {
		return cluster{}, nil, err
	}
	c, err := open()
	if err != nil {
		return cluster{}, nil, err
	}
	unlock, err := c.lock()
	return c, unlock, err
}

func toolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tools",
		Short: "Build the binaries that the cache lacks, and print the directory that holds them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := toolsSource()
			if err != nil {
				return err
			}
			t, err := ensureTools(cmd.Context(), source)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), t.bin())
			return err
		},
	}
}
