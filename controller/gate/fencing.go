package gate

import (
	"fmt"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// A pod with fencing by a Lease runs its main processes only while it holds the Lease. The pod of a StatefulSetLock runs
// them always, as the writer only while it holds the Lease. This file has the rules of the sidecar, without clock, network
// and files. The times are of CLOCK_BOOTTIME, which the containers of a node share.

// Term is the time for which a renewal of the Lease lets main processes run. The zero Term ends main processes at once.
type Term struct {
	// Epoch is the fencing token.
	Epoch int64
	// Ends: the tenure of the writer must end now, and the main process must become a reader.
	Ends bool `json:",omitempty"`
	// Delays: the pod queues clients, so a stop signal waits until the sidecar says whether the pod is deleted.
	Delays bool `json:",omitempty"`
	// Stop is when running main processes get SIGTERM, and none may start any more. Kill is when every process of the
	// held containers gets SIGKILL.
	Stop, Kill time.Duration

	// connection is the number of the gate's connection that received the term.
	connection int
}

// termOf returns the term of a renewal that was sent at the time sent. The controller waits a whole duration after it has
// seen the renewal. The time from Kill to then is for processes that die slowly.
func termOf(epoch int64, sent, duration time.Duration) Term {
	return Term{Epoch: epoch, Stop: sent + duration/3*2, Kill: sent + duration/6*5}
}

// runState is what the sidecar knows about the main process of a held container. Empty: the sidecar has never let the
// main process start.
type runState string

const (
	// mayRun: the sidecar let the main process start, and the gate has not reported its end.
	mayRun runState = "MayRun"
	// ended: the gate reported that every process of the container has ended.
	ended runState = "Ended"
	// unknown: the connection broke before the gate reported the end. Processes may still run, and no later report is
	// trusted.
	unknown runState = "Unknown"
)

// fence is the state of the sidecar. The exported fields outlive a restart of the sidecar.
type fence struct {
	// UID is the UID of the pod.
	UID string `json:"uid"`
	// Retired: the pod never starts a main process again.
	Retired bool `json:"retired,omitempty"`
	// Tenure is the epoch of the last tenure of the pod.
	Tenure int64 `json:"tenure,omitempty"`
	// Ending is the epoch of the tenure that ends: the pod starts no writer with this epoch any more. Only a pod of a
	// StatefulSetLock has tenures.
	Ending int64 `json:"ending,omitempty"`
	// Containers has the held containers by name.
	Containers map[string]*fenced `json:"containers"`

	duration time.Duration
	term     Term
	// renewed is when the sidecar sent the last renewal that the API server accepted.
	renewed time.Duration
	// roles is true if main processes also run without the Lease, as readers.
	roles bool
}

// fenced is a held container.
type fenced struct {
	State runState `json:"state,omitempty"`

	connected bool
	// since is when the gate connected.
	since time.Duration
	// over: the connected gate has reported the end. It only exits now.
	over bool
}

func newFence(uid string, held []string, duration time.Duration, roles bool) *fence {
	f := &fence{UID: uid, Containers: map[string]*fenced{}, duration: duration, roles: roles}
	for _, name := range held {
		f.Containers[name] = &fenced{}
	}
	return f
}

// restore takes over what an earlier sidecar of the pod stored. It ignores the state of another pod, which a backup tool
// can have restored.
func (f *fence) restore(stored *fence) error {
	if stored.UID != f.UID {
		return nil
	}
	for name := range f.Containers {
		c := stored.Containers[name]
		if c == nil {
			return fmt.Errorf("the stored state lacks container %s", name)
		}
		f.Containers[name].State = c.State
	}
	f.Retired, f.Tenure, f.Ending = stored.Retired, stored.Tenure, stored.Ending
	return nil
}

// wasReleased returns true if the sidecar ever let a main process start.
func (f *fence) wasReleased() bool {
	for _, c := range f.Containers {
		if c.State != "" {
			return true
		}
	}
	return false
}

// connect returns false if the new connection must not speak for the container: there is no such held container, or its
// gate is connected. runs is true if the connection says that the main process runs already. The main process can
// connect, too. The first connection is the gate's, because the gate connects before it starts anything.
func (f *fence) connect(container string, runs bool, now time.Duration) bool {
	c := f.Containers[container]
	if c == nil || c.connected {
		return false
	}
	c.connected, c.since, c.over = true, now, false
	switch {
	case f.roles && runs:
		c.State = mayRun
	case f.roles && c.State == mayRun: // the container was restarted
		f.end(container, f.Tenure)
	case c.State == mayRun || runs:
		c.State = unknown // the gate lost its connection, and this one may be the main process
	}
	return true
}

func (f *fence) disconnect(container string) { f.Containers[container].connected = false }

// renew records a renewal of the Lease that the API server accepted.
func (f *fence) renew(epoch int64, sent time.Duration) {
	f.term, f.renewed = termOf(epoch, sent, f.duration), sent
}

// neverExpires returns true if the Lease never expires.
func (f *fence) neverExpires() bool { return f.duration == signal.NeverExpires*time.Second }

// begin records that the Lease names the pod with the epoch. It returns true if a tenure begins. A writer of this pod can still
// run with an earlier epoch. Writers of other pods have ended.
func (f *fence) begin(epoch int64) bool {
	if !f.roles || epoch == f.Tenure {
		return false
	}
	f.Tenure = epoch
	for _, c := range f.Containers {
		if c.State == ended {
			c.State = ""
		}
		c.over = false
	}
	return true
}

// revoke records that the tenure must end.
func (f *fence) revoke(epoch int64) { f.Ending = max(f.Ending, epoch) }

// lose records that the pod does not hold the Lease.
func (f *fence) lose() { f.term = Term{} }

// start returns true if the main process of the connected container may start now. If the Lease never expires, the start needs
// a renewal since the gate connected: the sidecar may not know yet that the pod has lost the Lease.
func (f *fence) start(container string, now time.Duration) bool {
	c := f.Containers[container]
	if f.Retired || f.ending() || !c.connected || c.over || now >= f.term.Stop || f.neverExpires() && f.renewed < c.since {
		return false
	}
	if c.State != unknown {
		c.State = mayRun
	}
	return true
}

// isLate returns true if a gate sent its report before the current tenure began. The gate may start, or have started, the
// writer of the current tenure since.
func (f *fence) isLate(epoch int64) bool { return f.roles && epoch < f.Tenure }

// end records that every process of the connected container has ended. In a pod of a StatefulSetLock, it records that none is
// the writer with the epoch. It returns false if the report is late.
func (f *fence) end(container string, epoch int64) bool {
	if f.isLate(epoch) {
		return false
	}
	c := f.Containers[container]
	c.over = true
	if c.State == mayRun {
		c.State = ended
		if f.roles {
			f.revoke(f.Tenure) // without one of its writers, the pod is no writer
		}
	}
	return true
}

// ending returns true if the tenure of the pod ends.
func (f *fence) ending() bool { return f.roles && f.Ending >= f.Tenure && f.Tenure > 0 }

// mayRelease returns true if no main process of the pod runs as the writer, and none will start in this tenure, or ever.
func (f *fence) mayRelease() bool {
	if !f.Retired && !f.ending() {
		return false
	}
	for _, c := range f.Containers {
		if c.State != "" && c.State != ended {
			return false
		}
	}
	return true
}
