package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	code, err := gate.Supervise(path, argv, os.Environ(), orders, func() {}, func(int, syscall.WaitStatus) {}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervise:", err)
	}
	return code
}

// supervised returns a container whose PID 1 supervises the command. The directory /data is writable.
func (p *pod) supervised(t *testing.T, argv ...string) container {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	if err := os.Link(self, p.root+"/supervisor"); err != nil && !errors.Is(err, os.ErrExist) {
		copyFile(t, self, p.root+"/supervisor")
	}
	c := p.container(append([]string{"/supervisor", superviseCommand}, argv...)...)
	c.Data = true
	must(t, os.MkdirAll(p.root+"/dev", 0o755))
	p.write(t, p.root+"/dev/null", "", 0o644) // the standard input of jobs in the background
	return c
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, content, 0o755))
}

// shell returns the arguments of a shell script.
func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

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
			code, _, stderr := runToEnd(t, newPod(t).supervised(t, shell(tc.script)...))
			if code != tc.want || stderr != "" {
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
			p := start(t, newPod(t).supervised(t, shell(fmt.Sprintf(
				`trap 'echo received; exit 9' %d; sh -c 'trap "echo wrong" %[1]d; echo ready >&2; while :; do sleep 0.01; done' & while :; do sleep 0.01; done`, int(s)))...))
			p.says(t, "ready")
			must(t, p.Process.Signal(s))
			if code, out := p.exit(t), read(t, p.stdout); code != 9 || out != "received\n" {
				t.Errorf("exit code %d, output %q", code, out)
			}
		})
	}
}

// The command has the same attributes as without a supervisor, except for its ids.
func TestSuperviseLeavesTheProcessAsItIs(t *testing.T) {
	t.Parallel()
	for what, command := range map[string][]string{
		"state":       {"grep", "-E", "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Umask|Sig[BIC]|Shd|Threads|Cpus|THP|Max )", "/proc/self/status", "/proc/self/limits"},
		"score":       {"grep", "-r", "", "/proc/self/oom_score_adj", "/proc/self/cgroup", "/proc/self/personality"},
		"files":       {"find", "/proc/self/fd", "/proc/self/cwd", "-printf", `%p %l\n`},
		"environment": {"env", "-0"},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPod(t)
			plain, held := p.container(append([]string{"/usr/bin/env"}, command...)...), p.supervised(t, append([]string{"/usr/bin/env"}, command...)...)
			for _, c := range []*container{&plain, &held} {
				c.Argv = append([]string{"/bin/sh", "-c", `trap "" HUP INT; exec "$@"`, "sh"}, c.Argv...)
			}
			_, want, _ := runToEnd(t, plain)
			_, got, stderr := runToEnd(t, held)
			testDir := regexp.MustCompile(`/\S*/` + strings.ReplaceAll(t.Name(), "/", "") + `\S*|pipe:\S+|/proc/\d+`)
			if diff := cmp.Diff(testDir.ReplaceAllString(want, "DIR"), testDir.ReplaceAllString(got, "DIR")); diff != "" || want == "" || stderr != "" {
				t.Errorf("stderr %q; process (-plain +supervised):\n%s", stderr, diff)
			}
		})
	}
}

// Orphans are reaped while the main process runs.
func TestSuperviseReapsOrphans(t *testing.T) {
	t.Parallel()
	p := start(t, newPod(t).supervised(t, shell(`for i in $(seq 50); do (sleep 0.01 &) ; done; sleep 0.3; grep -l "^State:.Z" /proc/[0-9]*/status; echo done >&2; sleep 0.1`)...))
	if code, out := p.exit(t), read(t, p.stdout); code != 0 || out != "" {
		t.Errorf("exit code %d; zombies:\n%s", code, out)
	}
}

// journal is a script that appends to a file of the volume until it is killed. It ignores what can be ignored.
func journal(name string) string {
	return fmt.Sprintf(`trap "" TERM INT HUP; while :; do echo x >>/data/%s; done`, name)
}

// wantStill fails if a journal grows.
func (p *pod) wantStill(t *testing.T, name string) {
	t.Helper()
	size := func() int64 {
		info, err := os.Stat(filepath.Join(p.root+"/data", name))
		must(t, err)
		return info.Size()
	}
	before := size()
	if time.Sleep(50 * time.Millisecond); size() != before || before == 0 {
		t.Errorf("%s has %d bytes and had %d when the container ended", name, size(), before)
	}
}

// Supervise returns only after daemons that left the main process have ended.
func TestSuperviseEndsDaemons(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	daemon := fmt.Sprintf(`setsid sh -c '%s' & `, journal("daemon"))
	c := start(t, p.supervised(t, shell(daemon+`while [ ! -s /data/daemon ]; do sleep 0.01; done; exit 5`)...))
	if code := c.exit(t); code != 5 {
		t.Errorf("exit code %d", code)
	}
	p.wantStill(t, "daemon")
}

