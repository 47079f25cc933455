package gate

import (
	"math"
	"os"
	"slices"
	"time"
)

// newsPatience is how long a stop signal waits until the sidecar knows whether the pod is deleted. The kubelet and the controller
// see the deletion at the same time, but a busy controller took half a second to write it into the Lease.
const newsPatience = time.Second

// delayedStop holds the first stop signal back while Services still send clients to a pod that is deleted. Other stops, for
// example after a failed liveness probe, are delayed only until it is clear that the pod is not deleted.
type delayedStop struct {
	// held is nil unless a signal is held back. Since is when it came.
	held  os.Signal
	since time.Duration
	// deleted: the pod is deleted, and the main process must stop at the time until.
	deleted     bool
	wait, until time.Duration
	// over: a stop signal was forwarded.
	over bool
}

// take holds a signal back, or returns false if it must be forwarded now. It holds only the first stop signal: whoever sends a
// second wants a stop at once.
func (d *delayedStop) take(s os.Signal, term Term, now time.Duration) bool {
	if d.over || !term.Delays || !d.stops(s) {
		return false
	}
	if d.held != nil {
		d.release()
		return false
	}
	d.held, d.since = s, now
	return true
}

// stops returns true if the signal asks the main process to stop. An image can name others than the usual ones, which otherwise
// have other uses.
func (d *delayedStop) stops(s os.Signal) bool {
	return slices.Contains(leaveSignals, s) || d.deleted && slices.Contains(stopSignals, s)
}

// delay records for how long the pod still serves from now on. The sidecar repeats itself.
func (d *delayedStop) delay(wait, now time.Duration) {
	if !d.deleted || d.wait != wait {
		d.deleted, d.wait, d.until = true, wait, now+wait
	}
}

// due returns when to forward the held signal.
func (d *delayedStop) due() time.Duration {
	switch {
	case d.held == nil:
		return math.MaxInt64
	case d.deleted:
		return max(d.since, d.until)
	}
	return d.since + newsPatience
}

// release returns the held signal, which is not held any more.
func (d *delayedStop) release() os.Signal {
	s := d.held
	d.held, d.over = nil, true
	return s
}
