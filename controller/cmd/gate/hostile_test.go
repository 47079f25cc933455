package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// mainProcess is a command whose start is visible on stdout and, if stdout is closed, in the exit code.
var mainProcess = shell("echo started; exit 42")

const mainProcessCode = 42

// heldLog is what a wrapper logs before it waits.
const heldLog = "Held: the main process starts when the controller releases this pod"

// release is a signal of the pod, as the sidecar writes it.
var release = signalOf(7)

// badSignal is a file in the place of a signal.
type badSignal struct {
	// make creates the file. Nil: the file has the content.
	make    func(t *testing.T, path string)
	content string
	// why is what wrapper and sidecar log about the file at path.
	why func(path string) string
}

// badSignals release no pod.
func badSignals() map[string]badSignal {
	invalid := func(content, why string) badSignal {
		return badSignal{content: content, why: func(string) string { return "parse signal: " + why }}
	}
	foreign := func(uid string) badSignal {
		return badSignal{content: signal.Signal{UID: uid, Epoch: 1}.String(), why: func(string) string { return fmt.Sprintf(`with uid \"%s\"`, uid) }}
	}
	unopened := func(why string, make func(t *testing.T, path string)) badSignal {
		return badSignal{make: make, why: func(path string) string { return "open " + path + ": " + why }}
	}
	irregular := func(mode string, make func(t *testing.T, path string)) badSignal {
		return badSignal{make: make, why: func(path string) string { return path + " is not a regular file, but has mode " + mode }}
	}
	huge := invalid("", "the signal is longer than 1024 bytes")
	huge.make = func(t *testing.T, path string) {
		must(t, os.WriteFile(path, []byte(release), 0o644))
		must(t, os.Truncate(path, 1<<40))
	}
	fifo := func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o644)) }
	return map[string]badSignal{
		"half written":          invalid(release[:5], "unexpected end of JSON input"),
		"without its last byte": invalid(release[:len(release)-1], "unexpected end of JSON input"),
		"twice":                 invalid(release+release, "invalid character '{' after top-level value"),
		"malformed":             invalid("released", "invalid character"),
		"not UTF-8":             invalid("\xff"+release, "the signal is not UTF-8"),
		"no epoch":              invalid(`{"uid":"`+podUID+`"}`, "epoch is 0, but must be at least 1"),
		"huge":                  huge,
		"another pod's":         foreign("not-my-uid"),
		"of a longer uid":       foreign(podUID + "0"),
		"of a shorter uid":      foreign(podUID[:35]),
		"of a uid in capitals":  foreign(strings.ToUpper(podUID)),
		"of a uid with a line":  {content: signal.Signal{UID: podUID + "\n", Epoch: 1}.String(), why: func(string) string { return `with uid \"` + podUID + `\\n\"` }},
		"a loop of links":       unopened("too many levels of symbolic links", func(t *testing.T, path string) { must(t, os.Symlink("start-signal", path)) }),
		"unreadable":            unopened("permission denied", func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte(release), 0)) }),
		"a socket":              unopened("no such device or address", socket),
		"a directory":           irregular("drwxr-xr-x", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) }),
		"a pipe":                irregular("prw-r--r--", fifo),
		"an endless device":     irregular("Dcrw-rw-rw-", func(t *testing.T, path string) { mknod(t, path, 1, 5) }),
		"a pipe with the signal": irregular("prw-r--r--", func(t *testing.T, path string) {
			fifo(t, path)
			pipe, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			t.Cleanup(func() { _ = pipe.Close() })
			_, err = pipe.WriteString(release)
			must(t, err)
		}),
	}
}

// put puts the file at the path, and never half of it.
func (b badSignal) put(t *testing.T, path string) {
	t.Helper()
	next := path + ".new"
	if b.make != nil {
		b.make(t, next)
	} else {
		must(t, os.WriteFile(next, []byte(b.content), 0o644))
	}
	must(t, os.RemoveAll(path))
	must(t, os.Rename(next, path))
}

// socket creates a socket. The path of its directory may be longer than the name of a socket.
func socket(t *testing.T, path string) {
	t.Helper()
	dir, err := os.Open(filepath.Dir(path))
	must(t, err)
	defer func() { _ = dir.Close() }()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	must(t, err)
	name := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	must(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: name}), syscall.Close(fd)))
}

