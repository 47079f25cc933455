package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// mainProcess is a command whose start is visible on stdout and, if stdout is closed, in the exit code.
var mainProcess = []string{"/bin/sh", "-c", "echo started; exit 42"}

const mainProcessCode = 42

// release is a signal of the pod, as the sidecar writes it.
var release = signal.Signal{UID: podUID, Epoch: 7}.String()

// If the gate cannot read the signal, it reports that and waits. It still obeys SIGTERM, and starts the main process
// after the signal is corrected.
func TestWrapHoldsInHostileEnvironments(t *testing.T) {
	held := `msg="Held: the signal file does not release this pod. See also the log of container status-sidecar" error=`
	tests := map[string]struct {
		// prepare creates the signal file, or another file with its name.
		prepare func(t *testing.T, path string)
		change  func(c *container)
		want    string
		// closed: the container has no stderr.
		closed bool
	}{
		"a directory":       {prepare: func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) }, want: held + `"/var/run/signal/start-signal is not a regular file, but has mode drwxr-xr-x"`},
		"a loop of links":   {prepare: func(t *testing.T, path string) { must(t, os.Symlink("start-signal", path)) }, want: held + `"open /var/run/signal/start-signal: too many levels of symbolic links"`},
		"a link to nowhere": {prepare: func(t *testing.T, path string) { must(t, os.Symlink("missing", path)) }, want: "Held: the main process starts when"},
		"a pipe":            {prepare: func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o644)) }, want: held + `"/var/run/signal/start-signal is not a regular file, but has mode prw-r--r--"`},
		"a pipe with a signal": {prepare: func(t *testing.T, path string) {
			must(t, syscall.Mkfifo(path, 0o644))
			pipe, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			t.Cleanup(func() { _ = pipe.Close() })
			_, err = pipe.WriteString(release)
			must(t, err)
		}, want: held + `"/var/run/signal/start-signal is not a regular file, but has mode prw-r--r--"`},
		"a socket": {prepare: func(t *testing.T, path string) {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			must(t, err)
			must(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: fdPath(t, path)}), syscall.Close(fd)))
		}, want: held + `"open /var/run/signal/start-signal: no such device or address"`},
		"an endless device": {prepare: func(t *testing.T, path string) { mknod(t, path, 1, 5) }, want: held + `"/var/run/signal/start-signal is not a regular file, but has mode Dcrw-rw-rw-"`},
		"unreadable":        {prepare: func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte(release), 0)) }, want: held + `"open /var/run/signal/start-signal: permission denied"`},
		"huge": {prepare: func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(release), 0o644))
			must(t, os.Truncate(path, 1<<40))
		}, want: held + `"/var/run/signal/start-signal: parse signal: the signal is longer than 1024 bytes"`},
		"not UTF-8": {prepare: func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("\xff"+release), 0o644)) }, want: held + `"/var/run/signal/start-signal: parse signal: the signal is not UTF-8"`},

		"no /proc": {change: func(c *container) { c.NoProc = true }, want: "Held: the main process starts when"},
		"no stdio": {change: func(c *container) { throughShell(c, `exec "$@" <&- >&- 2>&-`) }, closed: true},
		"a full stderr": {change: func(c *container) {
			throughShell(c, `exec "$@" 2>/srv/full`)
		}, closed: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			prepared := func() (*pod, *process) {
				p := newPod(t)
				mknod(t, p.root+"/srv/full", 1, 7)
				must(t, os.Mkdir(p.root+"/dev", 0o755))
				mknod(t, p.root+"/dev/null", 1, 3)
				if tc.prepare != nil {
					tc.prepare(t, p.volume+"/start-signal")
				}
				c := p.wrapped(mainProcess...)
				if tc.change != nil {
					tc.change(&c)
				}
				held := start(t, c)
				if tc.closed {
					waits(t, held)
				} else {
					held.says(t, tc.want)
				}
				return p, held
			}
			p, held := prepared()
			if code, _, stderr := runToEnd(t, p.container("/gate", "started")); code != 1 || !strings.HasPrefix(stderr, "gate: the pod is not released, so the main process has not started: ") {
				t.Errorf("gate started: exit code %d, stderr %q", code, stderr)
			}
			must(t, held.Process.Signal(syscall.SIGTERM))
			if code := held.exit(t); code != 143 || read(t, held.stdout) != "" {
				t.Errorf("after SIGTERM: exit code %d, stdout %q, want 143 and nothing started; stderr:\n%s", code, read(t, held.stdout), read(t, held.stderr))
			}
			p, held = prepared()
			if err := os.Remove(p.volume + "/start-signal"); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			p.release(t)
			if code := held.exit(t); code != mainProcessCode {
				t.Errorf("corrected: exit code %d, want the exit code of the main process; stderr:\n%s", code, read(t, held.stderr))
			}
		})
	}
}

