package queue

import (
	"errors"
	"io/fs"
	"math"

	"golang.org/x/sys/unix"
)

const (
	// maxScans limits how often a queue examines the descriptors of all processes.
	maxScans = 256
	// maxNoted is the number of sockets whose options are noted.
	maxNoted = 256
)

// notes has the options of the sockets of the application, by their links.
type notes map[string]map[option][]byte

// serve answers the notifications until no task with the filter is left. Without an answer, a call would wait forever, and
// after the end of the listener it would fail with ENOSYS. So it also answers when the queue is closed.
func (q *Queue) serve(notify int) {
	l := listener(notify)
	defer func() { _ = unix.Close(notify) }()
	for n := l.next(); n != nil; n = l.next() {
		l.answer(n, q.handle(l, n))
	}
	q.Close(ApplicationEnded)
}

// handle does the call, or returns false if the kernel must execute it.
func (q *Queue) handle(l listener, n *notification) (done bool) {
	if q.isClosed() {
		return false
	}
	t := task{pid: int(n.pid), fd: int(int32(n.args[0]))}
	// The queue is not locked meanwhile, because an application can make this take long, for example by userfaultfd(2).
	memory, err := t.argument(n)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return false
	}
	if err == nil {
		done, err = q.judge(l, n, t, memory)
	}
	// What was read of a thread that is gone may be that of another with the same PID.
	if err != nil && l.valid(n) {
		q.closeLocked(doubt(t, err))
	}
	return done
}

func (q *Queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed != nil
}

// doubt returns why an error closes the queue.
func doubt(t task, err error) Closed {
	if why, ok := errors.AsType[Closed](err); ok {
		return why
	}
	reason := Inaccessible
	if user, failed := t.user(); failed == nil && user != unix.Geteuid() {
		reason = OtherUser
	}
	if errors.Is(err, errTooMany) {
		reason = TooMany
	}
	return Closed{Reason: reason, Cause: err}
}

// judge does the call, or returns false if the kernel must execute it. It returns an error if the queue must be closed
// before. Memory is that of the call's argument.
func (q *Queue) judge(l listener, n *notification, t task, memory []byte) (done bool, err error) {
	if n.arch != nativeArch {
		return false, Closed{Reason: ForeignABI}
	}
	switch n.nr {
	case unix.SYS_BIND:
		return q.bind(l, n, t, parseSockaddr(memory))
	case unix.SYS_LISTEN:
		return q.listenAgain(t, n), nil
	case unix.SYS_SETSOCKOPT:
		return false, q.note(l, n, t, memory)
	case unix.SYS_IO_URING_SETUP:
		return false, Closed{Reason: IOUring}
	case unix.SYS_SETNS:
		return false, Closed{Reason: OtherNetwork}
	case unix.SYS_UNSHARE:
		if n.args[0]&unix.CLONE_NEWNET != 0 {
			return false, Closed{Reason: OtherNetwork}
		}
		fallthrough
	case unix.SYS_CLOSE_RANGE:
		return false, Closed{Reason: Shared, Cause: errors.New("a thread has descriptors of its own")}
	}
	return false, Closed{Reason: ForeignABI}
}

// listenAgain listens on a socket that the queue has handed over, or returns false for any other. The backlog that the
// application asks for may be smaller than the number of clients that wait, so it cannot go below that of the queue.
func (q *Queue) listenAgain(t task, n *notification) bool {
	link, err := t.link() // fails if the socket is that of another user by now
	s := q.with(link)
	if err != nil || s == nil || s.state != handed {
		return false
	}
	asked := min(uint32(n.args[1]), math.MaxInt32) // the kernel takes a negative backlog for a large one
	return unix.Listen(s.fd, max(int(asked), q.options.Backlog)) == nil
}

// note notes the option that the application sets.
func (q *Queue) note(l listener, n *notification, t task, value []byte) error {
	link, err := t.link()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // EBADF
	}
	if err != nil || !isSocket(link) || !l.valid(n) {
		return err
	}
	if q.noted[link] == nil {
		if err := q.makeRoom(); err != nil {
			return err
		}
		q.noted[link] = map[option][]byte{}
	}
	q.noted[link][option{int(int32(n.args[1])), int(int32(n.args[2]))}] = value
	return nil
}

// makeRoom forgets closed sockets if there is no room for another.
func (q *Queue) makeRoom() error {
	if len(q.noted) < maxNoted {
		return nil
	}
	open := notes{}
	err := q.scan(func(_, _, link string) error {
		if options := q.noted[link]; options != nil {
			open[link] = options
		}
		return nil
	})
	if err == nil && len(open) == maxNoted {
		err = errTooMany
	}
	q.noted = open
	return err
}

// scan is the function scan, as often as it is allowed.
func (q *Queue) scan(visit func(process, fd, link string) error) error {
	if q.scans.Add(1) > maxScans {
		return errTooMany
	}
	return scan(visit)
}
