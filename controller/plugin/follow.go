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

// follow shows the singletons of a namespace after each change of them or their pods, until ctx ends.
func (c *cluster) follow(ctx context.Context, namespace string, show func() error) error {
	for ctx.Err() == nil {
		if err := c.followOnce(ctx, namespace, show); err != nil && ctx.Err() == nil {
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
func (c *cluster) followOnce(ctx context.Context, namespace string, show func() error) error {
	singletons, err := c.Watch(ctx, &v1.StatefulSingletonList{}, client.InNamespace(namespace))
	if err != nil {
		return err
	}
	defer singletons.Stop()
	pods, err := c.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace), client.HasLabels{v1.SingletonLabel})
	if err != nil {
		return err
	}
	defer pods.Stop()
	for {
		if err := show(); err != nil {
			return err
		}
		if !change(ctx, singletons.ResultChan(), pods.ResultChan()) {
			return nil
		}
	}
}

// change waits for a change and for further changes that follow at once. It returns false if the watch ended.
func change(ctx context.Context, singletons, pods <-chan watch.Event) bool {
	var settled <-chan time.Time
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return false
		case <-settled:
			return true
		case event, open = <-singletons:
		case event, open = <-pods:
		}
		if !open || event.Type == watch.Error {
			return false
		}
		if settled == nil {
			settled = time.After(debounce)
		}
	}
}
