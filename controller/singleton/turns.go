package singleton

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// leastWait is how soon one may ask for its turn again, and mostWait how late.
const leastWait, mostWait = installingPoll, time.Minute

// turns let a few singletons at a time do what takes long. Nobody waits in a worker: who
// has no turn is told when to ask again.
type turns struct {
	mu      sync.Mutex
	taken   int
	waiting map[types.NamespacedName]bool
	// took is how long a turn was, the last time.
	took time.Duration
}

// take returns what ends the singleton's turn, or, while atOnce others have theirs, nil and
// when to ask again. That is later the more wait, so that they don't keep asking.
func (t *turns) take(key types.NamespacedName, atOnce int) (wait time.Duration, done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken >= atOnce {
		if t.waiting == nil {
			t.waiting = map[types.NamespacedName]bool{}
		}
		t.waiting[key] = true
		return min(max(leastWait, t.took*time.Duration(len(t.waiting))/time.Duration(atOnce)), mostWait), nil
	}
	delete(t.waiting, key)
	t.taken++
	begin := time.Now()
	return 0, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.taken--
		t.took = time.Since(begin)
	}
}

// forget takes the singleton out of the line.
func (t *turns) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, key)
}
