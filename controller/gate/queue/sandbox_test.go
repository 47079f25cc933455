package queue

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests run a gate as PID 1 of a container with a network of its own, and the application as its child. Both are this
// test binary, and report on stdout, line by line.

// patience is how long a test waits for an expected event.
const patience = time.Minute

// connectPatience is how long an attempt to connect may take.
const connectPatience = 5 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case ShimCommand:
		if os.Getenv("SHIM_ENDS") != "" {
			os.Exit(1)
		}
		os.Exit(Shim(os.Args[2:]))
	case "enter":
		fmt.Fprintln(os.Stderr, "enter the sandbox:", enter(os.Args[2]))
		os.Exit(255)
	case "gate":
		os.Exit(runGate(os.Args[2]))
	case "application":
		os.Exit(runApplication(os.Args[2:]))
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests create namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// config is a sandbox with its gate.
type config struct {
	// Plain starts the application without a queue.
	Plain            bool
	Ports            []Port
	Backlog          int
	BindWithin, Keep time.Duration
	// User is that of the gate and the application.
	User int
	// Ptrace leaves the gate CAP_SYS_PTRACE, which containers do not have.
	Ptrace bool
	// Privileges leaves no_new_privs unset.
	Privileges bool
	// Seccomp is the errno of seccomp(2). Zero: it works.
	Seccomp syscall.Errno
	// Listener installs a filter with a listener before the gate starts.
	Listener bool
	// ShimEnds makes the shim end at once.
	ShimEnds bool
	// Late makes every start come too late.
	Late bool
	// Steps are those of the application.
	Steps []string
	// Argv is another application. Nil: this test binary.
	Argv []string
}

// enter becomes the gate, in the namespaces in which this process was started.
func enter(arg string) error {
	runtime.LockOSThread()
	var c config
	err := errors.Join(
		json.Unmarshal([]byte(arg), &c),
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		setUp("lo"))
	if !c.Ptrace {
		err = errors.Join(err, unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0))
	}
	if !c.Privileges {
		err = errors.Join(err, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	if c.Listener {
		fd, failed := seccomp(&unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
		_, _, errno := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFD, 0)
		if errno != 0 {
			failed = errors.Join(failed, errno)
		}
		err = errors.Join(err, failed)
	}
	if c.Seccomp != 0 {
		err = errors.Join(err, denySeccomp(c.Seccomp))
	}
	if c.User != 0 {
		err = errors.Join(err, unix.Setgroups(nil), unix.Setresgid(c.User, c.User, c.User), unix.Setresuid(c.User, c.User, c.User))
	}
	if err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", []string{"gate", "gate", arg}, os.Environ())
}

func setUp(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// denySeccomp makes seccomp(2) fail in this thread.
func denySeccomp(errno syscall.Errno) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_SECCOMP},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

var errLate = errors.New("late")

// runGate obeys the commands on stdin.
func runGate(arg string) int {
	var c config
	// The gate keeps the application from controlling it.
	if json.Unmarshal([]byte(arg), &c) != nil || unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) != nil {
		return 1
	}
	before := resources()
	env := os.Environ()
	if c.ShimEnds {
		env = append(env, "SHIM_ENDS=1")
	}
	forkExec := syscall.ForkExec
	q, refusal := listenFor(c)
	fmt.Println("listens", refusal)
	if q != nil {
		forkExec = func(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
			return q.ForkExec(path, argv, attr, func() error {
				if c.Late {
					return errLate
				}
				return nil
			})
		}
		go func() { fmt.Println("closed", q.Closed().Reason, q.Closed().Lost) }()
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "start":
			path, argv := "/proc/self/exe", append([]string{"app", "application"}, c.Steps...)
			if c.Argv != nil {
				path, argv = c.Argv[0], c.Argv
			}
			pid, err := forkExec(path, argv, &syscall.ProcAttr{
				Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
			})
			fmt.Println("started", err)
			if err == nil {
				go reap(pid)
			}
		case "children":
			_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			fmt.Println("children", err)
		case "waiting":
			fmt.Println("waiting", q.Waiting())
		case "close":
			q.Close(Stopped)
		case "end-bind-within":
			q.expire()
		case "end-keep":
			endKeep(q)
			fmt.Println("kept")
		case "resources":
			fmt.Println("resources", before, resources())
		}
	}
	return 0
}

// listenFor returns the queue, or why there is none.
func listenFor(c config) (*Queue, Reason) {
	if c.Plain {
		return nil, ""
	}
	q, err := Listen(c.Ports, Options{
		Backlog: c.Backlog, BindWithin: c.BindWithin, Keep: c.Keep, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	refusal, _ := errors.AsType[Closed](err)
	return q, refusal.Reason
}

// endKeep ends Options.Keep, and waits until no socket is handed over.
func endKeep(q *Queue) {
	for handed := true; handed; time.Sleep(settlePause) {
		handed = handedOver(q)
	}
}

// handedOver ends Options.Keep, and returns true if a socket is handed over.
func handedOver(q *Queue) (any bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.sockets {
		s.until = time.Now()
		any = any || s.state == handed
	}
	return any
}

// reap reports the end of the process.
func reap(pid int) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		if ended == pid {
			fmt.Println("ended", status.ExitStatus())
		}
		if errors.Is(err, unix.ECHILD) {
			return
		}
	}
}

// resources returns the number of descriptors and goroutines of this process.
func resources() string {
	left := maxEntries
	fds, _ := list("/proc/self/fd", &left)
	return fmt.Sprint(len(fds), "/", runtime.NumGoroutine())
}

// sandbox is a running gate.
type sandbox struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer

	mu   sync.Mutex
	said map[string]chan string
}

