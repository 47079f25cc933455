package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// etcdWatch is the method with which an API server receives the changes in etcd.
const etcdWatch = "/etcdserverpb.Watch/Watch"

// etcdFault is what is wrong with the connection of an API server to etcd. The zero value means that nothing is wrong.
type etcdFault struct {
	// Cut stops all bytes in both directions. Connections stay open, as in a network that loses all packets.
	Cut bool
	// Delay is how long after etcd the API server receives changes. It receives answers to its reads and writes at once.
	Delay time.Duration
}

// String returns an empty string if nothing is wrong.
func (f etcdFault) String() string {
	switch {
	case f.Cut:
		return "cut off from etcd"
	case f.Delay > 0:
		return fmt.Sprintf("late by %s with changes in etcd", f.Delay)
	}
	return ""
}

// etcdProxy connects one API server to etcd, with the current fault. It forwards every gRPC method, and knows only which one
// is the watch.
type etcdProxy struct {
	// etcd is the address of etcd.
	etcd string
	// faultFile has the current fault, which the commands of this program change. Without the file, nothing is wrong.
	faultFile string
}

// faultPeriod is how often a proxy that keeps something back looks whether the fault has ended.
const faultPeriod = 10 * time.Millisecond

func (p etcdProxy) set(f etcdFault) error {
	if f == (etcdFault{}) {
		return os.RemoveAll(p.faultFile)
	}
	return writeFile(p.faultFile, encode(f))
}

// fault returns the current fault. A file that cannot be read lets nothing through.
func (p etcdProxy) fault() etcdFault {
	content, err := os.ReadFile(p.faultFile)
	if errors.Is(err, fs.ErrNotExist) {
		return etcdFault{}
	}
	var f etcdFault
	if err := errors.Join(err, json.Unmarshal(content, &f)); err != nil {
		return etcdFault{Cut: true}
	}
	return f
}

// serve forwards the connections of the listener to etcd. It returns only with an error.
func (p etcdProxy) serve(listener net.Listener) error {
	client, err := grpc.NewClient("passthrough:///"+p.etcd, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
		// The API server sends a ping every 30 s. The default closes connections with more than one in five minutes.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error { return p.forward(client, call) }))
	return server.Serve(cuttableListener{listener, p})
}

// forward forwards one call, and ends it as etcd does.
func (p etcdProxy) forward(client *grpc.ClientConn, call grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(call)
	incoming, _ := metadata.FromIncomingContext(call.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(call.Context(), incoming.Copy()))
	defer cancel()
	upstream, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		// An error of the API server ends the context of the call.
		_ = pump(call, upstream)
		_ = upstream.CloseSend()
	}()
	if method == etcdWatch {
		err = p.pumpLate(ctx, upstream, call)
	} else {
		err = pump(upstream, call)
	}
	call.SetTrailer(upstream.Trailer())
	return err
}

// messages is a direction of a call.
type messages interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// pump forwards messages. It returns nil at the end of the stream.
func pump(from, to messages) error {
	for {
		m := &message{}
		if err := from.RecvMsg(m); err != nil {
			return ignoreEOF(err)
		}
		if err := to.SendMsg(m); err != nil {
			return err
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lateMessage is a message of a watch with the time at which it arrived, or the error that ended the watch.
type lateMessage struct {
	*message
	at  time.Time
	err error
}

// maxLate is the maximum number of delayed messages of a watch. Beyond it, the messages wait in etcd.
const maxLate = 1 << 16

// pumpLate is pump with the current delay of watches.
func (p etcdProxy) pumpLate(ctx context.Context, from, to messages) error {
	queue := make(chan lateMessage, maxLate)
	go func() {
		for {
			m := lateMessage{message: &message{}}
			m.err = from.RecvMsg(m.message)
			m.at = time.Now()
			select {
			case queue <- m:
			case <-ctx.Done():
				return
			}
			if m.err != nil {
				return
			}
		}
	}()
	for {
		select {
		case m := <-queue:
			if err := p.await(ctx, m.at); err != nil {
				return err
			}
			if m.err != nil {
				return ignoreEOF(m.err)
			}
			if err := to.SendMsg(m.message); err != nil {
				return err
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// await waits until a message that arrived at the time may be forwarded.
func (p etcdProxy) await(ctx context.Context, at time.Time) error {
	for {
		wait := time.Until(at.Add(p.fault().Delay))
		if wait <= 0 {
			return nil
		}
		select {
		case <-time.After(min(wait, faultPeriod)):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// message is any message of etcd: its decoder keeps all fields, because it knows none.
type message = emptypb.Empty

// cuttableListener accepts connections whose bytes stop while the proxy is cut.
type cuttableListener struct {
	net.Listener
	etcdProxy
}

// Accept returns the next connection.
func (l cuttableListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &cuttableConn{Conn: conn, proxy: l.etcdProxy}, nil
}

type cuttableConn struct {
	net.Conn
	proxy  etcdProxy
	closed atomic.Bool
}

// Read returns what arrived, after the end of a cut.
func (c *cuttableConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.awaitHealed()
	return n, err
}

// Write sends after the end of a cut.
func (c *cuttableConn) Write(b []byte) (int, error) {
	c.awaitHealed()
	return c.Conn.Write(b)
}

// Close closes the connection also during a cut.
func (c *cuttableConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *cuttableConn) awaitHealed() {
	for !c.closed.Load() && c.proxy.fault().Cut {
		time.Sleep(faultPeriod)
	}
}
