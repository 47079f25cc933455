package main

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// named starts a server that sends its name to each client, and returns its address.
func named(t *testing.T, name string) string {
	t.Helper()
	listener := localListener(t)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(name))
		}
	}()
	return listener.Addr().String()
}

// connect returns a connection through the balancer, and the name of its server.
func connect(t *testing.T, address string) (net.Conn, string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	name := make([]byte, 1)
	_, err = io.ReadFull(conn, name)
	must(t, err)
	return conn, string(name)
}

func TestBalancer(t *testing.T) {
	gone := localListener(t)
	b := newBalancer([]string{named(t, "a"), named(t, "b"), gone.Addr().String()})
	must(t, gone.Close())
	front := localListener(t)
	go func() { _ = b.serve(front) }()
	address := front.Addr().String()
	connections := func(n int) map[string]int {
		count := map[string]int{}
		for range n {
			_, name := connect(t, address)
			count[name]++
		}
		return count
	}
	if got := connections(6); got["a"]+got["b"] != 6 || got["a"] == 0 || got["b"] == 0 {
		t.Errorf("before the first check: %v, want all at the servers that accept connections", got)
	}
	b.report(b.backends[0], nil)
	b.report(b.backends[1], nil)
	if diff := cmp.Diff(map[string]int{"a": 2, "b": 2}, connections(4)); diff != "" {
		t.Errorf("connections by server (-want +got):\n%s", diff)
	}
	var ofB net.Conn
	for name := ""; name != "b"; {
		ofB, name = connect(t, address)
	}
	bad := errors.New("bad")
	b.report(b.backends[1], bad)
	b.report(b.backends[1], bad)
	if got := connections(2); got["b"] != 1 {
		t.Errorf("after two failed checks: %v, want that b gets connections", got)
	}
	b.report(b.backends[1], bad)
	if diff := cmp.Diff(map[string]int{"a": 3}, connections(3)); diff != "" {
		t.Errorf("connections while b is unhealthy (-want +got):\n%s", diff)
	}
	if _, err := ofB.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection to b: %v, want its end", err)
	}
	b.report(b.backends[1], nil)
	if got := connections(2); got["b"] != 1 {
		t.Errorf("after b has recovered: %v", got)
	}
}
