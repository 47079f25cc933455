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
	"strconv"
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
	if len(os.Args) > 2 && os.Args[1] == listenCommand {
		os.Exit(listen(os.Args[2]))
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
	VolumeFlags     uintptr
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
	// NoNewPrivileges is allowPrivilegeEscalation: false.
	NoNewPrivileges bool
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
		err = errors.Join(err, bind(c.Volume, c.Root+signal.Dir, c.VolumeFlags))
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
	if c.NoNewPrivileges {
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
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
type pod struct {
	t                     *testing.T
	root, volume, podinfo string
}

const podUID = "6f1c0a53-6b5e-4a52-9a0c-6a3f7d1f2f10"

// signalOf returns a signal for this pod, as the sidecar writes it.
func signalOf(epoch int64) string { return signal.Signal{UID: podUID, Epoch: epoch}.String() }

// newPod returns a pod whose containers have the gate at /gate. The volume is empty.
func newPod(t *testing.T) *pod {
	t.Helper()
	dir := t.TempDir()
	p := &pod{t: t, root: dir + "/root", volume: dir + "/volume", podinfo: dir + "/podinfo"}
	for _, d := range []string{
		p.volume, p.podinfo, p.root + signal.Dir, p.root + signal.PodinfoDir, p.root + "/proc", p.root + "/usr", p.root + "/dev", p.root + "/srv/sub", p.root + "/data",
	} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.Chmod(p.volume, 0o777)) // the mode of an emptyDir
	must(t, os.Chmod(p.root+"/data", 0o777))
	for _, name := range []string{"bin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + name); err == nil {
			must(t, os.Symlink(target, p.root+"/"+name))
		}
	}
	mknod(t, p.root+"/dev/null", 1, 3)
	must(t, os.Link(gateBinary, p.root+"/gate"))
	p.annotate("")
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mknod(t *testing.T, path string, major, minor uint32) {
	t.Helper()
	must(t, errors.Join(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))), os.Chmod(path, 0o666)))
}

// write writes a file atomically.
func (p *pod) write(path, content string, mode fs.FileMode) {
	p.t.Helper()
	must(p.t, os.WriteFile(path+".new", []byte(content), mode))
	must(p.t, os.Rename(path+".new", path))
}

// annotate writes the annotation, as the kubelet projects it.
func (p *pod) annotate(content string) {
	p.t.Helper()
	p.write(p.podinfo+"/start-signal", content, 0o644)
}

func (p *pod) signalFile() string { return p.volume + "/start-signal" }

// release writes the signal file, as the sidecar does.
func (p *pod) release() {
	p.t.Helper()
	p.write(p.signalFile(), signalOf(7), 0o644)
	p.wake()
}

