package gate

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// maxBody is the kubelet's (pkg/probe/http).
	maxBody = 10 << 10
	// maxHeader is the maximum size of the headers of a response.
	maxHeader = 256 << 10
)

// checker runs readiness probes as the kubelet runs them (pkg/probe): the same request, the same time limit and the
// same result. Only a redirect is a success without another request, although the kubelet follows redirects to the same
// host.
type checker struct {
	// podIP is the address of the pod.
	podIP string
	// dialer makes connections with SO_LINGER, which keeps closed connections for one second instead of a minute.
	dialer *net.Dialer
	http   *http.Client
}

// statusError is a failed check of an application that answered with an HTTP status.
type statusError int

// Error returns what the kubelet reports.
func (e statusError) Error() string {
	return "HTTP probe failed with statuscode: " + strconv.Itoa(int(e))
}

func newChecker(podIP string) *checker {
	dialer := &net.Dialer{Control: lingerShortly}
	return &checker{
		podIP:  podIP,
		dialer: dialer,
		http: &http.Client{
			Transport: &http.Transport{
				DialContext: dialer.DialContext,
				// As the kubelet has it. The timeout of a check does not end a handshake.
				TLSHandshakeTimeout: 10 * time.Second,
				IdleConnTimeout:     90 * time.Second,
				// The memory of the sidecar is limited.
				MaxResponseHeaderBytes: maxHeader,
				// The kubelet verifies no certificate either.
				TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
				ForceAttemptHTTP2:  true,
				DisableKeepAlives:  true,
				DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// check runs the probe once. The error says why the container is not ready.
func (c *checker) check(ctx context.Context, p *signal.Probe, userAgent string) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout())
	defer cancel()
	if p.HTTPGet != nil {
		return c.checkHTTP(ctx, p, userAgent)
	}
	return c.checkTCP(ctx, p)
}

func (c *checker) checkHTTP(ctx context.Context, p *signal.Probe, userAgent string) error {
	get := p.HTTPGet
	port, err := p.PortNumber(get.Port)
	if err != nil {
		return err
	}
	target, err := url.Parse(get.Path)
	if err != nil {
		target = &url.URL{Path: get.Path}
	}
	target.Scheme, target.Host = strings.ToLower(cmp.Or(get.Scheme, "http")), net.JoinHostPort(cmp.Or(get.Host, c.podIP), port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return withoutURL(err)
	}
	request.Header = probeHeaders(get.Headers, userAgent)
	request.Host = request.Header.Get("Host")
	response, err := c.http.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return statusError(response.StatusCode)
	}
	// The status decides, also if the body is cut off.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxBody))
	return nil
}

// probeHeaders returns the headers of a probe. A user can replace User-Agent and Accept, and remove both with an empty
// value.
func probeHeaders(wanted []signal.HTTPHeader, userAgent string) http.Header {
	headers := http.Header{}
	for _, h := range wanted {
		headers.Add(h.Name, h.Value)
	}
	if _, ok := headers["User-Agent"]; !ok {
		headers.Set("User-Agent", userAgent)
	}
	if _, ok := headers["Accept"]; !ok {
		headers.Set("Accept", "*/*")
	} else if headers.Get("Accept") == "" {
		headers.Del("Accept")
	}
	return headers
}

func (c *checker) checkTCP(ctx context.Context, p *signal.Probe) error {
	port, err := p.PortNumber(p.TCPSocket.Port)
	if err != nil {
		return err
	}
	conn, err := c.dialer.DialContext(ctx, "tcp", net.JoinHostPort(cmp.Or(p.TCPSocket.Host, c.podIP), port))
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}

// checkInterval returns how long to wait before the next check of a container that is not ready since its release. It
// is a tenth of the time since the release, from 5 milliseconds to a second.
func checkInterval(sinceRelease time.Duration) time.Duration {
	return min(max(sinceRelease/10, 5*time.Millisecond), time.Second)
}

// withoutURL returns the error without the URL that net/http adds. A query can have a secret, and the error is logged.
func withoutURL(err error) error {
	if of := (*url.Error)(nil); errors.As(err, &of) {
		return of.Err
	}
	return err
}
