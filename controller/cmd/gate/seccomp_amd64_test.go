package main

import (
	"strings"
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
			held := p.start(c)
			if tc.wantEnds != "" {
				p.release()
				if code := held.exit(); code == 0 || code == mainProcessCode || held.printed() != "" || !strings.Contains(held.said(), tc.wantEnds) {
					t.Errorf("exit code %d, stdout %q, stderr %q, want an error with %q", code, held.printed(), held.said(), tc.wantEnds)
				}
				return
			}
			held.says(heldLog)
			stops := p.start(c)
			stops.says(heldLog)
			time.Sleep(time.Second) // the test measures the CPU time of this second
			p.wantHeld(stops, held)
			if used, most := held.ProcessState.UserTime()+held.ProcessState.SystemTime(), 100*time.Millisecond; used > most {
				t.Errorf("used %s of CPU in a second, want %s at most", used, most)
			}
		})
	}
}
