package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	// probeEvery is the resolution of the downtime.
	probeEvery = 10 * time.Millisecond
	// probeTimeout is the timeout of a request.
	probeTimeout = 250 * time.Millisecond
)

// prober is a client of the application.
type prober struct {
	method string
	// url returns the address of the next request. Empty: no request is sent.
	url    func() string
	client *http.Client
	// running are the loop that sends requests, and the requests that have not ended.
	running  sync.WaitGroup
	mu       sync.Mutex
	requests []request
}

// request is a request that has ended, with times by journal.Now.
type request struct {
	begun, ended time.Duration
	// answered is true if the response was successful.
	answered bool
}

// probe sends a request every 10 ms, each with a new connection, until the context ends.
func probe(ctx context.Context, method string, url func() string) *prober {
	p := newProber(method, url, probeTimeout, false)
	p.start(ctx, probeEvery)
	return p
}

// newProber returns a client with the timeout of a request. It keeps its connections, or opens one for each request.
func newProber(method string, url func() string, timeout time.Duration, keep bool) *prober {
	// The timeout of a request does not end its dial. To a lost node, a dial takes minutes and uses a file.
	transport := &http.Transport{DisableKeepAlives: !keep, DialContext: (&net.Dialer{Timeout: timeout}).DialContext}
	return &prober{method: method, url: url, client: &http.Client{Timeout: timeout, Transport: transport}}
}

// start sends a request at each interval, until the context ends. Requests that were sent then still get their responses.
func (p *prober) start(ctx context.Context, interval time.Duration) {
	p.running.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.running.Go(func() { p.ask(context.WithoutCancel(ctx)) })
			}
		}
	})
}

// finish returns all requests. It waits until they have ended, so the context of start must have ended.
func (p *prober) finish() []request {
	p.running.Wait()
	p.client.CloseIdleConnections()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

func (p *prober) ask(ctx context.Context) {
	url := p.url()
	if url == "" {
		return
	}
	message, err := http.NewRequestWithContext(ctx, p.method, url, nil)
	if err != nil {
		panic(err) // the address of a Service or a pod is valid
	}
	begun := journal.Now()
	response, err := p.client.Do(message)
	success := err == nil && response.StatusCode == http.StatusOK
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body) // otherwise the connection would be closed
		_ = response.Body.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, request{begun, journal.Now(), success && err == nil})
}

// answered waits until each client has had several successful responses after now.
func answered(ctx context.Context, clients ...*prober) error {
	const enough = 10
	then := journal.Now()
	return world.AwaitFor(ctx, patience, "answers to all clients", func(context.Context) error {
		for _, p := range clients {
			if n := len(slices.DeleteFunc(p.times(), func(at time.Duration) bool { return at < then })); n < enough {
				return fmt.Errorf("%d good answers from %q", n, p.url())
			}
		}
		return nil
	})
}

// times returns the times of successful responses.
func (p *prober) times() (times []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if r.answered {
			times = append(times, r.ended)
		}
	}
	return times
}

// downtime returns the longest time without a successful response.
func (p *prober) downtime() time.Duration { return longestPause(p.times()) }

// longestPause returns the longest time between two consecutive times. It sorts them.
func longestPause(times []time.Duration) time.Duration {
	slices.Sort(times)
	var longest time.Duration
	for i := 1; i < len(times); i++ {
		longest = max(longest, times[i]-times[i-1])
	}
	return longest
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
