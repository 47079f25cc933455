package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	ossignal "os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectPause is the time between two attempts to connect to the sidecar.
	connectPause = 100 * time.Millisecond
	// killPause is the time between two attempts to kill every process of the container.
	killPause = 10 * time.Millisecond
)

// WrapFenced is Wrap for a pod with fencing by a Lease. The gate stays PID 1 of the container. It starts the main process
// when the sidecar lets it, and ends every process of the container before the Lease can expire.
func WrapFenced(v Volume, container string, argv []string, log *slog.Logger) error {
	received := make(chan os.Signal, 64)
	ossignal.Notify(received, forwardedSignals()...)
	terms := make(chan Term, 1)
	s := &sidecarConnection{socket: v.fenceSocket(), container: container, log: log, terms: terms}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go s.keep(ctx)

	term, err := awaitTerm(terms, received, argv[0], log)
	if err != nil {
		return err
	}
	orders := make(chan os.Signal)
	go enforce(ctx, term, terms, received, orders, log)
	s.started()
	code, err := superviseCommand(argv, term, orders)
	reportErr := err
	if !errors.Is(err, ErrProcessesLeft) {
		reportErr = s.reportEnd()
	}
	if reportErr != nil {
		log.Warn("The end of the container is not reported to the sidecar. The next pod waits for the report of the kubelet", "error", reportErr)
	}
	if err != nil && !errors.Is(err, ErrProcessesLeft) {
		return err
	}
	return ExitError{Code: code}
}

// superviseCommand looks up the command as Wrap does, and supervises it.
func superviseCommand(argv []string, term Term, orders <-chan os.Signal) (code int, err error) {
	path, err := lookUp(argv[0])
	if err != nil {
		return 0, err
	}
	code, err = Supervise(path, argv, mainEnvironment(os.Environ(), term.Epoch), orders)
	if err != nil && !errors.Is(err, ErrProcessesLeft) {
		err = startError(argv[0], err)
	}
	return code, err
}

// awaitTerm waits until the sidecar lets the main process start.
func awaitTerm(terms <-chan Term, received <-chan os.Signal, command string, log *slog.Logger) (Term, error) {
	log.Info("Held: the main process starts when this pod holds the Lease")
	if _, err := lookUp(command); err != nil {
		log.Warn("The command of the main process cannot be started yet. The gate tries again after the release", "error", err)
	}
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

// enforce forwards the received signals to the supervisor, and sends SIGTERM and SIGKILL at the end of the last term.
func enforce(ctx context.Context, term Term, terms <-chan Term, received <-chan os.Signal, orders chan<- os.Signal, log *slog.Logger) {
	alarm := newAlarm()
	stopping := false
	for {
		next := term.Stop
		if stopping {
			next = term.Kill
		}
		alarm.set(next)
		var order os.Signal
		select {
		case <-ctx.Done():
			return
		case order = <-received:
		case renewed := <-terms:
			term, stopping = renewed, stopping && bootTime() >= renewed.Stop
		case <-alarm.rings:
			switch now := bootTime(); {
			case now >= term.Kill:
				order = syscall.SIGKILL
				log.Error("The Lease was not renewed in time: every process of the container is killed")
				term.Kill = now + killPause
			case now >= term.Stop && !stopping:
				order, stopping = syscall.SIGTERM, true
				log.Warn("The Lease was not renewed in time: the main process must stop")
			}
		}
		if order != nil {
			select {
			case orders <- order:
			case <-ctx.Done():
				return
			}
		}
	}
}

// alarm rings at a time of CLOCK_BOOTTIME. Go's timers stand still while the machine is suspended.
type alarm struct {
	timer *os.File
	fd    int
	rings chan struct{}
}

func newAlarm() *alarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		panic(fmt.Sprintf("create a timer: %v", err)) // without it, nothing would end the main process
	}
	a := &alarm{timer: os.NewFile(uintptr(fd), "timer"), fd: fd, rings: make(chan struct{}, 1)}
	go func() {
		expirations := make([]byte, 8)
		for {
			if _, err := a.timer.Read(expirations); err != nil {
				return
			}
			select {
			case a.rings <- struct{}{}:
			default:
			}
		}
	}()
	return a
}

// set replaces the time at which the alarm rings. A time in the past rings at once.
func (a *alarm) set(at time.Duration) {
	at = max(at, 1) // zero would stop the timer
	if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil); err != nil {
		panic(fmt.Sprintf("set a timer: %v", err))
	}
}

// sidecarConnection is the connection of a gate to the sidecar.
type sidecarConnection struct {
	socket, container string
	log               *slog.Logger
	// terms has the last term that the gate has not read.
	terms chan Term

	mu   sync.Mutex
	conn net.Conn
	// runs is true after the start of the main process, until its end.
	runs bool
}

// keep connects to the sidecar, again after each failure, until ctx ends.
func (s *sidecarConnection) keep(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.follow(ctx)
		s.log.Debug("The connection to the sidecar ended", "error", err)
		time.Sleep(connectPause)
	}
}

// follow connects to the sidecar, and passes its terms on until the connection ends.
func (s *sidecarConnection) follow(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", s.socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := s.greet(conn); err != nil {
		return err
	}
	for {
		m, err := receive[fromSidecar](conn)
		if err != nil {
			return err
		}
		select {
		case <-s.terms:
		default:
		}
		s.terms <- m.Term
	}
}

func (s *sidecarConnection) greet(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	return send(conn, fromGate{Container: s.container, Runs: s.runs})
}

func (s *sidecarConnection) started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = true
}

// reportEnd reports that every process of the container has ended. The kernel delivers the report after the gate has
// exited.
func (s *sidecarConnection) reportEnd() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return send(s.conn, fromGate{Ended: true})
}

// send sends a message as one packet.
func send(conn net.Conn, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = conn.Write(data)
	return err
}
