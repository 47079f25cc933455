package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/prober"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	// probeEvery is the resolution of the downtime.
	probeEvery = 10 * time.Millisecond
	// probeTimeout is the timeout of a request.
	probeTimeout = 250 * time.Millisecond
)

// probe sends a request every 10 ms, each with a new connection, until the context ends.
func probe(ctx context.Context, method string, url func() string) *prober.Prober {
	return prober.Start(ctx, probeEvery, prober.HTTP(method, url, probeTimeout, false))
}

// answered waits until each client has had several answers after now.
func answered(ctx context.Context, clients ...*prober.Prober) error {
	then := journal.Now()
	return world.AwaitFor(ctx, patience, "answers to all clients", func(context.Context) error {
		for i, p := range clients {
			if err := p.Answered(then); err != nil {
				return fmt.Errorf("client %d: %w", i+1, err)
			}
		}
		return nil
	})
}

// endpoints has the address of the Ready pod of a Service, by a watch of EndpointSlices.
type endpoints struct{ url atomic.Value }

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
	for _, endpoint := range slice.Endpoints {
		if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready && len(endpoint.Addresses) > 0 {
			e.url.Store("http://" + net.JoinHostPort(endpoint.Addresses[0], "8080"))
		}
	}
}

// address returns the URL of the pod. It is empty before the first Ready pod.
func (e *endpoints) address() string {
	url, _ := e.url.Load().(string)
	return url
}
