package main

import (
	"context"
	"io"
	"log"
	"net"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	healthPeriod = time.Second
	// unhealthyAfter is the number of failed checks in a row after which a server gets no connections.
	unhealthyAfter = 3
)

// balancer spreads connections over the API servers. It does not look into them.
type balancer struct {
	mu       sync.Mutex
	backends []*backend
	// next is the number of connections so far.
	next int
}

// backend is an API server behind the balancer.
type backend struct {
	address string
	// failed counts the failed checks since the last one that succeeded.
	failed int
	// conns has the open connections of clients to this server.
	conns map[net.Conn]bool
}

func newBalancer(addresses []string) *balancer {
	b := &balancer{}
	for _, address := range addresses {
		b.backends = append(b.backends, &backend{address: address, failed: unhealthyAfter, conns: map[net.Conn]bool{}})
	}
	return b
}

// serve forwards the connections of the listener. It returns only with an error.
func (b *balancer) serve(listener net.Listener) error {
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go b.forward(client)
	}
}

// forward connects a client to the next server that accepts the connection, healthy servers first.
func (b *balancer) forward(client net.Conn) {
	defer func() { _ = client.Close() }()
	for _, server := range b.candidates() {
		upstream, err := net.DialTimeout("tcp", server.address, time.Second)
		if err != nil {
			continue
		}
		b.track(server, client, true)
		defer b.track(server, client, false)
		go func() {
			_, _ = io.Copy(upstream, client)
			_ = upstream.Close()
		}()
		_, _ = io.Copy(client, upstream)
		return
	}
}

// candidates returns the servers in the order in which to try them. Connections rotate over the healthy servers.
func (b *balancer) candidates() []*backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	healthy := slices.DeleteFunc(slices.Clone(b.backends), func(s *backend) bool { return s.failed >= unhealthyAfter })
	if len(healthy) == 0 {
		healthy = b.backends
	}
	b.next++
	n := b.next % len(healthy)
	return slices.Concat(healthy[n:], healthy[:n], b.backends)
}

func (b *balancer) track(server *backend, client net.Conn, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if open {
		server.conns[client] = true
	} else {
		delete(server.conns, client)
	}
}

// check checks the health of each server periodically.
func (b *balancer) check(ctx context.Context, healthy func(address string) error) {
	for _, server := range b.backends {
		go wait.UntilWithContext(ctx, func(context.Context) { b.report(server, healthy(server.address)) }, healthPeriod)
	}
}

// report counts a check. It closes the connections to a server that has become unhealthy, because clients would keep them.
func (b *balancer) report(server *backend, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		server.failed = 0
		return
	}
	server.failed++
	if server.failed != unhealthyAfter {
		return
	}
	log.Printf("balancer: %s is unhealthy: %v", server.address, err)
	for client := range server.conns {
		_ = client.Close()
	}
}
