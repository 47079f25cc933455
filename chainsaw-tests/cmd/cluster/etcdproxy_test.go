package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const etcdRange = "/etcdserverpb.KV/Range"

// echoedBy starts a server that returns each message, and a proxy in front of it. It returns the proxy and a client of it. The
// channel receives a value for each message that the server has returned.
func echoedBy(t *testing.T) (etcdProxy, *grpc.ClientConn, <-chan struct{}) {
	t.Helper()
	echoed := make(chan struct{}, 10)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error {
		for {
			m := &text{}
			if err := call.RecvMsg(m); err != nil {
				return ignoreEOF(err)
			}
			if m.Value == "fail" {
				return status.Error(codes.ResourceExhausted, "as asked")
			}
			if err := call.SendMsg(m); err != nil {
				return err
			}
			echoed <- struct{}{}
		}
	}))
	upstream, front := localListener(t), localListener(t)
	go func() { _ = server.Serve(upstream) }()
	t.Cleanup(server.Stop)
	p := etcdProxy{etcd: upstream.Addr().String(), faultFile: filepath.Join(t.TempDir(), "fault")}
	go func() { _ = p.serve(front) }()
	client, err := grpc.NewClient("passthrough:///"+front.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return p, client, echoed
}

// text is a message with a field, of which the proxy does not know.
type text = wrapperspb.StringValue

func localListener(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// call sends one message and returns the answer.
func call(ctx context.Context, client *grpc.ClientConn, method, message string) (string, error) {
	answer := &text{}
	err := client.Invoke(ctx, method, wrapperspb.String(message), answer)
	return answer.Value, err
}

// openWatch starts a watch, and returns a function that sends a message, and a channel with the answers.
func openWatch(t *testing.T, client *grpc.ClientConn) (send func(string), answers <-chan string) {
	t.Helper()
	watch, err := client.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, etcdWatch)
	must(t, err)
	received := make(chan string, 10)
	go func() {
		for m := (&text{}); watch.RecvMsg(m) == nil; {
			received <- m.Value
		}
	}()
	return func(message string) { must(t, watch.SendMsg(wrapperspb.String(message))) }, received
}

func wantMessage(t *testing.T, from <-chan string, want string) {
	t.Helper()
	select {
	case got := <-from:
		if got != want {
			t.Fatalf("message %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no message, want %q", want)
	}
}

func TestEtcdProxyForwards(t *testing.T) {
	_, client, _ := echoedBy(t)
	if got, err := call(t.Context(), client, etcdRange, "one"); got != "one" || err != nil {
		t.Errorf("answer %q, error %v", got, err)
	}
	if _, err := call(t.Context(), client, etcdRange, "fail"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("error %v, want that of the server", err)
	}
	send, answers := openWatch(t, client)
	send("two")
	wantMessage(t, answers, "two")
}

func TestEtcdProxyDelaysOnlyWatches(t *testing.T) {
	p, client, echoed := echoedBy(t)
	send, answers := openWatch(t, client)
	must(t, p.set(etcdFault{Delay: time.Hour}))
	send("late")
	send("later")
	<-echoed
	<-echoed
	if got, err := call(t.Context(), client, etcdRange, "read"); got != "read" || err != nil {
		t.Errorf("a read is delayed too: answer %q, error %v", got, err)
	}
	select {
	case got := <-answers:
		t.Errorf("message %q came at once", got)
	default:
	}
	must(t, p.set(etcdFault{}))
	wantMessage(t, answers, "late")
	wantMessage(t, answers, "later")

	must(t, p.set(etcdFault{Delay: 200 * time.Millisecond}))
	sent := time.Now()
	send("soon")
	wantMessage(t, answers, "soon")
	if took := time.Since(sent); took < 200*time.Millisecond {
		t.Errorf("it took %s, want the delay", took)
	}
}

func TestEtcdProxyCuts(t *testing.T) {
	p, client, echoed := echoedBy(t)
	send, answers := openWatch(t, client)
	send("before")
	wantMessage(t, answers, "before")
	<-echoed
	must(t, p.set(etcdFault{Cut: true}))
	send("during")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if got, err := call(ctx, client, etcdRange, "read"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("answer %q, error %v, want that nothing answers", got, err)
	}
	if len(echoed) > 0 {
		t.Error("a message reached etcd")
	}
	must(t, p.set(etcdFault{}))
	wantMessage(t, answers, "during")
	if got, err := call(t.Context(), client, etcdRange, "read"); got != "read" || err != nil {
		t.Errorf("after the cut: answer %q, error %v", got, err)
	}
}
