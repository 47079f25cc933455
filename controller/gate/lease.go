package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// requestTimeout is the timeout of a request to the API server, except for a watch.
	requestTimeout = 2 * time.Second
	// maxLease is the maximum size of a response.
	maxLease = 1 << 20
	// microTime is the format of a MicroTime in the Kubernetes API.
	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

// lease has the fields of a Lease (coordination.k8s.io/v1) that the sidecar needs.
type lease struct {
	Metadata struct {
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
	http *http.Client
	// collection is the URL of the Leases of the namespace.
	collection, name string
	// token is the file of the service account's token, which the kubelet renews.
	token string
}

// newLeaseClient returns a client for the Lease, with the credentials in the directory and the address of the API server
// in the environment.
func newLeaseClient(namespace, name, credentials string) (*leaseClient, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("the variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are empty")
	}
	ca, err := os.ReadFile(filepath.Join(credentials, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(credentials, "ca.crt"))
	}
	return &leaseClient{
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
			// A watch over a dead connection must end.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: requestTimeout},
		}},
		collection: "https://" + net.JoinHostPort(host, port) + "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases",
		name:       name,
		token:      filepath.Join(credentials, "token"),
	}, nil
}

func (c *leaseClient) get(ctx context.Context) (*lease, error) {
	return c.do(ctx, http.MethodGet, nil)
}

// renew writes the time of the renewal, if the Lease is still as it was read.
func (c *leaseClient) renew(ctx context.Context, l *lease) (*lease, error) {
	return c.patch(ctx, l, map[string]any{"renewTime": time.Now().UTC().Format(microTime)})
}

// release removes the holder, if the Lease is still as it was read.
func (c *leaseClient) release(ctx context.Context, l *lease) (*lease, error) {
	return c.patch(ctx, l, map[string]any{"holderIdentity": ""})
}

func (c *leaseClient) patch(ctx context.Context, l *lease, spec map[string]any) (*lease, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": l.Metadata.ResourceVersion}, "spec": spec})
	if err != nil {
		return nil, err
	}
	return c.do(ctx, http.MethodPatch, body)
}

func (c *leaseClient) do(ctx context.Context, method string, body []byte) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := c.send(ctx, method, c.collection+"/"+c.name, body)
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

// send sends a request, and returns the response if it is a success.
func (c *leaseClient) send(ctx context.Context, method, target string, body []byte) (*http.Response, error) {
	token, err := os.ReadFile(c.token)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if body != nil {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer func() { _ = response.Body.Close() }()
		message, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, fmt.Errorf("%s Lease %s: %s: %s", method, c.name, response.Status, strings.TrimSpace(string(message)))
	}
	return response, nil
}

// watch calls seen with each state of the Lease since the one that was read, until ctx ends or the watch breaks.
func (c *leaseClient) watch(ctx context.Context, since *lease, seen func(*lease)) error {
	query := url.Values{
		"watch": {"true"}, "fieldSelector": {"metadata.name=" + c.name}, "resourceVersion": {since.Metadata.ResourceVersion}, "timeoutSeconds": {"300"},
	}
	response, err := c.send(ctx, http.MethodGet, c.collection+"?"+query.Encode(), nil)
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
			return fmt.Errorf("watch of the Lease ended with an event %s", event.Type)
		}
		seen(event.Object)
	}
}
