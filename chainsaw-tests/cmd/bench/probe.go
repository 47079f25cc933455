package main

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
)

const (
	// probeEvery is how fine the downtime is measured.
	probeEvery = 10 * time.Millisecond
	// probeTimeout is that of a client who tries again soon.
	probeTimeout = 250 * time.Millisecond
)

// prober is a client of the application, through its Service.
type prober struct {
	url    string
	client *http.Client
	mu     sync.Mutex
	// answers are when good ones came.
	answers []time.Duration
}

// probe asks every 10 ms, each time by a new connection, until the context ends.
func probe(ctx context.Context, url string) *prober {
	p := &prober{url: url, client: &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}}
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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		panic(err) // the url is a Service's address
	}
	response, err := p.client.Do(request)
	if err != nil {
		return // it is down, or the context ended
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusOK {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answers = append(p.answers, observer.Now())
	}
}

// since tells how many good answers came since then.
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

// downtime is the longest time without a good answer.
func (p *prober) downtime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return longestPause(p.answers)
}

// longestPause is the longest time between two of them.
func longestPause(moments []time.Duration) time.Duration {
	moments = slices.Sorted(slices.Values(moments))
	var longest time.Duration
	for i := 1; i < len(moments); i++ {
		longest = max(longest, moments[i]-moments[i-1])
	}
	return longest
}
