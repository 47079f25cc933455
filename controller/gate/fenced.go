package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	ossignal "os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// killPatience is how long processes may take to end after SIGKILL. Then the gate exits, and the kernel ends the container, also
// processes that the gate may not kill.
const killPatience = 100 * time.Millisecond

// startedName is the name of a gate that has started the main process, and queueingName of one that queues the clients of a
// main process that does not run yet. waitingName is that of a gate that does neither. Only the gate can change its name, and the name ends with the gate: the probes can
// trust it.
const startedName, queueingName, waitingName = "gate: started", "gate: queueing", "gate"

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
	s := newSidecarConnection(v.fenceSocket(), container, queuedPorts(os.Getenv(signal.PortsEnv), log), log)
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
	clients := &clients{sidecar: s, log: log}
	term, err := awaitTerm(s, clients, received)
	if err != nil {
		return exitCodeOf(err), err
	}
	path, err := lookUp(argv[0])
	if err != nil {
		clients.ended(queue.Stopped)
		return exitCodeOf(err), err
	}
	orders := make(chan os.Signal)
	e := &enforcer{clock: clock, sidecar: s, received: received, orders: orders, stopping: clients.stopping, log: log}
	e.follow(term)
	go e.run(ctx)
	skipPIDs(firstPID)
	s.starts()
	start := clients.starter(path, argv, mainEnvironment(os.Environ(), term.Epoch), e.mayStart)
	started := func() {
		if err := setName(startedName); err != nil {
			log.Error("The startup probe cannot see that the main process has started", "error", err)
		}
		s.reportStart(0)
	}
	code, err = Supervise(start, orders, started, func(int, syscall.WaitStatus) {}, log)
	switch {
	case errors.Is(err, ErrProcessesLeft):
	case err != nil:
		clients.ended(queue.Stopped)
	default:
		clients.ended(queue.ApplicationEnded)
	}
	switch {
	case errors.Is(err, errLate):
		code = exitNotExecutable
	case err != nil && !errors.Is(err, ErrProcessesLeft):
		err = startError(argv[0], err)
		code = exitCodeOf(err)
	}
	return code, err
}

// setName gives this process a name. The caller must be on the main thread, whose name is that of the process.
func setName(name string) error {
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0)
}

// gateName returns the name of the gate of this container, which is PID 1.
func gateName() (string, error) {
	name, err := os.ReadFile("/proc/1/comm")
	return strings.TrimSuffix(string(name), "\n"), err
}

// hasStarted returns nil if the gate of this container has started the main process, or queues its clients.
func hasStarted() error {
	name, err := gateName()
	if err == nil && name != startedName && name != queueingName {
		err = errNotStarted
	}
	return err
}

func exitCodeOf(err error) int {
	exit, _ := errors.AsType[ExitError](err)
	return exit.Code
}

// awaitTerm waits until the sidecar lets the main process start. It receives clients if the sidecar asks for that.
func awaitTerm(s *sidecarConnection, clients *clients, received <-chan os.Signal) (Term, error) {
	for {
		select {
		case s := <-received:
			if slices.Contains(stopSignals, s) {
				return Term{}, stopped(s)
			}
		case order := <-s.receives:
			clients.receive(order)
		case <-s.sendAway:
			clients.sendAway()
		case <-clients.closed():
			clients.gone()
		case term := <-s.terms:
			if bootTime() < term.Stop {
				return term, nil
			}
		}
	}
}

// enforcer forwards the received signals to the supervisor. At the end of the last term it sends SIGTERM. Later it kills every
// process of the container, and exits.
type enforcer struct {
	clock *alarm
	term  Term
	// stopAt is the Stop of the term, or 0 once the container is being killed. The start of the main process reads it, too.
	stopAt   atomic.Int64
	sidecar  *sidecarConnection
	received <-chan os.Signal
	orders   chan<- os.Signal
	// stopping is called before a stop signal is forwarded. It must not block.
	stopping func()
	log      *slog.Logger

	stop delayedStop
	// expired: the main process was asked to stop at the end of the term.
	expired bool
}

// follow makes the term the current one.
func (e *enforcer) follow(term Term) {
	e.term, e.expired = term, false
	e.stopAt.Store(int64(term.Stop))
}

// mayStart returns an error if it is too late to start the main process. Nothing that can take long comes between this check and
// the start.
func (e *enforcer) mayStart() error {
	if int64(bootTime()) >= e.stopAt.Load() {
		return errLate
	}
	return nil
}

// kill kills every process of the container, and exits. No main process starts meanwhile.
func (e *enforcer) kill() {
	e.stopAt.Store(0)
	killAndExit(e.log)
}

func (e *enforcer) run(ctx context.Context) {
	for {
		next := e.term.Stop
		if e.expired {
			next = e.term.Kill
		}
		select {
		case <-ctx.Done():
			return
		case s := <-e.received:
			if !e.stop.take(s, e.term, bootTime()) {
				e.order(ctx, s)
			}
		case delay := <-e.sidecar.delays:
			e.stop.delay(delay, bootTime())
		case <-e.clock.until(min(next, e.stop.due())):
			now := bootTime()
			if now >= e.term.Kill {
				e.kill()
			}
			if now >= e.stop.due() {
				e.order(ctx, e.stop.release())
			}
			if !e.expired && now >= e.term.Stop {
				e.expired = true
				e.log.Warn("The Lease was not renewed in time: the main process must stop")
				e.order(ctx, syscall.SIGTERM)
			}
		case renewed := <-e.sidecar.terms:
			e.follow(renewal(e.term, renewed))
		}
	}
}

// order gives a signal to the supervisor.
func (e *enforcer) order(ctx context.Context, s os.Signal) {
	if e.stop.stops(s) {
		e.stopping()
	}
	for bootTime() < e.term.Kill {
		select {
		case e.orders <- s:
			return
		case renewed := <-e.sidecar.terms:
			e.follow(renewal(e.term, renewed))
		case <-e.clock.until(e.term.Kill):
		case <-ctx.Done():
			return
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
