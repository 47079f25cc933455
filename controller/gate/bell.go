package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The bell is a named pipe in the volume. The wrapper holds it open for reading, and
// the sidecar rings it by opening it for writing and closing it again: no byte passes.
//
// It is no more than a hint to look at the signal file. Inotify would do, but the
// process that a main process becomes would begin by closing it, and the kernel lets a
// grace period pass before it is closed: some 15 ms, in the gap of the handoff.

func (v Volume) bellFile() string { return filepath.Join(string(v), "bell") }

// hangBell makes the bell, if it is not there from before the sidecar was restarted.
func (v Volume) hangBell() error {
	err := unix.Mkfifo(v.bellFile(), 0o644)
	if err == nil {
		err = os.Chmod(v.bellFile(), 0o644) // the mode that it was made with is less the umask
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the named pipe %s: %w", v.bellFile(), err)
	}
	return nil
}

// ring has every wrapper that waits look at the signal file. One that does not hear it
// looks within lookAnyway.
func (v Volume) ring() {
	if bell, err := os.OpenFile(v.bellFile(), os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
		_ = bell.Close()
	}
}

// AwaitRelease returns once the signal file releases the pod with that uid, and fails
// when ctx ends before: with fs.ErrNotExist while the pod is held.
func (v Volume) AwaitRelease(ctx context.Context, uid string) error {
	rung := v.rung(ctx, slog.New(slog.DiscardHandler))
	for {
		_, err := v.Signal(uid)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-rung:
		}
	}
}

// rung reports that the signal file may have changed: when the bell rings, and from
// time to time besides; where there is no bell, every wrapPoll. The first report comes
// at once. Reports end with ctx.
func (v Volume) rung(ctx context.Context, log *slog.Logger) <-chan struct{} {
	reports := make(chan struct{}, 1)
	go func() {
		warned := false
		for ctx.Err() == nil {
			// A ring from here on is heard below, and what it told of before is seen by
			// whoever gets the report.
			bell, err := unix.Open(v.bellFile(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil && !warned {
				log.Warn("The release is seen by polling alone, without the sidecar's bell", "bell", v.bellFile(), "error", err)
				warned = true
			}
			select {
			case reports <- struct{}{}:
			default: // one report is waiting already
			}
			if err != nil {
				time.Sleep(wrapPoll)
				continue
			}
			// Asked for nothing, it tells of a writer that is gone: one that came since the
			// bell was opened. However it ends, it is time to look.
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(bell)}}, int(lookAnyway.Milliseconds()))
			_ = unix.Close(bell)
			if err != nil && !errors.Is(err, unix.EINTR) {
				time.Sleep(wrapPoll) // a seccomp profile may forbid it
			}
		}
	}()
	return reports
}
