// Command cluster runs a real Kubernetes on one machine, without Docker: see `cluster --help`.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const defaultName = "statefulsingleton"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 3 && os.Args[1] == machineCommand {
		if os.Args[0] == supervisor {
			return supervise(os.Args[2])
		}
		return runMachine(os.Args[0], os.Args[2])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return newCommand().ExecuteContext(ctx)
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cluster",
		Short: "Run a real Kubernetes with a real Kyverno on this machine",
		Long: `cluster runs etcd, the Kubernetes control plane, two nodes (kubelet, containerd, kube-proxy) and Kyverno's admission
controller on this machine, without Docker and without an image registry. It needs Debian, root and Go.

The control plane and each node have separate processes, mounts and networks, and their own /run, /var/lib and /var/log.
All other directories are those of the host, so a hostPath volume elsewhere is the same on every node.

Environment:
  CLUSTER=current   use the cluster of the current kubeconfig instead of a local cluster
  CLUSTER_NAME      name of the cluster, like --name; several clusters can run at the same time
  KUBERNETES        version of Kubernetes that up and tools use, for example v1.34.4. An unknown version prints the list.
                    A cluster keeps its version until it is removed
  API_SERVERS       number of API servers that up starts over one etcd, behind a balancer (default 1). Kyverno then has two
                    replicas. A cluster keeps its number until it is removed
  XDG_CACHE_HOME    directory of the binaries, in statefulsingleton/tools (default ~/.cache)
  XDG_STATE_HOME    directory of the clusters, in statefulsingleton (default ~/.local/state)`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	name := cmp.Or(os.Getenv("CLUSTER_NAME"), defaultName)
	root.PersistentFlags().StringVar(&name, "name", name, "name of the cluster")
	o := opener{name: &name}
	root.AddCommand(upCommand(o), downCommand(o), statusCommand(o), execCommand(o), loadCommand(o), unloadCommand(o), nodeCommand(o),
		apiServerCommand(o), processCommand(o), toolsCommand(), packagesCommand())
	return root
}

// opener opens the cluster that the command line and the environment select.
type opener struct{ name *string }

// command returns a command for a cluster of this program.
func (o opener) command(use, short string, args cobra.PositionalArgs, run func(*cobra.Command, cluster, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		current, err := useCurrent()
		if err != nil {
			return err
		}
		if current {
			return fmt.Errorf("CLUSTER=current: `%s` works only on a local cluster. Unset CLUSTER", cmd.CommandPath())
		}
		if err := checkRoot(); err != nil {
			return err
		}
		c, err := openCluster(*o.name)
		if err != nil {
			return err
		}
		return run(cmd, c, args)
	}}
}

// changing returns a command that changes the cluster. Only one such command runs at a time.
func (o opener) changing(use, short string, args cobra.PositionalArgs, run func(context.Context, cluster, []string) error) *cobra.Command {
	return o.command(use, short, args, func(cmd *cobra.Command, c cluster, args []string) error {
		unlock, err := lock(cmd.Context(), c.dir+".lock", "another command changes the cluster "+c.name)
		if err != nil {
			return err
		}
		defer unlock()
		return run(cmd.Context(), c, args)
	})
}

// orCurrent makes a command run the function instead if CLUSTER=current is set.
func orCurrent(cmd *cobra.Command, run func(ctx context.Context, args []string) error) *cobra.Command {
	local := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if current, _ := useCurrent(); !current {
			return local(cmd, args)
		}
		if err := findCachedTools(); err != nil {
			return err
		}
		return run(cmd.Context(), args)
	}
	return cmd
}

func upCommand(o opener) *cobra.Command {
	cmd := o.changing("up", "Start or repair the cluster", cobra.NoArgs, func(ctx context.Context, c cluster, _ []string) error {
		if err := checkPackages(); err != nil {
			return err
		}
		source, err := openTools("")
		if err != nil {
			return err
		}
		servers, err := askedAPIServers()
		if err != nil {
			return err
		}
		if err := errors.Join(c.checkKubernetes(source.kubernetes), c.checkAPIServers(servers)); err != nil {
			return err
		}
		if err := source.ensure(ctx); err != nil {
			return err
		}
		return c.up(ctx, source.tools, servers)
	})
	cmd.Example = `  cluster up
  cluster --name second up        # a second cluster
  KUBERNETES=v1.34.4 cluster up   # a cluster with this version of Kubernetes
  API_SERVERS=3 cluster up        # a cluster with three API servers
  CLUSTER=current cluster up      # only check that the tests can use the cluster of the current kubeconfig`
	return orCurrent(cmd, func(ctx context.Context, _ []string) error { return checkCurrent(ctx) })
}

