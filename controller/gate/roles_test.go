package gate

import "testing"

// roleWorld is a pod of a StatefulSetLock: its sidecar, what really happens in its containers, and the Lease.
type roleWorld struct {
	// epoch is that of the Lease, which names the pod. revoked is the last revoked epoch.
	epoch, revoked int64
	// named is false after the release, until the Lease names the pod again. releases is true while the API server has a
	// release that it has not accepted yet.
	named, releases bool
	// renewed is true after this sidecar has renewed the Lease.
	renewed bool
	// sidecar is the state of the sidecar, and stored is what outlives it.
	sidecar, stored sidecarState
	containers      [2]roleContainer
}

// sidecarState is the state of the sidecar.
type sidecarState struct {
	tenure, ending int64
	states         [2]runState
	connected      [2]bool
	over           [2]bool
}

// roleContainer is a held container.
type roleContainer struct {
	// gate is true while the gate runs, and connected while the sidecar has its connection.
	gate, connected bool
	// told is true if the gate has a term with which it may start the writer, and writes is true while the writer runs.
	told, writes bool
	// term is the epoch of the term, or of the writer.
	term int64
	// over is the last epoch whose end the gate has reported. sent is the epoch of a report that has not arrived yet.
	over, sent int64
}

func (w *roleWorld) fence() *fence {
	f := newFence(uid, fencedNames, fenceDuration, true)
	f.Tenure, f.Ending = w.sidecar.tenure, w.sidecar.ending
	for i, name := range fencedNames {
		*f.Containers[name] = fenced{State: w.sidecar.states[i], connected: w.sidecar.connected[i], over: w.sidecar.over[i]}
	}
	if w.renewed {
		f.renew(w.epoch, 0)
	}
	return f
}

func (w *roleWorld) keep(f *fence) {
	w.sidecar.tenure, w.sidecar.ending = f.Tenure, f.Ending
	for i, name := range fencedNames {
		c := f.Containers[name]
		w.sidecar.states[i], w.sidecar.connected[i], w.sidecar.over[i] = c.State, c.connected, c.over
	}
}

// arrive passes the report on its way to the sidecar.
func (c *roleContainer) arrive(f *fence, name string) {
	if c.sent > 0 {
		f.end(name, c.sent)
	}
	c.sent = 0
}

// successors calls then with the worlds that one action leads to.
func (w *roleWorld) successors(then func(action string, next roleWorld)) {
	with := func(action string, change func(n *roleWorld, f *fence)) {
		n := *w
		f := n.fence()
		change(&n, f)
		n.keep(f)
		then(action, n)
	}
	const lastEpoch = 2
	if w.epoch < lastEpoch { // also without a release, for example after the record was lost
		with("the Lease names the pod", func(n *roleWorld, _ *fence) { n.epoch, n.named, n.releases = n.epoch+1, true, false })
	}
	if w.named && w.revoked < w.epoch {
		with("the tenure is revoked", func(n *roleWorld, _ *fence) { n.revoked, n.releases = n.epoch, false })
	}
	if w.named {
		with("the sidecar sees the Lease", func(n *roleWorld, f *fence) { f.begin(n.epoch); f.revoke(n.revoked) })
	}
	if w.named && !w.releases && w.sidecar.tenure == w.epoch && w.fence().mayRelease() {
		with("the sidecar releases the Lease", func(n *roleWorld, _ *fence) { n.releases = true })
	}
	if w.named && w.sidecar.tenure == w.epoch && !w.fence().mayRelease() { // a release that arrives later fails
		with("the sidecar renews the Lease", func(n *roleWorld, _ *fence) { n.renewed, n.releases = true, false })
	}
	if w.releases {
		with("the API server accepts the release", func(n *roleWorld, _ *fence) { n.named, n.releases = false, false })
	}
	with("the state is stored", func(n *roleWorld, _ *fence) { n.stored = n.sidecar })
	with("the sidecar restarts", func(n *roleWorld, f *fence) {
		restored := newFence(uid, fencedNames, fenceDuration, true)
		stored := &fence{UID: uid, Tenure: n.stored.tenure, Ending: n.stored.ending, Containers: map[string]*fenced{}}
		for i, name := range fencedNames {
			stored.Containers[name] = &fenced{State: n.stored.states[i]}
			n.containers[i].connected, n.containers[i].told, n.containers[i].sent = false, false, 0
		}
		if err := restored.restore(stored); err != nil {
			panic(err)
		}
		*f, n.renewed = *restored, false
	})
	for i := range fencedNames {
		w.ofContainer(i, with)
	}
}