func mknod(t *testing.T, path string, major, minor uint32) {
	t.Helper()
	must(t, errors.Join(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))), os.Chmod(path, 0o666)))
}

// fdPath returns a path that is short enough for the name of a socket.
func fdPath(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.Open(filepath.Dir(path))
	must(t, err)
	t.Cleanup(func() { _ = dir.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
}

// throughShell starts the command of the container with a shell script, which has the command in "$@".
func throughShell(c *container, script string) {
	c.Argv = append([]string{"/bin/sh", "-c", script, "sh"}, c.Argv...)
}

// waits returns when the process is a waiting gate: the kernel reports that the process has opened the wake-up pipe.
func waits(t *testing.T, p *process) {
	t.Helper()
	eventually(t, "the gate opens the wake-up pipe", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Process.Pid))
		for _, fd := range fds {
			if target, _ := os.Readlink(fd); filepath.Base(target) == "wakeup" {
				return true
			}
		}
		return false
	})
}

// If the signal file is not written atomically, the gate finds no valid signal and does not start the main process.
func TestWrapHoldsWhileTheSignalIsReplaced(t *testing.T) {
	p := newPod(t)
	held := start(t, p.wrapped(mainProcess...))
	held.says(t, "Held: the main process starts")
	path := p.volume + "/start-signal"
	for i := range 300 {
		must(t, os.WriteFile(path, []byte(release[:i%len(release)]), 0o644))
		p.wake(t)
		must(t, os.Remove(path))
		must(t, syscall.Mkfifo(path, 0o644))
		p.wake(t)
		must(t, os.Remove(path))
		must(t, os.Symlink(path, path))
		p.wake(t)
		must(t, os.Remove(path))
	}
	must(t, held.Process.Signal(syscall.SIGTERM))
	if code := held.exit(t); code != 143 || read(t, held.stdout) != "" {
		t.Errorf("exit code %d, stdout %q, want 143 and nothing started; stderr:\n%s", code, read(t, held.stdout), read(t, held.stderr))
	}
}

