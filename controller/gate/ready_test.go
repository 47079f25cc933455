package gate

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const kubelet = "kube-probe/1.36"

// probed is a sidecar that runs the readiness probe of container app.
type probed struct {
	*Sidecar
	t         *testing.T
	readiness *Readiness
	server    *httptest.Server
	log       fmt.Stringer
}

// newProbed returns a sidecar with a probe in JSON.
func newProbed(t *testing.T, probe string) probed {
	t.Helper()
	s, log := newSidecar(t)
	value := base64.StdEncoding.EncodeToString([]byte(`{"probe":` + probe + `,"ports":[{"name":"web","containerPort":8080}]}`))
	r := NewReadiness(s, "127.0.0.1", []string{"POD_IP=127.0.0.1", signal.ProbeEnvPrefix + "app=" + value, signal.ProbeEnvPrefix + "broken=e30="})
	server := httptest.NewServer(s.handler(r))
	t.Cleanup(server.Close)
	p := probed{s, t, r, server, log}
	p.hold()
	return p
}

// awaitWaiting waits until a request waits for the release.
func (p probed) awaitWaiting() {
	p.t.Helper()
	eventually(p.t, "the request waits", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.changed != nil
	})
}

func (p probed) release() { p.t.Helper(); p.annotate(p.t, signalOf(uid, 3)) }
func (p probed) hold()    { p.t.Helper(); p.annotate(p.t, "") }

