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
	open, ended := context.WithCancel(ctx)
	defer ended()
	changed := make(chan struct{}, 1)
	for _, w := range all {
		changes, err := c.Watch(ctx, w.list, client.InNamespace(namespace), w.labels)
		if err != nil {
			return err
		}
		defer changes.Stop()
		go func() {
			defer ended()
			for event := range changes.ResultChan() {
				if event.Type == watch.Error {
					return
				}
				select {
				case changed <- struct{}{}:
				default: // a change is waiting to be shown
				}
			}
		}()
	}
	for {
		if err := show(); err != nil {
			return err
		}
		select {
		case <-open.Done():
			return nil
		case <-changed:
		}
		select {
		case <-open.Done():
			return nil
		case <-time.After(debounce):
		}
	}
}
