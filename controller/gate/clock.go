package gate

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bootTime returns the time of CLOCK_BOOTTIME, which also counts while the machine is suspended.
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // the kernel has the clock
	}
	return time.Duration(now.Nano())
}

// alarm rings at a time of CLOCK_BOOTTIME. Go's timers stand still while the machine is suspended.
type alarm struct {
	fd    int
	rings chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	a := &alarm{fd: fd, rings: make(chan struct{}, 1)}
	go func() {
		expirations := make([]byte, 8)
		for {
			// A blocking read in a thread of its own: the poller of Go's runtime can run out of watches.
			if _, err := unix.Read(fd, expirations); err != nil && !errors.Is(err, unix.EINTR) {
				panic(fmt.Sprintf("read the timer that ends the main process: %v", err))
			}
			select {
			case a.rings <- struct{}{}:
			default:
			}
		}
	}()
	return a, nil
}

// until returns a channel that receives at the time, or soon if that is in the past. It can also receive earlier.
func (a *alarm) until(at time.Duration) <-chan struct{} {
	at = max(at, 1) // zero would stop the timer
	if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil); err != nil {
		panic(fmt.Sprintf("set the timer that ends the main process: %v", err))
	}
	return a.rings
}
