package singleton

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// turns limits how many singletons run slow work at the same time. A singleton without a slot waits in a queue and does
// not block a worker. It is woken when a slot becomes free.
type turns struct {
	mu    sync.Mutex
	taken int
	line  []types.NamespacedName
}

// take takes a slot for the singleton, and returns the function that frees the slot. If atOnce slots are taken, take
// puts the singleton into the queue and returns nil.
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

// end frees a slot, and returns the next singleton of the queue.
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

// forget removes the singleton from the queue.
func (t *turns) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = slices.DeleteFunc(t.line, func(other types.NamespacedName) bool { return other == key })
}
