package gate

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
)

// Real sockets on all addresses are told apart. A socket on one address is none of them.
func TestFindListeners(t *testing.T) {
	listen := func(network, address string) uint16 {
		t.Helper()
		listener, err := net.Listen(network, address)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		return uint16(listener.Addr().(*net.TCPAddr).Port)
	}
	v4, dual, one := listen("tcp4", "0.0.0.0:0"), listen("tcp", "[::]:0"), listen("tcp4", "127.0.0.1:0")
	v6 := listenV6Only(t, 0)
	pair := listen("tcp4", "0.0.0.0:0")
	listenV6Only(t, pair)
	l := &listeners{known: map[string]queue.Shape{}}
	want := map[uint16]queue.Shape{v4: queue.IPv4, dual: queue.Dual, v6: queue.IPv6, pair: queue.Pair}
	for range 2 { // the second time, without a connection
		got, err := l.find(context.Background(), []uint16{v4, dual, one, v6, pair})
		must(t, err)
		if !maps.Equal(got, want) {
			t.Errorf("found %v, want %v", got, want)
		}
	}
	if len(l.known) != 2 {
		t.Errorf("%d sockets took a connection, want 2", len(l.known))
	}
}

// listenV6Only listens on [::] for IPv6 only, and returns the port.
func listenV6Only(t *testing.T, port uint16) uint16 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
	must(t, unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}))
	must(t, unix.Listen(fd, 1))
	address, err := unix.Getsockname(fd)
	must(t, err)
	return uint16(address.(*unix.SockaddrInet6).Port)
}

func FuzzListeners(f *testing.F) {
	f.Add("  sl  local_address\n   0: 00000000:1F90 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n")
	f.Add("   0: 00000000:GGGG 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n")
	f.Fuzz(func(t *testing.T, content string) {
		path := filepath.Join(t.TempDir(), "tcp")
		must(t, os.WriteFile(path, []byte(content), 0o600))
		_, _ = readListeners(path)
	})
}
