package gate

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// maxConnections is the maximum number of concurrent clients. It limits what a client on the network can use of the
// sidecar's memory and files.
const maxConnections = 32

// Serve serves /healthz and /status on the address until ctx ends. Handoffs do not need it.
func (s *Sidecar) Serve(ctx context.Context, address string) error {
	server := &http.Server{
		Handler:        s.handler(),
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   5 * time.Second,
		IdleTimeout:    30 * time.Second,
		MaxHeaderBytes: 4 << 10,
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
	public := served{Delivered: status.Delivered, Released: status.Released, Since: status.Since}
	if status.Problem != "" {
		public.Problem = seeLog
	}
	return public
}

func (s *Sidecar) handler() http.Handler {
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
	return mux
}
