// Package queue accepts the clients of an application that does not run yet, and hands them to the application when it
// starts. The application needs no change.
//
// A queue listens on the application's TCP ports, so that the kernel accepts clients and keeps their connections. The
// application starts with a seccomp filter, so that the kernel notifies the gate when the application calls bind(2). If the
// call is for a port of the queue, the gate puts its listening socket, with all the clients that wait in it, in the place of
// the application's socket, and lets bind return 0. See seccomp_unotify(2).
//
// The application must not notice that its socket was replaced. So both must be alike, and nothing else may refer to the one
// that is replaced. In doubt the queue is closed, and the application's calls continue untouched: that costs only the clients
// that wait. A hostile application can change what the gate has read of it, at any time. It then gets a socket for which it
// could have asked, or loses clients. It can also make Close wait, by a call on such a socket that waits for its memory.
//
// What an application can notice is this. The calls in the filter take some microseconds longer. A connection to its own port
// succeeds before it listens. A signal handler without SA_RESTART can interrupt bind before the gate has received the call. A
// socket that is closed without being removed from an epoll set stays in the set until the queue closes its own descriptor.
// And seccomp(2) installs no other listener.
//
// The queue replays the options that the application sets on its socket before bind and that programs set on listeners.
// Clients that connect from then on inherit them, but not those that wait already. Options that programs set on each
// connection too are not replayed, because their notifications would cost time: an application loses
// TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_NOTSENT_LOWAT, SO_PRIORITY and SO_SNDTIMEO if it sets them on its listener.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// settlePause is the time between two looks at whether the application accepts clients.
const settlePause = 20 * time.Millisecond

// Options are the limits of a queue.
type Options struct {
	// Backlog is the number of clients that may wait for each socket. The kernel reduces it to net.core.somaxconn. It lets
	// clients beyond the limit try again, and refuses none.
	Backlog int
	// BindWithin is how long the application may take to bind to every port, from its start on.
	BindWithin time.Duration
	// Keep is how long the queue keeps a descriptor of a socket that it handed over, unless clients are accepted before. If
	// no process has the socket then, because a program only tested whether it can bind, the clients wait for the next.
	Keep time.Duration
	Log  *slog.Logger
}

// Queue listens on the ports of one application.
type Queue struct {
	options Options
	done    chan struct{}

	mu      sync.Mutex
	sockets []*socket
	noted   notes
	scans   atomic.Int32
	started bool
	// expiry runs at the end of Options.BindWithin. Late is true from then on.
	expiry *time.Timer
	late   bool
	closed *Closed
}

// Listen returns a queue that listens on the ports. The error is a Closed.
func Listen(ports []Port, options Options) (*Queue, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	q := &Queue{options: options, done: make(chan struct{}), noted: notes{}}
	for _, p := range ports {
		if err := q.listen(p); err != nil {
			for _, s := range q.sockets {
				s.release()
			}
			return nil, Closed{Reason: CannotListen, Cause: fmt.Errorf("listen on port %d, %s: %w", p.Number, p.Shape, err)}
		}
	}
	return q, nil
}

func (q *Queue) listen(p Port) error {
	if _, err := p.Shape.MarshalText(); err != nil {
		return err
	}
	if p.Number == 0 {
		return errors.New("the port must not be 0")
	}
	for _, shape := range p.Shape.sockets() {
		s, err := listen(p.Number, shape, q.options.Backlog)
		if err != nil {
			return err
		}
		q.sockets = append(q.sockets, s)
	}
	return nil
}

// Waiting returns the number of clients that wait in the queue.
func (q *Queue) Waiting() (clients int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.sockets {
		clients += s.waiting()
	}
	return clients
}

// Done returns a channel that is closed with the queue.
func (q *Queue) Done() <-chan struct{} { return q.done }

// Closed returns why the queue is closed. It waits until then.
func (q *Queue) Closed() Closed {
	<-q.done
	return *q.closed
}

// Close closes the queue, unless it is closed already. The kernel resets the connections of the waiting clients, except in
// sockets that the application has got.
//
// A gate that forwards a stop signal to the application must close the queue before, because clients must not wait for an
// application that stops.
func (q *Queue) Close(reason Reason) { q.close(Closed{Reason: reason}) }

func (q *Queue) close(why Closed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closeLocked(why)
}

// closeLocked is close for callers that have locked the queue.
func (q *Queue) closeLocked(why Closed) {
	if q.closed != nil {
		return
	}
	if why.Reason == Stopped && !q.queues() {
		why.Reason = HandedOver // nothing was left to do
	}
	for _, s := range q.sockets {
		if s.state == queued || why.Reason == ApplicationEnded {
			why.Lost += s.waiting()
		}
		s.release()
	}
	if q.expiry != nil {
		q.expiry.Stop()
	}
	q.noted = nil
	q.closed = &why
	close(q.done)
	level := slog.LevelWarn
	if why.Reason == HandedOver || why.Reason == Stopped {
		level = slog.LevelInfo
	}
	log := q.options.Log.With("reason", string(why.Reason), "lostClients", why.Lost)
	if why.Cause != nil {
		log = log.With("cause", why.Cause)
	}
	log.Log(context.Background(), level, "The queue of connections is closed. "+why.Reason.Message())
}

// queues returns true unless the application has got all sockets, and no client waits in one. The caller has locked the queue.
func (q *Queue) queues() bool {
	return slices.ContainsFunc(q.sockets, func(s *socket) bool { return s.state == queued || s.state == handed && s.waiting() > 0 })
}

// begin returns true if the queue can have its application now. It sets the time limit for the application.
func (q *Queue) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.started || q.closed != nil {
		return false
	}
	q.started = true
	q.expiry = time.AfterFunc(q.options.BindWithin, q.expire)
	return true
}

// expire closes the queue if the application has not bound to every port.
func (q *Queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.late = true
	for _, s := range q.sockets {
		if s.state == queued {
			q.closeLocked(notBound(s))
		}
	}
}

func notBound(s *socket) Closed {
	return Closed{Reason: NotBound, Cause: fmt.Errorf("port %d, %s", s.port, s.shape)}
}

// settle waits until the application has accepted clients from a socket that it got, for at most Options.Keep.
func (q *Queue) settle(s *socket, clients int) {
	settles := s.state == handed
	s.state, s.most, s.until = handed, clients, time.Now().Add(q.options.Keep)
	if settles {
		return
	}
	go func() {
		pause := time.NewTicker(settlePause)
		defer pause.Stop()
		for !q.trySettle(s) {
			select {
			case <-q.done:
			case <-pause.C:
			}
		}
	}()
}

// trySettle releases a socket that the application uses, and takes back one that nobody has. It returns false if it is too
// early for that.
func (q *Queue) trySettle(s *socket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return true
	}
	clients := s.waiting()
	accepts := clients < s.most
	s.most = max(s.most, clients)
	if !accepts && time.Now().Before(s.until) {
		return false
	}
	if accepts || q.taken(s) {
		q.release(s)
		return true
	}
	s.state = queued
	if q.late {
		q.closeLocked(notBound(s))
	}
	return true
}

// release releases the socket, and closes the queue with the last one.
func (q *Queue) release(s *socket) {
	s.release()
	for _, s := range q.sockets {
		if s.state != released {
			return
		}
	}
	q.closeLocked(Closed{Reason: HandedOver})
}

// taken returns true if a process has the socket, or if that cannot be known.
func (q *Queue) taken(s *socket) bool {
	taken := false
	err := q.scan(func(_, _, link string) error {
		taken = taken || link == s.link
		return nil
	})
	return taken || err != nil
}
