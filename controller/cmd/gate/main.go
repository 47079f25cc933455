// Command gate holds a pod's main processes until the pod is released.
//
// It parses its arguments without a library. It has no flags and must be small, because it is copied into every held
// pod. Its errors must not repeat arguments.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	ossignal "os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const usage = `gate holds the main processes of a StatefulSingleton's pod until the pod is released.

Usage:
  gate sidecar               deliver this program and, when it comes, the signal to the held containers
  gate delivered             wait up to 20 seconds until the sidecar has delivered the program, and removed another pod's signal
  gate wrap -- COMMAND...    wait for the signal, then become COMMAND, with its epoch in STATEFULSINGLETON_EPOCH
  gate started [PATIENCE]    exit 0 once the pod is released, 1 before; wait as long as that for it, as 20s
  gate version               print the version

The policies of StatefulSingletons put these into pods; nobody else needs to call them.

Exit codes of gate wrap, beside those of COMMAND:
  64     wrong arguments, or no STATEFULSINGLETON_POD_UID
  126    COMMAND is not executable
  127    COMMAND is not found
  128+N  signal N came while it waited, 143 for SIGTERM

Examples:
  gate wrap -- /usr/bin/postgres -D /data
  kubectl logs POD --container status-sidecar
`

const (
	exitUsage = 64
	// statusPort serves /healthz and /status on the pod's address.
	statusPort = "9909"
	// deliveryPatience is the time limit for the sidecar to prepare the volume.
	deliveryPatience = 20 * time.Second
	// fewestFiles is the number of open files that the gate needs. Go's runtime crashes without them.
	fewestFiles = 16
)

// version is set when an image is built.
var version = "unknown"

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "gate:", err)
	if exit, ok := errors.AsType[gate.ExitError](err); ok {
		os.Exit(exit.Code)
	}
	os.Exit(1)
}

func run(args []string) error {
	if len(args) == 0 {
		return misused("say what to do")
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
		uid, err := ownUID()
		if err != nil {
			return err
		}
		return gate.Wrap(signal.Dir, uid, rest[1:], newLog())
	}
	if command == "started" {
		return started(rest)
	}
	do, known := map[string]func() error{
		"sidecar":   sidecar,
		"delivered": delivered,
		"version":   printVersion,
		"--help":    printUsage,
		"-h":        printUsage,
		"help":      printUsage,
	}[command]
	switch {
	case !known:
		return misused("there is no such command")
	case len(rest) > 0:
		return misused(command + " takes no arguments")
	}
	return do()
}

// misused does not repeat the arguments, which may contain secrets.
func misused(what string) error {
	return gate.ExitError{Code: exitUsage, Err: fmt.Errorf("%s; gate --help lists the commands", what)}
}

// ownUID returns the UID of the pod for the wrapper. Without the UID no signal is valid, and the gate exits. If it
// waited, the container would count as warm, and the holder would be stopped for a standby that cannot start.
func ownUID() (string, error) {
	uid := os.Getenv(signal.PodUIDEnv)
	if uid == "" {
		return "", gate.ExitError{Code: exitUsage, Err: fmt.Errorf("environment variable %s is missing or empty, and without it the gate can't tell whether a signal is for this pod: "+
			"delete the pod, and its successor gets the variable from the StatefulSingleton's policy", signal.PodUIDEnv)}
	}
	return uid, nil
}

func enoughFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Max < fewestFiles { // the runtime has raised the soft limit
		return fmt.Errorf("the container may have %d files open, and the gate needs %d: raise the limit (ulimit -n)", limit.Max, fewestFiles)
	}
	return nil
}

func newLog() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

func sidecar() error {
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := newLog()
	s := &gate.Sidecar{Volume: signal.Dir, Podinfo: signal.PodinfoDir, UID: os.Getenv("POD_UID"), Program: "/proc/self/exe", Log: log}
	go serve(ctx, s, os.Getenv("POD_IP"), log)
	return s.Run(ctx)
}

func serve(ctx context.Context, s *gate.Sidecar, podIP string, log *slog.Logger) {
	err := errors.New("POD_IP is empty")
	if podIP != "" {
		err = s.Serve(ctx, net.JoinHostPort(podIP, statusPort))
	}
	if !errors.Is(err, http.ErrServerClosed) {
		log.Warn("/healthz and /status are not served; the pod is handed over all the same", "error", err)
	}
}

func delivered() error {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryPatience)
	defer cancel()
	return gate.Volume(signal.Dir).AwaitDelivery(ctx, os.Getenv("POD_UID"))
}

func started(args []string) error {
	patience := time.Duration(0)
	if len(args) > 0 {
		var err error
		if patience, err = time.ParseDuration(args[0]); err != nil || len(args) > 1 {
			return misused("started takes at most one argument, a duration as 20s")
		}
	}
	uid, err := ownUID()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := gate.Volume(signal.Dir).AwaitRelease(ctx, uid); err != nil {
		return fmt.Errorf("held, the main process is not started: %w", err)
	}
	return nil
}

func printUsage() error {
	_, err := fmt.Print(usage)
	return err
}

func printVersion() error {
	_, err := fmt.Printf("gate %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	return err
}