func downCommand(o opener) *cobra.Command {
	return o.changing("down", "Stop the cluster and remove its files, except the cached binaries", cobra.NoArgs,
		func(ctx context.Context, c cluster, _ []string) error { return c.down(ctx) })
}

func statusCommand(o opener) *cobra.Command {
	cmd := o.command("status", "Show versions, KUBECONFIG and logs; the exit code is 1 if anything is missing", cobra.NoArgs,
		func(cmd *cobra.Command, c cluster, _ []string) error {
			return c.writeStatus(cmd.Context(), cmd.OutOrStdout())
		})
	return orCurrent(cmd, func(ctx context.Context, _ []string) error { return checkCurrent(ctx) })
}

func execCommand(o opener) *cobra.Command {
	cmd := o.command("exec -- COMMAND [ARG...]", "Run a command against the cluster", cobra.MinimumNArgs(1),
		func(_ *cobra.Command, c cluster, args []string) error {
			control, err := c.runningPID(controlMachine)
			if err != nil {
				return err
			}
			return replaceProcess(outside(control, args), c.environment())
		})
	cmd.Long = `exec runs a command with the KUBECONFIG of the cluster, in the network of its control plane. The command can connect to
the API server, to pods and, while node1 runs, to Services. PATH begins with the cluster's kubectl, helm and other tools,
and with this program, which then uses the same cluster. The exit code is that of the command.`
	cmd.Example = `  cluster exec -- kubectl get pods -A
  cluster exec -- helm list -A
  cluster exec -- bash`
	return orCurrent(cmd, func(_ context.Context, args []string) error { return replaceProcess(args, os.Environ()) })
}

func replaceProcess(argv, environment []string) error {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	// Environ removes duplicates. The C library would use the first PATH, which is the caller's.
	return syscall.Exec(program, argv, (&exec.Cmd{Env: environment}).Environ())
}

func loadCommand(o opener) *cobra.Command {
	cmd := o.changing("load IMAGE.tar...", "Copy image archives, as `docker save` writes them, to all nodes", cobra.MinimumNArgs(1),
		func(ctx context.Context, c cluster, archives []string) error {
			for _, archive := range archives {
				if err := c.load(ctx, archive); err != nil {
					return err
				}
			}
			return nil
		})
	cmd.Long = `load copies image archives to every node. Pods that use such an image need imagePullPolicy IfNotPresent or Never,
because the image is in no registry.`
	cmd.Example = "  cluster load dist/images/manager.tar dist/images/gate.tar"
	return cmd
}

func unloadCommand(o opener) *cobra.Command {
	var on string
	cmd := o.changing("unload IMAGE", "Remove an image from a node, so the next pod that needs it must pull it", cobra.ExactArgs(1),
		func(ctx context.Context, c cluster, args []string) error {
			n, err := c.parseNode(on)
			if err != nil {
				return err
			}
			return c.unload(ctx, args[0], nodeName(n))
		})
	cmd.Long = `unload removes an image from a node. If load copied the image, a restart of the node imports the image again. An image of
registry.local is pulled from the registry that a program inside exec serves at ` + registryAddress + `.`
	cmd.Example = "  cluster unload registry.local/app:1 --on 2"
	cmd.Flags().StringVar(&on, "on", "", "number of the node")
	_ = cmd.MarkFlagRequired("on") // it exists
	return cmd
}

func nodeCommand(o opener) *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Partition, heal or kill a node", Example: "  cluster node partition 2\n  cluster node heal 2"}
	add := func(use, short string, run func(context.Context, cluster, int) error) {
		node.AddCommand(o.changing(use, short, cobra.ExactArgs(1), func(ctx context.Context, c cluster, args []string) error {
			n, err := c.parseNode(args[0])
			if err != nil {
				return err
			}
			return run(ctx, c, n)
		}))
	}
	add("partition N", "Disconnect a node from the control plane and the other nodes. Its processes keep running",
		func(_ context.Context, c cluster, n int) error { return c.partitionNode(n) })
	add("heal N", "Reconnect or restart a node, and wait until it is Ready",
		func(ctx context.Context, c cluster, n int) error { return c.healNode(ctx, n) })
	add("kill N", "Kill all processes of a node, as a power failure does",
		func(ctx context.Context, c cluster, n int) error { return c.killMachine(ctx, nodeName(n)) })
	return node
}

