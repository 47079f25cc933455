package gate

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// maxConnections is how many clients are served at once. Others wait: whoever can
// reach the pod must not use up the memory and the files of the sidecar.
const maxConnections = 32

// Serve answers /healthz and /status on the address until ctx ends. It is there
// for people who look; the handoff needs none of it.
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
		_ = json.NewEncoder(w).Encode(s.Status())
	})
	return mux
}
