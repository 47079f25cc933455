package main

import (
	"context"
	"fmt"
	"net"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// endpoints has the address of the Ready pod of a Service, by a watch of EndpointSlices.
type endpoints struct {
	mu  sync.Mutex
	url string
}

// followEndpoints watches the EndpointSlices of the application until the context ends.
func followEndpoints(ctx context.Context, app *world.Application) (*endpoints, error) {
	e := &endpoints{}
	w, err := app.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(app.Namespace))
	if err != nil {
		return nil, fmt.Errorf("watch the EndpointSlices of %s: %w", app.Namespace, err)
	}
	go func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok {
				e.see(slice)
			}
		}
	}()
	return e, nil
}

// see stores the address of a Ready pod. Without a Ready pod it keeps the last address, as a client would.
func (e *endpoints) see(slice *discoveryv1.EndpointSlice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, endpoint := range slice.Endpoints {
		if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready && len(endpoint.Addresses) > 0 {
			e.url = "http://" + net.JoinHostPort(endpoint.Addresses[0], "8080")
		}
	}
}

// address returns the URL of the pod. It is empty before the first Ready pod.
func (e *endpoints) address() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.url
}
