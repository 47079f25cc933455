package gate

import (
	"math"
	"syscall"
	"testing"
	"time"
)

// The first stop signal is forwarded when it is due. Everything else is forwarded at once.
func TestDelayedStop(t *testing.T) {
	const second = time.Second
	queues := Term{Delays: true}
	for name, tc := range map[string]struct {
		do   func(d *delayedStop)
		want time.Duration
	}{
		"no signal":                   {func(*delayedStop) {}, math.MaxInt64},
		"not deleted":                 {func(d *delayedStop) { d.take(syscall.SIGTERM, queues, second) }, second + newsPatience},
		"a pod without a queue":       {func(d *delayedStop) { d.take(syscall.SIGTERM, Term{}, second) }, math.MaxInt64},
		"a signal that does not stop": {func(d *delayedStop) { d.take(syscall.SIGHUP, queues, second) }, math.MaxInt64},
		"deleted":                     {func(d *delayedStop) { d.take(syscall.SIGTERM, queues, second); d.delay(2*second, second) }, 3 * second},
		"a preStop hook took as long": {func(d *delayedStop) { d.delay(2*second, 0); d.take(syscall.SIGTERM, queues, 9*second) }, 9 * second},
		"another signal of an image":  {func(d *delayedStop) { d.delay(2*second, 0); d.take(syscall.SIGWINCH, queues, second) }, 2 * second},
		"the delay is known before":   {func(d *delayedStop) { d.delay(2*second, 0); d.take(syscall.SIGQUIT, queues, second) }, 2 * second},
		"no delay":                    {func(d *delayedStop) { d.delay(0, 0); d.take(syscall.SIGINT, queues, second) }, second},
		"the sidecar repeats itself": {func(d *delayedStop) {
			d.take(syscall.SIGTERM, queues, 0)
			d.delay(9*second, 0)
			d.delay(9*second, 5*second)
		}, 9 * second},
		"a shorter delay when one follows": {func(d *delayedStop) {
			d.take(syscall.SIGTERM, queues, 0)
			d.delay(9*second, 0)
			d.delay(2*second, 3*second)
		}, 5 * second},
		"a second signal": {func(d *delayedStop) { d.take(syscall.SIGTERM, queues, 0); d.take(syscall.SIGTERM, queues, second) }, math.MaxInt64},
		"after the release": {func(d *delayedStop) {
			d.take(syscall.SIGTERM, queues, 0)
			d.release()
			d.take(syscall.SIGTERM, queues, 0)
		}, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			d := &delayedStop{}
			tc.do(d)
			if got := d.due(); got != tc.want {
				t.Errorf("due after %s, want %s", got, tc.want)
			}
		})
	}
}
