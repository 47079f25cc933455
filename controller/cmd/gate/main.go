// Command gate holds a pod's main processes until the pod is released, or runs them in the role of the pod.
//
// It parses its arguments without a library. It has no flags and must be small, because it is copied into every held
// pod. Its errors must not repeat arguments.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	ossignal "os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate"
	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const usage = `gate holds the main processes of a StatefulSingleton's pod until the pod is released. In a pod of a StatefulSetLock with
fencing by a Lease, gate runs the main processes as readers, and as the writer while the pod holds the Lease.

Usage:
  gate sidecar               deliver this program and the signal to the held containers
  gate delivered             wait up to 20 seconds until the sidecar has delivered the program, and removed a signal of another pod
  gate wrap -- COMMAND...    wait for the signal, then execute COMMAND with the epoch in STATEFULSINGLETON_EPOCH. With
                             STATEFULSETLOCK_HOOKS, run COMMAND at once, with its role in STATEFULSETLOCK_ROLE and the
                             epoch in STATEFULSETLOCK_EPOCH, and again after each change of the role without a hook
  gate probe liveness|readiness [-- COMMAND...]
                             execute COMMAND, a probe of this held container, once the main process has started. Before, the
                             container is alive, and ready while clients can connect. Without COMMAND, do the check in
                             STATEFULSINGLETON_LIVENESS_PROBE
  gate started [DURATION]    exit 0 if the main process of this held container has started, else 1. Wait at most DURATION, for
                             example 20s
  gate status                print whether the pod is active or a standby, its epoch, what its held containers do, and what the
                             pod waits for. Run it in container status-sidecar. The exit code is 0 in each state
  gate version               print the version

The policies of StatefulSingletons and StatefulSetLocks add the other commands to pods. You need to run only gate status.

Exit codes of gate wrap, in addition to the exit codes of COMMAND:
  64     wrong arguments, no STATEFULSINGLETON_POD_UID, or invalid STATEFULSETLOCK_HOOKS
  126    COMMAND is not executable
  127    COMMAND is not found
  128+N  signal N stopped the wrapper while it waited, for example 143 for SIGTERM

Examples:
  gate wrap -- /usr/bin/postgres -D /data
  kubectl exec POD --container status-sidecar -- /ko-app/gate status
  kubectl logs POD --container status-sidecar
`

const (
	exitUsage = 64
	// deliveryPatience is the time limit for the sidecar to prepare the volume.
	deliveryPatience = 20 * time.Second
	// servePause is the time between two attempts to listen.
	servePause = time.Second
	// notServed is the log line of a sidecar that cannot listen.
	notServed = "Cannot serve /healthz, /status and the readiness probes. Containers with such probes stay unready. The signal does not depend on them"
	// fewestFiles is the number of open files that the gate needs. Go's runtime crashes without them.
	fewestFiles = 16
)

// version is set when an image is built.
var version = "unknown"

// The startup probe reads the name of the gate's process, which is the name of the main thread.
func init() { runtime.LockOSThread() }

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	exit, ok := errors.AsType[gate.ExitError](err)
	if !ok || exit.Err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
	}
	if ok {
		os.Exit(exit.Code)
	}
	os.Exit(1)
}

func run(args []string) error {
	if len(args) == 0 {
		return misused("a command is missing")
	}
	if err := enoughFiles(); err != nil {
		return err
	}
	command, rest := args[0], args[1:]
	if command == "wrap" {
		switch {
		case len(rest) == 0 || rest[0] != "--":
			return misused(`wrap needs "--" before the command`)
		case len(rest) == 1:
			return misused(`wrap needs a command after "--"`)
		}
		uid, err := ownUID("Delete the pod: the policy of the StatefulSingleton adds the variable to the next pod")
		if err != nil {
			return err
		}
		if container := os.Getenv(signal.ContainerEnv); container != "" {
			hooks, err := signal.ParseHooks(os.Getenv)
			if err != nil {
				return gate.ExitError{Code: exitUsage, Err: err}
			}
			return gate.WrapFenced(signal.Dir, container, rest[1:], hooks, newFencedLog())
		}
		return gate.Wrap(signal.Dir, uid, rest[1:], newLog())
	}
	if command == "probe" {
		switch {
		case len(rest) == 1 && rest[0] == "liveness":
			rest = append(rest, "--")
		case len(rest) < 3 || rest[1] != "--":
			return misused(`probe needs liveness or readiness, "--" and a command`)
		}
		return gate.Volume(signal.Dir).Probe(context.Background(), rest[0], rest[2:])
	}
	if command == queue.ShimCommand {
		os.Exit(queue.Shim(rest))
	}
	if command == "started" {
		return started(rest)
	}
	do, known := map[string]func() error{
		"sidecar":   sidecar,
		"delivered": delivered,
		"status":    printStatus,
		"version":   printVersion,
		"--help":    printUsage,
		"-h":        printUsage,
		"help":      printUsage,
	}[command]
	switch {
	case !known:
		return misused("the command does not exist")
	case len(rest) > 0:
		return misused(command + " takes no arguments")
	}
	return do()
}

