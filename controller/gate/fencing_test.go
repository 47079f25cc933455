package gate

import (
	"strings"
	"testing"
	"time"
)

const fenceDuration = 15 * time.Second

func TestTerm(t *testing.T) {
	f := newFence([]string{"app"}, fenceDuration)
	f.connect("app")
	if _, ok := f.start("app", 0); ok {
		t.Error("a main process starts before the first renewal")
	}
	f.renew(7, time.Minute)
	if want := (Term{Epoch: 7, Stop: time.Minute + 10*time.Second, Kill: time.Minute + 12500*time.Millisecond}); f.term != want {
		t.Errorf("term %+v, want %+v", f.term, want)
	}
	if _, ok := f.start("app", time.Minute+10*time.Second); ok {
		t.Error("a main process starts when it would have to stop")
	}
	if term, ok := f.start("app", time.Minute+9*time.Second); !ok || term.Epoch != 7 {
		t.Errorf("start: %+v, %t", term, ok)
	}
}

// fenceWorld is a pod: its sidecar, and what really happens in its containers.
type fenceWorld struct {
	retired bool
	// states are those of the sidecar, by container.
	states [2]runState
	// speakers are the connections to the sidecar: none, the gate, or a main process that pretends to be the gate.
	speakers [2]speaker
	// gates and runs are true while the gate and the main process of the container run.
	gates, runs [2]bool
	// allowed is true if the gate was told to start the main process, and has not done it yet.
	allowed [2]bool
}

type speaker uint8

const (
	nobody speaker = iota
	theGate
	liar
)

var fencedNames = []string{"app", "web"}

// fence returns the sidecar of the world, with a Lease.
func (w *fenceWorld) fence() *fence {
	f := newFence(fencedNames, fenceDuration)
	f.Retired = w.retired
	for i, name := range fencedNames {
		*f.Containers[name] = fenced{State: w.states[i], connected: w.speakers[i] != nobody}
	}
	f.renew(1, 0)
	return f
}

func (w *fenceWorld) store(f *fence) {
	w.retired = f.Retired
	for i, name := range fencedNames {
		w.states[i] = f.Containers[name].State
	}
}

// successors calls then with the worlds that one action leads to.
func (w fenceWorld) successors(then func(action string, next fenceWorld)) {
	with := func(action string, change func(n *fenceWorld, f *fence)) {
		n := w
		f := n.fence()
		change(&n, f)
		n.store(f)
		then(action, n)
	}
	with("the pod retires", func(_ *fenceWorld, f *fence) { f.Retired = true })
	with("the sidecar restarts", func(n *fenceWorld, _ *fence) { n.speakers = [2]speaker{} })
	for i, name := range fencedNames {
		connect := func(who speaker) func(n *fenceWorld, f *fence) {
			return func(n *fenceWorld, f *fence) {
				if f.connect(name) {
					n.speakers[i] = who
				}
			}
		}
		if !w.gates[i] {
			with(name+": the kubelet starts the gate", func(n *fenceWorld, _ *fence) { n.gates[i] = true })
		} else {
			if w.speakers[i] == nobody {
				with(name+": the gate connects", connect(theGate))
			}
			with(name+": the container is killed", func(n *fenceWorld, f *fence) {
				n.gates[i], n.runs[i], n.allowed[i] = false, false, false
				if n.speakers[i] == theGate {
					n.speakers[i] = nobody
					f.disconnect(name)
				}
			})
		}
		if w.speakers[i] == theGate && !w.runs[i] {
			with(name+": the sidecar lets the gate start", func(n *fenceWorld, f *fence) {
				_, ok := f.start(name, 0)
				n.allowed[i] = n.allowed[i] || ok
			})
		}
		if w.allowed[i] {
			with(name+": the gate starts the main process", func(n *fenceWorld, _ *fence) { n.allowed[i], n.runs[i] = false, true })
		}
		if w.runs[i] && w.speakers[i] == theGate {
			with(name+": the main process ends, the gate reports it and exits", func(n *fenceWorld, f *fence) {
				f.end(name)
				f.disconnect(name)
				n.gates[i], n.runs[i], n.speakers[i] = false, false, nobody
			})
		}
		if w.runs[0] || w.runs[1] {
			if w.speakers[i] == nobody {
				with(name+": a main process pretends to be the gate", connect(liar))
			}
			if w.speakers[i] == liar {
				with(name+": a main process asks to start", func(_ *fenceWorld, f *fence) { f.start(name, 0) })
				with(name+": a main process reports the end", func(_ *fenceWorld, f *fence) { f.end(name) })
				with(name+": a main process disconnects", func(n *fenceWorld, f *fence) { n.speakers[i] = nobody; f.disconnect(name) })
			}
		}
	}
}

// In every order of restarts, kills and forged reports, a pod is released only if no main process of it runs or can
// start.
func TestReleaseSearch(t *testing.T) {
	type origin struct {
		from   fenceWorld
		action string
	}
	start := fenceWorld{}
	seen := map[fenceWorld]origin{start: {}}
	released := 0
	for queue := []fenceWorld{start}; len(queue) > 0; {
		w := queue[0]
		queue = queue[1:]
		if w.fence().mayRelease() {
			released++
			if w.runs != [2]bool{} || w.allowed != [2]bool{} {
				var trace []string
				for at := w; at != start; at = seen[at].from {
					trace = append([]string{seen[at].action}, trace...)
				}
				t.Fatalf("released while a main process runs or may start:\n%s\n%+v", strings.Join(trace, "\n"), w)
			}
		}
		w.successors(func(action string, next fenceWorld) {
			if _, ok := seen[next]; !ok {
				seen[next] = origin{w, action}
				queue = append(queue, next)
			}
		})
	}
	t.Logf("%d states, %d of them released", len(seen), released)
	if released == 0 {
		t.Error("no pod was released")
	}
}
