package gate

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
)

// An API server that cannot reach etcd keeps its connections open, answers pings, and fails or delays each request. The next
// attempt must be able to reach another API server behind the same address.
func TestLeaseClientConnectsAgain(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	tests := map[string]struct {
		answer    http.HandlerFunc
		wantConns int32
	}{
		"no answer":       {answer: hang, wantConns: 2},
		"a server error":  {answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, wantConns: 2},
		"a conflict":      {answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }, wantConns: 1},
		"a success":       {answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }, wantConns: 1},
		"a broken answer": {answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") }, wantConns: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int32
			server := httptest.NewUnstartedServer(tt.answer)
			server.EnableHTTP2 = true
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			}
			server.StartTLS()
			defer server.Close()
			c := leaseClientOf(t, server)
			_, _ = c.get(t.Context())
			_, _ = c.get(t.Context())
			if got := conns.Load(); got != tt.wantConns {
				t.Errorf("two requests made %d connections, want %d", got, tt.wantConns)
			}
		})
	}
}

// leaseClientOf returns a client of the server with the shortest timeout.
func leaseClientOf(t *testing.T, server *httptest.Server) *leaseClient {
	t.Helper()
	credentials := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for file, content := range map[string][]byte{"token": []byte("secret"), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(credentials, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	c, err := newLeaseClient(&fencing.Settings{Namespace: "prod", Lease: "statefulsingleton-db", Duration: time.Second}, credentials)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
