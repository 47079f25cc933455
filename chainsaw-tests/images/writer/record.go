package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// record has the acknowledgements that the clients received.
type record struct {
	mu sync.Mutex
	// acknowledged has the numbers of the rows.
	acknowledged []int64
	// failed is the number of transactions without an acknowledgement.
	failed  int
	servers []server
	last    time.Time
	longest time.Duration
}

// server is a run of the server, from its first acknowledgement until that of another server.
type server struct {
	Started time.Time `json:"started"`
	Rows    int       `json:"rows"`
	// PauseMilliseconds is the time from the last acknowledgement of the previous server to the first one of this
	// server.
	PauseMilliseconds int64 `json:"pauseMilliseconds"`
}

// acknowledge records that the server with the start time has committed row n.
func (r *record) acknowledge(n int64, started, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pause time.Duration
	if !r.last.IsZero() {
		pause = now.Sub(r.last)
	}
	r.last, r.longest = now, max(r.longest, pause)
	if len(r.servers) == 0 || !r.servers[len(r.servers)-1].Started.Equal(started) {
		r.servers = append(r.servers, server{Started: started, PauseMilliseconds: pause.Milliseconds()})
	}
	r.servers[len(r.servers)-1].Rows++
	r.acknowledged = append(r.acknowledged, n)
}

func (r *record) fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed++
}

// comparison compares the acknowledgements with the table.
type comparison struct {
	// Acknowledged is the number of acknowledged rows.
	Acknowledged int `json:"acknowledged"`
	// Failed is the number of transactions without an acknowledgement.
	Failed int `json:"failed"`
	// Unacknowledged counts rows in the table whose acknowledgement did not reach the client. They are no error.
	Unacknowledged int `json:"unacknowledged"`
	// Lost has the numbers of acknowledged rows that are not in the table.
	Lost []int64 `json:"lost"`
	// Returned has the servers that answered after another server: two ran at once.
	Returned []time.Time `json:"returned"`
	// LongestPauseMilliseconds is the longest time between two acknowledgements.
	LongestPauseMilliseconds int64    `json:"longestPauseMilliseconds"`
	Servers                  []server `json:"servers"`
}

// compare compares with the numbers in the table, which are in order.
func (r *record) compare(table []int64) comparison {
	c := comparison{
		Acknowledged: len(r.acknowledged), Failed: r.failed, Lost: []int64{}, Returned: []time.Time{},
		LongestPauseMilliseconds: r.longest.Milliseconds(), Servers: r.servers,
	}
	for _, n := range r.acknowledged {
		if _, there := slices.BinarySearch(table, n); !there {
			c.Lost = append(c.Lost, n)
		}
	}
	c.Unacknowledged = len(table) - (c.Acknowledged - len(c.Lost))
	for i, s := range r.servers {
		if slices.ContainsFunc(r.servers[:i], func(before server) bool { return before.Started.Equal(s.Started) }) {
			c.Returned = append(c.Returned, s.Started)
		}
	}
	return c
}

// problem returns an error if rows are lost or two servers ran at once.
func (c comparison) problem() error {
	switch {
	case c.Acknowledged == 0:
		return errors.New("no row was acknowledged, so nothing is shown: see what the server said above")
	case len(c.Lost) > 0:
		return fmt.Errorf("%d of %d acknowledged rows are not in the table, the first of them %d", len(c.Lost), c.Acknowledged, c.Lost[0])
	case len(c.Returned) > 0:
		return fmt.Errorf("the server that was started at %s answered again after another one had: two ran at once", c.Returned[0])
	}
	return nil
}
