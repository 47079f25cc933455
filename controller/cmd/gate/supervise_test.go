package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	ossignal "os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/gate"
)

// superviseCommand is the first argument of the test binary that makes it supervise a command as PID 1 of a container.
const superviseCommand = "supervise"

// supervise supervises the command, and exits as the command did. SIGUSR2 ends every process of the container.
func supervise(argv []string) int {
	received := make(chan os.Signal, 64)
	for _, s := range []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGALRM, syscall.Signal(37),
	} {
		if !ossignal.Ignored(s) {
			ossignal.Notify(received, s)
		}
	}
	orders := make(chan os.Signal)
	go func() {
		for s := range received {
			if s == syscall.SIGUSR2 {
				s = syscall.SIGKILL
			}
			orders <- s
		}
	}()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 127
	}
	code, err := gate.Supervise(gate.Execute(path, argv, os.Environ()), orders, func() {}, func(int, syscall.WaitStatus) {}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervise:", err)
	}
	return code
}

// supervised returns a container whose PID 1 supervises the command.
func (p *pod) supervised(argv ...string) container {
	p.t.Helper()
	self, err := os.Executable()
	must(p.t, err)
	if err := os.Link(self, p.root+"/supervisor"); err != nil && !errors.Is(err, os.ErrExist) {
		content, err := os.ReadFile(self)
		must(p.t, errors.Join(err, os.WriteFile(p.root+"/supervisor", content, 0o755)))
	}
	c := p.container(append([]string{"/supervisor", superviseCommand}, argv...)...)
	c.Data = true
	return c
}

func TestSuperviseExitsLikeTheCommand(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   int
	}{
		"success":            {"exit 0", 0},
		"failure":            {"exit 3", 3},
		"killed":             {"kill -KILL $$", 137},
		"terminated":         {"kill -TERM $$", 143},
		"a child ends first": {"sleep 0.01 & sleep 0.05; exit 4", 4},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			if code, _, stderr := p.run(p.supervised(shell(tc.script)...)); code != tc.want || stderr != "" {
				t.Errorf("exit code %d, stderr %q, want %d", code, stderr, tc.want)
			}
		})
	}
}

// Every signal that a container runtime or a user can send reaches the main process, and only that process.
func TestSuperviseForwardsSignals(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGALRM, syscall.Signal(37),
	} {
		t.Run(unix.SignalName(s)+strconv.Itoa(int(s)), func(t *testing.T) {
			p := newPod(t)
			c := p.start(p.supervised(shell(fmt.Sprintf(
				`trap 'echo received; exit 9' %d; sh -c 'trap "echo wrong" %[1]d; echo ready >&2; while :; do sleep 0.01; done' & while :; do sleep 0.01; done`, int(s)))...))
			c.says("ready")
			c.send(s)
			c.wantEnd(9, "received\n")
		})
	}
}

// Orphans are reaped while the main process runs.
func TestSuperviseReapsOrphans(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.start(p.supervised(shell(`for i in $(seq 50); do (sleep 0.01 &) ; done; sleep 0.3; grep -l "^State:.Z" /proc/[0-9]*/status; echo done >&2; sleep 0.1`)...)).wantEnd(0, "")
}

// SIGKILL is for every process of the container.
func TestSuperviseKillsEverything(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	c := p.start(p.supervised(shell(fmt.Sprintf(`sh -c '%s' & %s`, journal("child"), journal("main")))...))
	p.wantGrows("child")
	p.wantGrows("main")
	c.send(syscall.SIGUSR2)
	c.wantExit(137)
	p.wantRests("child", "main")
}

// kubectl exec starts processes whose parent is outside of the container. They end, too.
func TestSuperviseEndsExec(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	c := p.start(p.supervised(shell(`echo ready >&2; while [ ! -s /data/exec ]; do sleep 0.01; done; exit 6`)...))
	c.says("ready")
	exec := c.inside(shell(journal("exec"))...)
	must(t, exec.Start())
	if c.wantExit(6); c.said() != "ready\n" {
		t.Errorf("stderr %q", c.said())
	}
	if err := exec.Wait(); err == nil || exec.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process of kubectl exec ended with %v", err)
	}
	p.wantRests("exec")
}

// The main process is in the foreground of its terminal: it can read, and Ctrl-C is for its process group.
func TestSuperviseOnATerminal(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script, input, want string
		code                int
	}{
		"reads":  {`echo ready >&2; read -r line; echo "got $line"`, "hello\n", "got hello", 0},
		"Ctrl-C": {`trap 'echo interrupted; exit 8' INT; echo ready >&2; while :; do sleep 0.01; done`, "\x03", "interrupted", 8},
		// The child waits in short steps, because a shell can lose a signal for a command that is just starting.
		"Ctrl-C for group": {
			`sh -c 'trap "echo child interrupted; exit" INT; echo ready >&2; while :; do sleep 0.01; done'; echo unreachable`,
			"\x03", "child interrupted", 130,
		},
		"job control": {`echo ready >&2; set -m; sleep 0.01 & fg >/dev/null 2>&1; echo over`, "", "over", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			master, slave := openTerminal(t)
			c := p.start(p.supervised(shell("stty -echo; "+tc.script)...), func(cmd *exec.Cmd) {
				cmd.Stdin = slave
				cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
			})
			c.says("ready")
			_, err := master.WriteString(tc.input)
			must(t, err)
			c.wantExit(tc.code)
			if out := c.printed(); strings.TrimSpace(out) != tc.want {
				t.Errorf("output %q, want %q", out, tc.want)
			}
		})
	}
}

// openTerminal returns both ends of a new pseudoterminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	open := func(path string) *os.File {
		file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
		must(t, err)
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	master = open("/dev/ptmx")
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	return master, open("/dev/pts/" + strconv.Itoa(number))
}
