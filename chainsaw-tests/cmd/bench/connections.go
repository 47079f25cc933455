package main

import (
	"context"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/prober"
)

const (
	// askEvery is the time between two requests of a client.
	askEvery = 20 * time.Millisecond
	// askTimeout is how long a client waits for a response. It is longer than a gap, so a request fails only if the pods refuse or
	// end its connection.
	askTimeout = 10 * time.Second
)

// connections counts the requests that fail during handoffs of a StatefulSingleton, beside Kubernetes' own workloads.
var connections = subject{
	name:     "connections",
	systems:  []string{"wrapper-queue", "wrapper-queue-spare", "wrapper-lease", "recreate", "statefulset"},
	causes:   []string{"rollout", "delete", "drain", manual},
	measures: measuresConnections,
	metrics:  []string{"failed", "longest", "kept failed", "gap", "Ready"},
	drawn:    "failed",
	rounds:   20,
	sparse:   func(system string) bool { return !strings.Contains(system, "-queue") },
	begin:    beginConnections,
	guarded:  guarded,
}

// measuresConnections returns false if another combination tells the same.
func measuresConnections(c combination) bool {
	switch {
	case strings.HasSuffix(c.System, "-spare"): // the other causes create the next pod before they stop the old pod
		return c.Cause == "delete"
	case c.Cause == manual:
		return guarded(c.System)
	}
	return true
}

// connectionSeries is a series of handoffs with two clients.
type connectionSeries struct{ *gapSeries }

func beginConnections(ctx context.Context, l *lab, w workload) (series, error) {
	t, err := newGapSeries(ctx, l, w)
	if t == nil {
		return nil, err
	}
	return &connectionSeries{t}, err
}

// once counts the failed requests of one handoff. A request fails if its client gets an error or no success. All requests count
// that were sent until the new pod has answered both clients. Before, the nodes must know the Service.
func (t *connectionSeries) once(ctx context.Context, cause string) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := t.awaitQueue(ctx); err != nil {
		return sample{}, err
	}
	if err := t.prepare(ctx, cause); err != nil {
		return sample{}, err
	}
	url := func() string { return t.url }
	connecting := prober.Start(ctx, askEvery, prober.HTTP(http.MethodGet, url, askTimeout, false))
	keeping := prober.Start(ctx, askEvery, prober.HTTP(http.MethodGet, url, askTimeout, true))
	if err := answered(ctx, connecting, keeping); err != nil {
		return sample{}, err
	}
	begun := journal.Now()
	s, err := t.handOff(ctx, cause, connecting, keeping)
	if err != nil {
		return sample{}, err
	}
	cancel()
	connected, kept := connecting.Finish(begun), keeping.Finish(begun)
	s.ms["longest"] = prober.Longest(connected).Milliseconds()
	s.counts = map[string]int64{"failed": int64(len(prober.Failed(connected))), "kept failed": int64(len(prober.Failed(kept)))}
	return s, nil
}

// awaitQueue waits until the next handoff queues connections, if the system does that at all.
func (t *connectionSeries) awaitQueue(ctx context.Context) error {
	if !t.options.Queue {
		return nil
	}
	return t.Await(ctx, "the next handoff queues connections", func(got *v1.StatefulSingleton) bool {
		return meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionConnectionsQueued)
	})
}
