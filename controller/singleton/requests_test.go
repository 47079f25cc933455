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

	. "github.com/onsi/gomega"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// taken returns the requests since the last call.
func (r *requests) taken() []sentRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
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

// preconditions returns the uid and the resourceVersion that the write depends on. They come from the object, the patch
// or the DeleteOptions. Each is empty if the write does not depend on it.
func (s sentRequest) preconditions() (uid, resourceVersion string) {
	for _, field := range []string{"metadata", "preconditions"} {
		if uid == "" {
			uid, _, _ = unstructured.NestedString(s.body, field, "uid")
		}
		if resourceVersion == "" {
			resourceVersion, _, _ = unstructured.NestedString(s.body, field, "resourceVersion")
		}
	}
	return uid, resourceVersion
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

// The recorder distinguishes live reads from other reads, and writes with preconditions from other writes.
func TestRequests(t *testing.T) {
	w := newWorld(t)
	pod := w.warmPod("db-1", withCommand)
	// The guards let the controller delete only this budget.
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.namespace, Name: "statefulsingleton-db",
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: "db", UID: "stfs", Controller: new(true),
		}},
	}}
	w.Expect(c.Create(t.Context(), budget)).To(Succeed())
	sent := &requests{}
	live, cached := sent.client(t, fromLive), sent.client(t, fromCache)
	key, inNamespace := client.ObjectKeyFromObject(pod), client.InNamespace(w.namespace)
	pods := func() client.ObjectList {
		return &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "PodList"}}
	}
	metadata := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	uid, version := string(pod.UID), w.pod("db-1").ResourceVersion
	tests := []struct {
		do                   func() error
		want                 string
		wantLive             bool
		wantUID, wantVersion string
	}{
		{do: func() error { return live.List(t.Context(), pods(), inNamespace, client.MatchingLabels{"app": "db"}) },
			want: "live: list pods?labelSelector=app=db", wantLive: true},
		{do: func() error { return live.List(t.Context(), pods(), inNamespace, client.Limit(5)) }, want: "live: list pods?limit=5", wantLive: true},
		{do: func() error { return cached.List(t.Context(), pods(), inNamespace) }, want: "cache: list pods"},
		{do: func() error {
			return live.List(t.Context(), pods(), inNamespace, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
		}, want: "live: list pods?resourceVersion=0"},
		{do: func() error { return live.Get(t.Context(), key, metadata) }, want: "live: get pods/db-1 (metadata)"},
		{do: func() error {
			return live.Get(t.Context(), key, pod.DeepCopy(), &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}})
		}, want: "live: get pods/db-1?resourceVersion=0"},
		{do: func() error { return live.Get(t.Context(), key, pod.DeepCopy()) }, want: "live: get pods/db-1", wantLive: true},
		{do: func() error {
			patch := mergePatch(t, map[string]any{"metadata": map[string]any{"uid": uid, "resourceVersion": version, "labels": map[string]any{"a": nil}}})
			return cached.Patch(t.Context(), pod.DeepCopy(), patch)
		}, want: "cache: patch pods/db-1", wantUID: uid, wantVersion: version},
		{do: func() error {
			return cached.Delete(t.Context(), budget.DeepCopy(), client.Preconditions{UID: &budget.UID, ResourceVersion: &budget.ResourceVersion})
		}, want: "cache: delete poddisruptionbudgets/statefulsingleton-db", wantUID: string(budget.UID), wantVersion: budget.ResourceVersion},
	}
	for _, test := range tests {
		if err := test.do(); err != nil {
			t.Fatalf("%s: %v", test.want, err)
		}
		all := sent.taken()
		if len(all) != 1 || all[0].String() != test.want || !all[0].succeeded() {
			t.Errorf("recorded %v, want [%s]", all, test.want)
			continue
		}
		if got := all[0].isLive(); got != test.wantLive {
			t.Errorf("%s: live is %t, want %t", test.want, got, test.wantLive)
		}
		gotUID, gotVersion := all[0].preconditions()
		if gotUID != test.wantUID || gotVersion != test.wantVersion || all[0].isRead() != (test.wantUID == "") {
			t.Errorf("%s: preconditions uid %q and resourceVersion %q, want %q and %q; a read: %t", test.want, gotUID, gotVersion, test.wantUID, test.wantVersion, all[0].isRead())
		}
	}
}

func mergePatch(t *testing.T, patch map[string]any) client.Patch {
	t.Helper()
	data, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	return client.RawPatch("application/strategic-merge-patch+json", data)
}
