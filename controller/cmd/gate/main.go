// Command gate holds a pod's main processes until the pod is released.
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
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const usage = `gate holds the main processes of a StatefulSingleton's pod until the pod is released.

Usage:
  gate sidecar           deliver this program and, when it comes, the signal to the held containers
  gate delivered         wait until the sidecar has delivered the program
  gate wrap -- ARGV...   wait for the signal, then become ARGV
  gate started           exit 0 once the pod is released, 1 before

The policies of StatefulSingletons put these into pods; nobody else needs to call them.

Examples:
  gate wrap -- /usr/bin/postgres -D /data
  kubectl logs POD -c status-sidecar
`

const (
	exitUsage = 64
	// podinfo is where the policies mount the projected annotation.
	podinfo = "/etc/statefulsingleton"
	// statusPort serves /healthz and /status on the pod's address.
	statusPort = "9909"
	// deliveryPatience is how long the sidecar may take to deliver the program.
	deliveryPatience = 20 * time.Second
)

func main() {
	err := run(os.Args[1:])
	var exit gate.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(exit.Code)
	default:
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	volume := gate.Volume(signal.Dir)
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch {
	case command == "sidecar" && len(args) == 1:
		return sidecar(volume)
	case command == "delivered" && len(args) == 1:
		return delivered(volume)
	case command == "started" && len(args) == 1:
		_, err := volume.Signal()
		if err != nil {
			return fmt.Errorf("held: waiting for the signal: %w", err)
		}
		return nil
	case command == "wrap" && len(args) > 2 && args[1] == "--":
		stops := make(chan os.Signal, 1)
		ossignal.Notify(stops, syscall.SIGTERM, syscall.SIGINT)
		return gate.Wrap(context.Background(), volume, args[2:], stops, newLog())
	case command == "--help" || command == "-h" || command == "help":
		fmt.Print(usage)
		return nil
	}
	return gate.ExitError{Code: exitUsage, Err: errors.New("these arguments make no sense; see gate --help")}
}

func newLog() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

func sidecar(volume gate.Volume) error {
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := newLog()
	s := &gate.Sidecar{Volume: volume, Podinfo: podinfo, UID: os.Getenv("POD_UID"), Program: "/proc/self/exe", Log: log}
	go func() {
		address := net.JoinHostPort(os.Getenv("POD_IP"), statusPort)
		if err := s.Serve(ctx, address); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("/status is not served; the pod is handed over all the same", "address", address, "error", err.Error())
		}
	}()
	return s.Run(ctx)
}

func delivered(volume gate.Volume) error {
	deadline := time.Now().Add(deliveryPatience)
	for !volume.Delivered() {
		if time.Now().After(deadline) {
			return fmt.Errorf("the sidecar has not delivered the gate after %s: see its log", deliveryPatience)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}
