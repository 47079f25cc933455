package gate

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// maxConnections is the maximum number of concurrent clients. It limits what a client on the network can use of the
	// sidecar's memory and files. Waiting readiness probes of the kubelet also count.
	maxConnections = 64
	// writeTimeout is how long a client may take to read an answer.
	writeTimeout = 5 * time.Second
)

// Serve serves /healthz, /status and the readiness of the held containers on the address until ctx ends.
func (s *Sidecar) Serve(ctx context.Context, address string, r *Readiness) error {
	server := &http.Server{
		Handler: s.handler(r),
		// A limit for the body would also end a request that waits.
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    4 << 10,
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return server.Serve(netutil.LimitListener(listener, maxConnections))
}

// served is the response of /status. Every client that can reach the pod can read it; with hostNetwork, the address
// is that of the node. It has no UID and no epoch, because a signal consists of both.
type served struct {
	Delivered bool      `json:"delivered"`
	Released  bool      `json:"released"`
	Since     time.Time `json:"since,omitzero"`
	Problem   string    `json:"problem,omitempty"`
}

// seeLog is the text that is served for every problem.
const seeLog = "see the log of container status-sidecar"

func (s *Sidecar) served() served {
	status := s.Status()
	public := served{Delivered: status.Delivered, Released: status.Released, Since: status.Since.UTC()}
	if status.Problem != "" {
		public.Problem = seeLog
	}
	return public
}

func (s *Sidecar) handler(r *Readiness) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Status().Delivered {
			http.Error(w, "the gate is not delivered yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.served())
	})
	mux.Handle("GET "+signal.ProbePathPrefix+"{container}", r)
	return mux
}
