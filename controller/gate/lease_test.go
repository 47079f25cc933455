package gate

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/authority"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
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
			ca := authority.New(t)
			server.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Certify(t)}}
			server.StartTLS()
			defer server.Close()
			c := leaseClientOf(t, server.URL, ca)
			_, _ = c.get(t.Context())
			_, _ = c.get(t.Context())
			if got := conns.Load(); got != tt.wantConns {
				t.Errorf("two requests made %d connections, want %d", got, tt.wantConns)
			}
		})
	}
}

// A fenced pod trusts the certificate authorities that its policy has pinned, and no other that users of the namespace add.
func TestLeaseClientTrustsPinnedAuthorities(t *testing.T) {
	old, renewed, foreign := authority.New(t), authority.New(t), authority.New(t)
	type authorities = []*authority.Authority
	tests := map[string]struct {
		pinned authorities
		// before and after are in ca.crt before and after the API server gets another certificate, which signs has signed.
		before, after authorities
		signs         *authority.Authority
		wantRefused   bool
	}{
		"nothing changes":                           {authorities{old}, authorities{old}, authorities{old}, old, false},
		"both are pinned":                           {authorities{old, renewed}, authorities{old, renewed}, authorities{old, renewed}, renewed, false},
		"both are pinned, and the old one goes":     {authorities{old, renewed}, authorities{old, renewed}, authorities{renewed}, renewed, false},
		"both are pinned, and the new one comes":    {authorities{old, renewed}, authorities{old}, authorities{old, renewed}, renewed, false},
		"only the old one is pinned":                {authorities{old}, authorities{old, renewed}, authorities{old, renewed}, renewed, true},
		"a foreign one comes":                       {authorities{old}, authorities{old}, authorities{old, foreign}, old, false},
		"a foreign one comes and signs":             {authorities{old}, authorities{old}, authorities{foreign, old}, foreign, true},
		"a foreign one signs, without any other":    {authorities{old}, authorities{old}, authorities{foreign}, foreign, true},
		"a foreign one replaces the one that signs": {authorities{old}, authorities{old}, authorities{foreign}, old, true},
		"no certificate":                            {authorities{old}, authorities{old}, nil, old, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var now atomic.Pointer[tls.Config]
			certify := func(by *authority.Authority) {
				now.Store(&tls.Config{Certificates: []tls.Certificate{by.Certify(t)}})
			}
			var asked atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				_, _ = io.WriteString(w, "{}")
			}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return now.Load(), nil }}
			certify(old)
			server.StartTLS()
			defer server.Close()

			c := leaseClientOf(t, server.URL, test.pinned...)
			c.duration = time.Minute // for the longest timeout, because handshakes are slow on a busy machine
			writeAuthorities(t, c, test.before)
			if _, err := c.get(t.Context()); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			certify(test.signs)
			server.CloseClientConnections()
			writeAuthorities(t, c, test.after)
			_, err := c.get(t.Context())
			if refused := err != nil; refused != test.wantRefused || refused != (asked.Load() == 1) {
				t.Errorf("after the change: %v, %d requests; want the server to be refused: %t", err, asked.Load()-1, test.wantRefused)
			}
		})
	}
}

func writeAuthorities(t *testing.T, c *leaseClient, authorities []*authority.Authority) {
	t.Helper()
	var bundle []byte
	for _, a := range authorities {
		bundle = append(bundle, a.PEM()...)
	}
	must(t, os.WriteFile(c.ca, bundle, 0o600))
}

// leaseClientOf returns a client of the API server that waits half a second for an answer. The authorities are pinned.
func leaseClientOf(t *testing.T, url string, authorities ...*authority.Authority) *leaseClient {
	t.Helper()
	settings := &signal.LeaseSettings{Namespace: "prod", Lease: "statefulsingleton-db", Duration: 5 * time.Second, APIServer: signal.APIServer{URL: url}}
	for _, a := range authorities {
		settings.APIServer.Authorities = append(settings.APIServer.Authorities, signal.Fingerprint(a.DER()))
	}
	c := newLeaseClient(settings, t.TempDir())
	must(t, os.WriteFile(c.token, []byte("secret"), 0o600))
	writeAuthorities(t, c, authorities)
	return c
}
