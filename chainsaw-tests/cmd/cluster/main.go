// Command cluster runs a real Kubernetes on one machine, without Docker: see `cluster --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
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

Each node, and the control plane, has processes, mounts and a network of its own. /run, /var/lib and /var/log are a node's
own too; all other directories are the host's, so a hostPath volume elsewhere is the same on every node.

Environment:
  CLUSTER=current   use the cluster of the current kubeconfig instead of one of one's own
  CLUSTER_NAME      which cluster, as --name does: several can run at once
  XDG_CACHE_HOME    where the binaries are kept, below statefulsingleton/tools (default ~/.cache)
  XDG_STATE_HOME    where clusters are kept, below statefulsingleton (default ~/.local/state)`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	name := os.Getenv("CLUSTER_NAME")
	if name == "" {
		name = defaultName
	}
	root.PersistentFlags().StringVar(&name, "name", name, "name of the cluster")
	o := opener{name: &name}
	root.AddCommand(upCommand(o), downCommand(o), statusCommand(o), execCommand(o), loadCommand(o), unloadCommand(o), nodeCommand(o), processCommand(o), toolsCommand(), packagesCommand())
	return root
}

// opener opens the cluster that the command line and the environment select.
type opener struct{ name *string }

// own is for commands that need a cluster of this program.
func (o opener) own(command string) (cluster, error) {
	choice, err := chosenCluster()
	if err != nil {
		return cluster{}, err
	}
	if choice == currentCluster {
		return cluster{}, refuseCurrent(command)
	}
	if err := checkMachine(); err != nil {
		return cluster{}, err
	}
	return openCluster(*o.name)
}

// change runs a command that changes the cluster. Only one such command runs at a time.
func (o opener) change(cmd *cobra.Command, run func(context.Context, cluster) error) error {
	c, err := o.own(cmd.CommandPath())
	if err != nil {
		return err
	}
	unlock, err := c.lock(cmd.Context())
	if err != nil {
		return err
	}
	defer unlock()
	return run(cmd.Context(), c)
}

// current runs the function if CLUSTER=current is set, and returns whether it is set.
func (o opener) current(run func() error) (bool, error) {
	choice, err := chosenCluster()
	if err != nil || choice != currentCluster {
		return err != nil, err
	}
	if err := findCachedTools(); err != nil {
		return true, err
	}
	return true, run()
}

func upCommand(o opener) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or repair it, or change nothing if it runs",
		Example: `  cluster up
  cluster --name second up        # another one beside it
  CLUSTER=current cluster up      # only check that the current kubeconfig's cluster will do`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if done, err := o.current(func() error { return checkCurrent(cmd.Context()) }); done {
				return err
			}
			return o.change(cmd, func(ctx context.Context, c cluster) error {
				source, err := toolsSource()
				if err != nil {
					return err
				}
				t, err := ensureTools(ctx, source)
				if err != nil {
					return err
				}
				return c.up(ctx, t)
			})
		},
	}
}

func downCommand(o opener) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "End the cluster and remove everything of it but the cached binaries",
		Example: "  cluster down",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.change(cmd, func(ctx context.Context, c cluster) error { return c.down(ctx) })
		},
	}
}

func statusCommand(o opener) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show nodes, processes, versions, KUBECONFIG and logs; the exit code is 1 if anything is missing",
		Example: "  cluster status",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if done, err := o.current(func() error { return checkCurrent(cmd.Context()) }); done {
				return err
			}
			c, err := o.own(cmd.CommandPath())
			if err != nil {
				return err
			}
			return c.writeStatus(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func execCommand(o opener) *cobra.Command {
	return &cobra.Command{
		Use:   "exec -- COMMAND [ARG...]",
		Short: "Run a command against the cluster",
		Long: `exec runs a command with the cluster's KUBECONFIG, in the network of its control plane, with the cluster's own kubectl,
helm, chainsaw and so on first on PATH, and this program itself, which means the same cluster there. The API server,
pods and, while node1 runs, Services answer. The exit code is the command's.`,
		Example: `  cluster exec -- kubectl get pods -A
  cluster exec -- helm list -A
  cluster exec -- bash`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if done, err := o.current(func() error { return replaceProcess(args, os.Environ) }); done {
				return err
			}
			c, err := o.own(cmd.CommandPath())
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
			return replaceProcess(outside(control, args), c.environment)
		},
	}
}

func replaceProcess(argv []string, environment func() []string) error {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	// Environ removes duplicates. The C library would use the first PATH, which is the caller's.
	return syscall.Exec(program, argv, (&exec.Cmd{Env: environment()}).Environ())
}

