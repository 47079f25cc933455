package gate

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Serve answers /healthz and /status on the address until ctx ends. It is there
// for people who look; the handoff needs none of it.
func (s *Sidecar) Serve(ctx context.Context, address string) error {
	server := &http.Server{
		Addr:           address,
		Handler:        s.handler(),
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   5 * time.Second,
		IdleTimeout:    30 * time.Second,
		MaxHeaderBytes: 4 << 10,
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return server.ListenAndServe()
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
