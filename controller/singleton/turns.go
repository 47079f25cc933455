package singleton

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// turns let a few singletons at a time do what takes long. Nobody waits in a worker: who
// has no turn stands in line, and is woken when one ends.
type turns struct {
	mu    sync.Mutex
	taken int
	line  []types.NamespacedName
}

// take returns what ends the singleton's turn; nil while atOnce others have theirs.
func (t *turns) take(key types.NamespacedName, atOnce int, wake func(types.NamespacedName)) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.Index(t.line, key)
	if t.taken >= atOnce {
		if at < 0 {
			t.line = append(t.line, key)
		}
		return nil
	}
	if at >= 0 {
		t.line = slices.Delete(t.line, at, at+1)
	}
	t.taken++
	return func() {
		if next, ok := t.end(); ok && wake != nil {
			wake(next)
		}
	}
}

// end ends a turn, and takes the next one out of the line.
func (t *turns) end() (next types.NamespacedName, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	if len(t.line) == 0 {
		return next, false
	}
	next, t.line = t.line[0], t.line[1:]
	return next, true
}

// forget takes the singleton out of the line.
func (t *turns) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = slices.DeleteFunc(t.line, func(other types.NamespacedName) bool { return other == key })
}
