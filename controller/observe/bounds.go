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

// Users choose how many pods a selector picks, and how large the pods are. These
// constants bound the memory that a Snapshot takes, and that reading it takes.
const (
	// MaxPods is the largest number of pods that match one list of a singleton: those that
	// the selector picks, or those that bear the singleton's label.
	MaxPods = 250
	// podsPerPage is the number of pods that one request reads. An ordinary singleton has
	// fewer, and needs no second request.
	podsPerPage = 16
	// singletonsPerPage is the number of StatefulSingletons that one request reads.
	singletonsPerPage = 250
	// maxNames is the largest number of objects of one kind that the pods may refer to.
	maxNames = 250
	// namesAtOnce is the number of these objects that are read at once.
	namesAtOnce = 4
	// MaxBytes is the largest size of the pods, and of what they refer to, in one Snapshot,
	// encoded as protobuf and trimmed.
	MaxBytes = 3 << 20
	// longString is the number of bytes from which on trim cuts or removes a string. It is
	// longer than each string that package handoff compares with.
	longString = 256
)

// A response of at most this many bytes is read at once with all others. Of larger
// responses, one at a time is read and decoded.
const (
	listAtOnce   = 1 << 20
	objectAtOnce = 128 << 10
)

// TooManyPodsError says that the pods of a singleton exceed MaxPods or MaxBytes. Nothing
// may be decided then: a pod that was not read may run.
type TooManyPodsError struct {
	// What exceeds which bound.
	What      string
	Singleton *v1.StatefulSingleton
}

// Error says what exceeds which bound, and what to do.
func (e *TooManyPodsError) Error() string {
	namespace, picked := e.Singleton.Namespace, metav1.FormatLabelSelector(e.Singleton.Spec.Selector.Meta())
	return fmt.Sprintf("%s. No pod is released or let go of until fewer match. Delete the pods that have ended: "+
		"kubectl delete pod -n %s -l '%s' --field-selector=status.phase=Failed. If pods of another application match, create a StatefulSingleton with a narrower selector",
		e.What, namespace, picked)
}

// reading is one Observe: it bounds what is kept of all its reads.
type reading struct {
	Observer
	singleton *v1.StatefulSingleton
	bytes     atomic.Int64
}

// keep counts the object, which is trimmed, and fails above MaxBytes.
func (r *reading) keep(o interface{ Size() int }) error {
	if r.bytes.Add(int64(o.Size())) > MaxBytes {
		return &TooManyPodsError{fmt.Sprintf("the pods, and the objects that they refer to, take more than %d MiB", MaxBytes>>20), r.singleton}
	}
	return nil
}

// podsThat lists whole pods, page by page, and trims each page before it reads the next.
func (r *reading) podsThat(ctx context.Context, match client.ListOption) (all []corev1.Pod, err error) {
	for next, first := "", true; first || next != ""; first = false {
		if next != "" && len(all) <= podsPerPage {
			if err := r.countPods(ctx, match); err != nil {
				return nil, err
			}
		}
		var page corev1.PodList
		err := alone(ctx, listAtOnce, func(ctx context.Context) error {
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

// countPods fails if more than MaxPods match. It reads metadata only, which is smaller
// than the pods are.
func (r *reading) countPods(ctx context.Context, match client.ListOption) error {
	count := 0
	for next, first := "", true; first || next != ""; first = false {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		err := alone(ctx, listAtOnce, func(ctx context.Context) error {
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

// trim removes from an object what package handoff does not read, as far as it may be
// large.
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
	// Proofs read who wrote the status, and when a pod was last written.
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

// shortened copies what it keeps, because a part of a string keeps all of it in memory.
func shortened(text string) string {
	if len(text) > longString {
		return strings.Clone(text[:longString])
	}
	return text
}

// turn is one read that may have to wait until other reads of large responses are over.
type turn struct {
	// free is the size in bytes up to which the response is read without waiting.
	free int
	// release ends the turn. It is nil until the turn begins.
	release func()
}

type turnKey struct{}

// alone calls read, whose one request waits for its turn if the response has more than
// free bytes. The turn ends when read returns: read decodes and trims within it.
func alone(ctx context.Context, free int, read func(context.Context) error) error {
	t := &turn{free: free}
	defer func() {
		if t.release != nil {
			t.release()
		}
	}()
	return read(context.WithValue(ctx, turnKey{}, t))
}

// LimitLargeResponses has clients of the config read one large response at a time in what
// an Observer reads live, because the workers together could otherwise fill the memory.
func LimitLargeResponses(config *rest.Config) {
	turns := make(chan struct{}, 1)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &limiter{next, turns} })
}

type limiter struct {
	next  http.RoundTripper
	turns chan struct{}
}

func (l *limiter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if t, ok := request.Context().Value(turnKey{}).(*turn); ok && err == nil {
		response.Body = &limitedBody{ReadCloser: response.Body, context: request.Context(), turn: t, turns: l.turns}
	}
	return response, err
}

// limitedBody waits for its turn once free bytes are read.
type limitedBody struct {
	io.ReadCloser
	context context.Context
	turn    *turn
	turns   chan struct{}
	read    int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.read > b.turn.free && b.turn.release == nil {
		select {
		case b.turns <- struct{}{}:
			b.turn.release = func() { <-b.turns }
		case <-b.context.Done():
			return 0, b.context.Err()
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err
}
