package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The log is not sampled: each handoff is in the log, even if there are many in a second.
func TestLogIsComplete(t *testing.T) {
	const lines = 1000
	written := logged(t, func(log logr.Logger) {
		for range lines {
			log.Info("handoff")
		}
	})
	if got := bytes.Count(written, []byte(`"msg":"handoff"`)); got != lines {
		t.Errorf("%d lines, want %d", got, lines)
	}
}

// A long error, for example of a webhook, does not fill the log at each retry.
func TestLogIsShort(t *testing.T) {
	long := "begin " + strings.Repeat("x", 100_000) + " end"
	for name, write := range map[string]func(logr.Logger){
		"error":      func(log logr.Logger) { log.Error(errors.New(long), "Reconciler error") },
		"message":    func(log logr.Logger) { log.Info(long) },
		"value":      func(log logr.Logger) { log.Info("handoff", "why", long) },
		"every line": func(log logr.Logger) { log.WithValues("why", long).Info("handoff") },
	} {
		t.Run(name, func(t *testing.T) {
			written := logged(t, write)
			if !bytes.Contains(written, []byte("begin ")) || !bytes.Contains(written, []byte(" end")) || len(written) > 5000 {
				t.Errorf("the line has %d bytes, want 5000 at most with the beginning and the end", len(written))
			}
		})
	}
}

// logged returns what the program logs.
func logged(t *testing.T, write func(logr.Logger)) []byte {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	stderr := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = stderr }()
	log, err := newLogger("info", "json")
	if err != nil {
		t.Fatal(err)
	}
	write(log)
	written, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// A client that sends many wrong tokens cannot use the whole share of the controller in API Priority and Fairness.
func TestMetricsAuthenticationIsLimited(t *testing.T) {
	var reviews atomic.Int32
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reviews.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&authenticationv1.TokenReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		})
	}))
	defer apiServer.Close()
	filter, err := authorizeMetrics(&rest.Config{Host: apiServer.URL, QPS: -1}, apiServer.Client())
	if err != nil {
		t.Fatal(err)
	}
	handler, err := filter(logr.Discard(), http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	const beyond = metricsAuthQPS // requests beyond the burst, which take a second
	begin := time.Now()
	for i := range metricsAuthBurst + beyond {
		request := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		request.Header.Set("Authorization", fmt.Sprintf("Bearer wrong-%d", i))
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if response.Code != http.StatusInternalServerError {
			t.Fatalf("response for a wrong token: %d %s, want 500", response.Code, response.Body)
		}
	}
	if got := reviews.Load(); got != metricsAuthBurst+beyond {
		t.Errorf("%d reviews at the API server, want %d", got, metricsAuthBurst+beyond)
	}
	if elapsed := time.Since(begin); elapsed < 900*time.Millisecond {
		t.Errorf("%d requests took %s, want a second at least", metricsAuthBurst+beyond, elapsed)
	}
}