// If a command cannot run, the gate exits after the release as a shell would, and reports the reason.
func TestWrapStartsNothingElse(t *testing.T) {
	tests := map[string]struct {
		argv     []string
		change   func(c *container)
		wantCode int
		want     string
	}{
		"another architecture": {argv: []string{"/srv/foreign"}, wantCode: 126, want: `gate: start the main process "/srv/foreign": exec format error`},
		"a pipe":               {argv: []string{"/srv/pipe"}, wantCode: 126, want: `gate: start the main process "/srv/pipe": permission denied`},
		"a loop of links":      {argv: []string{"/srv/loop"}, wantCode: 126, want: `gate: start the main process "/srv/loop": stat /srv/loop: too many levels of symbolic links`},
		"a name too long":      {argv: []string{"/" + strings.Repeat("a", 300)}, wantCode: 126, want: "file name too long"},
		"a file as directory":  {argv: []string{"/srv/script/x"}, wantCode: 126, want: "not a directory"},
		"dashes alone":         {argv: []string{"--"}, wantCode: 127, want: `gate: start the main process "--": executable file not found in $PATH`},
		"dashes twice":         {argv: []string{"--", "sh"}, wantCode: 127, want: `gate: start the main process "--": executable file not found in $PATH`},
		"an option":            {argv: []string{"--help"}, wantCode: 127, want: `gate: start the main process "--help": executable file not found in $PATH`},
		"its own interpreter":  {argv: []string{"/srv/circle"}, wantCode: 126, want: "too many levels of symbolic links"},
		"few files":            {argv: mainProcess, change: func(c *container) { c.Files = syscall.Rlimit{Cur: 4, Max: 15} }, wantCode: 1, want: "gate: the container can open only 15 files, and the gate needs 16. Raise the limit of open files (ulimit -n)\n"},
		"just enough files":    {argv: mainProcess, change: func(c *container) { c.Files = syscall.Rlimit{Cur: 4, Max: 16} }, wantCode: mainProcessCode},
		"no /proc":             {argv: mainProcess, change: func(c *container) { c.NoProc = true }, wantCode: mainProcessCode},
		"no stdio":             {argv: mainProcess, change: func(c *container) { throughShell(c, `exec "$@" <&- >&- 2>&-`) }, wantCode: mainProcessCode},
		"no arguments at all":  {argv: mainProcess, change: func(c *container) { throughShell(c, `exec /gate`) }, wantCode: 64, want: "gate: a command is missing"},
		"the epoch is set already": {argv: []string{"/bin/sh", "-c", "exit $STATEFULSINGLETON_EPOCH"}, change: func(c *container) {
			c.Env = append(c.Env, "STATEFULSINGLETON_EPOCH=1", "STATEFULSINGLETON_EPOCH=2", "STATEFULSINGLETON_EPOCH")
		}, wantCode: 7},
		"an odd environment": {argv: mainProcess, change: func(c *container) {
			c.Env = append(c.Env, "", "=", "novalue", "PATH", "=PATH=/", "\xff=\xfe", "GODEBUG=x=y,,", "GOGC=nonsense", "GOMAXPROCS=1", "GOMEMLIMIT=1", "GOTRACEBACK=crash")
		}, wantCode: mainProcessCode},
		"an invalid setting of Go": {argv: mainProcess, change: func(c *container) { c.Env = append(c.Env, "GOMEMLIMIT=nonsense") }, wantCode: 2, want: "malformed GOMEMLIMIT"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.release(t)
			foreign := []byte(read(t, gateBinary)[:4096])
			foreign[18], foreign[19] = 0xf3, 0 // e_machine: RISC-V
			p.write(t, p.root+"/srv/foreign", string(foreign), 0o755)
			p.write(t, p.root+"/srv/script", "#!/bin/sh\necho started; exit 42\n", 0o755)
			p.write(t, p.root+"/srv/circle", "#!/srv/circle\n", 0o755)
			must(t, errors.Join(os.Symlink("loop", p.root+"/srv/loop"), syscall.Mkfifo(p.root+"/srv/pipe", 0o755)))
			must(t, os.Mkdir(p.root+"/dev", 0o755))
			mknod(t, p.root+"/dev/null", 1, 3)
			c := p.wrapped(tc.argv...)
			if tc.change != nil {
				tc.change(&c)
			}
			code, stdout, stderr := runToEnd(t, c)
			if code != tc.wantCode || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, stderr %q, want %d and %q", code, stderr, tc.wantCode, tc.want)
			}
			if started := stdout != ""; started && tc.wantCode != mainProcessCode {
				t.Errorf("started: %q", stdout)
			}
		})
	}
}

