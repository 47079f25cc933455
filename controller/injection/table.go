package injection

import "sync"

// table is a map that all workers use. The zero value is empty.
type table[K comparable, V any] struct {
	mu      sync.Mutex
	entries map[K]V
}

func (t *table[K, V]) get(key K) (value V, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, known = t.entries[key]
	return value, known
}

func (t *table[K, V]) set(key K, value V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries == nil {
		t.entries = map[K]V{}
	}
	t.entries[key] = value
}

func (t *table[K, V]) delete(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.entries, key)
}
