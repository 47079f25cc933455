package gate

import (
	"fmt"
	"time"
)

// A pod with fencing by a Lease runs its main processes only while it holds the Lease. This file has the rules of the
// sidecar, without clock, network and files. The times are of CLOCK_BOOTTIME, which the containers of a node share.

// Term is the time for which a renewal of the Lease lets main processes run. The zero Term ends main processes at once.
type Term struct {
	// Epoch is the fencing token.
	Epoch int64
	// Stop is when running main processes get SIGTERM, and none may start any more. Kill is when every process of the
	// held containers gets SIGKILL.
	Stop, Kill time.Duration
}

// termOf returns the term of a renewal that was sent at the time sent. The controller waits a whole duration after it has
// seen the renewal. The time from Kill to then is for processes that die slowly.
func termOf(epoch int64, sent, duration time.Duration) Term {
	return Term{Epoch: epoch, Stop: sent + duration*2/3, Kill: sent + duration*5/6}
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
	// Containers has the held containers by name.
	Containers map[string]*fenced `json:"containers"`

	duration time.Duration
	term     Term
}

// fenced is a held container.
type fenced struct {
	State runState `json:"state,omitempty"`

	connected bool
	// over: the connected gate has reported the end. It only exits now.
	over bool
}

func newFence(uid string, held []string, duration time.Duration) *fence {
	f := &fence{UID: uid, Containers: map[string]*fenced{}, duration: duration}
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
	f.Retired = stored.Retired
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
func (f *fence) connect(container string, runs bool) bool {
	c := f.Containers[container]
	if c == nil || c.connected {
		return false
	}
	c.connected, c.over = true, false
	if c.State == mayRun || runs {
		c.State = unknown // the gate lost its connection, and this one may be the main process
	}
	return true
}

func (f *fence) disconnect(container string) { f.Containers[container].connected = false }

// renew records a renewal of the Lease that the API server accepted.
func (f *fence) renew(epoch int64, sent time.Duration) { f.term = termOf(epoch, sent, f.duration) }

// lose records that the pod does not hold the Lease.
func (f *fence) lose() { f.term = Term{} }

// start returns true if the main process of the connected container may start now.
func (f *fence) start(container string, now time.Duration) bool {
	c := f.Containers[container]
	if f.Retired || !c.connected || c.over || now >= f.term.Stop {
		return false
	}
	if c.State != unknown {
		c.State = mayRun
	}
	return true
}

// end records that every process of the connected container has ended.
func (f *fence) end(container string) {
	c := f.Containers[container]
	c.over = true
	if c.State == mayRun {
		c.State = ended
	}
}

// mayRelease returns true if no main process of the pod runs, and none will ever start.
func (f *fence) mayRelease() bool {
	if !f.Retired {
		return false
	}
	for _, c := range f.Containers {
		if c.State != "" && c.State != ended {
			return false
		}
	}
	return true
}
