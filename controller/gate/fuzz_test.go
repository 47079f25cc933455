package gate

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// After each change of the annotation, the signal file exists only if the annotation is a signal for this pod. The file
// then contains that signal.
func FuzzSidecarFollows(f *testing.F) {
	own, foreign := signalOf(uid, 1), signalOf("another", 9)
	for _, annotations := range [][2]string{
		{"", ""}, {"", own}, {own, ""}, {own, signalOf(uid, 2)}, {own, foreign}, {foreign, own}, {own, own + own}, {own, own + "\n"},
		{own, own[:len(own)-1]}, {"null", "[]"}, {own, strings.ToUpper(own)}, {own, "\xff" + own}, {own, own + strings.Repeat(" ", signal.MaxLength)},
		{own, `{"uid":"` + uid + `","epoch":0}`}, {own, `{"uid":"another","epoch":2,"uid":"` + uid + `"}`},
	} {
		f.Add([]byte(annotations[0]), []byte(annotations[1]))
	}
	s := &Sidecar{Volume: Volume(f.TempDir()), Podinfo: f.TempDir(), UID: uid, Log: slog.New(slog.DiscardHandler)}
	f.Fuzz(func(t *testing.T, before, now []byte) {
		for _, annotation := range [][]byte{before, now} {
			s.annotate(t, string(annotation))
			want, err := signal.Parse(annotation)
			releases := err == nil && want.UID == uid
			got, err := s.Volume.Signal(uid)
			if (err == nil) != releases || releases && got != want {
				t.Fatalf("annotation %q: the signal file has %+v (error %v), want a signal: %t", annotation, got, err, releases)
			}
			if _, err := os.Lstat(s.Volume.signalFile()); !releases && !os.IsNotExist(err) {
				t.Errorf("annotation %q: the signal file exists (error %v)", annotation, err)
			}
			status := s.Status()
			if status.Released != releases || releases && status.Epoch != want.Epoch || (status.Problem == "") != (releases || len(annotation) == 0) {
				t.Errorf("annotation %q: status %+v", annotation, status)
			}
		}
	})
}

// Each request gets a valid HTTP response or none, within a short time. Only a correct request gets status 200.
func FuzzServe(f *testing.F) {
	for _, request := range []string{
		"", "\r\n\r\n", "GET", "GET /status HTTP/1.1\r\nHost: x\r\n\r\n", "GET /healthz HTTP/1.0\r\n\r\n", "HEAD /status HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /status HTTP/1.1\r\n\r\n", "POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "GET //status HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", "GET /status%00 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://elsewhere/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"POST /status HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", "GET /status HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
		"GET /status HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 9000) + "\r\n\r\n", "GET /" + strings.Repeat("a", 9000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /status HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	panicked := &panicWatch{}
	log.SetOutput(panicked)
	f.Cleanup(func() { log.SetOutput(os.Stderr) })
	s := &Sidecar{UID: uid, status: Status{Delivered: true}}
	ctx, address := f.Context(), freeAddress(f)
	go func() { _ = s.Serve(ctx, address, NewReadiness(s, "127.0.0.1", nil)) }()

	f.Fuzz(func(t *testing.T, request []byte) {
		var connection net.Conn
		eventually(t, "the sidecar listens", func() (ok bool) {
			var err error
			connection, err = net.Dial("tcp", address)
			return err == nil
		})
		defer func() { _ = connection.Close() }()
		must(t, connection.SetDeadline(time.Now().Add(20*time.Second)))
		_, _ = connection.Write(request) // the server may close the connection early
		_ = connection.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(connection)
		if err, ok := errors.AsType[net.Error](err); ok && err.Timeout() {
			t.Fatalf("no response, and the connection is still open")
		}
		if most := 1024 * (1 + len(request)/16); len(answer) > most {
			t.Errorf("%d bytes of response to a request of %d bytes", len(answer), len(request))
		}
		if panicked.Load() {
			t.Fatal("the server panicked")
		}
		if len(answer) == 0 {
			return
		}
		method, _, _ := strings.Cut(string(request), " ")
		response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("response %q: %v", answer, err)
		}
		defer func() { _ = response.Body.Close() }()
		switch code := response.StatusCode; {
		case code == http.StatusOK:
			if !bytes.Contains(request, []byte("/status")) && !bytes.Contains(request, []byte("/healthz")) && !bytes.Contains(request, []byte("OPTIONS *")) {
				t.Errorf("response %q", answer)
			}
		case code >= 300 && code < 500, code == http.StatusContinue, code == http.StatusNotImplemented, code == http.StatusHTTPVersionNotSupported:
		default:
			t.Errorf("response %q", answer)
		}
	})
}

// panicWatch is a log output. It is true after the HTTP server logged a panic.
type panicWatch struct{ atomic.Bool }

func (w *panicWatch) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		w.Store(true)
	}
	return len(line), nil
}

func freeAddress(f *testing.F) string {
	f.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(f, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}
