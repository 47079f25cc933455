// Command cluster runs a real Kubernetes on one machine, without Docker: see `cluster --help`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes with a real Kyverno on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(toolsCommand())
	return root
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