// Near the limit of the kernel for arguments: if the gate itself can be started, it starts the main process, or it
// reports the reason.
func TestWrapWithHugeArguments(t *testing.T) {
	p := newPod(t)
	p.release(t)
	p.write(t, p.root+"/srv/script-of-a-name-that-is-longer-than-the-gates-own-with-all-its-arguments", "#!/bin/sh\necho started; exit 42\n", 0o755)
	// A stack of 1 MiB gives arguments and environment 256 KiB, 128 KiB each.
	run := func(size int) (code int, stdout, stderr string) {
		c := p.wrapped()
		c.Argv = []string{"/bin/sh", "-c", fmt.Sprintf(`ulimit -s 1024
long=$(printf %%%ds x)
exec /gate wrap -- /srv/script-* "$long" "$long"`, size)}
		return runToEnd(t, c)
	}
	outcome := func(size int) string {
		code, stdout, stderr := run(size)
		switch {
		case code == mainProcessCode && stdout == "started\n" && stderr == "":
			return "started"
		case code == 126 && stdout == "" && strings.HasPrefix(stderr, `gate: start the main process "/srv/script-`) && strings.HasSuffix(stderr, ": argument list too long\n"):
			return "rejected by the gate"
		case code == 126 && stdout == "" && strings.Contains(stderr, "/gate: Argument list too long"):
			return "rejected by the kernel"
		}
		t.Fatalf("%d bytes: exit code %d, stdout %q, stderr %q", size, code, stdout, stderr)
		return ""
	}
	const small, large = 100 << 10, 131 << 10
	highest := large
	for low := small; highest-low > 1; { // the kernel accepts low, and rejects highest
		if middle := (low + highest) / 2; outcome(middle) == "rejected by the kernel" {
			highest = middle
		} else {
			low = middle
		}
	}
	// Near the limit, the kernel also counts the interpreter and the path of the script.
	for size, want := range map[int]string{highest: "rejected by the kernel", highest - 1: "rejected by the gate", highest - 200: "started"} {
		if got := outcome(size); got != want {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
	}
}

// If the sidecar cannot copy the gate, it exits with the reason, and no later container starts.
func TestSidecarDeliversAllOrNothing(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, p *pod)
		change  func(c *container)
		want    string
	}{
		"no volume":                {change: func(c *container) { c.Volume = "" }, want: "open /var/run/signal/gate.partial: read-only file system"},
		"a volume of another user": {prepare: func(t *testing.T, p *pod) { must(t, os.Chmod(p.volume, 0o755)) }, want: "open /var/run/signal/gate.partial: permission denied"},
		"a full volume":            {prepare: func(t *testing.T, p *pod) { tmpfs(t, p.volume, 64<<10) }, want: "write /var/run/signal/gate.partial: no space left on device"},
		"a directory in its place": {prepare: func(t *testing.T, p *pod) { must(t, os.Mkdir(p.volume+"/gate", 0o755)) }, want: "rename /var/run/signal/gate.partial /var/run/signal/gate: file exists"},
		"no /proc":                 {change: func(c *container) { c.NoProc = true }, want: "open /proc/self/exe: no such file or directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			if tc.prepare != nil {
				tc.prepare(t, p)
			}
			p.write(t, p.podinfo+"/start-signal", release, 0o644)
			c := p.sidecar()
			if tc.change != nil {
				tc.change(&c)
			}
			code, _, stderr := runToEnd(t, c)
			if want := "gate: deliver the gate to the held containers: " + tc.want + "\n"; code != 1 || !strings.HasSuffix(stderr, want) {
				t.Errorf("exit code %d, stderr %q, want 1 and %q", code, stderr, want)
			}
			wantNoSignal(t, p)
			if info, err := os.Stat(p.volume + "/gate"); err == nil && info.Mode().IsRegular() {
				t.Error("the gate is delivered")
			}
		})
	}
}

// If a node mounts emptyDirs noexec, the kernel does not execute the gate in a held container, so the main process does
// not start. The sidecar executes the gate of its own image.
func TestVolumeIsMountedNoexec(t *testing.T) {
	p := newPod(t)
	c := p.sidecar("POD_IP=" + loopback())
	c.VolumeNoExec = true
	sidecar := start(t, c)
	p.write(t, p.podinfo+"/start-signal", release, 0o644)
	sidecar.says(t, "Released")

	held := p.wrapped(mainProcess...)
	held.VolumeNoExec = true
	held.Argv[0] = signal.GatePath
	code, stdout, stderr := runToEnd(t, held)
	// The container runtime and the kubelet report the error of the kernel.
	if code != 255 || stdout != "" || !strings.HasSuffix(stderr, "enter the container: permission denied\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q, want the error of the kernel", code, stdout, stderr)
	}
}

