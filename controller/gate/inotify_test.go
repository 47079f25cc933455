package gate

import (
	"bytes"
	"context"
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

// A node's pods share its inotify instances: others may have taken them all.
func TestWrapWithoutInotify(t *testing.T) {
	if volume := os.Getenv(volumeOfChild); volume != "" {
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		t.Fatal(Wrap(Volume(volume), []string{"/bin/sh", "-c", "echo released with $STATEFULSINGLETON_EPOCH"}, slog.Default()))
	}
	volume := Volume(t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestWrapWithoutInotify$")
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
	for _, said := range []string{"without inotify", "too many open files", "Held"} {
		eventually(t, said+" on stderr", func() bool { return strings.Contains(readFile(t, stderr.Name()), said) })
	}
	if err := writeWhole(volume.signalFile(), 0o644, strings.NewReader(signalOf(uid, 5))); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil || stdout.String() != "released with 5\n" {
		t.Errorf("error %v, stdout %q, stderr %q, want it released with epoch 5", err, &stdout, readFile(t, stderr.Name()))
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
