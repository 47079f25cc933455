package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// maxRequestTimeout is the maximum timeout of a request to the API server, except for a watch.
	maxRequestTimeout = 2 * time.Second
	// watchSeconds is the duration of a watch.
	watchSeconds = 300
	// pingTimeout is how long a connection may be silent before a ping, and how long the answer may take.
	pingTimeout = time.Second
	// maxLease is the maximum size of a response.
	maxLease = 1 << 20
	// microTime is the format of a MicroTime in the Kubernetes API.
	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

// lease has the fields of a Lease (coordination.k8s.io/v1) that the sidecar needs.
type lease struct {
	Metadata struct {
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		HolderIdentity   string `json:"holderIdentity"`
		LeaseTransitions int64  `json:"leaseTransitions"`
	} `json:"spec"`
}

// version returns a number that grows with each write of the Lease (KEP-5504).
func (l *lease) version() uint64 {
	n, _ := strconv.ParseUint(l.Metadata.ResourceVersion, 10, 64)
	return n
}

// leaseClient reads and writes one Lease. A client library of Kubernetes would multiply the size of the gate, which is
// copied into every held pod.
type leaseClient struct {
	// collection is the URL of the Leases of the namespace.
	collection, name string
	// token and ca are the files of the service account's token and of certificates. Both can change.
	token, ca string
	// authorities are the fingerprints of the certificates in ca that can have signed the API server's. Users of the
	// namespace can add other certificates.
	authorities []string
	duration    time.Duration

	// requests and watches have connections of their own: a watch must not delay a renewal.
	requests, watches apiConnection
}

// apiConnection has the HTTP client of some requests.
type apiConnection struct {
	mu sync.Mutex
	// client is nil while there is none. ca is the content of the file with its certificate authorities.
	client *http.Client
	ca     []byte
}

// newLeaseClient returns a client for the Lease, with the credentials in the directory.
func newLeaseClient(s *signal.LeaseSettings, credentials string) *leaseClient {
	return &leaseClient{
		collection:  s.APIServer.URL + "/apis/coordination.k8s.io/v1/namespaces/" + s.Namespace + "/leases",
		name:        s.Lease,
		token:       filepath.Join(credentials, "token"),
		ca:          filepath.Join(credentials, "ca.crt"),
		authorities: s.APIServer.Authorities,
		duration:    s.Duration,
	}
}

// connect returns the HTTP client of the connection. It creates the client again after a change of the certificates. The client
// uses no proxy of the environment.
func (c *leaseClient) connect(to *apiConnection) (*http.Client, error) {
	ca, err := os.ReadFile(c.ca)
	if err != nil {
		return nil, err
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.client != nil && bytes.Equal(ca, to.ca) {
		return to.client, nil
	}
	roots, err := pinned(ca, c.authorities)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.ca, err)
	}
	to.close()
	to.ca = ca
	to.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
		IdleConnTimeout:   90 * time.Second,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingTimeout, PingTimeout: pingTimeout},
	}}
	return to.client, nil
}

// close makes connect create the client again. c.mu is locked.
func (c *apiConnection) close() {
	if c.client != nil {
		c.client.CloseIdleConnections()
		c.client = nil
	}
}

