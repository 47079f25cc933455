package gate

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// connectPause is the time between two attempts to connect to the sidecar.
const connectPause = 100 * time.Millisecond

// sidecarConnection is the connection of a gate to the sidecar.
type sidecarConnection struct {
	socket, container string
	log               *slog.Logger
	// terms, receives and delays have the last part of a message that the gate has not read.
	terms    chan Term
	receives chan receptionOrder
	sendAway chan bool
	delays   chan time.Duration
	// ports are the ports on which clients may wait.
	ports []uint16

	mu sync.Mutex
	// conn is nil before the first connection. number is its number, from 1.
	conn   net.Conn
	number int
	// runs is true once the main process may have been started, or in a pod of a StatefulSetLock the writer.
	runs bool
	// started is true once the start was reported.
	started bool
	// over is the last epoch whose end this gate has reported.
	over int64
	// reception is nil while there has been no queue.
	reception *reception
}

func newSidecarConnection(socket, container string, ports []uint16, log *slog.Logger) *sidecarConnection {
	return &sidecarConnection{
		socket: socket, container: container, ports: ports, log: log,
		terms: make(chan Term, 1), receives: make(chan receptionOrder, 1), sendAway: make(chan bool, 1), delays: make(chan time.Duration, 1),
	}
}

// keep connects to the sidecar, again after each failure, until ctx ends.
func (s *sidecarConnection) keep(ctx context.Context) {
	last := ""
	for ctx.Err() == nil {
		began := time.Now()
		err := s.follow(ctx)
		if time.Since(began) > time.Second {
			last = "" // it was connected
		}
		if text := err.Error(); text != last && ctx.Err() == nil {
			s.log.Warn("Not connected to container status-sidecar. Without it, the main process does not start, or stops at the end of its term", "error", err)
			last = text
		}
		time.Sleep(connectPause)
	}
}

// follow connects to the sidecar, and passes its messages on until the connection ends.
func (s *sidecarConnection) follow(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", s.socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	number, err := s.greet(conn)
	if err != nil {
		return err
	}
	for {
		m, err := receive[fromSidecar](conn)
		if err != nil {
			return err
		}
		if m.Term != nil {
			m.Term.connection = number
		}
		pass(s.terms, m.Term)
		pass(s.receives, m.Receive)
		pass(s.delays, m.Delay)
		if m.SendAway {
			pass(s.sendAway, &m.SendAway)
		}
	}
}

// pass replaces the value in a channel that only this goroutine fills, unless the next value is nil.
func pass[T any](channel chan T, next *T) {
	if next == nil {
		return
	}
	select {
	case <-channel:
	default:
	}
	channel <- *next
}

func (s *sidecarConnection) greet(conn net.Conn) (number int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.number = conn, s.number+1
	return s.number, send(conn, fromGate{
		Container: s.container, Runs: s.runs, Started: s.started, Ports: s.ports, Reception: s.reception,
	})
}

// starts records that the main process may have been started from now on.
func (s *sidecarConnection) starts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = true
}

// startsWriter is starts for the writer of a term. It returns false if this gate has told the sidecar since that it starts no
// writer: with a report of the end, or because it has connected again.
func (s *sidecarConnection) startsWriter(term Term) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term.Epoch <= s.over || term.connection != s.number {
		return false
	}
	s.runs = true
	return true
}

// ended returns true if this gate has reported the end of the epoch.
func (s *sidecarConnection) ended(epoch int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return epoch <= s.over
}

// reportWriterEnd reports that no process of the container is the writer with the epoch, and that this gate starts none.
func (s *sidecarConnection) reportWriterEnd(epoch int64) error {
	s.mu.Lock()
	s.over = max(s.over, epoch)
	s.mu.Unlock()
	return s.reportEnd(epoch)
}

// reportStart makes the sidecar wake the startup probe.
func (s *sidecarConnection) reportStart(epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	_ = send(s.conn, fromGate{Runs: true, Epoch: epoch}) // otherwise the probe finds the start within fallbackPoll
}

// reportReception reports what became of the queue.
func (s *sidecarConnection) reportReception(is reception) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reception = &is
	if s.conn != nil {
		_ = send(s.conn, fromGate{Reception: &is}) // after a failure, the next connection begins with it
	}
}

// reportEnd reports that no process of the container runs, or that none is a writer, and that this gate starts none in this
// term.
func (s *sidecarConnection) reportEnd(epoch int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs, s.started = false, false
	if s.conn == nil {
		return nil // no sidecar knows this gate
	}
	if err := send(s.conn, fromGate{Ended: true, Epoch: epoch}); err != nil {
		return fmt.Errorf("report the end of the container to the sidecar: %w. The next pod waits for the report of the kubelet", err)
	}
	return nil
}