// throughShell starts the command of the container with a shell script, which has the command in "$@".
func throughShell(c *container, script string) {
	c.Argv = append([]string{"/bin/sh", "-c", script, "sh"}, c.Argv...)
}

// waits returns when the process is a waiting gate: the kernel reports that the process has opened the wake-up pipe.
func (p *process) waits() {
	p.t.Helper()
	eventually(p.t, "the gate opens the wake-up pipe", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Process.Pid))
		for _, fd := range fds {
			if target, _ := os.Readlink(fd); filepath.Base(target) == "wakeup" {
				return true
			}
		}
		return false
	})
}

// wantHeld fails unless the held containers of the pod wait: one obeys SIGTERM, and the other starts its main process after
// the release.
func (p *pod) wantHeld(stops, starts *process) {
	p.t.Helper()
	if code, _, stderr := p.run(p.container("/gate", "started")); code != 1 || !strings.HasPrefix(stderr, "gate: the pod is not released, so the main process has not started: ") {
		p.t.Errorf("gate started: exit code %d, stderr %q", code, stderr)
	}
	stops.send(syscall.SIGTERM)
	stops.wantEnd(143, "")
	if got := starts.printed(); got != "" {
		p.t.Errorf("started while held: %q", got)
	}
	must(p.t, os.RemoveAll(p.signalFile()))
	p.release()
	starts.wantExit(mainProcessCode)
}

// If the gate cannot read the signal of its pod, it reports that once and waits.
func TestWrapHolds(t *testing.T) {
	tests := badSignals()
	tests["empty"] = badSignal{why: func(path string) string { return path + ": parse signal: unexpected end of JSON input" }}
	for name, bad := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			before := p.start(p.wrapped(mainProcess...))
			before.says(heldLog)
			bad.put(t, p.signalFile())
			p.wake()
			during := p.start(p.wrapped(mainProcess...)) // a container that restarts
			for _, held := range []*process{before, during} {
				held.says("Held: the signal file does not release this pod. See also the log of container status-sidecar")
				held.says(bad.why("/var/run/signal/start-signal"))
			}
			bad.put(t, p.signalFile())
			p.wake()
			p.wantHeld(before, during)
			for _, held := range []*process{before, during} {
				if got := strings.Count(held.said(), heldLog); got != 1 {
					t.Errorf("a message is logged %d times\n%s", got, held.said())
				}
			}
		})
	}
}

// A gate waits also in a container without the usual files.
func TestWrapHoldsInHostileEnvironments(t *testing.T) {
	tests := map[string]struct {
		change func(t *testing.T, c *container)
		want   string
		// closed: the container has no stderr.
		closed bool
		// never: the container does not see the release.
		never bool
	}{
		"no volume":         {change: func(_ *testing.T, c *container) { c.Volume = "" }, want: "pipe=/var/run/signal/wakeup", never: true},
		"no /proc":          {change: func(_ *testing.T, c *container) { c.NoProc = true }, want: heldLog},
		"no stdio":          {change: func(_ *testing.T, c *container) { throughShell(c, `exec "$@" <&- >&- 2>&-`) }, closed: true},
		"a full stderr":     {change: func(_ *testing.T, c *container) { throughShell(c, `exec "$@" 2>/srv/full`) }, closed: true},
		"a link to nowhere": {change: func(t *testing.T, c *container) { must(t, os.Symlink("missing", c.Volume+"/start-signal")) }, want: heldLog},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			mknod(t, p.root+"/srv/full", 1, 7)
			c := p.wrapped(mainProcess...)
			tc.change(t, &c)
			stops, starts := p.start(c), p.start(c)
			for _, held := range []*process{stops, starts} {
				if tc.closed {
					held.waits()
				} else {
					held.says(tc.want)
				}
			}
			if tc.never {
				starts.send(syscall.SIGTERM)
				starts.wantEnd(143, "")
				return
			}
			p.wantHeld(stops, starts)
		})
	}
}

