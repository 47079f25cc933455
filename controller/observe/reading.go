package observe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MaxPods is the maximum number of pods of a singleton.
const MaxPods = 250

const (
	// objectsPerPage is the number of objects of other kinds that one request reads. Most namespaces need one request.
	objectsPerPage = 250
	// minSize is the size in bytes of an object without the fields that users choose.
	minSize = 512
	// namesAtOnce is the number of objects that are read by their names concurrently.
	namesAtOnce = 4
)

// bounds limit the memory for a Snapshot, and for reading it. Users choose how many objects there are, and how large they are.
type bounds struct {
	// pods is the maximum number of pods that one selector matches, and podsPerPage the number that one request reads.
	pods        int
	podsPerPage int64
	// names is the maximum number of objects of one kind that are read by their names.
	names int
	// maxBytes is the maximum size in bytes of all objects of the Snapshot. It counts trimmed objects, encoded as protobuf.
	maxBytes int64
}

// The bounds of each kind. A StatefulCluster has up to 1,000 pods with several claims each.
var (
	singletonBounds = bounds{pods: MaxPods, podsPerPage: 16, names: 250, maxBytes: 3 << 20}
	lockBounds      = bounds{pods: 1000, podsPerPage: 16, names: 1000, maxBytes: 8 << 20}
	clusterBounds   = bounds{pods: 2500, podsPerPage: 64, names: 5000, maxBytes: 16 << 20}
)

// TooLargeError is the error if the objects of a Snapshot exceed its bounds. No decision is possible then, because an object
// that was not read may be a pod that runs.
type TooLargeError struct {
	// What says which bound is exceeded.
	What string
	// Help says what the controller does not do, and what to do.
	Help string
}

// Error says which bound is exceeded, and what to do.
func (e *TooLargeError) Error() string { return e.What + ". " + e.Help }

// reading is one call of Observe, ObserveLock or ObserveCluster. It bounds the memory of all its reads.
type reading struct {
	Observer
	bounds
	namespace string
	// match says which pods are read, and help is TooLargeError.Help.
	match, help string
	bytes       atomic.Int64
	// leaseRead is true after the Lease of a singleton was read.
	leaseRead bool
}

func (r *reading) tooLarge(format string, args ...any) error {
	return &TooLargeError{What: fmt.Sprintf(format, args...), Help: r.help}
}

// keep counts a trimmed object of the Snapshot. It returns an error above the bound.
func (r *reading) keep(o interface{ Size() int }) error {
	if r.bytes.Add(int64(o.Size())) > r.maxBytes {
		return r.tooLarge("the pods, and the objects that they refer to, take more than %d MiB", r.maxBytes>>20)
	}
	return nil
}

// Pages reads a list page by page, and calls use with each object. The object was trimmed. limit is the number of objects of a
// page. A page that takes too much memory is read again with fewer objects.
func Pages(ctx context.Context, reader client.Reader, list client.ObjectList, limit int64, use func(client.Object) error, options ...client.ListOption) error {
	for next, first := "", true; first || next != ""; {
		page := list.DeepCopyObject().(client.ObjectList)
		most := maxPage
		if limit == 1 {
			most = 0 // etcd limits the size of one object
		}
		err := oneAtATime(ctx, listAtOnce, most, func(ctx context.Context) error {
			if err := reader.List(ctx, page, append(options, client.Limit(limit), client.Continue(next))...); err != nil {
				return err
			}
			return eachObject(page, func(o client.Object) error {
				trim(o)
				return nil
			})
		})
		if errors.Is(err, errPageTooLarge) {
			limit = max(1, limit/4)
			continue
		} else if err != nil {
			return err
		}
		if err := eachObject(page, use); err != nil {
			return err
		}
		first, next = false, page.GetContinue()
	}
	return nil
}

func eachObject(list client.ObjectList, do func(client.Object) error) error {
	return meta.EachListItem(list, func(o runtime.Object) error { return do(o.(client.Object)) })
}

// pages reads a list in the namespace.
func (r *reading) pages(ctx context.Context, list client.ObjectList, limit int64, use func(client.Object) error, options ...client.ListOption) error {
	return Pages(ctx, r.Live, list, limit, use, append(options, client.InNamespace(r.namespace))...)
}

// matchingPods reads the pods that match. It leaves out those for which mine returns false.
func (r *reading) matchingPods(ctx context.Context, match client.ListOption, mine func(*corev1.Pod) bool) (all []corev1.Pod, err error) {
	read := int64(0)
	err = r.pages(ctx, &corev1.PodList{}, r.podsPerPage, func(o client.Object) error {
		if read++; read == r.podsPerPage { // there can be more
			if err := r.countPods(ctx, match); err != nil {
				return err
			}
		}
		pod := o.(*corev1.Pod)
		if !mine(pod) {
			return nil
		}
		all = append(all, *pod)
		return r.keep(pod)
	}, match)
	return all, err
}

// countPods returns an error if more pods match than the bound. It reads only the metadata of the pods.
func (r *reading) countPods(ctx context.Context, match client.ListOption) error {
	count := 0
	return r.pages(ctx, podMetadataList(), r.podsPerPage, func(client.Object) error {
		if count++; count > r.pods {
			return r.tooLarge("more than %d pods %s", r.pods, r.match)
		}
		return nil
	}, match)
}

func podMetadataList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	return list
}

// object is a pointer to an object of a type.
type object[T any] interface {
	*T
	client.Object
	Size() int
}

// named reads objects by name, a few at a time. The result has no entry for an object that does not exist.
func named[T any, P object[T]](ctx context.Context, r *reading, reader client.Reader, namespace string, names sets.Set[string]) (map[string]*T, error) {
	if names.Delete(""); names.Len() > r.names {
		return nil, r.tooLarge("the pods refer to more than %d objects of the kind %T", r.names, *new(T))
	}
	var mu sync.Mutex
	found := map[string]*T{}
	reads, readContext := errgroup.WithContext(ctx)
	reads.SetLimit(namesAtOnce)
	for name := range names {
		reads.Go(func() error {
			object := P(new(T))
			err := oneAtATime(readContext, objectAtOnce, 0, func(ctx context.Context) error {
				err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
				trim(object)
				return err
			})
			if err != nil {
				return client.IgnoreNotFound(err)
			}
			mu.Lock()
			defer mu.Unlock()
			found[name] = object
			return r.keep(object)
		})
	}
	return found, reads.Wait()
}

// one reads an object by name. It returns nil if the object does not exist.
func one[T any, P object[T]](ctx context.Context, r *reading, name string) (*T, error) {
	found, err := named[T, P](ctx, r, r.Live, r.namespace, sets.New(name))
	if err != nil {
		return nil, fmt.Errorf("read %T %s: %w", *new(T), name, err)
	}
	return found[name], nil
}