// pinned returns the certificates with the fingerprints.
func pinned(ca []byte, fingerprints []string) (*x509.CertPool, error) {
	roots, found := x509.NewCertPool(), 0
	for block, rest := pem.Decode(ca); block != nil; block, rest = pem.Decode(rest) {
		if !slices.Contains(fingerprints, signal.Fingerprint(block.Bytes)) {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		roots.AddCert(certificate)
		found++
	}
	if found == 0 {
		return nil, fmt.Errorf("no certificate has a SHA-256 of %s in the environment of the sidecar (%s), so the API server cannot be verified. "+
			"If the certificate authority of the API server has changed, restart the pod. Otherwise somebody has changed ConfigMap kube-root-ca.crt of the "+
			"namespace. To restore it, delete it: kubectl delete configmap kube-root-ca.crt", signal.AuthoritiesEnv, strings.Join(fingerprints, ", "))
	}
	return roots, nil
}

func (c *leaseClient) get(ctx context.Context) (*lease, error) {
	return c.do(ctx, http.MethodGet, nil)
}

// renew writes the time of the renewal and annotations, if the Lease is still as it was read.
func (c *leaseClient) renew(ctx context.Context, l *lease, annotations map[string]string) (*lease, error) {
	return c.patch(ctx, l, annotations, map[string]any{
		"renewTime": time.Now().UTC().Format(microTime), "leaseDurationSeconds": int(c.duration.Seconds()),
	})
}

// release removes the holder, if the Lease is still as it was read.
func (c *leaseClient) release(ctx context.Context, l *lease) (*lease, error) {
	return c.patch(ctx, l, nil, map[string]any{"holderIdentity": ""})
}

func (c *leaseClient) patch(ctx context.Context, l *lease, annotations map[string]string, spec map[string]any) (*lease, error) {
	metadata := map[string]any{"uid": l.Metadata.UID, "resourceVersion": l.Metadata.ResourceVersion}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return nil, err
	}
	return c.do(ctx, http.MethodPatch, body)
}

func (c *leaseClient) do(ctx context.Context, method string, body []byte) (*lease, error) {
	// Several requests must fit into the time until main processes stop.
	ctx, cancel := context.WithTimeout(ctx, min(c.duration/10, maxRequestTimeout))
	defer cancel()
	response, err := c.send(ctx, &c.requests, method, c.collection+"/"+c.name, body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	l := &lease{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxLease)).Decode(l); err != nil {
		return nil, fmt.Errorf("decode the Lease: %w", err)
	}
	return l, nil
}

// leaseError is an answer of the API server that is no success.
type leaseError struct {
	code int
	text string
}

// Error returns the request and the answer.
func (e leaseError) Error() string { return e.text }

// send sends a request, and returns the response if it is a success. After a failure, the next request connects again, because an
// API server that cannot reach etcd keeps its connections open and answers pings, and a new connection may reach another.
func (c *leaseClient) send(ctx context.Context, to *apiConnection, method, target string, body []byte) (*http.Response, error) {
	response, err := c.trySend(ctx, to, method, target, body)
	answer, answered := errors.AsType[leaseError](err)
	if err != nil && (!answered || answer.code >= http.StatusInternalServerError) {
		to.mu.Lock()
		defer to.mu.Unlock()
		to.close()
	}
	return response, err
}

func (c *leaseClient) trySend(ctx context.Context, to *apiConnection, method, target string, body []byte) (*http.Response, error) {
	client, err := c.connect(to)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(c.token)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("User-Agent", "statefulsingleton-gate")
	if body != nil {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer func() { _ = response.Body.Close() }()
		message, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, leaseError{response.StatusCode, fmt.Sprintf("%s Lease %s: %s: %s", method, c.name, response.Status, strings.TrimSpace(string(message)))}
	}
	return response, nil
}

// watch calls seen with each state of the Lease since the one that was read, until ctx ends or the watch breaks.
func (c *leaseClient) watch(ctx context.Context, since *lease, seen func(*lease)) error {
	// A proxy can keep a dead connection open.
	ctx, cancel := context.WithTimeout(ctx, (watchSeconds+30)*time.Second)
	defer cancel()
	query := url.Values{
		"watch": {"true"}, "fieldSelector": {"metadata.name=" + c.name}, "resourceVersion": {since.Metadata.ResourceVersion},
		"timeoutSeconds": {strconv.Itoa(watchSeconds)},
	}
	response, err := c.send(ctx, &c.watches, http.MethodGet, c.collection+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	for events := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string `json:"type"`
			Object *lease `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		if event.Type != "ADDED" && event.Type != "MODIFIED" || event.Object == nil {
			return fmt.Errorf("the watch of Lease %s ended with an event %s", c.name, event.Type)
		}
		seen(event.Object)
	}
}
