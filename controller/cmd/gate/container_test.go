package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// The tests run the gate as a container runtime does, as PID 1 of its own process namespace. Its root file system has
// only the mounts of the kubelet and, for held commands, this machine's /usr.

// patience is how long a test waits for an expected event.
const patience = 20 * time.Second

// gateBinary is the path of the gate, built as for the images.
var gateBinary string

// enterContainer is the first argument of the test binary that makes it enter a container instead of running tests.
const enterContainer = "enter-container"

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == enterContainer {
		fmt.Fprintln(os.Stderr, "enter the container:", enter(os.Args[2], os.Args[3:]))
		os.Exit(255)
	}
	if len(os.Args) > 2 && os.Args[1] == superviseCommand {
		os.Exit(supervise(os.Args[2:]))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests create containers: run them as root")
		return 1
	}
	dir, err := os.MkdirTemp("", "gate")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	gateBinary = filepath.Join(dir, "gate")
	if err := buildGate(gateBinary, "linux", ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// buildGate builds the gate for an architecture. Empty: the architecture of this machine.
func buildGate(path, goos, goarch string) error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w -X main.version=1.2.3", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the gate for %s: %w\n%s", goarch, err, out)
	}
	return nil
}

// container is one container of a pod.
type container struct {
	// Root becomes the root file system, read-only.
	Root string
	// Volume and Podinfo are mounted as by the policies. Empty Volume: no volume.
	Volume, Podinfo string
	VolumeReadOnly  bool
	VolumeNoExec    bool
	// Tools mounts /usr of this machine, which has commands for held containers.
	Tools bool
	// Data mounts /data, writable by every user.
	Data bool
	// Argv is not in the JSON of the other fields, because arguments can have any bytes.
	Argv  []string `json:"-"`
	Env   []string
	Dir   string
	UID   int
	Umask int
	// Files is the limit of open files. Zero: no limit.
	Files syscall.Rlimit
	// NoProc leaves /proc empty.
	NoProc bool
	// Forbidden are the numbers of system calls that fail with EPERM, as by a seccomp profile.
	Forbidden []uint32
	// UserNamespace maps the user ids to other ids, as hostUsers: false does.
	UserNamespace bool
}

// enter executes argv as the process of the container.
func enter(config string, argv []string) error {
	var c container
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	bind := func(from, to string, flags uintptr) error {
		err := syscall.Mount(from, to, "", syscall.MS_BIND, "")
		if err == nil && flags != 0 {
			err = syscall.Mount("", to, "", syscall.MS_BIND|syscall.MS_REMOUNT|flags, "")
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", to, err)
		}
		return nil
	}
	err := errors.Join(
		syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		bind(c.Root, c.Root, syscall.MS_RDONLY),
		bind(c.Podinfo, c.Root+signal.PodinfoDir, syscall.MS_RDONLY),
	)
	if !c.NoProc {
		err = errors.Join(err, syscall.Mount("proc", c.Root+"/proc", "proc", 0, ""))
	}
	if c.Volume != "" {
		flags := uintptr(0)
		if c.VolumeReadOnly {
			flags |= syscall.MS_RDONLY
		}
		if c.VolumeNoExec {
			flags |= syscall.MS_NOEXEC
		}
		err = errors.Join(err, bind(c.Volume, c.Root+signal.Dir, flags))
	}
	if c.Data {
		err = errors.Join(err, bind(c.Root+"/data", c.Root+"/data", 0), syscall.Mount("", c.Root+"/data", "", syscall.MS_BIND|syscall.MS_REMOUNT, ""))
	}
	if c.Tools {
		err = errors.Join(err, bind("/usr", c.Root+"/usr", syscall.MS_RDONLY))
	}
	if err != nil {
		return err
	}
	if c.Files.Max > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &c.Files); err != nil {
			return err
		}
	}
	syscall.Umask(c.Umask)
	if err := errors.Join(syscall.Chroot(c.Root), os.Chdir(c.Dir), syscall.Setgroups(nil), syscall.Setgid(c.UID), syscall.Setuid(c.UID)); err != nil {
		return err
	}
	if err := forbid(c.Forbidden); err != nil {
		return err
	}
	// The tests may run with nohup or in the background, where these signals are ignored. Containers do not ignore them: a
	// handler gives them their default action in argv.
	ossignal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	return syscall.Exec(argv[0], argv, c.Env)
}

