package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	ossignal "os/signal"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// killPatience is how long processes may take to end after SIGKILL. Then the gate exits, and the kernel ends the container, also
// processes that the gate may not kill.
const killPatience = 100 * time.Millisecond

// startedName is the name of a gate that has started the main process. Only the gate can change its name, and the name
// ends with the gate: the startup probe can trust it.
const startedName = "gate: started"

// errNotStarted is the error of hasStarted before the start.
var errNotStarted = errors.New("the pod does not hold the Lease, or the gate is just starting the main process")

// errLate is the error for a main process whose time to stop came before its start.
var errLate = errors.New("the Lease was not renewed in time")

// WrapFenced is Wrap for a pod with fencing by a Lease. The gate stays PID 1 of the container. It starts the main process
// when the sidecar lets it, asks it to stop at the end of its term, and then kills every process of the container.
// A frozen gate cannot kill anything.
//
// In a pod of a StatefulSetLock, hooks is not nil: the main process runs as a reader without a term.
func WrapFenced(v Volume, container string, argv []string, hooks *signal.Hooks, log *slog.Logger) error {
	if os.Getpid() != 1 {
		return ExitError{exitNotExecutable, errNotPID1}
	}
	// The main process must not control the gate, for example by ptrace, or take its connection to the sidecar.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protect the gate from the main process: %w", err)
	}
	clock, err := newAlarm()
	if err != nil {
		return fmt.Errorf("create the timer that ends the main process: %w", err)
	}
	received := make(chan os.Signal, 64)
	ossignal.Notify(received, forwardedSignals()...)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &sidecarConnection{socket: v.fenceSocket(), container: container, log: log, terms: make(chan Term, 1)}
	go s.keep(ctx)
	skipPIDs(firstPID - sparePIDs)
	if hooks != nil {
		if err := awaitRole(v, received, log); err != nil {
			return err
		}
		code, err := runRoles(ctx, s, clock, argv, *hooks, received, log)
		return ExitError{code, err}
	}
	code, err := runFenced(ctx, s, clock, argv, received, log)
	if !errors.Is(err, ErrProcessesLeft) {
		err = errors.Join(err, s.reportEnd(0))
	}
	return ExitError{code, err}
}

// awaitRole waits until the sidecar has written the role of the pod. A user can set the variables of a container, and only the
// sidecar can write the file. So the variables alone let no main process of a StatefulSingleton run as a reader.
func awaitRole(v Volume, received <-chan os.Signal, log *slog.Logger) error {
	for logged := false; ; {
		_, err := os.Stat(v.roleFile())
		if err == nil {
			return nil
		}
		if !logged {
			log.Info("Waiting for container status-sidecar to write the role of the pod", "error", err)
			logged = true
		}
		select {
		case s := <-received:
			if slices.Contains(stopSignals, s) {
				return stopped(s)
			}
		case <-time.After(connectPause):
		}
	}
}

// runFenced waits until the sidecar lets the main process start, and supervises the main process.
func runFenced(ctx context.Context, s *sidecarConnection, clock *alarm, argv []string, received <-chan os.Signal, log *slog.Logger) (code int, err error) {
	log.Info("Held: the main process starts when this pod holds the Lease")
	if _, err := lookUp(argv[0]); err != nil {
		log.Warn("The command of the main process cannot be started yet. The gate tries again after the release", "error", err)
	}
	term, err := awaitTerm(s.terms, received)
	if err != nil {
		return exitCodeOf(err), err
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return exitCodeOf(err), err
	}
	orders := make(chan os.Signal)
	go enforce(ctx, clock, term, s.terms, received, orders, log)
	skipPIDs(firstPID)
	s.starts()
	env := mainEnvironment(os.Environ(), term.Epoch)
	// Nothing that can block comes between this check and the start.
	if bootTime() >= term.Stop {
		return exitNotExecutable, errLate
	}
	started := func() {
		if err := setStarted(); err != nil {
			log.Error("The startup probe cannot see that the main process has started", "error", err)
		}
		s.reportStart(0)
	}
	code, err = Supervise(path, argv, env, orders, started, func(int, syscall.WaitStatus) {}, log)
	if err != nil && !errors.Is(err, ErrProcessesLeft) {
		err = startError(argv[0], err)
		code = exitCodeOf(err)
	}
	return code, err
}

// setStarted gives this process the name startedName. The caller must be on the main thread, whose name is that of the
// process.
func setStarted() error {
	name, err := unix.BytePtrFromString(startedName)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
}

// hasStarted returns nil if the gate of this container has started the main process. The gate is PID 1.
func hasStarted() error {
	name, err := os.ReadFile("/proc/1/comm")
	if err == nil && string(name) != startedName+"\n" {
		err = errNotStarted
	}
	return err
}

func exitCodeOf(err error) int {
	exit, _ := errors.AsType[ExitError](err)
	return exit.Code
}

// awaitTerm waits until the sidecar lets the main process start.
func awaitTerm(terms <-chan Term, received <-chan os.Signal) (Term, error) {
	for {
		select {
		case s := <-received:
			if slices.Contains(stopSignals, s) {
				return Term{}, stopped(s)
			}
		case term := <-terms:
			if bootTime() < term.Stop {
				return term, nil
			}
		}
	}
}

// enforce forwards the received signals to the supervisor. At the end of the last term it sends SIGTERM. Later it kills
// every process of the container, and exits.
func enforce(ctx context.Context, clock *alarm, term Term, terms <-chan Term, received <-chan os.Signal, orders chan<- os.Signal, log *slog.Logger) {
	stopping := false
	order := func(s os.Signal) {
		for bootTime() < term.Kill {
			select {
			case orders <- s:
				return
			case <-clock.until(term.Kill):
			case <-ctx.Done():
				return
			}
		}
	}
	for {
		next := term.Stop
		if stopping {
			next = term.Kill
		}
		select {
		case <-ctx.Done():
			return
		case s := <-received:
			order(s)
		case renewed := <-terms:
			term, stopping = renewal(term, renewed), false
		case <-clock.until(next):
			if bootTime() >= term.Kill {
				killAndExit(log)
			}
			if !stopping && bootTime() >= term.Stop {
				stopping = true
				log.Warn("The Lease was not renewed in time: the main process must stop")
				order(syscall.SIGTERM)
			}
		}
	}
}

// killAndExit kills every process of the container.
func killAndExit(log *slog.Logger) {
	log.Error("The pod does not hold the Lease: killing every process of the container")
	_ = killOthers()
	time.Sleep(killPatience)
	os.Exit(exitSignalled + int(syscall.SIGKILL))
}

// renewal returns the term after a message of the sidecar. A main process has the epoch of its start. A term with another
// epoch is not for that process.
func renewal(term, renewed Term) Term {
	if renewed.Epoch != term.Epoch {
		return Term{Epoch: term.Epoch}
	}
	return renewed
}
