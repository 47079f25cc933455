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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Exit codes, as a shell has them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalled     = 128 // plus the signal's number
)

// wrapPoll is how often the wrapper looks at the volume where there is no bell.
const wrapPoll = 100 * time.Millisecond

// stopSignals end a wrapper that waits: whatever an image may name as its stop
// signal, the ones of httpd (SIGWINCH) and systemd (SIGRTMIN+3) among them. As PID 1
// the wrapper would be deaf to those it does not handle, and the pod's grace period
// would have to run out.
var stopSignals = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.Signal(37),
}

// ExitError ends the gate with a code of its own.
type ExitError struct {
	Code int
	Err  error
}

// Error is what the gate writes to stderr.
func (e ExitError) Error() string { return e.Err.Error() }

// Unwrap is why the gate ends.
func (e ExitError) Unwrap() error { return e.Err }

// Wrap waits until the pod with that uid is released and then becomes argv: the main process is
// this very process, PID 1 of its container, with signals of its own. It returns
// only with an error. A stop signal while it waits ends it at once, with code 128
// and the signal's number.
//
// The command is looked up as a shell does, in the PATH of the environment. One that
// can't be started ends the gate with code 126 or 127, as it would have ended
// without the gate. It does so after the release, since what is missing may still
// come, on a volume that an earlier container fills; while it waits it warns.
//
// It never logs arguments: they may hold secrets.
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
	// From here on signals do what they do without the gate. One that came together
	// with the release is in the channel, and must not be lost to the main process.
	ossignal.Stop(stops)
	select {
	case s := <-stops:
		return stopped(s)
	default:
	}
	err = syscall.Exec(path, argv, mainEnvironment(os.Environ(), released.Epoch))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s is there, but its interpreter or dynamic loader is not: %w", path, err)
	}
	return startError(argv[0], err)
}

// wait returns the signal once there is one for the pod with that uid.
func wait(v Volume, uid, command string, stops <-chan os.Signal, log *slog.Logger) (signal.Signal, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rung := v.rung(ctx, log)
	why := ""
	for {
		select {
		case s := <-stops:
			return signal.Signal{}, stopped(s)
		case <-rung:
		}
		released, err := v.Signal(uid)
		if err == nil {
			return released, nil
		}
		if why == "" {
			log.Info("Held: the main process starts when the controller releases this pod", "waitingFor", v.signalFile())
			if _, err := lookUp(command); err != nil {
				log.Warn("The main process could not be started if the pod were released now", "error", err)
			}
		}
		if err.Error() != why && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("Held: the signal file does not release this pod, see also the log of container status-sidecar", "error", err)
		}
		why = err.Error()
	}
}

func stopped(s os.Signal) error {
	number, _ := s.(syscall.Signal)
	return ExitError{exitSignalled + int(number), fmt.Errorf("stopped by signal %d (%v) before the main process was started", int(number), s)}
}

// lookUp finds a command's file.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err == nil || errors.Is(err, exec.ErrDot) { // a shell runs what PATH has in a relative directory
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

// startError is why a command can't be started, with the exit code that a shell gives.
func startError(command string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = exitNotFound
	}
	if lookup, ok := errors.AsType[*exec.Error](err); ok {
		err = lookup.Err // it names the command again
	}
	return ExitError{code, fmt.Errorf("start the main process %q: %w", command, err)}
}

// mainEnvironment is the environment of the main process: with the fencing token, and
// without what only the gate needs.
func mainEnvironment(environ []string, epoch int64) []string {
	env := make([]string, 0, len(environ)+1)
	for _, entry := range environ {
		if !strings.HasPrefix(entry, signal.EpochEnv+"=") && !strings.HasPrefix(entry, signal.PodUIDEnv+"=") {
			env = append(env, entry)
		}
	}
	return append(env, signal.EpochEnv+"="+strconv.FormatInt(epoch, 10))
}
