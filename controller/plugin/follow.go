package plugin

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// debounce is how long to wait after a change, to show several changes at once.
const debounce = 100 * time.Millisecond

// watched is a kind of objects that follow watches.
type watched struct {
	list   client.ObjectList
	labels client.HasLabels
}

// Objects whose changes change the status of singletons, of locks, and of StatefulClusters.
var (
	singletonChanges = []watched{{&v1.StatefulSingletonList{}, nil}, {&corev1.PodList{}, client.HasLabels{v1.SingletonLabel}}}
	lockChanges      = []watched{{&v1.StatefulSetLockList{}, nil}, {&corev1.PodList{}, client.HasLabels{v1.LockLabel}}}
	clusterChanges   = []watched{{&v1.StatefulClusterList{}, nil}}
)

// follow calls show, and calls it again after each change of a watched object in the namespace, until ctx ends.
func (c *cluster) follow(ctx context.Context, namespace string, all []watched, show func() error) error {
	for ctx.Err() == nil {
		if err := c.followOnce(ctx, namespace, all, show); err != nil && ctx.Err() == nil {
			return err
		}
		select { // limits the rate of new watches if the API server ends each watch at once
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// followOnce is follow until the API server ends a watch.
func (c *cluster) followOnce(ctx context.Context, namespace string, all []watched, show func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan watch.Event)
	for _, w := range all {
		changes, err := c.Watch(ctx, w.list, client.InNamespace(namespace), w.labels)
		if err != nil {
			return err
		}
		defer changes.Stop()
		go forward(ctx, changes.ResultChan(), events)
	}
	for {
		if err := show(); err != nil {
			return err
		}
		if !change(ctx, events) {
			return nil
		}
	}
}

// forward passes the events of one watch on. The last event is an error.
func forward(ctx context.Context, from <-chan watch.Event, to chan<- watch.Event) {
	for {
		event, open := <-from
		if !open {
			event.Type = watch.Error
		}
		select {
		case to <- event:
		case <-ctx.Done():
			return
		}
		if !open {
			return
		}
	}
}

// change waits for a change and for further changes that follow at once. It returns false if the watch ended.
func change(ctx context.Context, events <-chan watch.Event) bool {
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-settled:
			return true
		case event := <-events:
			if event.Type == watch.Error {
				return false
			}
		}
		if settled == nil {
			settled = time.After(debounce)
		}
	}
}