// ofContainer has the actions of the kubelet and of the gate of a container.
func (w *roleWorld) ofContainer(i int, with func(action string, change func(n *roleWorld, f *fence))) {
	name, c := fencedNames[i], &w.containers[i]
	if !c.gate {
		with(name+": the kubelet starts the gate", func(n *roleWorld, _ *fence) { n.containers[i] = roleContainer{gate: true} })
		return
	}
	with(name+": the container is killed", func(n *roleWorld, f *fence) {
		if c := &n.containers[i]; c.connected {
			c.arrive(f, name) // the sidecar reads a report before the end of the connection
			f.disconnect(name)
		}
		n.containers[i] = roleContainer{}
	})
	if !c.connected {
		with(name+": the gate connects", func(n *roleWorld, f *fence) {
			n.containers[i].connected, n.containers[i].told = f.connect(name, n.containers[i].writes, 0), false
		})
		return
	}
	if w.named && w.sidecar.tenure == w.epoch && !c.writes {
		with(name+": the sidecar lets the gate start the writer", func(n *roleWorld, f *fence) {
			if f.start(name, 0) {
				n.containers[i].told, n.containers[i].term = true, f.Tenure
				n.keep(f)
				n.stored = n.sidecar
			}
		})
	}
	if c.told && c.term > c.over {
		with(name+": the gate starts the writer", func(n *roleWorld, _ *fence) { n.containers[i].told, n.containers[i].writes = false, true })
	}
	// The gate reports the end after its writer has ended, and if it is told to end a tenure in which it started none.
	if (c.writes || c.told) && c.sent == 0 {
		with(name+": the gate reports the end", func(n *roleWorld, _ *fence) {
			c := &n.containers[i]
			c.over, c.sent, c.writes, c.told = c.term, c.term, false, false
		})
	}
	if c.sent > 0 {
		with(name+": the report arrives", func(n *roleWorld, f *fence) {
			n.containers[i].arrive(f, name)
		})
	}
}

// A pod releases the Lease only if no process of it is the writer or can become the writer. The search visits every order of
// restarts, kills and lost states of this model.
func TestSearchRoleRelease(t *testing.T) {
	explore(t, (*roleWorld).successors, func(w *roleWorld) (released bool, wrong string) {
		released = !w.named && w.epoch > 0
		for i, c := range w.containers {
			if released && (c.writes || c.told && c.connected && c.term > c.over) {
				wrong = "released while the writer of " + fencedNames[i] + " runs or may start"
			}
		}
		return released, wrong
	})
}

// A gate that reported an end without a writer can start the writer of the next tenure.
func TestNextTenureAfterReportWithoutWriter(t *testing.T) {
	f := newFence(uid, fencedNames, fenceDuration, true)
	const epoch = 3
	for _, name := range fencedNames {
		f.connect(name, false, 0)
	}
	f.begin(epoch)
	f.end(fencedNames[1], epoch)
	f.begin(epoch + 1)
	f.renew(epoch+1, 0)
	for _, name := range fencedNames {
		if !f.start(name, 0) {
			t.Errorf("container %s may not start the writer", name)
		}
	}
}

// If a container and the sidecar restart together, the pod is no writer without this container.
func TestContainerAndSidecarRestart(t *testing.T) {
	f := newFence(uid, fencedNames, fenceDuration, true)
	stored := &fence{UID: uid, Tenure: 3, Containers: map[string]*fenced{}}
	for _, name := range fencedNames {
		stored.Containers[name] = &fenced{State: mayRun}
	}
	must(t, f.restore(stored))
	f.connect(fencedNames[0], false, 0)
	if !f.ending() {
		t.Error("the tenure does not end")
	}
}

// A gate that has reported the end of a tenure starts no writer with a term that it received before.
func TestGateStartsNoWriterAfterReport(t *testing.T) {
	s := &sidecarConnection{number: 1}
	must(t, s.reportWriterEnd(7))
	for epoch, want := range map[int64]bool{6: false, 7: false, 8: true} {
		if got := s.startsWriter(Term{Epoch: epoch, connection: 1}); got != want {
			t.Errorf("epoch %d: %t, want %t", epoch, got, want)
		}
	}
}