// misused returns an error that does not repeat the arguments, because they may contain secrets.
func misused(what string) error {
	return gate.ExitError{Code: exitUsage, Err: fmt.Errorf("%s. To list the commands, run: gate --help", what)}
}

// ownUID returns the UID of the pod in a held container. Without the UID no signal is valid, and the gate exits. If the
// gate waited, the container would count as warm, and the holder would stop for a standby that cannot start.
func ownUID(help string) (string, error) {
	uid := os.Getenv(signal.PodUIDEnv)
	if uid == "" {
		return "", gate.ExitError{Code: exitUsage, Err: fmt.Errorf("environment variable %s is missing or empty, so the gate cannot recognize the signal of this pod. %s", signal.PodUIDEnv, help)}
	}
	return uid, nil
}

func enoughFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Max < fewestFiles { // the runtime has raised the soft limit
		return fmt.Errorf("the container can open only %d files, and the gate needs %d. Raise the limit of open files (ulimit -n)", limit.Max, fewestFiles)
	}
	return nil
}

func newLog() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

func sidecar() error {
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	settings, err := signal.ParseLeaseSettings(os.Getenv)
	if err != nil {
		return err
	}
	log := newLog()
	if settings != nil {
		log = newFencedLog()
	}
	s := &gate.Sidecar{
		Volume: signal.Dir, Podinfo: signal.PodinfoDir, UID: os.Getenv("POD_UID"), Program: "/proc/self/exe", Log: log,
		Fenced: settings != nil, Lock: settings != nil && settings.Lock,
	}
	if settings != nil {
		s.Patience, s.PodIP = settings.Queue, os.Getenv("POD_IP")
	}
	go serve(ctx, s, log)
	if settings == nil {
		return s.Run(ctx)
	}
	fenced := make(chan error, 1)
	go func() {
		fenced <- gate.Fence(ctx, s, settings)
		stop()
	}()
	err = s.Run(ctx)
	stop()
	return errors.Join(err, <-fenced)
}

// newFencedLog returns a log that never blocks. A main process must stop in time, also if nobody reads its logs.
func newFencedLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(gate.NewLossyWriter(os.Stderr), nil))
}

// serve serves the sidecar's port. It listens again after a failure, because the pod is unready without the port.
func serve(ctx context.Context, s *gate.Sidecar, log *slog.Logger) {
	podIP := os.Getenv("POD_IP")
	if podIP == "" {
		log.Error(notServed, "error", "POD_IP is empty")
		return
	}
	address := net.JoinHostPort(cmp.Or(os.Getenv(signal.ProbeHostEnv), podIP), strconv.Itoa(signal.ProbePort))
	handler := gate.NewReadiness(s, podIP, os.Environ())
	for failed := ""; ; {
		err := s.Serve(ctx, address, handler)
		if errors.Is(err, http.ErrServerClosed) {
			return
		}
		if err.Error() != failed {
			failed = err.Error()
			log.Error(notServed, "error", err, "retryAfter", servePause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(servePause):
		}
	}
}

func delivered() error {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryPatience)
	defer cancel()
	return gate.Volume(signal.Dir).AwaitDelivery(ctx, os.Getenv("POD_UID"))
}

func started(args []string) error {
	timeout := time.Duration(0)
	if len(args) > 0 {
		var err error
		if timeout, err = time.ParseDuration(args[0]); err != nil || len(args) > 1 {
			return misused("started takes at most one argument, a duration, for example 20s")
		}
	}
	uid, err := ownUID("gate started runs only in held containers. To see the state of the pod, run: " + statusCommand)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if os.Getenv(signal.ContainerEnv) != "" {
		if err := gate.Volume(signal.Dir).AwaitStart(ctx); err != nil {
			return fmt.Errorf("the main process has not started: %w", err)
		}
		return nil
	}
	if err := gate.Volume(signal.Dir).AwaitRelease(ctx, uid); err != nil {
		return fmt.Errorf("the pod is not released, so the main process has not started: %w", err)
	}
	return nil
}

// statusCommand is the command that a person runs for printStatus.
const statusCommand = "kubectl exec POD --container status-sidecar -- /ko-app/gate status"

// printStatus prints the state of the pod. Only the sidecar can read all of it.
func printStatus() error {
	s := &gate.Sidecar{Volume: signal.Dir, Podinfo: signal.PodinfoDir, UID: os.Getenv("POD_UID")}
	if s.UID == "" || os.Getenv(signal.PodUIDEnv)+os.Getenv(signal.ContainerEnv) != "" {
		return gate.ExitError{Code: exitUsage, Err: errors.New("gate status runs only in container status-sidecar. Run: " + statusCommand)}
	}
	settings, err := signal.ParseLeaseSettings(os.Getenv)
	if err != nil {
		return err
	}
	text, err := s.Describe(settings)
	if err != nil {
		return err
	}
	_, err = fmt.Print(text)
	return err
}

func printUsage() error {
	_, err := fmt.Print(usage)
	return err
}

func printVersion() error {
	_, err := fmt.Printf("gate %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	return err
}
