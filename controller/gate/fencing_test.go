package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const fenceDuration = 15 * time.Second

func TestTerm(t *testing.T) {
	f := newFence(uid, []string{"app"}, fenceDuration, false)
	f.connect("app", false, 0)
	if f.start("app", 0) {
		t.Error("a main process starts before the first renewal")
	}
	f.renew(7, time.Minute)
	if want := (Term{Epoch: 7, Stop: time.Minute + 10*time.Second, Kill: time.Minute + 12500*time.Millisecond}); f.term != want {
		t.Errorf("term %+v, want %+v", f.term, want)
	}
	if f.start("app", time.Minute+10*time.Second) {
		t.Error("a main process starts when it would have to stop")
	}
	if !f.start("app", time.Minute+9*time.Second) {
		t.Error("a main process does not start during the term")
	}
}

// If the Lease never expires, nothing ends a term, and a container that was restarted waits for another renewal.
func TestTermThatNeverExpires(t *testing.T) {
	f := newFence(uid, []string{"app"}, signal.NeverExpires*time.Second, false)
	f.connect("app", false, time.Minute)
	f.renew(7, time.Minute)
	const decades = 20 * 365 * 24 * time.Hour
	if !f.start("app", time.Minute) || f.term.Stop < decades || f.term.Kill < f.term.Stop {
		t.Errorf("the main process does not start, or the term ends: %+v", f.term)
	}
	f.disconnect("app")
	f.connect("app", false, 2*time.Minute)
	if f.start("app", 2*time.Minute) {
		t.Error("the restarted container starts before a renewal")
	}
	if f.renew(7, 3*time.Minute); !f.start("app", 3*time.Minute) {
		t.Error("the restarted container does not start after a renewal")
	}
}

func TestRestore(t *testing.T) {
	for name, tc := range map[string]struct {
		stored      fence
		wantRetired bool
		wantErr     bool
	}{
		"of this pod":              {fence{UID: uid, Retired: true, Containers: map[string]*fenced{"app": {State: ended}}}, true, false},
		"of another pod":           {fence{UID: "another", Retired: true, Containers: map[string]*fenced{"app": {State: ended}}}, false, false},
		"without a held container": {fence{UID: uid, Containers: map[string]*fenced{"web": {}, "app": nil}}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFence(uid, []string{"app"}, fenceDuration, false)
			err := f.restore(&tc.stored)
			if (err != nil) != tc.wantErr || f.Retired != tc.wantRetired || f.mayRelease() != tc.wantRetired {
				t.Errorf("error %v, state %+v", err, f)
			}
		})
	}
}

// A restarted sidecar knows that the writer of the tenure may run, also in the next tenure, until the gate has reported its end.
func TestRestoreOfALock(t *testing.T) {
	f := newFence(uid, []string{"app"}, fenceDuration, true)
	must(t, f.restore(&fence{UID: uid, Tenure: 7, Containers: map[string]*fenced{"app": {State: mayRun}}}))
	if f.begin(7) {
		t.Error("the tenure begins again")
	}
	f.revoke(7)
	if f.mayRelease() {
		t.Error("the pod releases the Lease while its writer may run")
	}
	if !f.begin(9) || !f.wasReleased() {
		t.Errorf("tenure 9: %+v", f)
	}
	f.connect("app", false, 0)
	if f.end("app", 9); !f.begin(11) || f.wasReleased() {
		t.Errorf("tenure 11: %+v", f)
	}
}

// A report without an epoch ends no tenure: the pod releases the Lease only after the container has ended.
func TestReportsWithoutEpoch(t *testing.T) {
	const epoch = 9
	f := newFence(uid, []string{"app"}, fenceDuration, true)
	f.connect("app", false, 0)
	f.begin(epoch)
	f.renew(epoch, 0)
	if !f.start("app", 0) {
		t.Fatalf("the writer cannot start: %+v", f)
	}
	f.revoke(epoch)
	if f.end("app", 0) || f.mayRelease() {
		t.Errorf("the report without an epoch counts: %+v", f)
	}
	f.disconnect("app")
	if f.connect("app", false, 0); !f.mayRelease() {
		t.Errorf("the restarted container keeps the Lease: %+v", f)
	}
}

// An unknown state keeps the Lease.
func TestUnknownStateKeepsTheLease(t *testing.T) {
	f := newFence(uid, []string{"app"}, fenceDuration, false)
	f.Retired, f.Containers["app"].State = true, "Paused"
	if f.mayRelease() {
		t.Error("the pod releases the Lease")
	}
}

