package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxLooks is how often the gate looks at the descriptors of all processes before it closes the queue in doubt.
	maxLooks = 5
	// lookPause is the time between two looks.
	lookPause = 10 * time.Millisecond
)

// bind hands over the socket that the application binds to, if it is a port of the queue.
func (q *Queue) bind(l listener, n *notification, t task, address netip.AddrPort) (done bool, err error) {
	sockets := q.on(address.Port())
	if len(sockets) == 0 {
		return false, nil
	}
	link, err := t.link()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // EBADF
	}
	if err != nil || !isSocket(link) {
		return false, err
	}
	if q.with(link) != nil {
		return false, nil // EINVAL: it is bound
	}
	protocol, err := t.protocol()
	if err != nil || strings.HasPrefix(protocol, "UDP") { // which has ports of its own
		return false, err
	}
	shape, err := shapeOf(address.Addr(), protocol, q.noted[link])
	if err != nil {
		return false, err
	}
	s := sockets[shape]
	if s == nil {
		return false, Closed{Reason: OtherShape, Cause: fmt.Errorf("the application binds to port %d, %s", address.Port(), shape)}
	}
	if free, err := q.examine(t, s, link); err != nil || !free {
		return false, err
	}
	return q.hand(l, n, t, s, link)
}

// with returns the socket with the link, or nil if it is none of the queue.
func (q *Queue) with(link string) *socket {
	for _, s := range q.sockets {
		if s.link == link {
			return s
		}
	}
	return nil
}

// on returns the sockets on the port, or nothing if all of them are released.
func (q *Queue) on(port uint16) map[Shape]*socket {
	sockets, kept := map[Shape]*socket{}, false
	for _, s := range q.sockets {
		if s.port == port {
			sockets[s.shape] = s
			kept = kept || s.state != released
		}
	}
	if !kept {
		return nil
	}
	return sockets
}

// shapeOf returns the shape of the socket that the application binds.
func shapeOf(address netip.Addr, protocol string, options map[option][]byte) (Shape, error) {
	var shape Shape
	switch strings.TrimPrefix(protocol, "MP") { // a listener for MPTCP accepts plain TCP too, as Go's does
	case "TCP":
		shape = IPv4
	case "TCPv6":
		shape = Dual
		only, err := isV6only(options)
		if err != nil {
			return "", err
		}
		if only {
			shape = IPv6
		}
	default:
		return "", Closed{Reason: OtherShape, Cause: fmt.Errorf("the application binds a socket of protocol %q", protocol)}
	}
	if address.Is4() != (shape == IPv4) {
		return "", Closed{Reason: OtherShape, Cause: fmt.Errorf("the application binds a socket of protocol %s to %s", protocol, address)}
	}
	if !address.IsUnspecified() {
		return "", Closed{Reason: OneAddress, Cause: fmt.Errorf("the application binds to %s", address)}
	}
	return shape, nil
}

// isV6only returns IPV6_V6ONLY of a socket with the options. It starts as net.ipv6.bindv6only of the network namespace.
func isV6only(options map[option][]byte) (bool, error) {
	if value := options[v6only]; len(value) >= 4 { // the kernel refuses a shorter one
		return binary.NativeEndian.Uint32(value) != 0, nil
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	only, err := unix.GetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY)
	return only != 0, err
}

// examine returns true if the application's socket can be replaced by s. It returns false if a process already has s: then the
// kernel knows whether another socket may bind to the port. It unlocks the queue for a while,
// so the queue may be closed afterwards.
func (q *Queue) examine(t task, s *socket, link string) (free bool, err error) {
	if s.state == released {
		return false, nil
	}
	if user, err := t.user(); err != nil || user != unix.Geteuid() {
		return false, Closed{Reason: OtherUser, Cause: err} // a second socket with SO_REUSEPORT must be of the same user
	}
	if shares, err := t.sharesNetwork(); err != nil || !shares {
		return false, Closed{Reason: OtherNetwork, Cause: err}
	}
	// The application can block a read of an epoll set, which must not keep the gate from closing the queue.
	q.mu.Unlock()
	free, err = patiently(func() (bool, error) { return q.look(s, link) })
	q.mu.Lock()
	return free && q.closed == nil && s.state != released, err
}

// patiently looks again a moment later if there is a doubt that may pass: a child that another thread has forked holds a copy
// of each descriptor, or cannot be read, until it executes its program.
func patiently(look func() (free bool, err error)) (free bool, err error) {
	for range maxLooks {
		free, err = look()
		why, _ := errors.AsType[Closed](err)
		if err == nil || errors.Is(err, errTooMany) || why.Reason == Polled {
			break
		}
		time.Sleep(lookPause)
	}
	return free, err
}

// look returns true if the application's socket has one descriptor, and false if a process already has s. The caller has not
// locked the queue.
func (q *Queue) look(s *socket, link string) (free bool, err error) {
	holders, taken, polled, left := 0, false, false, maxInfo
	err = q.scan(func(process, fd, target string) (err error) {
		switch target {
		case link:
			holders++
		case s.link:
			taken = true
		case "anon_inode:[eventpoll]":
			watched, err := polls(process, fd, link, &left)
			polled = polled || watched
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return false, err
	case taken:
		return false, nil
	case holders != 1:
		return false, Closed{Reason: Shared, Cause: fmt.Errorf("%d descriptors", holders)}
	case polled:
		return false, Closed{Reason: Polled}
	}
	return true, nil
}

// hand puts the socket in the place of that of the application.
func (q *Queue) hand(l listener, n *notification, t task, s *socket, link string) (done bool, err error) {
	flags, err := t.flags()
	if err != nil {
		return false, err
	}
	if flags&unix.O_ASYNC != 0 {
		return false, Closed{Reason: SocketOption, Cause: errors.New("O_ASYNC")}
	}
	if err := s.adopt(q.noted[link], flags&unix.O_NONBLOCK != 0, q.options.Backlog); err != nil {
		return false, Closed{Reason: SocketOption, Cause: err}
	}
	clients := s.waiting()
	// Another thread may have closed the descriptor, and opened a file with its number.
	if now, err := t.link(); err != nil || now != link {
		return false, Closed{Reason: Shared, Cause: err}
	}
	if err := l.replace(n, s.fd, t.fd, flags&unix.O_CLOEXEC != 0); err != nil {
		return false, err
	}
	q.options.Log.Info("The application got its socket from the queue", "port", s.port, "shape", string(s.shape), "clients", clients)
	q.settle(s, clients)
	return true, nil
}
