package gate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// volumeOfChild is the environment variable with the volume of a child process. The child process is the test itself,
// in a user namespace whose limit of inotify instances is zero.
const volumeOfChild = "GATE_TEST_VOLUME"

// The wrapper uses no inotify instance: all pods of a node share the limit, and closing an instance would delay the
// main process.
func TestWrapNeedsNoInotify(t *testing.T) {
	if volume := os.Getenv(volumeOfChild); volume != "" {
		must(t, os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0))
		t.Fatal(Wrap(Volume(volume), uid, []string{"/bin/sh", "-c", "echo released with $STATEFULSINGLETON_EPOCH"}, slog.Default()))
	}
	const polling = "Polling the signal file instead"
	tests := map[string]struct {
		prepare     func(v Volume) error
		wantPolling bool
	}{
		"with the pipe":         {prepare: Volume.createPipe},
		"no pipe":               {prepare: func(Volume) error { return nil }, wantPolling: true},
		"a file in its place":   {prepare: func(v Volume) error { return os.WriteFile(v.pipeFile(), nil, 0o644) }},
		"held open by a writer": {prepare: func(v Volume) error { return errors.Join(v.createPipe(), holdOpen(t, v.pipeFile())) }},
		"a loop in its place":   {prepare: func(v Volume) error { return os.Symlink("wakeup", v.pipeFile()) }, wantPolling: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			volume := Volume(t.TempDir())
			must(t, tc.prepare(volume))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestWrapNeedsNoInotify$")
			child.Env = append(os.Environ(), volumeOfChild+"="+string(volume))
			child.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
			var stdout bytes.Buffer
			child.Stdout = &stdout
			stderr, err := os.Create(t.TempDir() + "/stderr")
			must(t, err)
			defer func() { _ = stderr.Close() }()
			child.Stderr = stderr
			must(t, child.Start())
			eventually(t, "Held on stderr", func() bool { return strings.Contains(readFile(t, stderr.Name()), "Held") })
			must(t, volume.apply([]byte(signalOf(uid, 5))))
			if err := child.Wait(); err != nil || stdout.String() != "released with 5\n" {
				t.Errorf("error %v, stdout %q, stderr %q, want it released with epoch 5", err, &stdout, readFile(t, stderr.Name()))
			}
			if got := strings.Contains(readFile(t, stderr.Name()), polling); got != tc.wantPolling {
				t.Errorf("logs that it polls: %t, want %t; stderr %q", got, tc.wantPolling, readFile(t, stderr.Name()))
			}
		})
	}
}

// holdOpen keeps a named pipe open for writing until the test ends.
func holdOpen(t *testing.T, path string) error {
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		t.Cleanup(func() { _ = pipe.Close() })
	}
	return err
}

// Without a wake-up, a wrapper finds the signal only after a second, and 100 signals would take too long.
func TestEveryWakeUpArrives(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for n := range 100 {
		volume := Volume(t.TempDir())
		must(t, errors.Join(volume.createPipe(), volume.createPipe()))
		listening, stop := context.WithCancel(ctx)
		first, second := volume.wakeups(listening, slog.Default()), volume.wakeups(listening, slog.Default())
		<-first // at once
		<-second
		applied := make(chan error, 1)
		go func() { applied <- volume.apply([]byte(signalOf(uid, 1))) }()
		for _, wakeups := range []<-chan struct{}{first, second} {
			for seen := false; !seen; {
				select {
				case <-wakeups:
					_, err := volume.Signal(uid)
					seen = err == nil
				case <-ctx.Done():
					t.Fatalf("signal %d: not found in time", n)
				}
			}
		}
		stop()
		must(t, <-applied)
	}
}

func TestChangesCloseInotify(t *testing.T) {
	eventually(t, "no inotify instance of another test", func() bool { return inotifyInstances(t) == 0 })
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		changed := changes(ctx, t.TempDir(), time.Hour, slog.New(slog.DiscardHandler))
		<-changed
		if got := inotifyInstances(t); got != 1 {
			t.Fatalf("%d inotify instances during the watch, want 1", got)
		}
		cancel()
		for range changed {
		}
	}
	if got := inotifyInstances(t); got != 0 {
		t.Errorf("%d inotify instances after the end, want 0", got)
	}
}

// inotifyInstances returns the number of open inotify instances of this process.
func inotifyInstances(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range fds {
		// The descriptor of the directory itself is already closed.
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); target == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
