package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Localhost seccomp profile is made for the application, and can reject system calls of the gate. Then the gate waits
// without these calls, or exits. It never starts the main process early.
func TestWrapUnderASeccompProfile(t *testing.T) {
	tests := map[string]struct {
		forbidden []uint32
		// wantEnds is the error, if the gate exits instead of waiting.
		wantEnds string
	}{
		"inotify and pipes": {forbidden: []uint32{unix.SYS_INOTIFY_INIT1, unix.SYS_MKNODAT, unix.SYS_MKNOD}},
		"poll":              {forbidden: []uint32{unix.SYS_POLL, unix.SYS_PPOLL}},
		"epoll":             {forbidden: []uint32{unix.SYS_EPOLL_CREATE1}, wantEnds: "epoll"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			c := p.wrapped(mainProcess...)
			c.Forbidden = tc.forbidden
			held := start(t, c)
			if tc.wantEnds != "" {
				p.release(t)
				if code := held.exit(t); code == 0 || code == mainProcessCode || read(t, held.stdout) != "" || !strings.Contains(read(t, held.stderr), tc.wantEnds) {
					t.Errorf("exit code %d, stdout %q, stderr %q, want an error with %q", code, read(t, held.stdout), read(t, held.stderr), tc.wantEnds)
				}
				return
			}
			held.says(t, "Held: the main process starts")
			time.Sleep(time.Second) // the test measures the CPU time of this second
			if got := read(t, held.stdout); got != "" {
				t.Errorf("started while held: %q", got)
			}
			p.release(t)
			if code := held.exit(t); code != mainProcessCode {
				t.Errorf("exit code %d, want the exit code of the main process; stderr:\n%s", code, read(t, held.stderr))
			}
			if used, most := held.ProcessState.UserTime()+held.ProcessState.SystemTime(), 100*time.Millisecond; used > most {
				t.Errorf("used %s of CPU in a second, want %s at most", used, most)
			}
		})
	}
	t.Run("stops while it waits", func(t *testing.T) {
		c := newPod(t).wrapped(mainProcess...)
		c.Forbidden = tests["poll"].forbidden
		held := start(t, c)
		held.says(t, "Held: the main process starts")
		must(t, held.Process.Signal(syscall.SIGTERM))
		if code := held.exit(t); code != 143 {
			t.Errorf("exit code %d, want 143", code)
		}
	})
}
