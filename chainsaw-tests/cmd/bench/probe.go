package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

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
	mu     sync.Mutex
	// answers are the times of successful responses.
	answers []time.Duration
}

// probe sends a request every 10 ms, each with a new connection, until the context ends.
func probe(ctx context.Context, method string, url func() string) *prober {
	// The timeout of a request does not end its dial. To a lost node, a dial takes minutes and uses a file.
	transport := &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: probeTimeout}).DialContext}
	p := &prober{method: method, url: url, client: &http.Client{Timeout: probeTimeout, Transport: transport}}
	go func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				go p.ask(ctx)
			}
		}
	}()
	return p
}

func (p *prober) ask(ctx context.Context) {
	url := p.url()
	if url == "" {
		return
	}
	request, err := http.NewRequestWithContext(ctx, p.method, url, nil)
	if err != nil {
		panic(err) // the address of a Service or a pod is valid
	}
	response, err := p.client.Do(request)
	if err != nil {
		return // no pod serves, or the context ended
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusOK {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answers = append(p.answers, journal.Now())
	}
}

// since returns the number of successful responses after the time.
func (p *prober) since(then time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, at := range p.answers {
		if at >= then {
			n++
		}
	}
	return n
}

// answered waits until each client has had several successful responses after now.
func answered(ctx context.Context, clients ...*prober) error {
	const enough = 10
	then := journal.Now()
	return world.AwaitFor(ctx, patience, "answers to all clients", func(context.Context) error {
		for _, p := range clients {
			if n := p.since(then); n < enough {
				return fmt.Errorf("%d good answers from %q", n, p.url())
			}
		}
		return nil
	})
}

// downtime returns the longest time without a successful response.
func (p *prober) downtime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return longestPause(p.answers)
}

// longestPause returns the longest time between two consecutive times.
func longestPause(times []time.Duration) time.Duration {
	times = slices.Sorted(slices.Values(times))
	var longest time.Duration
	for i := 1; i < len(times); i++ {
		longest = max(longest, times[i]-times[i-1])
	}
	return longest
}