func loadCommand(o opener) *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar...",
		Short: "Give image archives, as `docker save` writes them, to every node, those added later too",
		Long: `load copies image archives to every node, also to nodes that are added later. Pods that use such an image need
imagePullPolicy IfNotPresent or Never: there is no registry that Always could ask.`,
		Example: "  cluster load dist/manager.tar dist/gate.tar",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, archives []string) error {
			if done, err := o.current(func() error {
				return errors.New("CLUSTER=current: `cluster load` reaches only nodes that this program started; push the image to a registry that the cluster pulls from, and name it there")
			}); done {
				return err
			}
			return o.change(cmd, func(ctx context.Context, c cluster) error {
				for _, archive := range archives {
					if err := c.load(ctx, archive); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func unloadCommand(o opener) *cobra.Command {
	var on string
	cmd := &cobra.Command{
		Use:   "unload IMAGE",
		Short: "Remove an image from a node, so the next pod that needs it must pull it",
		Long: `unload takes an image from a node. One that was given by load is there again once the node was started anew. One of
registry.local is pulled from whoever serves a registry at ` + registryAddress + `, inside exec.`,
		Example: "  cluster unload registry.local/app:1 --on 2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.change(cmd, func(ctx context.Context, c cluster) error {
				n, err := c.parseNode(on)
				if err != nil {
					return err
				}
				return c.unload(ctx, args[0], n)
			})
		},
	}
	cmd.Flags().StringVar(&on, "on", "", "the node's number")
	_ = cmd.MarkFlagRequired("on") // it exists
	return cmd
}

func nodeCommand(o opener) *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Add a node, or do to one what happens to nodes"}
	node.AddCommand(&cobra.Command{
		Use:     "add",
		Short:   "Add a node and wait until it is Ready",
		Example: "  cluster node add",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.change(cmd, func(ctx context.Context, c cluster) error { return c.addNode(ctx) })
		},
	})
	add := func(use, short, example string, run func(context.Context, cluster, int) error) {
		node.AddCommand(&cobra.Command{
			Use: use, Short: short, Example: example, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.change(cmd, func(ctx context.Context, c cluster) error {
					n, err := c.parseNode(args[0])
					if err != nil {
						return err
					}
					return run(ctx, c, n)
				})
			},
		})
	}
	add("partition N", "Cut a node off from the control plane and the other nodes; what runs on it runs on",
		"  cluster node partition 2", func(_ context.Context, c cluster, n int) error { return c.partitionNode(n) })
	add("heal N", "Bring back a node that was cut off or killed, and wait until it is Ready",
		"  cluster node heal 2", func(ctx context.Context, c cluster, n int) error { return c.healNode(ctx, n) })
	add("kill N", "End everything that runs on a node, as a power cut does",
		"  cluster node kill 2", func(ctx context.Context, c cluster, n int) error { return c.killMachine(ctx, nodeName(n)) })
	return node
}

func processCommand(o opener) *cobra.Command {
	process := &cobra.Command{
		Use:   "process",
		Short: "Do to single processes what happens to processes",
		Long: `process sends a signal to every process of a program: one of the control plane or the nodes, which is started again a
second after it ended (cluster status lists them), or a container's main process, which is the kubelet's to start again.`,
	}
	add := func(use, short, example string, s unix.Signal) {
		var on string
		cmd := &cobra.Command{
			Use: use + " PROGRAM", Short: short, Example: example, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				// Without a lock, because a command with the lock may wait for this process to continue.
				c, err := o.own(cmd.CommandPath())
				if err != nil {
					return err
				}
				machine, err := c.parseMachine(on)
				if err != nil {
					return err
				}
				n, err := c.signalProcesses(cmd.Context(), args[0], machine, s)
				if err == nil {
					progress("%s %s: %d", use, args[0], n)
				}
				return err
			},
		}
		cmd.Flags().StringVar(&on, "on", "", `the machine: "control" or a node's number (default: all)`)
		process.AddCommand(cmd)
	}
	add("kill", "End a program at once, as kill -9 does, and wait until it has ended", `  cluster process kill kube-apiserver
  cluster process kill containerd --on 2`, unix.SIGKILL)
	add("stop", "Pause a program until `continue`", "  cluster process stop kubelet --on 2", unix.SIGSTOP)
	add("continue", "Continue a program that is paused", "  cluster process continue kubelet --on 2", unix.SIGCONT)
	return process
}

func toolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "tools",
		Short:   "Build the binaries that the cache lacks, and print the directory that holds them",
		Example: "  KUBEBUILDER_ASSETS=$(cluster tools) go test ./controller/...",
		Args:    cobra.NoArgs,
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

func packagesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "packages",
		Short:   "Print the Debian packages that this machine lacks to build the tools, and for a cluster of its own",
		Example: "  apt-get install -y $(cluster packages)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			choice, err := chosenCluster()
			if err != nil {
				return err
			}
			needs := []map[string]string{buildNeeds}
			if choice == ownCluster {
				needs = append(needs, systemPrograms)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(missingPackages(onThisMachine, needs...), " "))
			return err
		},
	}
}
