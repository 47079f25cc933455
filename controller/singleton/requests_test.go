package singleton_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Origins of requests: the Client of the reconciler, which represents the cache, and Live.
const (
	fromCache = "cache"
	fromLive  = "live"
)

// requests records each HTTP request that its clients send to the API server.
type requests struct {
	mu   sync.Mutex
	sent []sentRequest
}

// sentRequest is one HTTP request that the API server answered.
type sentRequest struct {
	from string
	// verb is the Kubernetes verb: get, list, watch, create, update, patch or delete.
	verb                                   string
	resource, subresource, namespace, name string
	query                                  url.Values
	// metadataOnly is true if the request asks for PartialObjectMetadata.
	metadataOnly bool
	// body is the object, the patch or the DeleteOptions; nil if the request has no body.
	body map[string]any
	code int
	// received is the number of bytes of the answer that were read.
	received *int
}

// client returns a client with the permissions of the controller. Its requests are recorded with the given origin.
func (r *requests) client(t *testing.T, from string) client.WithWatch {
	t.Helper()
	recorded := rest.CopyConfig(controllerConfig)
	recorded.Wrap(func(next http.RoundTripper) http.RoundTripper { return &recorder{r, from, next} })
	c, err := client.NewWithWatch(recorded, client.Options{Scheme: scheme.Scheme, Mapper: controllerClient.RESTMapper()})
	if err != nil {
		t.Fatalf("connect to kube-apiserver with recorded requests: %v", err)
	}
	return c
}

// newRecorded returns a world with a singleton, and controllers whose requests are recorded.
func newRecorded(t *testing.T, changes ...func(*v1.StatefulSingleton)) (*world, *requests, controllers) {
	t.Helper()
	w, _ := newSteps(t, changes...)
	sent := &requests{}
	return w, sent, newReconciler(sent.client(t, fromCache), sent.client(t, fromLive), w.clock)
}

// taken returns the requests since the last call.
func (r *requests) taken() []sentRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
}

// reads returns the reads of whole objects from the API server since the last call, for example "get pods".
func (r *requests) reads() map[string]int {
	reads := map[string]int{}
	for _, sent := range r.taken() {
		if sent.from == fromLive && sent.isRead() && !sent.metadataOnly {
			reads[sent.verb+" "+sent.resource]++
		}
	}
	return reads
}

// recorder is the transport of one client of requests.
type recorder struct {
	*requests
	from string
	next http.RoundTripper
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := parseRequest(request)
	sent.from = r.from
	if request.Body != nil {
		data, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(data))
		if sent.body, err = parseBody(data); err != nil {
			return nil, fmt.Errorf("read the body of %s: %w", sent, err)
		}
	}
	response, err := r.next.RoundTrip(request)
	if err == nil {
		sent.code, sent.received = response.StatusCode, new(int)
		response.Body = &countedBody{response.Body, sent.received}
		r.mu.Lock()
		r.sent = append(r.sent, sent)
		r.mu.Unlock()
	}
	return response, err
}

// countedBody counts the bytes that are read from a response.
type countedBody struct {
	io.ReadCloser
	read *int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	*b.read += n
	return n, err
}

// parseRequest reads the verb and the object from the method, path and query.
func parseRequest(request *http.Request) sentRequest {
	s := sentRequest{query: request.URL.Query(), metadataOnly: strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadata")}
	path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	path = path[min(len(path), map[string]int{"api": 2, "apis": 3}[path[0]]):]
	if len(path) > 2 && path[0] == "namespaces" {
		s.namespace, path = path[1], path[2:]
	}
	path = append(path, "", "", "")
	s.resource, s.name, s.subresource = path[0], path[1], path[2]
	switch s.verb = strings.ToLower(request.Method); {
	case s.query.Get("watch") != "":
		s.verb = "watch"
	case s.verb == "get" && s.name == "":
		s.verb = "list"
	case s.verb == "post":
		s.verb = "create"
	case s.verb == "put":
		s.verb = "update"
	}
	return s
}

func parseBody(data []byte) (map[string]any, error) {
	body := map[string]any{}
	if json.Unmarshal(data, &body) == nil {
		return body, nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil) // protobuf
	if err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(object)
}

// isRead returns true if the request only reads.
func (s sentRequest) isRead() bool { return slices.Contains([]string{"get", "list", "watch"}, s.verb) }

// succeeded returns true if the API server accepted the request.
func (s sentRequest) succeeded() bool { return s.code < 300 }

// isLive returns true if the API server must answer the read from etcd by quorum, with whole objects. With a
// resourceVersion, the API server may answer from its watch cache.
func (s sentRequest) isLive() bool {
	return s.from == fromLive && !s.metadataOnly && !s.query.Has("resourceVersion") && !s.query.Has("resourceVersionMatch")
}

// has returns true if the body has the field, even if its value is null.
func (s sentRequest) has(path ...string) bool {
	_, found, err := unstructured.NestedFieldNoCopy(s.body, path...)
	return found && err == nil
}

// String returns the request without its body, for example "live: list pods?labelSelector=app=db".
func (s sentRequest) String() string {
	text := s.from + ": " + s.verb + " " + s.resource
	for _, part := range []string{s.name, s.subresource} {
		if part != "" {
			text += "/" + part
		}
	}
	if s.metadataOnly {
		text += " (metadata)"
	}
	if query, err := url.QueryUnescape(s.query.Encode()); err == nil && query != "" {
		text += "?" + query
	}
	return text
}

// The recorder distinguishes live reads of whole objects from other reads.
func TestRequests(t *testing.T) {
	for i, test := range []struct {
		path, accept, from string
		want               string
		wantLive           bool
	}{
		{"/pods?labelSelector=app%3Ddb", "", fromLive, "live: list pods?labelSelector=app=db", true},
		{"/pods?limit=5", "", fromLive, "live: list pods?limit=5", true},
		{"/pods/db-1", "", fromLive, "live: get pods/db-1", true},
		{"/pods", "", fromCache, "cache: list pods", false},
		{"/pods?resourceVersion=0", "", fromLive, "live: list pods?resourceVersion=0", false},
		{"/pods/db-1?resourceVersion=0", "", fromLive, "live: get pods/db-1?resourceVersion=0", false},
		{"/pods/db-1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", fromLive, "live: get pods/db-1 (metadata)", false},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://host/api/v1/namespaces/shop"+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", test.accept)
		sent := parseRequest(request)
		sent.from = test.from
		if got := sent.String(); got != test.want || sent.isLive() != test.wantLive || !sent.isRead() {
			t.Errorf("request %d is %q, live %t, want %q, live %t", i, got, sent.isLive(), test.want, test.wantLive)
		}
	}
}