func apiServerCommand(o opener) *cobra.Command {
	server := &cobra.Command{
		Use:   "apiserver",
		Short: "Cut one of several API servers off from etcd, delay its watches, or heal it",
		Long: `apiserver changes the connection of one API server to etcd, in a cluster with several API servers. To kill a server, run:
cluster process kill kube-apiserver-2`,
		Example: "  cluster apiserver cut 2\n  cluster apiserver delay 2 5s",
	}
	add := func(use, short, long string, args int, parse func(args []string) (etcdFault, error)) {
		// Without a lock, because a command with the lock may wait for the API server.
		cmd := o.command(use, short, cobra.ExactArgs(args), func(_ *cobra.Command, c cluster, args []string) error {
			fault, err := parse(args)
			if err != nil {
				return err
			}
			i, err := c.parseAPIServer(args[0])
			if err != nil {
				return err
			}
			if _, err := c.runningPID(controlMachine); err != nil {
				return err
			}
			return c.proxyOf(i).set(fault)
		})
		cmd.Long = long
		server.AddCommand(cmd)
	}
	add("cut N", "Cut an API server off from etcd",
		`cut stops all bytes between an API server and etcd, and leaves the connections open. After some seconds the server is not
ready, and the balancer closes its connections. Clients that connect to the server directly stay.`,
		1, func([]string) (etcdFault, error) { return etcdFault{Cut: true}, nil })
	add("delay N DURATION", "Deliver changes in etcd late to an API server",
		`delay makes an API server receive changes late. The server answers from an old state where it answers from its cache:
watches, lists with resourceVersion 0, and the parameters of admission policies. Its reads and writes of etcd are not delayed.`,
		2, func(args []string) (etcdFault, error) {
			d, err := time.ParseDuration(args[1])
			if err == nil && d < 0 {
				err = fmt.Errorf("%s is negative", args[1])
			}
			return etcdFault{Delay: d}, err
		})
	add("heal N", "Connect an API server to etcd without delay", "", 1,
		func([]string) (etcdFault, error) { return etcdFault{}, nil })
	return server
}

func processCommand(o opener) *cobra.Command {
	process := &cobra.Command{
		Use:   "process",
		Short: "Kill, pause or continue the processes of a program",
		Long: `process sends a signal to every process of a program. Programs of the control plane and of the nodes, for example
kube-apiserver and kubelet, restart a second after they end. The kubelet restarts the main process of a container.`,
		Example: `  cluster process kill kube-apiserver
  cluster process kill kube-apiserver-2   # one of several API servers
  cluster process stop containerd --on 2`,
	}
	add := func(use, short string, s unix.Signal) {
		var on string
		// Without a lock, because a command with the lock may wait for this process to continue.
		cmd := o.command(use+" PROGRAM", short, cobra.ExactArgs(1), func(cmd *cobra.Command, c cluster, args []string) error {
			machine, err := c.parseMachine(on)
			if err != nil {
				return err
			}
			n, err := c.signalProcesses(cmd.Context(), args[0], machine, s)
			if err == nil {
				progress("%s %s: %d", use, args[0], n)
			}
			return err
		})
		cmd.Flags().StringVar(&on, "on", "", `machine: "control" or the number of a node (default: all)`)
		process.AddCommand(cmd)
	}
	add("kill", "Kill a program with SIGKILL, and wait until it has ended", unix.SIGKILL)
	add("stop", "Pause a program with SIGSTOP", unix.SIGSTOP)
	add("continue", "Continue a paused program", unix.SIGCONT)
	return process
}

func toolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tools [NAME]",
		Short: "Build the missing binaries of a cluster, or those of one tool, and print their directory",
		Example: `  KUBEBUILDER_ASSETS=$(cluster tools) go test ./controller/...
  $(cluster tools controller-gen)/controller-gen --help   # one of the tools that no cluster needs: chainsaw, controller-gen, kwok, csi`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := openTools(strings.Join(args, ""))
			if err != nil {
				return err
			}
			if err := source.ensure(cmd.Context()); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), source.tools.bin())
			return err
		},
	}
}

func packagesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "packages",
		Short:   "Print the missing Debian packages that the tools and a local cluster need",
		Example: "  apt-get install -y $(cluster packages)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			current, err := useCurrent()
			if err != nil {
				return err
			}
			needs := []map[string]string{buildNeeds}
			if !current {
				needs = append(needs, systemPrograms)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(missingPackages(onThisMachine, needs...), " "))
			return err
		},
	}
}
