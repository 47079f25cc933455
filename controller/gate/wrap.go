package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Exit codes of a shell.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalled     = 128 // plus the signal's number
)

// wrapPoll is how often the wrapper reads the signal file if the wake-up pipe does not exist.
const wrapPoll = 100 * time.Millisecond

// stopSignals end a waiting wrapper. They include every stop signal that an image may name, for example SIGWINCH
// (httpd) and SIGRTMIN+3 (systemd). As PID 1, the wrapper would ignore signals that it does not handle, and the
// kubelet would wait for the whole grace period.
var stopSignals = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.Signal(37),
}

// ExitError ends the gate with an exit code.
type ExitError struct {
	Code int
	// Err is what the gate writes to stderr. Nil: nothing.
	Err error
}

// Error returns the text that the gate writes to stderr.
func (e ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause of the exit.
func (e ExitError) Unwrap() error { return e.Err }

// Wrap waits until the pod with the UID is released, and then executes argv. The main process replaces this process,
// as PID 1 of its container with its own signal handlers. Wrap returns only with an error. A stop signal ends a
// waiting wrapper at once, with exit code 128 plus the number of the signal.
//
// The command is looked up in the PATH of the environment, as a shell does. If the command cannot be started, the
// gate exits with code 126 or 127, as a shell does. The gate exits only after the release, because an earlier container
// may still create the file on a volume. Before the release, the gate logs a warning.
//
// Wrap never logs arguments, which may contain secrets.
func Wrap(v Volume, uid string, argv []string, log *slog.Logger) error {
	stops := make(chan os.Signal, 1)
	ossignal.Notify(stops, stopSignals...)
	released, err := wait(v, uid, argv[0], stops, log)
	if err != nil {
		return err
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	// From now on, signals have the same effect as without the gate. A signal that arrived together with the release is
	// in the channel, and must not be lost.
	ossignal.Stop(stops)
	select {
	case s := <-stops:
		return stopped(s)
	default:
	}
	err = syscall.Exec(path, argv, mainEnvironment(os.Environ(), released.Epoch))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s exists, but its interpreter or dynamic loader does not: %w", path, err)
	}
	return startError(argv[0], err)
}

// wait waits for the signal of the pod with the UID, and returns it.
func wait(v Volume, uid, command string, stops <-chan os.Signal, log *slog.Logger) (signal.Signal, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wakeups := v.wakeups(ctx, log)
	why := ""
	for {
		select {
		case s := <-stops:
			return signal.Signal{}, stopped(s)
		case <-wakeups:
		}
		released, err := v.Signal(uid)
		if err == nil {
			return released, nil
		}
		if why == "" {
			log.Info("Held: the main process starts when the controller releases this pod", "waitingFor", v.signalFile())
			if _, err := lookUp(command); err != nil {
				log.Warn("The command of the main process cannot be started yet. The gate tries again after the release", "error", err)
			}
		}
		if err.Error() != why && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("Held: the signal file does not release this pod. See also the log of container status-sidecar", "error", err)
		}
		why = err.Error()
	}
}

func stopped(s os.Signal) error {
	number, _ := s.(syscall.Signal)
	return ExitError{exitSignalled + int(number), fmt.Errorf("stopped by signal %d (%v) before the main process was started", int(number), s)}
}

// lookUp returns the path of a command.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err == nil || errors.Is(err, exec.ErrDot) { // like a shell, accept a relative directory in PATH
		return path, nil
	}
	if errors.Is(err, exec.ErrNotFound) && !strings.Contains(command, "/") {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			found := filepath.Join(dir, command)
			if info, statErr := os.Stat(found); statErr == nil && info.Mode().IsRegular() {
				err = fmt.Errorf("%s: %w", found, fs.ErrPermission)
				break
			}
		}
	}
	return "", startError(command, err)
}

// startError returns why a command cannot be started, with the exit code of a shell.
func startError(command string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = exitNotFound
	}
	if lookup, ok := errors.AsType[*exec.Error](err); ok {
		err = lookup.Err // the outer error repeats the command
	}
	return ExitError{code, fmt.Errorf("start the main process %q: %w", command, err)}
}

// mainEnvironment returns the environment of the main process: it has the fencing token, and lacks the variables for
// the gate.
func mainEnvironment(environ []string, epoch int64) []string {
	return append(without(environ, signal.EpochEnv, signal.PodUIDEnv, signal.ContainerEnv, signal.PortsEnv, signal.LivenessEnv), signal.EpochEnv+"="+strconv.FormatInt(epoch, 10))
}

// roleEnvironment returns the environment of a main process or a hook in a pod of a StatefulSetLock. The epoch of a reader
// is 0, or that of the tenure that ends.
func roleEnvironment(environ []string, role string, epoch int64) []string {
	return append(without(environ, signal.PodUIDEnv, signal.ContainerEnv, signal.HooksEnv, signal.RoleEnv, signal.LockEpochEnv),
		signal.RoleEnv+"="+role, signal.LockEpochEnv+"="+strconv.FormatInt(epoch, 10))
}

// without returns the environment without the variables.
func without(environ []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	})
}
