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

// The wake-up pipe is a named pipe in the signal volume. The wrapper keeps the pipe open for reading. To wake the
// wrapper, the sidecar opens the pipe for writing and closes it again. The sidecar writes nothing.
//
// A wake-up only causes the wrapper to read the signal file. Inotify could do that too. But the inotify descriptor must
// be closed before the main process starts, and the kernel takes about 15 ms to close it, which would lengthen the gap.

func (v Volume) pipeFile() string { return filepath.Join(string(v), "wakeup") }

// createPipe creates the wake-up pipe. After a restart of the sidecar, the pipe already exists.
func (v Volume) createPipe() error {
	err := unix.Mkfifo(v.pipeFile(), 0o644)
	if err == nil {
		err = os.Chmod(v.pipeFile(), 0o644) // the umask reduced the mode that Mkfifo set
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the named pipe %s: %w", v.pipeFile(), err)
	}
	return nil
}

// wakeWrappers makes every waiting wrapper read the signal file. A wrapper that misses the wake-up reads the file
// within fallbackPoll.
func (v Volume) wakeWrappers() {
	if pipe, err := os.OpenFile(v.pipeFile(), os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
		_ = pipe.Close()
	}
}

// AwaitRelease returns nil when the signal file releases the pod with the UID. It returns an error if ctx ends
// first: fs.ErrNotExist if the pod is held.
func (v Volume) AwaitRelease(ctx context.Context, uid string) error {
	return v.await(ctx, func() error { _, err := v.Signal(uid); return err })
}

// AwaitStart returns nil when the gate of this container has started the main process, in a pod with fencing. It returns
// an error if ctx ends first.
func (v Volume) AwaitStart(ctx context.Context) error { return v.await(ctx, hasStarted) }

// await returns nil when check does. It checks again after each wake-up. It returns the error of check if ctx ends first.
func (v Volume) await(ctx context.Context, check func() error) error {
	wakeups := v.wakeups(ctx, slog.New(slog.DiscardHandler))
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-wakeups:
		}
	}
}

// wakeups sends when the signal file may have changed: at once, after each wake-up by the sidecar, and every
// fallbackPoll. Without the pipe it sends every wrapPoll. It stops when ctx ends.
func (v Volume) wakeups(ctx context.Context, log *slog.Logger) <-chan struct{} {
	wakeups := make(chan struct{}, 1)
	go func() {
		warned := false
		for ctx.Err() == nil {
			// The open pipe receives all later wake-ups. After earlier wake-ups, the receiver reads the signal file in
			// any case.
			pipe, err := unix.Open(v.pipeFile(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil && !warned {
				log.Warn("Cannot open the wake-up pipe of the sidecar. Polling the signal file instead", "pipe", v.pipeFile(), "error", err)
				warned = true
			}
			select {
			case wakeups <- struct{}{}:
			default: // the receiver has a pending wake-up
			}
			if err != nil {
				time.Sleep(wrapPoll)
				continue
			}
			// With no events requested, poll returns when a writer closes the pipe. The result does not matter: the
			// receiver reads the signal file in any case.
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(pipe)}}, int(fallbackPoll.Milliseconds()))
			_ = unix.Close(pipe)
			if err != nil && !errors.Is(err, unix.EINTR) {
				time.Sleep(wrapPoll) // a seccomp profile can reject poll
			}
		}
	}()
	return wakeups
}