// If the signal file is not written atomically, the gate finds no valid signal and does not start the main process.
func TestWrapHoldsWhileTheSignalIsReplaced(t *testing.T) {
	p := newPod(t)
	held := p.start(p.wrapped(mainProcess...))
	held.says(heldLog)
	path := p.signalFile()
	for i := range 300 {
		must(t, os.WriteFile(path, []byte(release[:i%len(release)]), 0o644))
		p.wake()
		must(t, os.Remove(path))
		must(t, syscall.Mkfifo(path, 0o644))
		p.wake()
		must(t, os.Remove(path))
		must(t, os.Symlink(path, path))
		p.wake()
		must(t, os.Remove(path))
	}
	held.send(syscall.SIGTERM)
	held.wantEnd(143, "")
}

// Near the limit of the kernel for arguments: if the gate itself can be started, it starts the main process, or it
// reports the reason.
func TestWrapWithHugeArguments(t *testing.T) {
	p := newPod(t)
	p.release()
	p.write(p.root+"/srv/script-of-a-name-that-is-longer-than-the-gates-own-with-all-its-arguments", "#!/bin/sh\necho started; exit 42\n", 0o755)
	outcome := func(size int) string {
		// A stack of 1 MiB gives arguments and environment 256 KiB, 128 KiB each.
		c := p.wrapped()
		c.Argv = shell(fmt.Sprintf(`ulimit -s 1024
long=$(printf %%%ds x)
exec /gate wrap -- /srv/script-* "$long" "$long"`, size))
		code, stdout, stderr := p.run(c)
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
	highest := 131 << 10
	for low := 100 << 10; highest-low > 1; { // the kernel accepts low, and rejects highest
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
		"a read-only volume":       {change: func(c *container) { c.VolumeFlags = syscall.MS_RDONLY }, want: "open /var/run/signal/gate.partial: read-only file system"},
		"a volume of another user": {prepare: func(t *testing.T, p *pod) { must(t, os.Chmod(p.volume, 0o755)) }, want: "open /var/run/signal/gate.partial: permission denied"},
		"a full volume":            {prepare: func(t *testing.T, p *pod) { tmpfs(t, p.volume, 64<<10) }, want: "write /var/run/signal/gate.partial: no space left on device"},
		"a directory in its place": {prepare: func(t *testing.T, p *pod) { must(t, os.Mkdir(p.volume+"/gate", 0o755)) }, want: "rename /var/run/signal/gate.partial /var/run/signal/gate: file exists"},
		"no /proc":                 {change: func(c *container) { c.NoProc = true }, want: "open /proc/self/exe: no such file or directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			c := p.sidecar()
			if tc.prepare != nil {
				tc.prepare(t, p)
			} else {
				tc.change(&c)
			}
			p.annotate(release)
			code, _, stderr := p.run(c)
			if want := "gate: deliver the gate to the held containers: " + tc.want + "\n"; code != 1 || !strings.HasSuffix(stderr, want) {
				t.Errorf("exit code %d, stderr %q, want 1 and %q", code, stderr, want)
			}
			p.wantNoSignal()
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
	c.VolumeFlags |= syscall.MS_NOEXEC
	sidecar := p.start(c)
	p.annotate(release)
	sidecar.says("Released")

	held := p.delivered(mainProcess...)
	held.VolumeFlags |= syscall.MS_NOEXEC
	// The container runtime and the kubelet report the error of the kernel.
	if code, stdout, stderr := p.run(held); code != 255 || stdout != "" || !strings.HasSuffix(stderr, "enter the container: permission denied\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q, want the error of the kernel", code, stdout, stderr)
	}
}

// With hostUsers: false, the sidecar and the held containers have other user ids on the node than in the pod.
func TestHandoffInAUserNamespace(t *testing.T) {
	p := newPod(t)
	c, held := p.sidecar("POD_IP="+loopback()), p.delivered(mainProcess...)
	c.UserNamespace, held.UserNamespace = true, true
	sidecar := p.start(c)
	sidecar.says("Held")
	wrapper := p.start(held)
	wrapper.says("Held")
	p.annotate(release)
	if wrapper.wantExit(mainProcessCode); strings.Contains(wrapper.said(), "Polling the signal file") {
		t.Errorf("polls, stderr %q", wrapper.said())
	}
	sidecar.says("Released")
}

func (p *pod) wantNoSignal() {
	p.t.Helper()
	if _, err := os.Lstat(p.signalFile()); !os.IsNotExist(err) {
		p.t.Errorf("signal file: error %v, want that the file does not exist", err)
	}
}

func tmpfs(t *testing.T, dir string, size int) {
	t.Helper()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=777", size)))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

// The sidecar logs an invalid annotation and does not deliver it. Later, it delivers a valid annotation.
func TestSidecarHoldsInHostileEnvironments(t *testing.T) {
	const unread = "read the pod's annotation apps.statefulsingleton.com/start-signal: "
	tests := badSignals()
	tests["a link to nowhere"] = badSignal{
		make: func(t *testing.T, path string) { must(t, os.Symlink("..data/start-signal", path)) },
		why: func(path string) string {
			return unread + "open " + path + ": no such file or directory. The kubelet projects this file. If the error persists, delete the pod"
		},
	}
	tests["missing"] = tests["a link to nowhere"]
	for name, bad := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			annotation := p.podinfo + "/start-signal"
			must(t, os.Remove(annotation))
			if name != "missing" {
				bad.put(t, annotation)
			}
			sidecar := p.start(p.sidecar("POD_IP=" + loopback()))
			sidecar.says(bad.why("/etc/statefulsingleton/start-signal"))
			if refused := strings.Contains(sidecar.said(), "annotation apps.statefulsingleton.com/start-signal does not release the pod: "); refused == strings.Contains(sidecar.said(), unread) {
				t.Errorf("stderr:\n%s", sidecar.said())
			}
			p.wantNoSignal()
			must(t, os.RemoveAll(annotation))
			p.annotate(release)
			sidecar.says("Released")
			sidecar.stop(0)
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
	sidecar := p.start(p.sidecar("POD_IP=" + podIP))
	sidecar.says("Held")
	fill(t, p.volume+"/filler")
	p.annotate(release)
	sidecar.says("write the signal file: write /var/run/signal/start-signal.partial: no space left on device")
	p.wantNoSignal()
	if got := status(t, podIP); got["released"] != false || got["problem"] == nil {
		t.Errorf("/status: %v, want it held, with a problem", got)
	}
	must(t, os.Remove(p.volume+"/filler"))
	sidecar.says("Released")
	if got := read(t, p.signalFile()); got != release {
		t.Errorf("signal file %q, want %q", got, release)
	}
	fill(t, p.volume+"/filler")
	p.annotate("")
	p.awaitNoSignal()
}

// fill writes a file until its file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	defer func() { _ = file.Close() }()
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// Each client that can connect to the pod can send any request to the sidecar. The sidecar continues to work within its
// 32 MiB of memory, and answers again afterwards.
func TestSidecarUnderTooManyClients(t *testing.T) {
	p := newPod(t)
	podIP := loopback()
	sidecar := p.start(p.sidecar("POD_IP=" + podIP))
	status(t, podIP)
	var clients []net.Conn
	for range 2000 {
		client, err := net.Dial("tcp", net.JoinHostPort(podIP, sidecarPort))
		must(t, err)
		clients = append(clients, client)
		_, err = io.WriteString(client, "GET /status HTTP/1.1\r\nHost: x\r\nX-Slow: "+strings.Repeat("x", 3000))
		must(t, err)
	}
	p.annotate(release)
	sidecar.says("Released")
	_, memory, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/status", sidecar.Process.Pid)), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(memory, &kib); err != nil || kib > 32<<10 {
		t.Errorf("%d KiB of memory (error %v), want 32 MiB at most", kib, err)
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

// At any time, a stop signal ends the gate, and the main process does not start. As PID 1, a program ignores signals
// until it has a handler, so the test repeats the signal.
func TestWrapStopsAtAnyTime(t *testing.T) {
	for i := range 60 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			held := p.start(p.wrapped(mainProcess...))
			time.Sleep(rand.N(40 * time.Millisecond)) // the time of the signal is random
			stop := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1}[i%4]
			repeat := time.NewTicker(10 * time.Millisecond)
			go func() {
				for held.Process.Signal(stop) == nil {
					<-repeat.C
				}
			}()
			code := held.exit()
			// The Go runtime exits with code 2 before the gate has a handler.
			if code != 128+int(stop) && code != 2 || held.printed() != "" {
				t.Errorf("%s: exit code %d, stdout %q, stderr %q", stop, code, held.printed(), held.said())
			}
		})
	}
}