// forbid makes the system calls fail with EPERM in this thread and in the program that it executes.
func forbid(calls []uint32) error {
	if len(calls) == 0 {
		return nil
	}
	runtime.LockOSThread()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for _, call := range calls {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return errors.Join(
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}

// pod has the directories that its containers share.
type pod struct{ root, volume, podinfo string }

const podUID = "6f1c0a53-6b5e-4a52-9a0c-6a3f7d1f2f10"

// newPod returns a pod whose containers have the gate at /gate. The volume is empty.
func newPod(t *testing.T) *pod {
	t.Helper()
	dir := t.TempDir()
	p := &pod{root: dir + "/root", volume: dir + "/volume", podinfo: dir + "/podinfo"}
	for _, d := range []string{p.volume, p.podinfo, p.root + signal.Dir, p.root + signal.PodinfoDir, p.root + "/proc", p.root + "/usr", p.root + "/srv/sub", p.root + "/data"} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.Chmod(p.volume, 0o777)) // the mode of an emptyDir
	must(t, os.Chmod(p.root+"/data", 0o777))
	for _, name := range []string{"bin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + name); err == nil {
			must(t, os.Symlink(target, p.root+"/"+name))
		}
	}
	must(t, os.Link(gateBinary, p.root+"/gate"))
	p.write(t, p.podinfo+"/start-signal", "", 0o644)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes a file atomically.
func (p *pod) write(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(content), mode))
	must(t, os.Rename(path+".new", path))
}

func (p *pod) release(t *testing.T) {
	t.Helper()
	p.write(t, p.volume+"/start-signal", signal.Signal{UID: podUID, Epoch: 7}.String(), 0o644)
	p.wake(t)
}

// wake makes the held containers read the signal file, as the sidecar does. It returns false if none waits.
func (p *pod) wake(t *testing.T) (waited bool) {
	t.Helper()
	pipe, err := os.OpenFile(p.volume+"/wakeup", os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	must(t, err)
	must(t, pipe.Close())
	return true
}

// container returns a container with the gate at /gate, and with tools, as in most images.
func (p *pod) container(argv ...string) container {
	return container{
		Root: p.root, Volume: p.volume, VolumeReadOnly: true, Podinfo: p.podinfo, Tools: true,
		Argv: argv, Env: []string{"PATH=/usr/bin:/bin", signal.PodUIDEnv + "=" + podUID}, Dir: "/", UID: 12345, Umask: 0o022,
	}
}

// createPipe creates the wake-up pipe, as the sidecar does.
func (p *pod) createPipe() { _ = syscall.Mkfifo(p.volume+"/wakeup", 0o644) } // the pipe may already exist

// wrapped returns a held container, and creates the wake-up pipe.
func (p *pod) wrapped(argv ...string) container {
	p.createPipe()
	return p.container(append([]string{"/gate", "wrap", "--"}, argv...)...)
}

// sidecar returns the container of the sidecar, whose image has no tools.
func (p *pod) sidecar(env ...string) container {
	c := p.container("/gate", "sidecar")
	c.VolumeReadOnly, c.Tools, c.UID, c.Env = false, false, 65532, append(env, "POD_UID="+podUID)
	return c
}

// process is the process of a container, seen from the host.
type process struct {
	*exec.Cmd
	stdout, stderr string
}

// start starts the container, and kills it at the end of the test.
func start(t *testing.T, c container) *process {
	t.Helper()
	return startWith(t, c, func(*exec.Cmd) {})
}

// startWith is start with a change of the command.
func startWith(t *testing.T, c container, change func(*exec.Cmd)) *process {
	t.Helper()
	config, err := json.Marshal(c)
	must(t, err)
	dir := t.TempDir()
	p := &process{Cmd: exec.Command("/proc/self/exe", append([]string{enterContainer, string(config)}, c.Argv...)...), stdout: dir + "/stdout", stderr: dir + "/stderr"}
	p.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if c.UserNamespace {
		// Root in the container is root on this machine, because it sets up the container. The other ids are mapped.
		mappings := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 1 << 20, Size: 1<<16 - 1}}
		p.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		p.SysProcAttr.UidMappings, p.SysProcAttr.GidMappings = mappings, mappings
		p.SysProcAttr.GidMappingsEnableSetgroups = true
	}
	stdout, err := os.Create(p.stdout)
	must(t, err)
	stderr, err := os.Create(p.stderr)
	must(t, err)
	p.Stdout, p.Stderr = stdout, stderr
	change(p.Cmd)
	must(t, p.Start())
	must(t, errors.Join(stdout.Close(), stderr.Close()))
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// runToEnd runs the container until it exits.
func runToEnd(t *testing.T, c container) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, c)
	code = p.exit(t)
	return code, read(t, p.stdout), read(t, p.stderr)
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// exit waits until the process exits, and returns the exit code.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	giveUp := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	err := p.Wait()
	if !giveUp.Stop() {
		t.Fatalf("still running after %s; stderr:\n%s", patience, read(t, p.stderr))
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// says waits until the process has written the text to stderr.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q on stderr", text), func() bool { return strings.Contains(read(t, p.stderr), text) })
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	gomega.NewWithT(t).Eventually(condition, patience, time.Millisecond).Should(gomega.BeTrue(), "%s", what)
}