// SIGKILL is for every process of the container.
func TestSuperviseKillsEverything(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	c := start(t, p.supervised(t, shell(fmt.Sprintf(`sh -c '%s' & echo ready >&2; %s`, journal("child"), journal("main")))...))
	c.says(t, "ready")
	eventually(t, "both write", func() bool {
		return fileSize(filepath.Join(p.root+"/data", "child")) > 0 && fileSize(filepath.Join(p.root+"/data", "main")) > 0
	})
	must(t, c.Process.Signal(syscall.SIGUSR2))
	if code := c.exit(t); code != 137 {
		t.Errorf("exit code %d", code)
	}
	p.wantStill(t, "child")
	p.wantStill(t, "main")
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// kubectl exec starts processes whose parent is outside of the container. They end, too.
func TestSuperviseEndsExec(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	c := start(t, p.supervised(t, shell(`echo ready >&2; while [ ! -s /data/exec ]; do sleep 0.01; done; exit 6`)...))
	c.says(t, "ready")
	enter := exec.Command("nsenter", "--target", strconv.Itoa(c.Process.Pid), "--pid", "--mount", "--root", "--setuid=12345", "--setgid=12345", "sh", "-c", journal("exec"))
	must(t, enter.Start())
	if code, stderr := c.exit(t), read(t, c.stderr); code != 6 || stderr != "ready\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	err := enter.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process of kubectl exec ended with %v", err)
	}
	p.wantStill(t, "exec")
}

// A process that the gate may not kill is no reason to say that everything has ended.
func TestSuperviseOfProcessesThatStay(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	c := start(t, p.supervised(t, shell(`echo ready >&2; while [ ! -s /data/exec ]; do sleep 0.01; done; exit 7`)...))
	c.says(t, "ready")
	// As root, while the gate is another user.
	enter := exec.Command("nsenter", "--target", strconv.Itoa(c.Process.Pid), "--pid", "--mount", "--root", "sh", "-c", journal("exec"))
	must(t, enter.Start())
	t.Cleanup(func() { _ = enter.Wait() })
	if code, stderr := c.exit(t), read(t, c.stderr); code != 7 || !strings.Contains(stderr, gate.ErrProcessesLeft.Error()) {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

func TestSuperviseOnlyAsPID1(t *testing.T) {
	t.Parallel()
	if code, err := gate.Supervise("/bin/true", []string{"true"}, nil, nil, func() {}, nil, slog.New(slog.DiscardHandler)); err == nil || code != 0 {
		t.Errorf("exit code %d, error %v", code, err)
	}
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
		"job control": {`echo ready >&2; set -m; sleep 0.01 & wait; fg 2>/dev/null; echo over`, "", "over", 0},
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := openTerminal(t)
			c := newPod(t).supervised(t, shell("stty -echo; "+tc.script)...)
			p := startWith(t, c, func(cmd *exec.Cmd) {
				cmd.Stdin = slave
				cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
			})
			p.says(t, "ready")
			_, err := master.WriteString(tc.input)
			must(t, err)
			if code, out := p.exit(t), read(t, p.stdout); code != tc.code || strings.TrimSpace(out) != tc.want {
				t.Errorf("exit code %d, output %q, want %d and %q", code, out, tc.code, tc.want)
			}
		})
	}
}

// openTerminal returns both ends of a new pseudoterminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = master.Close() })
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

func TestSupervisePassesStdin(t *testing.T) {
	t.Parallel()
	c := newPod(t).supervised(t, "cat")
	p := startWith(t, c, func(cmd *exec.Cmd) { cmd.Stdin = strings.NewReader("through\n") })
	if code, out := p.exit(t), read(t, p.stdout); code != 0 || out != "through\n" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

// Processes of this machine's packages stop under a supervisor as they do without it.
func TestSuperviseStopsAsWithout(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{
		"a shell that waits for its child": `sleep 1000 & child=$!; trap 'kill $child; wait $child; exit 3' TERM; echo ready >&2; wait $child`,
		"a shell with children":            `trap 'kill $!; wait; exit 143' TERM; sh -c 'sleep 1000 & echo ready >&2; wait' & wait`,
		"exec":                             `trap 'exit 4' TERM; echo ready >&2; while :; do sleep 0.01; done`,
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			stop := func(c container) int {
				running := start(t, c)
				running.says(t, "ready")
				must(t, running.Process.Signal(syscall.SIGTERM))
				return running.exit(t)
			}
			if with, without := stop(p.supervised(t, shell(script)...)), stop(p.container(shell(script)...)); with != without {
				t.Errorf("exit code %d without a supervisor, %d with it", without, with)
			}
		})
	}
}
