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

// The bell is a named pipe in the signal volume. The wrapper keeps it open for reading. The sidecar rings it: it
// opens the pipe for writing and closes it, and writes nothing.
//
// The bell only causes the wrapper to read the signal file. Inotify could do that too. But the inotify descriptor must
// be closed before the main process starts, and the kernel takes about 15 ms to close it, which would lengthen the gap.

func (v Volume) bellFile() string { return filepath.Join(string(v), "bell") }

// hangBell creates the bell, unless it exists since before a restart of the sidecar.
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

// ring makes every waiting wrapper read the signal file. A wrapper that misses it reads the file within lookAnyway.
func (v Volume) ring() {
	if bell, err := os.OpenFile(v.bellFile(), os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
		_ = bell.Close()
	}
}

// AwaitRelease returns nil when the signal file releases the pod with the UID. It returns an error when ctx ends
// before: fs.ErrNotExist if the pod is held.
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

// rung sends when the signal file may have changed: at once, when the bell rings, and periodically. Without a bell it
// sends every wrapPoll. It stops when ctx ends.
func (v Volume) rung(ctx context.Context, log *slog.Logger) <-chan struct{} {
	reports := make(chan struct{}, 1)
	go func() {
		warned := false
		for ctx.Err() == nil {
			// The loop below hears later rings. The reader of this report sees the result of earlier rings.
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
			// With no events requested, poll reports that a writer has closed the pipe. The result does not matter:
			// read the signal file in any case.
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(bell)}}, int(lookAnyway.Milliseconds()))
			_ = unix.Close(bell)
			if err != nil && !errors.Is(err, unix.EINTR) {
				time.Sleep(wrapPoll) // a seccomp profile may forbid it
			}
		}
	}()
	return reports
}
