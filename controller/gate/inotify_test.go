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
