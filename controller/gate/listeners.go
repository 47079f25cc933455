package gate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
)

const (
	// stateListen is the state of a listening socket in /proc/net/tcp (net/tcp_states.h).
	stateListen = "0A"
	// dialTimeout is the timeout of a connection inside the pod.
	dialTimeout = 200 * time.Millisecond
)

// listeners finds sockets that listen on every address of a port, in the network of the pod.
type listeners struct {
	// known has the shape of each socket on [::], by its inode, because it takes a connection to find out.
	known map[string]queue.Shape
}

// listener is a socket that listens on every address of a port.
type listener struct {
	port  uint16
	inode string
}

// find returns the shapes of the ports on which a process listens on every address.
func (l *listeners) find(ctx context.Context, ports []uint16) (map[uint16]queue.Shape, error) {
	v4, err := readListeners("/proc/net/tcp")
	if err != nil {
		return nil, err
	}
	v6, err := readListeners("/proc/net/tcp6")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the node may have no IPv6
		return nil, err
	}
	found := map[uint16]queue.Shape{}
	for _, port := range ports {
		on := func(s listener) bool { return s.port == port }
		i4, i6 := slices.IndexFunc(v4, on), slices.IndexFunc(v6, on)
		switch {
		case i4 >= 0 && i6 >= 0:
			found[port] = queue.Pair
		case i4 >= 0:
			found[port] = queue.IPv4
		case i6 >= 0:
			if shape := l.shapeOf(ctx, v6[i6]); shape != "" {
				found[port] = shape
			}
		}
	}
	return found, nil
}

// shapeOf returns the shape of a socket on [::], or nothing if that is not clear. It connects once for each socket.
func (l *listeners) shapeOf(ctx context.Context, s listener) queue.Shape {
	shape, known := l.known[s.inode]
	if known {
		return shape
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(s.port))))
	switch {
	case err == nil:
		_ = conn.Close()
		shape = queue.Dual
	case errors.Is(err, syscall.ECONNREFUSED):
		shape = queue.IPv6
	default:
		return ""
	}
	l.known[s.inode] = shape
	return shape
}

// readListeners reads a file like /proc/net/tcp.
func readListeners(path string) ([]listener, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var found []listener
	for lines := bufio.NewScanner(file); ; {
		if !lines.Scan() {
			return found, lines.Err()
		}
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		address, number, _ := strings.Cut(fields[1], ":")
		if strings.Trim(address, "0") != "" {
			continue // one address
		}
		port, err := strconv.ParseUint(number, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		found = append(found, listener{port: uint16(port), inode: fields[9]})
	}
}
