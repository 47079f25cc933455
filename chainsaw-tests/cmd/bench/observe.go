package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The moments of a pod's life. All but the last three are when a watch told of them.
const (
	created = "created"
	// warm: the pod waits for nothing but the signal.
	warm = "warm"
	// recorded: the singleton's status names it as the holder.
	recorded  = "recorded"
	signalled = "signalled"
	ready     = "ready"
	// asked: its deletion was asked for.
	asked = "asked"
	// terminated: its status says that the application has ended.
	terminated = "terminated"
	gone       = "gone"
	// started, stopping and stopped are what the application wrote down.
	started  = "started"
	stopping = "stopping"
	stopped  = "stopped"
)

// life maps the moments of a pod to when each was seen first, by the machine's clock.
type life map[string]time.Duration

func (l life) saw(moment string, when bool, at time.Duration) {
	if _, known := l[moment]; when && !known {
		l[moment] = at
	}
}

// sinceBoot is the machine's clock that nobody sets. The applications' journals tell
// the same one.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // it takes a kernel that lacks the clock
	}
	return time.Duration(t.Nano())
}

// observer watches one application's pods and its singleton.
type observer struct {
	// held: a singleton picks the pods.
	held bool
	// replicas is how many pods there are where nothing is under way.
	replicas int
	mu       sync.Mutex
	lives    map[types.UID]life
	// pods are those that are there.
	pods      map[types.UID]*corev1.Pod
	singleton *v1.StatefulSingleton
	// broken is why nothing more will be seen.
	broken error
	// changed is closed at the next change.
	changed chan struct{}
}

func observe(ctx context.Context, s *world.Singleton, options world.Options) (*observer, error) {
	o := &observer{
		held: !options.Plain, replicas: max(int(options.Replicas), 1),
		lives: map[types.UID]life{}, pods: map[types.UID]*corev1.Pod{}, changed: make(chan struct{}),
	}
	for _, list := range []client.ObjectList{&corev1.PodList{}, &v1.StatefulSingletonList{}} {
		// Without a resource version it begins with what is there already.
		w, err := s.Watch(ctx, list, client.InNamespace(s.Namespace))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", s.Namespace, err)
		}
		go o.follow(w)
	}
	return o, nil
}

// follow ends with the context of the watch.
func (o *observer) follow(w watch.Interface) {
	for e := range w.ResultChan() {
		o.see(e, sinceBoot())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.broken = errors.New("the watch ended")
	o.wake()
}

func (o *observer) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *observer) see(e watch.Event, at time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := e.Object.(type) {
	case *corev1.Pod:
		o.seePod(object, e.Type == watch.Deleted, at)
	case *v1.StatefulSingleton:
		o.singleton = object
		if uid := object.Status.ActivePodUID; uid != "" {
			o.life(uid).saw(recorded, true, at)
		}
	default:
		o.broken = fmt.Errorf("the watch failed: %v", e.Object)
	}
	o.wake()
}

func (o *observer) life(uid types.UID) life {
	if o.lives[uid] == nil {
		o.lives[uid] = life{}
	}
	return o.lives[uid]
}

func (o *observer) seePod(pod *corev1.Pod, deleted bool, at time.Duration) {
	o.pods[pod.UID] = pod
	if deleted {
		delete(o.pods, pod.UID)
	}
	l := o.life(pod.UID)
	l.saw(created, true, at)
	l.saw(warm, pod.Annotations[v1.InjectedAnnotation] != "" && world.Warm(pod), at)
	l.saw(signalled, pod.Annotations[signal.Annotation] != "", at)
	l.saw(ready, world.IsTrue(pod, corev1.PodReady), at)
	l.saw(asked, pod.DeletionTimestamp != nil, at)
	for _, c := range pod.Status.ContainerStatuses {
		l.saw(terminated, c.State.Terminated != nil, at)
	}
	l.saw(gone, deleted, at)
}

// settled returns the pod that runs, once it is Ready, all others are warm, none is
// going and, where a singleton picks them, it says that nothing is under way.
func (o *observer) settled() (*corev1.Pod, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pods) != o.replicas {
		return nil, fmt.Errorf("there are %d pods, want %d", len(o.pods), o.replicas)
	}
	var holder *corev1.Pod
	for _, pod := range o.pods {
		runs := !o.held || o.singleton != nil && o.singleton.Status.ActivePodUID == pod.UID
		if runs {
			holder = pod
		}
		if pod.DeletionTimestamp != nil || runs && !world.IsTrue(pod, corev1.PodReady) || !runs && !world.Warm(pod) {
			return nil, fmt.Errorf("pod %s is not yet what it is to be: %s", pod.Name, pod.Status.Phase)
		}
	}
	if holder == nil {
		return nil, errors.New("no pod holds")
	}
	return holder, o.holds()
}

// holds wants that the singleton, where there is one, says that nothing is under way.
func (o *observer) holds() error {
	if !o.held {
		return nil
	}
	s := o.singleton.Status
	if s.Phase != v1.PhaseRunning || !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionReady) {
		return fmt.Errorf("the singleton is in phase %q: %s", s.Phase, s.Message)
	}
	return nil
}

// handedOver returns the pod that has taken the old one's place for good.
func (o *observer) handedOver(old types.UID) (*corev1.Pod, error) {
	pod, err := o.settled()
	if err == nil && pod.UID == old {
		err = fmt.Errorf("pod %s is still there", pod.Name)
	}
	return pod, err
}

// empty wants that no pod is there, and nobody holds.
func (o *observer) empty() (*corev1.Pod, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pods) > 0 {
		return nil, fmt.Errorf("there are %d pods", len(o.pods))
	}
	if s := o.singleton; s != nil && s.Status.ActivePod != "" {
		return nil, fmt.Errorf("%s holds: %s", s.Status.ActivePod, s.Status.Message)
	}
	return nil, nil
}

// is tells whether the pod has come to that moment.
func (o *observer) is(uid types.UID, moment string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, seen := o.lives[uid][moment]
	return seen
}

// moments are those of the pod so far.
func (o *observer) moments(uid types.UID) life {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.lives[uid])
}

// patience is how long anything may take. The longest of it is the pull of an image,
// once for each node that tries.
const patience = 2 * time.Minute

// await waits until the look finds no fault.
func (o *observer) await(ctx context.Context, what string, look func() (*corev1.Pod, error)) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		o.mu.Lock()
		changed, broken := o.changed, o.broken
		o.mu.Unlock()
		pod, err := look()
		if err == nil {
			return pod, nil
		}
		if broken != nil {
			return nil, fmt.Errorf("wait until %s: %w", what, broken)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("not within %s: %s: %w", patience, what, err)
		}
	}
}