// A main process runs with the epoch of its start. Only terms with that epoch continue it.
func TestRenewal(t *testing.T) {
	term, later := Term{Epoch: 7, Stop: 10, Kill: 12}, Term{Epoch: 7, Stop: 20, Kill: 22}
	if got := renewal(term, later); got != later {
		t.Errorf("the same epoch: %+v", got)
	}
	for name, other := range map[string]Term{"another epoch": {Epoch: 8, Stop: 20, Kill: 22}, "no term": {}} {
		if got := renewal(term, other); got.Stop != 0 || got.Kill != 0 {
			t.Errorf("%s: %+v, want the end", name, got)
		}
	}
}

// A term that arrives late starts nothing.
func TestAwaitTerm(t *testing.T) {
	terms, now := make(chan Term, 2), bootTime()
	connection := &sidecarConnection{terms: terms}
	valid := Term{Epoch: 8, Stop: now + time.Hour, Kill: now + 2*time.Hour}
	terms <- Term{Epoch: 7, Stop: now - 1, Kill: now + time.Hour}
	terms <- valid
	if got, err := awaitTerm(connection, &clients{}, nil); err != nil || got != valid {
		t.Errorf("term %+v, error %v", got, err)
	}
}

// A main process does not start after its term was taken away, or while the container is being killed, although the start began before.
func TestStartObeysTheLastTerm(t *testing.T) {
	e := &enforcer{}
	e.follow(Term{Epoch: 7, Stop: bootTime() + time.Hour})
	if err := e.mayStart(); err != nil {
		t.Errorf("in its term: %v", err)
	}
	e.follow(renewal(e.term, Term{}))
	if e.mayStart() == nil {
		t.Error("it starts without a term")
	}
}

// fenceWorld is a pod: its sidecar, and what really happens in its containers.
type fenceWorld struct {
	retired bool
	// states are those of the sidecar, by container. stored are the states that outlive the sidecar.
	states, stored [2]runState
	// speakers are the connections to the sidecar: none, the gate, or a main process that pretends to be the gate.
	speakers [2]speaker
	// over is true after a connected gate reported the end.
	over [2]bool
	// gates and runs are true while the gate and the main process of the container run.
	gates, runs [2]bool
	// allowed is true if the gate was told to start the main process, and has not done it yet.
	allowed [2]bool
	// released is true after the sidecar has released the Lease.
	released bool
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
	f := newFence(uid, fencedNames, fenceDuration, false)
	f.Retired = w.retired
	for i, name := range fencedNames {
		*f.Containers[name] = fenced{State: w.states[i], connected: w.speakers[i] != nobody, over: w.over[i]}
	}
	f.renew(1, 0)
	return f
}

func (w *fenceWorld) keep(f *fence) {
	w.retired = f.Retired
	for i, name := range fencedNames {
		w.states[i], w.over[i] = f.Containers[name].State, f.Containers[name].over
	}
}

// fenceAction is an action in the world: what it changes in the sidecar and outside of it.
type fenceAction func(action string, change func(n *fenceWorld, f *fence))

// successors calls then with the worlds that one action leads to.
func (w *fenceWorld) successors(then func(action string, next fenceWorld)) {
	with := func(action string, change func(n *fenceWorld, f *fence)) {
		n := *w
		f := n.fence()
		change(&n, f)
		n.keep(f)
		then(action, n)
	}
	// The state is stored before a main process starts. Other changes can be lost.
	with("the pod retires", func(_ *fenceWorld, f *fence) { f.Retired = true })
	if w.fence().mayRelease() {
		with("the pod releases the Lease", func(n *fenceWorld, _ *fence) { n.released = true })
	}
	with("the state is stored", func(n *fenceWorld, _ *fence) { n.stored = n.states })
	with("the sidecar restarts", func(n *fenceWorld, f *fence) {
		n.speakers = [2]speaker{}
		for i, name := range fencedNames {
			*f.Containers[name] = fenced{State: n.stored[i]}
		}
	})
	for i := range fencedNames {
		w.ofGate(i, with)
		if w.runs[0] || w.runs[1] {
			w.ofLiar(i, with)
		}
	}
}

