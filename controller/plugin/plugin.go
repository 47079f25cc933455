// Package plugin implements `kubectl stfs`. It shows singletons, and writes requests and attestations of the user,
// with the user's permissions. It has no rules of its own: its texts come from the status, or from package handoff.
package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/clock"
)

// NewCommand returns the command `kubectl stfs` of a version. The errors of its commands say what to do next.
func NewCommand(version string, streams genericiooptions.IOStreams) *cobra.Command {
	return commands{
		IOStreams: streams,
		version:   version,
		flags:     newFlags(),
		clock:     clock.RealClock{},
		asks:      func() bool { return printers.IsTerminal(streams.In) },
		connect:   func(flags kubectlFlags) (*cluster, error) { return connect(flags, streams.ErrOut) },
	}.root()
}

// commands has the fields that all commands use.
type commands struct {
	genericiooptions.IOStreams
	version string
	flags   kubectlFlags
	clock   clock.PassiveClock
	// asks returns true if a user can answer a question.
	asks func() bool
	// connect connects to the cluster that the flags and the kubeconfig select.
	connect func(kubectlFlags) (*cluster, error)
}

func (c commands) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-stfs",
		Short: "Show StatefulSingletons, StatefulSetLocks and StatefulClusters, and why they are not Ready",
		Long: `kubectl stfs shows the holder and the standbys of a StatefulSingleton, the writer of a StatefulSetLock and the members of a
StatefulCluster, and explains why they are not Ready. It shows how Kyverno would change a new pod. It can also request a handoff, and attest that a pod has
terminated.`,
		Example: `  # Show all StatefulSingletons, StatefulSetLocks and StatefulClusters of the namespace
  kubectl stfs status

  # Explain why a StatefulSingleton is not Ready, and print commands that help
  kubectl stfs explain db -n prod

  # Check the cluster, Kyverno, the guards, the controller and your permissions
  kubectl stfs check

  # Write an archive for a bug report
  kubectl stfs report -n prod`,
		Version:       c.version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl stfs"},
	}
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w. To list the flags, run: %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().AddFlagSet(c.flags.set)
	completeFlag(root, "namespace", c.completeNamespace)
	completeFlag(root, "context", c.completeContext)
	root.AddCommand(c.statusCommand(), c.explainCommand(), c.injectCommand(),
		c.createCommand(), c.handoverCommand(), c.pauseCommand(), c.resumeCommand(), c.historyCommand(), c.attestCommand(), c.rolloutCommand(),
		c.checkCommand(), c.reportCommand())
	return root
}

// in returns a function that connects to the cluster and runs a command.
func (c commands) in(run func(ctx context.Context, in *cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		in, err := c.connect(c.flags)
		if err != nil {
			return err
		}
		return in.helpful(run(cmd.Context(), in, args))
	}
}

// takes returns a check of the number of arguments.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("the number of arguments is wrong. Usage: %s. To show examples, run: %s --help", cmd.UseLine(), cmd.CommandPath())
		}
		return nil
	}
}

// print writes text without control characters, because the cluster may have sent parts of it.
func (c commands) print(format string, args ...any) error {
	return printers.WriteEscaped(c.Out, fmt.Sprintf(format, args...))
}
