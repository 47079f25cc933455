package observe

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// These constants bound the memory for a Snapshot, and for reading it. Users choose how many pods a selector matches,
// and how large the pods are.
const (
	// MaxPods is the maximum number of pods that the selector matches, and of pods with the singleton's label.
	MaxPods = 250
	// podsPerPage is the number of pods that one request reads. Most singletons need one request.
	podsPerPage = 16
	// singletonsPerPage is the number of StatefulSingletons that one request reads.
	singletonsPerPage = 250
	// maxNames is the maximum number of objects of one kind that the pods may refer to.
	maxNames = 250
	// namesAtOnce is the number of these objects that are read concurrently.
	namesAtOnce = 4
	// MaxBytes is the maximum size in bytes of the pods, and of the objects that they refer to, in one Snapshot. It
	// counts trimmed objects, encoded as protobuf.
	MaxBytes = 3 << 20
	// longString is the size in bytes above which trim cuts or removes a string. It is longer than every string that
	// package handoff compares.
	longString = 256
)

// Responses up to this size in bytes are read concurrently. Larger responses are read and decoded one at a time.
const (
	listAtOnce   = 1 << 20
	objectAtOnce = 128 << 10
)

// TooManyPodsError is the error if the pods of a singleton exceed MaxPods, MaxBytes or maxNames. No decision is
// possible then, because a pod that was not read may run.
type TooManyPodsError struct {
	// What says which bound is exceeded.
	What      string
	Singleton *v1.StatefulSingleton
}

// Error says which bound is exceeded, and what to do.
func (e *TooManyPodsError) Error() string {
	namespace, picked := e.Singleton.Namespace, metav1.FormatLabelSelector(e.Singleton.Spec.Selector.Meta())
	return fmt.Sprintf("%s. The controller releases no pod and removes no finalizer until fewer pods match. Delete the pods that have ended: "+
		"kubectl delete pod -n %s -l '%s' --field-selector=status.phase=Failed. If pods of another application match, create a StatefulSingleton with a narrower selector",
		e.What, namespace, picked)
}

// reading is one call of Observe. It bounds the memory of all its reads.
type reading struct {
	Observer
	singleton *v1.StatefulSingleton
	bytes     atomic.Int64
	// leaseRead is true after the Lease was read.
	leaseRead bool
}

// keep counts a trimmed object. It returns an error above MaxBytes.
func (r *reading) keep(o interface{ Size() int }) error {
	if r.bytes.Add(int64(o.Size())) > MaxBytes {
		return &TooManyPodsError{fmt.Sprintf("the pods, and the objects that they refer to, take more than %d MiB", MaxBytes>>20), r.singleton}
	}
	return nil
}

// listPages lists pods page by page, and trims each page before it reads the next.
func (r *reading) listPages(ctx context.Context, match client.ListOption) (all []corev1.Pod, err error) {
	for next, first := "", true; first || next != ""; first = false {
		if next != "" && len(all) <= podsPerPage {
			if err := r.countPods(ctx, match); err != nil {
				return nil, err
			}
		}
		var page corev1.PodList
		err := oneAtATime(ctx, listAtOnce, func(ctx context.Context) error {
			err := r.Live.List(ctx, &page, client.InNamespace(r.singleton.Namespace), match, client.Limit(podsPerPage), client.Continue(next))
			for i := range page.Items {
				trim(&page.Items[i])
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if err := r.keep(&page.Items[i]); err != nil {
				return nil, err
			}
		}
		all, next = append(all, page.Items...), page.Continue
	}
	return all, nil
}

// countPods returns an error if more than MaxPods match. It reads only the metadata of the pods.
func (r *reading) countPods(ctx context.Context, match client.ListOption) error {
	count := 0
	for next, first := "", true; first || next != ""; first = false {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		err := oneAtATime(ctx, listAtOnce, func(ctx context.Context) error {
			return r.Live.List(ctx, page, client.InNamespace(r.singleton.Namespace), match, client.Limit(podsPerPage), client.Continue(next))
		})
		if err != nil {
			return err
		}
		if count, next = count+len(page.Items), page.Continue; count > MaxPods {
			return &TooManyPodsError{fmt.Sprintf("more than %d pods match spec.selector or have the label %s=%s", MaxPods, v1.SingletonLabel, r.singleton.Name), r.singleton}
		}
	}
	return nil
}

// trim removes large fields from an object that package handoff does not read.
func trim(o client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		trimSpec(&o.Spec)
	case *appsv1.ReplicaSet:
		trimSpec(&o.Spec.Template.Spec)
	case *appsv1.Deployment:
		trimSpec(&o.Spec.Template.Spec)
	case *appsv1.StatefulSet:
		trimSpec(&o.Spec.Template.Spec)
	}
	annotations := o.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, value string) bool {
		return len(value) > longString && !strings.HasPrefix(key, v1.GroupVersion.Group+"/")
	})
	// Proofs read the managed fields of the status, and the times of all entries are read.
	fields := o.GetManagedFields()
	for i := range fields {
		if f := fields[i].FieldsV1; f != nil && !strings.Contains(f.GetRawString(), `"f:status"`) {
			fields[i].FieldsV1 = nil
		}
	}
}

func trimSpec(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			cut(c.Command)
			cut(c.Args)
			for j := range c.Env {
				c.Env[j].Value = shortened(c.Env[j].Value)
			}
		}
	}
}

func cut(texts []string) {
	for i := range texts {
		texts[i] = shortened(texts[i])
	}
}

// shortened copies the beginning of a string, because a substring keeps the whole string in memory.
func shortened(text string) string {
	if len(text) > longString {
		return strings.Clone(text[:longString])
	}
	return text
}

// largeRead is a read that waits for other reads of large responses if its response is large.
type largeRead struct {
	// free is the size in bytes up to which the response is read without waiting.
	free int
	// done frees the slot. It is nil while the read does not have the slot.
	done func()
}

type largeReadKey struct{}

// oneAtATime calls read. A response with more than free bytes waits for other large responses. The next read can begin
// when read returns, because read decodes and trims the response.
func oneAtATime(ctx context.Context, free int, read func(context.Context) error) error {
	large := &largeRead{free: free}
	defer func() {
		if large.done != nil {
			large.done()
		}
	}()
	return read(context.WithValue(ctx, largeReadKey{}, large))
}

// LimitLargeResponses makes clients of the config read one large response at a time in the live reads of an Observer.
// Together, the workers could otherwise fill the memory.
func LimitLargeResponses(config *rest.Config) {
	slot := make(chan struct{}, 1)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &limiter{next, slot} })
}

type limiter struct {
	next http.RoundTripper
	// slot is full while a large response is in memory.
	slot chan struct{}
}

func (l *limiter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if large, ok := request.Context().Value(largeReadKey{}).(*largeRead); ok && err == nil {
		response.Body = &limitedBody{ReadCloser: response.Body, context: request.Context(), large: large, slot: l.slot}
	}
	return response, err
}

// limitedBody waits after the first free bytes.
type limitedBody struct {
	io.ReadCloser
	context context.Context
	large   *largeRead
	slot    chan struct{}
	read    int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.read > b.large.free && b.large.done == nil {
		select {
		case b.slot <- struct{}{}:
			b.large.done = func() { <-b.slot }
		case <-b.context.Done():
			return 0, b.context.Err()
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err
}