// With hostUsers: false, the sidecar and the held containers have other user ids on the node than in the pod.
func TestHandoffInAUserNamespace(t *testing.T) {
	p := newPod(t)
	c := p.sidecar("POD_IP=" + loopback())
	c.UserNamespace = true
	sidecar := start(t, c)
	sidecar.says(t, "Held")
	held := p.wrapped(mainProcess...)
	held.UserNamespace, held.Argv[0] = true, signal.GatePath
	wrapper := start(t, held)
	wrapper.says(t, "Held")
	p.write(t, p.podinfo+"/start-signal", release, 0o644)
	if code := wrapper.exit(t); code != mainProcessCode || strings.Contains(read(t, wrapper.stderr), "Polling the signal file") {
		t.Errorf("exit code %d, stderr %q, want the exit code of the main process, without polling", code, read(t, wrapper.stderr))
	}
	sidecar.says(t, "Released")
}

func wantNoSignal(t *testing.T, p *pod) {
	t.Helper()
	if _, err := os.Lstat(p.volume + "/start-signal"); !os.IsNotExist(err) {
		t.Errorf("signal file: error %v, want that the file does not exist", err)
	}
}

func tmpfs(t *testing.T, dir string, size int) {
	t.Helper()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=777", size)))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

// The sidecar logs an invalid annotation and does not deliver it. Later, it delivers a valid annotation.
func TestSidecarHoldsInHostileEnvironments(t *testing.T) {
	unreadable := `msg="read the pod's annotation apps.statefulsingleton.com/start-signal: `
	const next = `. The kubelet projects this file. If the error persists, delete the pod"`
	file := "/etc/statefulsingleton/start-signal"
	refused := `msg="annotation apps.statefulsingleton.com/start-signal does not release the pod: `
	put := func(content string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte(content), 0o644)) }
	}
	tests := map[string]struct {
		prepare func(t *testing.T, path string)
		uid     string
		want    string
	}{
		"missing":                 {prepare: func(*testing.T, string) {}, want: unreadable + "open " + file + ": no such file or directory" + next},
		"a link to nowhere":       {prepare: func(t *testing.T, path string) { must(t, os.Symlink("..data/start-signal", path)) }, want: unreadable + "open " + file + ": no such file or directory" + next},
		"unreadable":              {prepare: func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte(release), 0)) }, want: unreadable + "open " + file + ": permission denied" + next},
		"a pipe":                  {prepare: func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o644)) }, want: unreadable + file + " is not a regular file, but has mode prw-r--r--" + next},
		"a directory":             {prepare: func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) }, want: unreadable + file + " is not a regular file, but has mode drwxr-xr-x" + next},
		"an endless device":       {prepare: func(t *testing.T, path string) { mknod(t, path, 1, 5) }, want: unreadable + file + " is not a regular file, but has mode Dcrw-rw-rw-" + next},
		"huge":                    {prepare: func(t *testing.T, path string) { put(release)(t, path); must(t, os.Truncate(path, 1<<40)) }, want: refused + `parse signal: the signal is longer than 1024 bytes"`},
		"cut off":                 {prepare: put(release[:20]), want: refused + `parse signal: unexpected end of JSON input"`},
		"twice":                   {prepare: put(release + release), want: refused + `parse signal: invalid character '{' after top-level value"`},
		"of another pod":          {prepare: put(strings.Replace(release, podUID, "another", 1)), want: refused + `it is for a pod with uid \"another\", and this pod has uid \"` + podUID + `\""`},
		"in capitals":             {prepare: put(strings.Replace(release, podUID, strings.ToUpper(podUID), 1)), want: refused + `it is for a pod with uid \"` + strings.ToUpper(podUID)},
		"a newline after its uid": {prepare: put(release), uid: podUID + "\n", want: refused + `it is for a pod with uid \"` + podUID + `\", and this pod has uid \"` + podUID + `\\n\""`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			path := p.podinfo + "/start-signal"
			must(t, os.Remove(path))
			tc.prepare(t, path)
			c := p.sidecar("POD_IP=" + loopback())
			if tc.uid != "" {
				c.Env = []string{"POD_UID=" + tc.uid}
			}
			sidecar := start(t, c)
			sidecar.says(t, tc.want)
			wantNoSignal(t, p)
			if tc.uid == "" {
				must(t, os.RemoveAll(path))
				put(release)(t, path)
				sidecar.says(t, "Released")
			}
			must(t, sidecar.Process.Signal(syscall.SIGTERM))
			if code := sidecar.exit(t); code != 0 {
				t.Errorf("exit code %d after SIGTERM, want 0", code)
			}
		})
	}
}

