package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
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

// wrapPoll is how often the wrapper looks for the signal file where inotify fails it.
const wrapPoll = 100 * time.Millisecond

// ExitError ends the gate with a code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }
func (e ExitError) Unwrap() error { return e.Err }

// Wrap waits until the pod is released and then becomes argv: the main process is
// this very process, PID 1 of its container, with signals of its own. It returns
// only with an error. A stop signal while it waits ends it at once.
//
// The command is looked up as the container runtime would have done, in the PATH
// of the environment. One that is missing is warned of while waiting, since
// nothing else would tell before the release, and ends the gate after it.
//
// It never logs arguments: they may hold secrets.
func Wrap(ctx context.Context, v Volume, argv []string, stops <-chan os.Signal, log *slog.Logger) error {
	if _, err := lookUp(argv[0]); err != nil {
		log.Warn("The main process could not be started if the pod were released now", "error", err.Error())
	}
	released, err := wait(ctx, v, stops, log)
	if err != nil {
		return err
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	err = syscall.Exec(path, argv, withEpoch(os.Environ(), released.Epoch))
	return startError(argv[0], err)
}

// wait returns the signal once there is one that can be read.
func wait(ctx context.Context, v Volume, stops <-chan os.Signal, log *slog.Logger) (signal.Signal, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := changes(ctx, string(v), wrapPoll, log)
	said := ""
	for {
		select {
		case s := <-stops:
			number, _ := s.(syscall.Signal)
			return signal.Signal{}, ExitError{exitSignalled + int(number), fmt.Errorf("got signal %q before the pod was released; the main process was not started", s)}
		case <-changed:
		}
		released, err := v.Signal()
		if err == nil {
			return released, nil
		}
		why := "held: waiting for the signal"
		if !errors.Is(err, fs.ErrNotExist) {
			why = "held: the signal can't be read"
		}
		if why != said {
			said = why
			log.Info(why, "file", v.signalFile(), "error", err.Error())
		}
	}
}

// lookUp finds a command's file.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", startError(command, err)
	}
	return path, nil
}

// startError is why a command can't be started, with the exit code that a shell gives.
func startError(command string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = exitNotFound
	}
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		err = lookup.Err
	}
	return ExitError{code, fmt.Errorf("start the main process %q: %w", command, err)}
}

// withEpoch is the environment with the fencing token in it.
func withEpoch(environ []string, epoch int64) []string {
	env := make([]string, 0, len(environ)+1)
	for _, entry := range environ {
		if !strings.HasPrefix(entry, signal.EpochEnv+"=") {
			env = append(env, entry)
		}
	}
	return append(env, signal.EpochEnv+"="+strconv.FormatInt(epoch, 10))
}