// ofGate has the actions of the kubelet and of the gate of a container.
func (w *fenceWorld) ofGate(i int, with fenceAction) {
	name := fencedNames[i]
	if !w.gates[i] {
		with(name+": the kubelet starts the gate", func(n *fenceWorld, _ *fence) { n.gates[i] = true })
		return
	}
	end := func(n *fenceWorld, f *fence) {
		n.gates[i], n.runs[i], n.allowed[i] = false, false, false
		if n.speakers[i] == theGate {
			n.speakers[i] = nobody
			f.disconnect(name)
		}
	}
	with(name+": the container is killed", end)
	if w.speakers[i] == nobody {
		with(name+": the gate connects", func(n *fenceWorld, f *fence) {
			f.connect(name, n.runs[i], 0)
			n.speakers[i] = theGate
		})
	}
	if w.speakers[i] == theGate && !w.runs[i] {
		with(name+": the sidecar lets the gate start", func(n *fenceWorld, f *fence) {
			if f.start(name, 0) {
				n.allowed[i] = true
				for j, other := range fencedNames {
					n.stored[j] = f.Containers[other].State
				}
			}
		})
	}
	if w.allowed[i] {
		with(name+": the gate starts the main process", func(n *fenceWorld, _ *fence) { n.allowed[i], n.runs[i] = false, true })
	}
	if w.runs[i] && w.speakers[i] == theGate {
		with(name+": the main process ends, and the gate reports it", func(n *fenceWorld, f *fence) {
			f.end(name, 0)
			n.runs[i], n.allowed[i] = false, false
		})
	}
}

// ofLiar has the actions of a main process that pretends to be the gate of a container.
func (w *fenceWorld) ofLiar(i int, with fenceAction) {
	name := fencedNames[i]
	switch w.speakers[i] {
	case nobody:
		for _, runs := range []bool{false, true} {
			with(fmt.Sprintf("%s: a main process pretends to be the gate, runs %t", name, runs), func(n *fenceWorld, f *fence) {
				f.connect(name, runs, 0)
				n.speakers[i] = liar
			})
		}
	case liar:
		with(name+": a main process asks to start", func(n *fenceWorld, f *fence) {
			if f.start(name, 0) {
				n.stored[i] = f.Containers[name].State
			}
		})
		with(name+": a main process reports the end", func(_ *fenceWorld, f *fence) { f.end(name, 0) })
		with(name+": a main process disconnects", func(n *fenceWorld, f *fence) { n.speakers[i] = nobody; f.disconnect(name) })
	case theGate:
	}
}

// The first connection of a container speaks for it, until it breaks.
func TestConnect(t *testing.T) {
	f := newFence(uid, []string{"app"}, fenceDuration, false)
	for what, want := range map[string]bool{"app": true, "web": false} {
		if got := f.connect(what, false, 0); got != want {
			t.Errorf("a connection for %s is accepted: %t", what, got)
		}
	}
	if f.connect("app", false, 0) {
		t.Error("a second connection is accepted")
	}
	if f.disconnect("app"); !f.connect("app", false, 0) {
		t.Error("a connection after the first is not accepted")
	}
}

// explore visits every world that actions lead to, and fails if check rejects one. check also says whether the pod is released.
func explore[W comparable](t *testing.T, successors func(w *W, then func(action string, next W)), check func(w *W) (released bool, wrong string)) {
	t.Helper()
	type origin struct {
		from   W
		action string
	}
	var start W
	seen := map[W]origin{start: {}}
	released := 0
	for queue := []W{start}; len(queue) > 0; queue = queue[1:] {
		w := queue[0]
		is, wrong := check(&w)
		if is {
			released++
		}
		if wrong != "" {
			var trace []string
			for at := w; at != start; at = seen[at].from {
				trace = append([]string{seen[at].action}, trace...)
			}
			t.Fatalf("%s:\n%s\n%+v", wrong, strings.Join(trace, "\n"), w)
		}
		successors(&w, func(action string, next W) {
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

// In every order of restarts, kills, lost states and forged reports of this model, a pod is released only if no main
// process of it runs or can start.
func TestSearchRelease(t *testing.T) {
	explore(t, (*fenceWorld).successors, func(w *fenceWorld) (released bool, wrong string) {
		released = w.fence().mayRelease() || w.released
		if released && (w.runs != [2]bool{} || w.allowed != [2]bool{}) {
			wrong = "released while a main process runs or may start"
		}
		return released, wrong
	})
}