// On a volume that is full after the delivery, the signal waits for space.
func TestSidecarOnAFullVolume(t *testing.T) {
	p := newPod(t)
	info, err := os.Stat(gateBinary)
	must(t, err)
	tmpfs(t, p.volume, int(info.Size())+64<<10)
	podIP := loopback()
	sidecar := start(t, p.sidecar("POD_IP="+podIP))
	sidecar.says(t, "Held")
	fill(t, p.volume+"/filler")
	p.write(t, p.podinfo+"/start-signal", release, 0o644)
	const problem = "write the signal file: write /var/run/signal/start-signal.partial: no space left on device"
	sidecar.says(t, problem)
	wantNoSignal(t, p)
	if got := status(t, podIP); got["released"] != false || got["problem"] == nil {
		t.Errorf("/status: %v, want it held, with a problem", got)
	}
	must(t, os.Remove(p.volume+"/filler"))
	sidecar.says(t, "Released")
	if got := read(t, p.volume+"/start-signal"); got != release {
		t.Errorf("signal file %q, want %q", got, release)
	}
	fill(t, p.volume+"/filler")
	p.write(t, p.podinfo+"/start-signal", "", 0o644)
	eventually(t, "the signal file is removed", func() bool { _, err := os.Stat(p.volume + "/start-signal"); return os.IsNotExist(err) })
}

// fill writes a file until its file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	defer func() { _ = file.Close() }()
	for {
		if _, err := file.Write(make([]byte, 4096)); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Each client that can connect to the pod can send any request to the sidecar. The sidecar continues to work within its
// 32 MiB of memory, and answers again afterwards.
func TestSidecarUnderTooManyClients(t *testing.T) {
	p := newPod(t)
	podIP := loopback()
	address := net.JoinHostPort(podIP, sidecarPort)
	sidecar := start(t, p.sidecar("POD_IP="+podIP))
	status(t, podIP)
	var clients []net.Conn
	for range 2000 {
		client, err := net.Dial("tcp", address)
		must(t, err)
		clients = append(clients, client)
		_, err = io.WriteString(client, "GET /status HTTP/1.1\r\nHost: x\r\nX-Slow: "+strings.Repeat("x", 3000))
		must(t, err)
	}
	p.write(t, p.podinfo+"/start-signal", release, 0o644)
	sidecar.says(t, "Released")
	if got, most := residentKiB(t, sidecar), 32<<10; got > most {
		t.Errorf("%d KiB of memory, want %d at most", got, most)
	}
	// The first clients never complete their requests, and the sidecar closes their connections.
	must(t, clients[0].SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.Copy(io.Discard, clients[0]); err != nil {
		t.Errorf("the connection of a slow client is not closed: %v", err)
	}
	for _, client := range clients {
		must(t, client.Close())
	}
	if got := status(t, podIP); got["released"] != true {
		t.Errorf("/status %v, want it released", got)
	}
}

// residentKiB returns the maximum resident memory of a process in KiB.
func residentKiB(t *testing.T, p *process) (n int) {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/status", p.Process.Pid)), "VmHWM:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// At any time, a stop signal ends the gate, and the main process does not start. As PID 1, a program ignores signals
// until it has a handler, so the test repeats the signal.
func TestWrapStopsAtAnyTime(t *testing.T) {
	for i := range 60 {
		held := start(t, newPod(t).wrapped(mainProcess...))
		time.Sleep(rand.N(40 * time.Millisecond)) // the time of the signal is random
		stop := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1}[i%4]
		code := stopped(t, held, stop)
		// The Go runtime exits with code 2 before the gate has a handler.
		if code != 128+int(stop) && code != 2 || read(t, held.stdout) != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", stop, code, read(t, held.stdout), read(t, held.stderr))
		}
	}
}

// stopped repeats the signal until the process exits, and returns the exit code.
func stopped(t *testing.T, p *process, s syscall.Signal) int {
	t.Helper()
	ended := make(chan int, 1)
	go func() { ended <- p.exit(t) }()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		_ = p.Process.Signal(s)
		select {
		case code := <-ended:
			return code
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatalf("%s does not end the process", s)
	return 0
}
