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

// volumeOfChild is the environment variable by which the test runs itself anew, in
// a user namespace whose limit of inotify instances is reached. It names the volume.
const volumeOfChild = "GATE_TEST_VOLUME"

// A node's pods share its inotify instances: others may have taken them all. Closing
// one would hold up the main process.
func TestWrapNeedsNoInotify(t *testing.T) {
	if volume := os.Getenv(volumeOfChild); volume != "" {
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		t.Fatal(Wrap(Volume(volume), uid, []string{"/bin/sh", "-c", "echo released with $STATEFULSINGLETON_EPOCH"}, slog.Default()))
	}
	const polling = "by polling alone, without the sidecar's bell"
	tests := map[string]struct {
		prepare     func(v Volume) error
		wantPolling bool
	}{
		"with the bell":         {prepare: Volume.hangBell},
		"no bell":               {prepare: func(Volume) error { return nil }, wantPolling: true},
		"no pipe in its place":  {prepare: func(v Volume) error { return os.WriteFile(v.bellFile(), nil, 0o644) }},
		"held open by a writer": {prepare: func(v Volume) error { return errors.Join(v.hangBell(), holdOpen(t, v.bellFile())) }},
		"a loop in its place":   {prepare: func(v Volume) error { return os.Symlink("bell", v.bellFile()) }, wantPolling: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			volume := Volume(t.TempDir())
			if err := tc.prepare(volume); err != nil {
				t.Fatal(err)
			}
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
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stderr.Close() }()
			child.Stderr = stderr
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "Held on stderr", func() bool { return strings.Contains(readFile(t, stderr.Name()), "Held") })
			if err := volume.apply([]byte(signalOf(uid, 5))); err != nil {
				t.Fatal(err)
			}
			if err := child.Wait(); err != nil || stdout.String() != "released with 5\n" {
				t.Errorf("error %v, stdout %q, stderr %q, want it released with epoch 5", err, &stdout, readFile(t, stderr.Name()))
			}
			if got := strings.Contains(readFile(t, stderr.Name()), polling); got != tc.wantPolling {
				t.Errorf("says that it polls: %t, want %t; stderr %q", got, tc.wantPolling, readFile(t, stderr.Name()))
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

// One that were not heard would be seen after a second: a hundred of them too late.
func TestEveryRingIsHeard(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for n := range 100 {
		volume := Volume(t.TempDir())
		if err := errors.Join(volume.hangBell(), volume.hangBell()); err != nil {
			t.Fatal(err)
		}
		listening, stop := context.WithCancel(ctx)
		first, second := volume.rung(listening, slog.Default()), volume.rung(listening, slog.Default())
		<-first // at once
		<-second
		applied := make(chan error, 1)
		go func() { applied <- volume.apply([]byte(signalOf(uid, 1))) }()
		for _, reports := range []<-chan struct{}{first, second} {
			for seen := false; !seen; {
				select {
				case <-reports:
					_, err := volume.Signal(uid)
					seen = err == nil
				case <-ctx.Done():
					t.Fatalf("signal %d was not seen in time", n)
				}
			}
		}
		stop()
		if err := <-applied; err != nil {
			t.Fatal(err)
		}
	}
}

func TestChangesLeaveNothingOpen(t *testing.T) {
	eventually(t, "other tests have none open", func() bool { return inotifyInstances(t) == 0 })
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		reports := changes(ctx, t.TempDir(), time.Hour, slog.New(slog.DiscardHandler))
		<-reports
		if got := inotifyInstances(t); got != 1 {
			t.Fatalf("%d inotify instances while it watches, want 1", got)
		}
		cancel()
		for range reports {
		}
	}
	if got := inotifyInstances(t); got != 0 {
		t.Errorf("%d inotify instances after the end, want 0", got)
	}
}

// inotifyInstances counts those that this process has open.
func inotifyInstances(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// The descriptor that lists the directory is gone by now.
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); target == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