// start starts a gate, and waits until it listens or has said why it does not.
func start(t *testing.T, c config) (s *sandbox, refusal string) {
	t.Helper()
	if c.Backlog == 0 {
		c.Backlog = 1024
	}
	if c.BindWithin == 0 {
		c.BindWithin = patience
	}
	if c.Keep == 0 {
		c.Keep = patience
	}
	arg, err := json.Marshal(c)
	must(t, err)
	s = &sandbox{t: t, said: map[string]chan string{}, cmd: exec.Command("/proc/self/exe", "enter", string(arg))}
	s.cmd.Dir, s.cmd.Env = t.TempDir(), os.Environ() // without a PWD that differs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	s.cmd.Stderr = &testLog{t: t}
	s.stdin, err = s.cmd.StdinPipe()
	must(t, err)
	stdout, err := s.cmd.StdoutPipe()
	must(t, err)
	must(t, s.cmd.Start())
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			word, rest, _ := strings.Cut(lines.Text(), " ")
			s.lines(word) <- rest
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s, s.says("listens")
}

// lines returns a channel with what follows the word in the lines that begin with it.
func (s *sandbox) lines(word string) chan string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said[word] == nil {
		s.said[word] = make(chan string, 1000)
	}
	return s.said[word]
}

// testLog writes to the log of a test.
type testLog struct {
	mu sync.Mutex
	t  *testing.T
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s", p)
	return len(p), nil
}

func (s *sandbox) tell(command string) {
	s.t.Helper()
	_, err := fmt.Fprintln(s.stdin, command)
	must(s.t, err)
}

// allow ends the step "await" with the name.
func (s *sandbox) allow(name string) {
	s.t.Helper()
	must(s.t, os.WriteFile(filepath.Join(s.cmd.Dir, name), nil, 0o600))
}

// says returns what follows the word in the next line of the gate or the application that begins with it.
func (s *sandbox) says(word string) string {
	s.t.Helper()
	select {
	case rest := <-s.lines(word):
		return rest
	case <-time.After(patience):
		s.t.Fatalf("does not say %q", word)
		return ""
	}
}

func (s *sandbox) wantSays(word, want string) {
	s.t.Helper()
	if got := s.says(word); got != want {
		s.t.Errorf("%s %s, want %s", word, got, want)
	}
}

// inside runs a function on a thread in the network of the sandbox.
func (s *sandbox) inside(do func()) {
	s.t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.cmd.Process.Pid))
		if err == nil {
			err = errors.Join(unix.Setns(int(network.Fd()), unix.CLONE_NEWNET), network.Close())
		}
		if err == nil {
			do()
		}
		failed <- err
	}()
	must(s.t, <-failed)
}

// clients are clients that each ask once.
type clients struct {
	wg                        sync.WaitGroup
	mu                        sync.Mutex
	answered, refused, failed int
}

// ask connects to the address, and reads the answer in the background. The caller is inside the sandbox.
func (c *clients) ask(address string) {
	conn, err := dial(address)
	if errors.Is(err, unix.ECONNREFUSED) {
		c.count(&c.refused)
		return
	}
	if err != nil {
		c.count(&c.failed)
		return
	}
	c.wg.Go(func() {
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err := conn.Write([]byte("?"))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		if err != nil {
			c.count(&c.failed)
		} else {
			c.count(&c.answered)
		}
	})
}

// dial connects to the address. It tries again after an error that is none of the listener's, such as a timeout.
func dial(address string) (conn net.Conn, err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		conn, err = net.DialTimeout("tcp", address, connectPatience)
		if err == nil || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) {
			break
		}
	}
	return conn, err
}

func (c *clients) count(n *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
}

// wantAnswered fails unless all n clients are answered.
func (c *clients) wantAnswered(t *testing.T, n int) {
	t.Helper()
	if c.wg.Wait(); c.answered != n {
		t.Errorf("%d clients were answered, %d refused, and %d reset, want %d answered", c.answered, c.refused, c.failed, n)
	}
}

func (c *clients) sum() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}

// connects connects n clients to the address.
func (s *sandbox) connects(n int, address string) *clients {
	s.t.Helper()
	c := &clients{}
	s.inside(func() {
		for range n {
			c.ask(address)
		}
	})
	return c
}

// load connects a client to each address every 5 ms, starts the application after a while, and returns after it has answered
// enough clients.
func (s *sandbox) load(c *clients, through []string, enough int) {
	s.t.Helper()
	s.inside(func() {
		end := time.Now().Add(patience)
		for i := 0; c.sum() < enough && time.Now().Before(end); i++ {
			if i == 20 {
				s.tell("start")
			}
			for _, address := range through {
				c.ask(address)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// enters starts a process in the container from outside, which the gate cannot read.
func (s *sandbox) enters() {
	s.t.Helper()
	command := exec.Command("nsenter", "--target", fmt.Sprint(s.cmd.Process.Pid), "--pid", "sh", "-c", "echo; exec sleep infinity")
	stdout, err := command.StdoutPipe()
	must(s.t, err)
	must(s.t, command.Start())
	s.t.Cleanup(func() { // the process itself ends with the container
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	_, err = stdout.Read(make([]byte, 1))
	must(s.t, err)
}

// wantServed fails if the application does not answer a new client.
func (s *sandbox) wantServed(address string) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		c := s.connects(1, address)
		if c.wg.Wait(); c.answered == 1 {
			return
		}
	}
	s.t.Error("the application does not serve", address)
}

// wantUnused fails unless the gate soon has as many descriptors and goroutines as before the queue.
func (s *sandbox) wantUnused() {
	s.t.Helper()
	var before, after string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.tell("resources")
		before, after, _ = strings.Cut(s.says("resources"), " ")
		if before == after {
			return
		}
	}
	s.t.Errorf("%s descriptors and goroutines became %s", before, after)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
