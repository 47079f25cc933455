package main

import (
	"context"
	"io"
	"log"
	"net"
	"slices"
	"sync"
	"time"
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
	var healthy, unhealthy []*backend
	for _, server := range b.backends {
		if server.failed < unhealthyAfter {
			healthy = append(healthy, server)
		} else {
			unhealthy = append(unhealthy, server)
		}
	}
	b.next++
	return append(rotate(healthy, b.next), rotate(unhealthy, b.next)...)
}

func rotate(servers []*backend, n int) []*backend {
	if len(servers) == 0 {
		return nil
	}
	n %= len(servers)
	return slices.Concat(servers[n:], servers[:n])
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
	var checks sync.WaitGroup
	for _, server := range b.backends {
		checks.Go(func() {
			for ctx.Err() == nil {
				b.report(server, healthy(server.address))
				select {
				case <-ctx.Done():
				case <-time.After(healthPeriod):
				}
			}
		})
	}
	checks.Wait()
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