// ask sends the request of the kubelet, and returns the status of the answer.
func (p probed) ask(ctx context.Context, container string) int {
	p.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.server.URL+signal.ProbePathPrefix+container, nil)
	must(p.t, err)
	request.Header.Set("User-Agent", kubelet)
	response, err := p.server.Client().Do(request)
	if err != nil {
		if ctx.Err() == nil {
			p.t.Error(err)
		}
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// asking sends the request, and returns the channel with its status.
func (p probed) asking() <-chan int {
	answer := make(chan int, 1)
	go func() { answer <- p.ask(p.t.Context(), "app") }()
	return answer
}

func (p probed) want(answer <-chan int, want int) {
	p.t.Helper()
	select {
	case got := <-answer:
		if got != want {
			p.t.Errorf("status %d, want %d; log:\n%s", got, want, p.log)
		}
	case <-time.After(30 * time.Second):
		p.t.Fatal("no answer")
	}
}

// application is an HTTP server whose status can change.
type application struct {
	status, asked atomic.Int32
}

// newApplication returns an application, and a sidecar that runs its readiness probe.
func newApplication(t *testing.T, status int) (*application, probed) {
	t.Helper()
	a := &application{}
	a.status.Store(int32(status))
	return a, newProbed(t, httpProbe(t, func(w http.ResponseWriter, _ *http.Request) {
		a.asked.Add(1)
		w.WriteHeader(int(a.status.Load()))
	}))
}

// httpProbe returns the probe of an HTTP server.
func httpProbe(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return `{"httpGet":{"path":"/","port":` + portOf(t, server.URL) + `}}`
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	return u.Port()
}

// A request that the kubelet sent to a held pod is answered once the pod was released and the application is ready.
func TestReadinessWaitsForTheRelease(t *testing.T) {
	a, p := newApplication(t, http.StatusInternalServerError)
	answer := p.asking()
	p.awaitWaiting()
	if n := a.asked.Load(); n != 0 {
		t.Errorf("the application of a held pod was asked %d times", n)
	}
	p.release()
	eventually(t, "the application is asked", func() bool { return a.asked.Load() > 1 })
	select {
	case status := <-answer:
		t.Fatalf("status %d while the application is not ready", status)
	default:
	}
	a.status.Store(http.StatusOK)
	p.want(answer, http.StatusOK)
}

// wantOneCheck asks, and fails unless the answer is the status that the application has now.
func (p probed) wantOneCheck(a *application, status int) {
	p.t.Helper()
	a.status.Store(int32(status))
	before := a.asked.Load()
	p.want(p.asking(), status)
	if n := a.asked.Load() - before; n != 1 {
		p.t.Errorf("the application was asked %d times for one request", n)
	}
}

// After the first success each request is one check, with the status of the application.
func TestReadinessChecksOnceLater(t *testing.T) {
	a, p := newApplication(t, http.StatusOK)
	p.release()
	for _, status := range []int{http.StatusOK, http.StatusTeapot, http.StatusNotFound, http.StatusInternalServerError, http.StatusOK} {
		p.wantOneCheck(a, status)
	}
	if got := strings.Count(p.log.String(), "Container is ready"); got != 2 {
		t.Errorf("%d lines say that the container is ready, want 2:\n%s", got, p.log)
	}
}

// A sidecar that starts in a released pod checks once for each request. The application may have failed in the meantime.
func TestReadinessAfterARestart(t *testing.T) {
	a, p := newApplication(t, 0)
	p.status, p.sawHeld = Status{}, false
	p.release()
	p.wantOneCheck(a, http.StatusInternalServerError)
	p.wantOneCheck(a, http.StatusOK)
}

// A pod that is held again is not ready, even if the application is.
func TestReadinessOfAPodThatIsHeldAgain(t *testing.T) {
	a, p := newApplication(t, http.StatusOK)
	p.release()
	p.want(p.asking(), http.StatusOK)
	p.hold()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got := p.ask(ctx, "app"); got != 0 {
		t.Errorf("status %d for a held pod, want no answer yet", got)
	}
	a.status.Store(http.StatusInternalServerError)
	p.release()
	answer := p.asking()
	eventually(t, "the application is asked", func() bool { return a.asked.Load() > 3 })
	a.status.Store(http.StatusOK)
	p.want(answer, http.StatusOK)
}

// Many clients cause no more checks than one.
func TestReadinessOfManyClients(t *testing.T) {
	const clients = 20
	var at, most atomic.Int32
	var ready atomic.Bool
	p := newProbed(t, httpProbe(t, func(w http.ResponseWriter, _ *http.Request) {
		defer at.Add(-1)
		if n := at.Add(1); n > most.Load() && !ready.Load() {
			most.Store(n)
		}
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	p.release()
	var answers []<-chan int
	for range clients {
		answers = append(answers, p.asking())
	}
	eventually(t, "the application is asked", func() bool { return most.Load() > 0 })
	time.Sleep(50 * time.Millisecond) // the requests wait
	ready.Store(true)
	for _, answer := range answers {
		p.want(answer, http.StatusOK)
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d checks ran at once before the application was ready, want 1", n)
	}
}

// In a pod with fencing, readiness waits for the Lease, and not for the signal.
func TestReadinessWaitsForTheLease(t *testing.T) {
	a, p := newApplication(t, http.StatusOK)
	p.Fenced = true
	p.release()
	answer := p.asking()
	p.awaitWaiting()
	if n := a.asked.Load(); n != 0 || p.Status().Released {
		t.Errorf("the application of a pod without the Lease was asked %d times; status %+v", n, p.Status())
	}
	p.leaseReleases(true, 3, false)
	p.want(answer, http.StatusOK)
	p.hold() // the signal comes later than the Lease
	p.want(p.asking(), http.StatusOK)
}

// A container whose clients can connect is ready before its main process runs, and until that answers for the first time.
func TestReadinessOfQueuedClients(t *testing.T) {
	a, p := newApplication(t, http.StatusInternalServerError)
	p.Fenced, p.Patience = true, time.Hour
	answer := p.asking()
	p.awaitWaiting()
	p.setReceiving("app", true)
	p.want(answer, http.StatusOK)
	if n := a.asked.Load(); n != 0 {
		t.Errorf("a main process that does not run was asked %d times", n)
	}
	p.leaseReleases(true, 3, false)
	p.want(p.asking(), http.StatusOK)
	a.status.Store(http.StatusOK)
	p.want(p.asking(), http.StatusOK)
	a.status.Store(http.StatusInternalServerError)
	p.want(p.asking(), http.StatusInternalServerError)
}

// A container whose queue was closed is not ready at once.
func TestReadinessOfAClosedQueue(t *testing.T) {
	_, p := newApplication(t, http.StatusOK)
	p.Fenced, p.Patience = true, time.Hour
	p.setReceiving("app", true)
	p.want(p.asking(), http.StatusOK)
	p.setReceiving("app", false)
	p.want(p.asking(), http.StatusServiceUnavailable)
}

// With hostNetwork, a check can reach the next pod on the node.
func TestReadinessOfAPodThatIsHeldDuringACheck(t *testing.T) {
	var p probed
	p = newProbed(t, httpProbe(t, func(http.ResponseWriter, *http.Request) { p.hold() }))
	p.release()
	p.want(p.asking(), http.StatusServiceUnavailable)
}

// A request with a body would keep its connection after the client is gone.
func TestReadinessRefusesABody(t *testing.T) {
	p := newProbed(t, `{"tcpSocket":{"port":1}}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.server.URL+"/ready/app", strings.NewReader("body"))
	must(t, err)
	response, err := p.server.Client().Do(request)
	must(t, err)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest || !response.Close {
		t.Errorf("status %d, connection closes: %t, want 400 and true", response.StatusCode, response.Close)
	}
}

// A check has its own timeout, also if that is longer than the sidecar waits for an application to become ready.
func TestReadinessTimeoutIsLongerThanThePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signal.Probe{HTTPGet: &signal.HTTPGet{Port: float64(1)}, PeriodSeconds: 1, TimeoutSeconds: 60}
		s := &Sidecar{Log: slog.New(slog.DiscardHandler), status: Status{Released: true, Since: time.Now()}}
		r := NewReadiness(s, "127.0.0.1", nil)
		r.probes["app"], r.polling["app"] = p, make(chan struct{}, 1)
		r.checker.http.Transport = roundTripper(func(request *http.Request) (*http.Response, error) {
			select {
			case <-time.After(30 * time.Second):
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			case <-request.Context().Done():
				return nil, request.Context().Err()
			}
		})
		if err := r.answer(t.Context(), "app", p, kubelet); err != nil {
			t.Errorf("not ready: %v", err)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// An application that accepts connections and never answers must not use up the sidecar's files.
func TestHandshakesThatHangEnd(t *testing.T) {
	transport := newChecker("127.0.0.1").http.Transport.(*http.Transport)
	if transport.TLSHandshakeTimeout == 0 || transport.TLSHandshakeTimeout > time.Minute {
		t.Errorf("the timeout of handshakes is %s", transport.TLSHandshakeTimeout)
	}
}

func TestReadinessGivesUp(t *testing.T) {
	_, p := newApplication(t, http.StatusInternalServerError)
	answer := func() int {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return statusOf(p.readiness.answer(ctx, "app", p.readiness.probes["app"], kubelet))
	}
	if got := answer(); got != http.StatusServiceUnavailable {
		t.Errorf("held: status %d, want 503", got)
	}
	p.release()
	if got := answer(); got != http.StatusInternalServerError && got != http.StatusGatewayTimeout {
		t.Errorf("not ready: status %d, want that of the application", got)
	}
}

func TestReadinessOfUnknownContainers(t *testing.T) {
	p := newProbed(t, `{"tcpSocket":{"port":1}}`)
	for _, container := range []string{"other", "broken", ""} {
		if got := p.ask(t.Context(), container); got != http.StatusNotFound {
			t.Errorf("container %q: status %d, want 404", container, got)
		}
	}
	if want := "container=broken variable=READINESS_PROBE_broken"; !strings.Contains(p.log.String(), want) {
		t.Errorf("the log does not have %q:\n%s", want, p.log)
	}
}

// check runs the probe of a released pod once.
func check(t *testing.T, probe string) error {
	t.Helper()
	r := newProbed(t, probe).readiness
	return r.checker.check(t.Context(), r.probes["app"], kubelet)
}

// The application gets the request that it would get from the kubelet.
func TestHTTPRequest(t *testing.T) {
	tests := map[string]struct {
		probe      string // of httpGet, after the port
		wantTarget string
		wantHost   string      // default: that of the server
		want       http.Header // default: those of the kubelet
	}{
		"plain":            {probe: `"path":"/ready"`, wantTarget: "/ready"},
		"no path":          {probe: `"scheme":"HTTP"`, wantTarget: "/"},
		"with a query":     {probe: `"path":"/ready?deep=1&x=%20"`, wantTarget: "/ready?deep=1&x=%20"},
		"without a slash":  {probe: `"path":"ready"`, wantTarget: "/ready"},
		"host of a header": {probe: `"path":"/","httpHeaders":[{"name":"Host","value":"db.example"}]`, wantTarget: "/", wantHost: "db.example"},
		"own headers": {
			probe: `"path":"/","httpHeaders":[{"name":"X-A","value":"1"},{"name":"X-A","value":"2"},{"name":"User-Agent","value":"mine"}]`, wantTarget: "/",
			want: http.Header{"X-A": {"1", "2"}, "User-Agent": {"mine"}, "Accept": {"*/*"}},
		},
		"no Accept": {probe: `"path":"/","httpHeaders":[{"name":"Accept","value":""}]`, wantTarget: "/", want: http.Header{"User-Agent": {kubelet}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got *http.Request
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
			defer server.Close()

			must(t, check(t, `{"httpGet":{"port":`+portOf(t, server.URL)+`,`+test.probe+`}}`))

			want := test.want
			if want == nil {
				want = http.Header{"User-Agent": {kubelet}, "Accept": {"*/*"}}
			}
			want.Set("Connection", "close")
			if diff := cmp.Diff(want, got.Header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if got.RequestURI != test.wantTarget {
				t.Errorf("target %q, want %q", got.RequestURI, test.wantTarget)
			}
			if test.wantHost != "" && got.Host != test.wantHost {
				t.Errorf("host %q, want %q", got.Host, test.wantHost)
			}
		})
	}
}

func TestHTTPResult(t *testing.T) {
	mux := http.NewServeMux()
	for code := 200; code < 600; code++ {
		if code != 304 {
			mux.HandleFunc(fmt.Sprint("/", code), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		}
	}
	mux.Handle("/redirect", http.RedirectHandler("/500", http.StatusFound))
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	mux.HandleFunc("/partial", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("half"))
	})
	mux.HandleFunc("/101", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
		}
	})
	mux.HandleFunc("/cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	t.Cleanup(plain.Close) // after the parallel tests
	t.Cleanup(secure.Close)
	tests := map[string]struct {
		path string
		want int // 200 for ready
	}{
		"200": {"/200", 200}, "204": {"/204", 200}, "399": {"/399", 200},
		"400": {"/400", 400}, "404": {"/404", 404}, "599": {"/599", 599},
		"a redirect that is not followed":       {"/redirect", 200},
		"slower than the timeout of one second": {"/slow", http.StatusGatewayTimeout},
		"a long answer":                         {"/long", 200},
		"no answer":                             {"/cut", http.StatusBadGateway},
		"a body that is cut off":                {"/partial", 200},
		"a switch of protocols":                 {"/101", http.StatusBadGateway},
	}
	for name, test := range tests {
		for scheme, server := range map[string]*httptest.Server{"HTTP": plain, "HTTPS": secure} {
			t.Run(scheme+" "+name, func(t *testing.T) {
				t.Parallel()
				timeout := "30" // a busy machine can take more than a second
				if test.want == http.StatusGatewayTimeout {
					timeout = "1"
				}
				err := check(t, `{"timeoutSeconds":`+timeout+`,"httpGet":{"path":"`+test.path+`?hunter2","scheme":"`+scheme+`","port":`+portOf(t, server.URL)+`}}`)
				if err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error has the query: %v", err)
				}
				if got := statusOf(err); err == nil && test.want != http.StatusOK || err != nil && got != test.want {
					t.Errorf("error %v, status %d, want %d", err, got, test.want)
				}
			})
		}
	}
}

func TestTCPResult(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }() // the garbage collector closes a listener that nothing refers to
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(t, err)
	tests := map[string]struct {
		probe string
		ready bool
	}{
		"open":               {`{"tcpSocket":{"port":` + port + `}}`, true},
		"open, by its host":  {`{"tcpSocket":{"port":` + port + `,"host":"localhost"}}`, true},
		"open, in quotes":    {`{"tcpSocket":{"port":"` + port + `"}}`, true},
		"on another address": {`{"tcpSocket":{"port":` + port + `,"host":"127.0.0.2"}}`, false},
		"an unknown name":    {`{"tcpSocket":{"port":"sql"}}`, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := check(t, test.probe); (err == nil) != test.ready {
				t.Errorf("error %v, want ready: %t", err, test.ready)
			}
		})
	}
}

func TestCheckInterval(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{
		-time.Second: 5 * time.Millisecond, 0: 5 * time.Millisecond, 2 * time.Second: 200 * time.Millisecond, time.Hour: time.Second,
	} {
		if got := checkInterval(since); got != want {
			t.Errorf("%s after the release: %s, want %s", since, got, want)
		}
	}
}
