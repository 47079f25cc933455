package queue

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Port is a TCP port of an application, and how the application listens on it.
type Port struct {
	Number uint16 `json:"number"`
	Shape  Shape  `json:"shape"`
}

// Shape is the set of sockets with which an application listens on every address of a port. The queue must listen with
// the same sockets, because a socket can only take the place of one like it.
type Shape string

const (
	// IPv4 is one socket on 0.0.0.0.
	IPv4 Shape = "IPv4"
	// IPv6 is one socket on [::] that accepts only IPv6 (IPV6_V6ONLY).
	IPv6 Shape = "IPv6"
	// Dual is one socket on [::] that accepts both families.
	Dual Shape = "Dual"
	// Pair is a socket as of IPv4 and one as of IPv6.
	Pair Shape = "Pair"
)

// MarshalText returns the name of the shape, or an error for an unknown shape.
func (s Shape) MarshalText() ([]byte, error) {
	if len(s.sockets()) == 0 {
		return nil, fmt.Errorf("unknown shape %q: want one of %v", string(s), []Shape{IPv4, IPv6, Dual, Pair})
	}
	return []byte(s), nil
}

// UnmarshalText sets the shape to that with the name. It returns an error for an unknown name.
func (s *Shape) UnmarshalText(name []byte) error {
	_, err := Shape(name).MarshalText()
	if err == nil {
		*s = Shape(name)
	}
	return err
}

// sockets returns the shape of each single socket, or nothing for an unknown shape.
func (s Shape) sockets() []Shape {
	switch s {
	case IPv4, IPv6, Dual:
		return []Shape{s}
	case Pair:
		return []Shape{IPv4, IPv6}
	}
	return nil
}

// state is what became of a socket of the queue.
type state int

const (
	// queued means that the application has not asked for the socket.
	queued state = iota
	// handed means that the application got the socket, and that the queue keeps a descriptor of it.
	handed
	// released means that the queue has closed its descriptor.
	released
)

// socket is a listening socket of the queue.
type socket struct {
	port  uint16
	shape Shape
	fd    int
	// link is the socket as /proc/PID/fd shows it.
	link  string
	state state
	// most is the largest number of clients that waited since the socket was handed over.
	most int
	// until is when the queue stops waiting for a program that accepts these clients.
	until time.Time
}

// listen returns a socket of the shape that listens on the port.
func listen(port uint16, shape Shape, backlog int) (*socket, error) {
	address := unix.Sockaddr(&unix.SockaddrInet6{Port: int(port)})
	if shape == IPv4 {
		address = &unix.SockaddrInet4{Port: int(port)}
	}
	fd, err := open(shape)
	if err != nil {
		return nil, err
	}
	s := &socket{port: port, shape: shape, fd: fd}
	if err := s.bind(address, backlog); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// open returns a new socket.
func open(shape Shape) (fd int, err error) {
	family := unix.AF_INET6
	if shape == IPv4 {
		family = unix.AF_INET
	}
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}

// bind binds the socket to the address, and listens.
func (s *socket) bind(address unix.Sockaddr, backlog int) error {
	options := map[option]int{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR}: 1, // connections of an earlier container may linger
		// Programs set these options on each connection too, where a notification would cost time. So the queue does not see
		// whether a listener has them, and sets them for connections to inherit: they do no harm to a program without them.
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1,
		{unix.SOL_TCP, unix.TCP_NODELAY}:     1,
	}
	if s.shape == IPv6 {
		options[v6only] = 1
	}
	if s.shape == Dual {
		options[v6only] = 0
	}
	for o, value := range options {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, value); err != nil {
			return err
		}
	}
	if err := unix.Bind(s.fd, address); err != nil {
		return err
	}
	var status unix.Stat_t
	if err := unix.Fstat(s.fd, &status); err != nil {
		return err
	}
	s.link = fmt.Sprintf("socket:[%d]", status.Ino)
	return unix.Listen(s.fd, backlog)
}

// waiting returns the number of clients whose connections nobody has accepted (tcpi_unacked of a listener).
func (s *socket) waiting() int {
	if s.state == released {
		return 0
	}
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.SOL_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Unacked)
}

// release closes the queue's descriptor. The kernel resets the waiting clients, unless the application has the socket.
func (s *socket) release() {
	if s.state != released {
		_ = unix.Close(s.fd)
		s.state = released
	}
}

// adopt gives the socket the options and the backlog that it has with the application.
func (s *socket) adopt(options map[option][]byte, nonblocking bool, backlog int) error {
	// An earlier program may have had the socket, for example to test its configuration.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0); err != nil {
		return err
	}
	for o, value := range options {
		if slices.Contains(doubtfulOptions, o) {
			return fmt.Errorf("option %d of level %d", o.name, o.level)
		}
		if o == v6only {
			continue
		}
		err := unix.SetsockoptString(s.fd, o.level, o.name, string(value))
		if err != nil && !s.refuses(o, value) {
			return fmt.Errorf("option %d of level %d: %w", o.name, o.level, err)
		}
	}
	if err := unix.SetNonblock(s.fd, nonblocking); err != nil {
		return err
	}
	return unix.Listen(s.fd, backlog)
}

// refuses returns true if the kernel refuses the option to a new socket too, as it then did to that of the application.
func (s *socket) refuses(o option, value []byte) bool {
	fd, err := open(s.shape)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.SetsockoptString(fd, o.level, o.name, string(value)) != nil
}