// wake makes the held containers read the signal file, as the sidecar does. It returns false if none waits.
func (p *pod) wake() (waited bool) {
	p.t.Helper()
	pipe, err := os.OpenFile(p.volume+"/wakeup", os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	must(p.t, err)
	must(p.t, pipe.Close())
	return true
}

// awaitNoSignal waits until the sidecar has removed the signal file.
func (p *pod) awaitNoSignal() {
	p.t.Helper()
	eventually(p.t, "no signal file", func() bool { _, err := os.Lstat(p.signalFile()); return os.IsNotExist(err) })
}

// size returns the size of a file that the containers write, or 0 if there is none.
func (p *pod) size(file string) int64 {
	info, err := os.Stat(filepath.Join(p.root, "data", file))
	if err != nil {
		return 0
	}
	return info.Size()
}

// wantGrows waits until the file grows.
func (p *pod) wantGrows(file string) {
	p.t.Helper()
	before := p.size(file)
	eventually(p.t, file+" grows", func() bool { return p.size(file) > before })
}

// wantRests fails if one of the files grows.
func (p *pod) wantRests(files ...string) {
	p.t.Helper()
	before := map[string]int64{}
	for _, file := range files {
		before[file] = p.size(file)
	}
	time.Sleep(100 * time.Millisecond)
	for _, file := range files {
		if p.size(file) != before[file] {
			p.t.Errorf("%s grows", file)
		}
	}
}

// container returns a container with the gate at /gate, and with tools, as in most images.
func (p *pod) container(argv ...string) container {
	return container{
		Root: p.root, Volume: p.volume, VolumeFlags: syscall.MS_RDONLY, Podinfo: p.podinfo, Tools: true,
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

// delivered returns a held container with the gate that the sidecar has delivered.
func (p *pod) delivered(argv ...string) container {
	return p.container(append([]string{signal.GatePath, "wrap", "--"}, argv...)...)
}

// sidecar returns the container of the sidecar, whose image has no tools.
func (p *pod) sidecar(env ...string) container {
	c := p.container("/gate", "sidecar")
	c.VolumeFlags, c.Tools, c.UID, c.Env = 0, false, 65532, append(env, "POD_UID="+podUID)
	return c
}

// process is the process of a container, seen from the host.
type process struct {
	*exec.Cmd
	container

	t              *testing.T
	stdout, stderr string
}

// start starts the container, and kills it at the end of the test.
func (p *pod) start(c container, changes ...func(*exec.Cmd)) *process {
	p.t.Helper()
	config, err := json.Marshal(c)
	must(p.t, err)
	dir := p.t.TempDir()
	r := &process{
		Cmd:       exec.Command("/proc/self/exe", append([]string{enterContainer, string(config)}, c.Argv...)...),
		container: c, t: p.t, stdout: dir + "/stdout", stderr: dir + "/stderr",
	}
	r.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if c.UserNamespace {
		// Root in the container is root on this machine, because it sets up the container. The other ids are mapped.
		mappings := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 1 << 20, Size: 1<<16 - 1}}
		r.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		r.SysProcAttr.UidMappings, r.SysProcAttr.GidMappings = mappings, mappings
		r.SysProcAttr.GidMappingsEnableSetgroups = true
	}
	stdout, err := os.Create(r.stdout)
	must(p.t, err)
	stderr, err := os.Create(r.stderr)
	must(p.t, err)
	r.Stdout, r.Stderr = stdout, stderr
	for _, change := range changes {
		change(r.Cmd)
	}
	must(p.t, r.Start())
	must(p.t, errors.Join(stdout.Close(), stderr.Close()))
	p.t.Cleanup(func() {
		if r.ProcessState == nil {
			_ = r.Process.Kill()
			_ = r.Wait()
		}
	})
	return r
}

// run runs the container until it exits.
func (p *pod) run(c container) (code int, stdout, stderr string) {
	p.t.Helper()
	r := p.start(c)
	return r.exit(), r.printed(), r.said()
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// printed returns the standard output so far, and said the standard error.
func (p *process) printed() string { p.t.Helper(); return read(p.t, p.stdout) }
func (p *process) said() string    { p.t.Helper(); return read(p.t, p.stderr) }

// exit waits until the process exits, and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	giveUp := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	err := p.Wait()
	if !giveUp.Stop() {
		p.t.Fatalf("still running after %s; stderr:\n%s", patience, p.said())
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// wantExit waits until the process exits with the code.
func (p *process) wantExit(want int) {
	p.t.Helper()
	if code := p.exit(); code != want {
		p.t.Errorf("exit code %d, want %d; stderr:\n%s", code, want, p.said())
	}
}

// wantEnd waits until the process exits with the code and has printed the text.
func (p *process) wantEnd(code int, stdout string) {
	p.t.Helper()
	p.wantExit(code)
	if got := p.printed(); got != stdout {
		p.t.Errorf("stdout %q, want %q; stderr:\n%s", got, stdout, p.said())
	}
}

// send sends the process a signal.
func (p *process) send(s os.Signal) {
	p.t.Helper()
	must(p.t, p.Process.Signal(s))
}

// stop stops the process as the kubelet does, and wants the exit code.
func (p *process) stop(want int) {
	p.t.Helper()
	p.send(syscall.SIGTERM)
	p.wantExit(want)
}

// kill kills the process.
func (p *process) kill() {
	p.t.Helper()
	p.send(syscall.SIGKILL)
	p.wantExit(-1)
}

// says waits until the process has written the text to stderr.
func (p *process) says(text string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%q on stderr", text), func() bool { return strings.Contains(p.said(), text) })
}

// inside returns a command that runs in the container of the process, as the kubelet runs a probe.
func (p *process) inside(argv ...string) *exec.Cmd { return p.insideAs(p.UID, argv...) }

func (p *process) insideAs(uid int, argv ...string) *exec.Cmd {
	id := strconv.Itoa(uid)
	cmd := exec.Command("nsenter", append([]string{
		"--target", strconv.Itoa(p.Process.Pid), "--pid", "--mount", "--root", "--setuid=" + id, "--setgid=" + id,
	}, argv...)...)
	cmd.Env = p.container.Env
	return cmd
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	gomega.NewWithT(t).Eventually(condition, patience, time.Millisecond).Should(gomega.BeTrue(), "%s", what)
}

// shell returns the arguments of a shell script.
func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

// writes is a script that writes its epoch to a file until it is stopped.
func writes(file string) string {
	return fmt.Sprintf(`echo $STATEFULSINGLETON_EPOCH >&2; while :; do echo x >>/data/%s; sleep 0.01; done`, file)
}

// journal is a script that appends to a file of the volume until it is killed. It ignores what can be ignored.
func journal(file string) string {
	return fmt.Sprintf(`trap "" TERM INT HUP; while :; do echo x >>/data/%s; done`, file)
}
