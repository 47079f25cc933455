package main

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

func TestBinaryIsSmallAndStatic(t *testing.T) {
	for _, goarch := range []string{"amd64", "arm64"} {
		t.Run(goarch, func(t *testing.T) {
			path := gateBinary
			if goarch != runtime.GOARCH {
				path = filepath.Join(t.TempDir(), "gate")
				must(t, buildGate(path, "linux", goarch))
			}
			info, err := os.Stat(path)
			must(t, err)
			if most := int64(8 << 20); info.Size() > most {
				t.Errorf("%d bytes, want %d at most", info.Size(), most)
			}
			file, err := elf.Open(path)
			must(t, err)
			defer func() { _ = file.Close() }()
			if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
				t.Error("needs a dynamic loader")
			}
		})
	}
}

func TestUsage(t *testing.T) {
	tests := map[string]struct {
		args     []string
		wantCode int
		want     string
	}{
		"no command":             {wantCode: 64, want: "gate: a command is missing. To list the commands, run: gate --help"},
		"unknown command":        {args: []string{"s3cret"}, wantCode: 64, want: "gate: the command does not exist."},
		"wrap alone":             {args: []string{"wrap"}, wantCode: 64, want: `gate: wrap needs "--" before the command.`},
		"wrap without dashes":    {args: []string{"wrap", "s3cret", "--"}, wantCode: 64, want: `gate: wrap needs "--" before the command.`},
		"wrap without a command": {args: []string{"wrap", "--"}, wantCode: 64, want: `gate: wrap needs a command after "--".`},
		"sidecar with arguments": {args: []string{"sidecar", "s3cret"}, wantCode: 64, want: "gate: sidecar takes no arguments."},
		"started while held":     {args: []string{"started"}, wantCode: 1, want: "gate: the pod is not released, so the main process has not started: open /var/run/signal/start-signal:"},
		"started, no duration":   {args: []string{"started", "s3cret"}, wantCode: 64, want: "gate: started takes at most one argument, a duration, for example 20s."},
		"started, timeout":       {args: []string{"started", "1ms"}, wantCode: 1, want: "gate: the pod is not released, so the main process has not started: open /var/run/signal/start-signal:"},
		"status":                 {args: []string{"status"}, wantCode: 64, want: "gate: gate status runs only in container status-sidecar. Run: kubectl exec POD --container status-sidecar -- "},
		"help":                   {args: []string{"--help"}, want: "Usage:"},
		"version":                {args: []string{"version"}, want: "gate 1.2.3 linux/"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			code, stdout, stderr := p.run(p.container(append([]string{"/gate"}, tc.args...)...))
			said, silent := stdout, stderr
			if tc.wantCode != 0 {
				said, silent = stderr, stdout
			}
			if code != tc.wantCode || !strings.Contains(said, tc.want) || silent != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q, want %d and %q", code, stdout, stderr, tc.wantCode, tc.want)
			}
			if strings.Contains(stderr, "s3cret") {
				t.Errorf("stderr %q repeats an argument", stderr)
			}
		})
	}
}

func TestWrapPassesArgumentsByteForByte(t *testing.T) {
	want := []string{"", " ", "two  words", `"double" 'single'`, "line\nbreak", "$(VAR) $VAR {{ }} (x)", "*", "\\", "--", "-x", "\xff\xfe", "ünï", ""}
	p := newPod(t)
	p.release()
	code, stdout, stderr := p.run(p.wrapped(append([]string{"printf", `%s\0`}, want...)...))
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q, want 0 and no output, because the pod is released", code, stderr)
	}
	if diff := cmp.Diff(strings.Join(want, "\x00")+"\x00", stdout); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

// wantSameProcess fails unless each command finds the same attributes of its process in both containers, except for what the
// regular expression matches. The other container has more variables.
func wantSameProcess(t *testing.T, change func(c *container), other func(p *pod, argv ...string) container, except, added string) {
	commands := map[string][]string{
		"state":       {"grep", "-E", "^(Pid|PPid|NSpid|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Umask|Sig[BIC]|Shd|Threads|Cpus|THP|Max )", "/proc/self/status", "/proc/self/limits"},
		"score":       {"grep", "-r", "", "/proc/self/oom_score_adj", "/proc/self/cgroup", "/proc/self/personality", "/proc/self/timerslack_ns"},
		"files":       {"find", "/proc/self/fd", "/proc/self/cwd", "-printf", `%p %l\n`},
		"environment": {"env", "-0"},
	}
	differs := regexp.MustCompile(`/\S*/Test\w+LeavesTheProcessAsItIs\S*` + except)
	for what, command := range commands {
		t.Run(what, func(t *testing.T) {
			p := newPod(t)
			command = append([]string{"/usr/bin/env"}, command...)
			plain, gated := p.container(command...), other(p, command...)
			change(&plain)
			change(&gated)
			if added != "" {
				plain.Env = slices.DeleteFunc(plain.Env, func(e string) bool { return strings.HasPrefix(e, signal.PodUIDEnv+"=") })
			}
			_, want, _ := p.run(plain)
			_, got, stderr := p.run(gated)
			if what == "environment" {
				want += added
			}
			if diff := cmp.Diff(differs.ReplaceAllString(want, "X"), differs.ReplaceAllString(got, "X")); diff != "" || want == "" || stderr != "" {
				t.Errorf("stderr %q; process (-plain +other):\n%s", stderr, diff)
			}
		})
	}
}

func ignoreSignals(c *container) { throughShell(c, `trap "" HUP INT; exec "$@"`) }

// A process inherits the same attributes with and without the gate.
func TestWrapLeavesTheProcessAsItIs(t *testing.T) {
	for name, change := range map[string]func(c *container){
		"no change":           func(*container) {},
		"few files":           func(c *container) { c.Files = syscall.Rlimit{Cur: 100, Max: 1000} },
		"another directory":   func(c *container) { c.Dir = "/srv/sub" },
		"a umask":             func(c *container) { c.Umask = 0o077 },
		"root":                func(c *container) { c.UID = 0 },
		"signals are ignored": ignoreSignals,
		// A Go program unblocks the signals that end a process: SIGTERM, SIGINT and SIGHUP.
		"signals are blocked": func(c *container) {
			c.Argv = append([]string{"/usr/bin/env", "--block-signal=USR1,PIPE"}, c.Argv...)
		},
		"odd environment": func(c *container) { c.Env = append(c.Env, "EMPTY=", "LINES=a\nb", "=x", "PATHS=a=b") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantSameProcess(t, change, func(p *pod, argv ...string) container { p.release(); return p.wrapped(argv...) }, "", "STATEFULSINGLETON_EPOCH=7\x00")
		})
	}
}

// The command has the same attributes as without a supervisor, except for its ids.
func TestSuperviseLeavesTheProcessAsItIs(t *testing.T) {
	wantSameProcess(t, ignoreSignals, (*pod).supervised, `|pipe:\S+|/proc/\d+|(Pid|PPid|NSpid):.*`, "")
}

// A command that cannot be started yet is worth a warning. An earlier container may still create the file.
func TestWrapWarnsOfAMissingCommand(t *testing.T) {
	p := newPod(t)
	held := p.start(p.wrapped("/srv/run", "s3cret"))
	held.says(heldLog)
	held.says(`msg="The command of the main process cannot be started yet. The gate tries again after the release"`)
	p.write(p.root+"/srv/run", "#!/bin/sh\nexit 8\n", 0o755)
	p.release()
	held.wantExit(8)
	if said := held.said(); strings.Contains(said, "s3cret") {
		t.Errorf("stderr %q repeats an argument", said)
	}
}

// After the release, the gate starts the command as a shell would. If that is not possible, it exits as a shell would, and
// reports the reason.
func TestWrapStartsWhatAShellWould(t *testing.T) {
	few := func(most uint64) func(c *container) {
		return func(c *container) { c.Files = syscall.Rlimit{Cur: 4, Max: most} }
	}
	inSrv := func(c *container) { c.Dir = "/srv" }
	with := func(environ ...string) func(c *container) {
		return func(c *container) { c.Env = append(c.Env, environ...) }
	}
	tests := map[string]struct {
		argv     []string
		path     string // default /bin
		change   func(c *container)
		wantCode int
		// wantError is in the last line of the gate. Empty: the command starts.
		wantError string
	}{
		"in PATH":                      {argv: []string{"sh", "-c", "exit 7"}, path: "/nowhere:/bin", wantCode: 7},
		"by its path":                  {argv: shell("exit 7"), wantCode: 7},
		"relative to the directory":    {argv: []string{"./run"}, change: inSrv, wantCode: 8},
		"a relative directory in PATH": {argv: []string{"run"}, path: ":/bin", change: inSrv, wantCode: 8},
		"killed by itself":             {argv: shell("kill -KILL $$; exit 9"), wantCode: 9}, // PID 1 cannot kill itself
		"just enough files":            {argv: mainProcess, change: few(16), wantCode: mainProcessCode},
		"no /proc":                     {argv: mainProcess, change: func(c *container) { c.NoProc = true }, wantCode: mainProcessCode},
		"no stdio":                     {argv: mainProcess, change: func(c *container) { throughShell(c, `exec "$@" <&- >&- 2>&-`) }, wantCode: mainProcessCode},
		"the epoch is set already": {
			argv: shell("exit $STATEFULSINGLETON_EPOCH"), wantCode: 7,
			change: with("STATEFULSINGLETON_EPOCH=1", "STATEFULSINGLETON_EPOCH=2", "STATEFULSINGLETON_EPOCH"),
		},
		"an odd environment": {argv: mainProcess, wantCode: mainProcessCode, change: with("", "=", "novalue", "PATH", "=PATH=/", "\xff=\xfe",
			"GODEBUG=x=y,,", "GOGC=nonsense", "GOMAXPROCS=1", "GOMEMLIMIT=1", "GOTRACEBACK=crash")},

		"not in PATH":                     {argv: []string{"run", "s3cret"}, wantCode: 127, wantError: `"run": executable file not found in $PATH`},
		"no PATH":                         {argv: []string{"run"}, path: "none", wantCode: 127, wantError: `"run": executable file not found in $PATH`},
		"no name":                         {argv: []string{""}, wantCode: 127, wantError: `"": executable file not found in $PATH`},
		"no such file":                    {argv: []string{"/srv/missing"}, wantCode: 127, wantError: `"/srv/missing": stat /srv/missing: no such file or directory`},
		"no interpreter":                  {argv: []string{"/srv/orphan"}, wantCode: 127, wantError: `"/srv/orphan": /srv/orphan exists, but its interpreter or dynamic loader does not: no such file or directory`},
		"not executable":                  {argv: []string{"/srv/data"}, wantCode: 126, wantError: `"/srv/data": permission denied`},
		"not executable in PATH":          {argv: []string{"data"}, path: "/bin:/srv", wantCode: 126, wantError: `"data": /srv/data: permission denied`},
		"a directory":                     {argv: []string{"/srv"}, wantCode: 126, wantError: `"/srv": is a directory`},
		"neither a program nor a script":  {argv: []string{"/srv/garbage"}, wantCode: 126, wantError: `"/srv/garbage": exec format error`},
		"a program of another machine":    {argv: []string{"/srv/foreign"}, wantCode: 126, wantError: `"/srv/foreign": exec format error`},
		"a pipe":                          {argv: []string{"/srv/pipe"}, wantCode: 126, wantError: `"/srv/pipe": permission denied`},
		"a loop of links":                 {argv: []string{"/srv/loop"}, wantCode: 126, wantError: `"/srv/loop": stat /srv/loop: too many levels of symbolic links`},
		"a name too long":                 {argv: []string{"/" + strings.Repeat("a", 300)}, wantCode: 126, wantError: "file name too long"},
		"a file as directory":             {argv: []string{"/srv/run/x"}, wantCode: 126, wantError: "not a directory"},
		"dashes alone":                    {argv: []string{"--"}, wantCode: 127, wantError: `"--": executable file not found in $PATH`},
		"dashes twice":                    {argv: []string{"--", "sh"}, wantCode: 127, wantError: `"--": executable file not found in $PATH`},
		"an option":                       {argv: []string{"--help"}, wantCode: 127, wantError: `"--help": executable file not found in $PATH`},
		"its own interpreter":             {argv: []string{"/srv/circle"}, wantCode: 126, wantError: "too many levels of symbolic links"},
		"few files":                       {argv: mainProcess, change: few(15), wantCode: 1, wantError: "the container can open only 15 files, and the gate needs 16. Raise the limit of open files (ulimit -n)"},
		"no arguments at all":             {argv: mainProcess, change: func(c *container) { throughShell(c, `exec /gate`) }, wantCode: 64, wantError: "a command is missing"},
		"an invalid setting of Go itself": {argv: mainProcess, change: with("GOMEMLIMIT=nonsense"), wantCode: 2, wantError: "malformed GOMEMLIMIT"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			p.release()
			foreign := []byte(read(t, gateBinary)[:4096])
			foreign[18], foreign[19] = 0xf3, 0 // e_machine: RISC-V
			for file, content := range map[string]string{
				"run": "#!/bin/sh\nexit 8\n", "orphan": "#!/srv/missing\n", "circle": "#!/srv/circle\n", "garbage": "\x00", "foreign": string(foreign),
			} {
				p.write(p.root+"/srv/"+file, content, 0o755)
			}
			p.write(p.root+"/srv/data", "", 0o644)
			must(t, os.Symlink("loop", p.root+"/srv/loop"))
			must(t, syscall.Mkfifo(p.root+"/srv/pipe", 0o755))
			c := p.wrapped(tc.argv...)
			if tc.path == "none" {
				c.Env[0] = "PATH="
			} else if tc.path != "" {
				c.Env[0] = "PATH=" + tc.path
			}
			if tc.change != nil {
				tc.change(&c)
			}
			wantError := tc.wantError
			if strings.HasPrefix(wantError, `"`) {
				wantError = "gate: start the main process " + wantError + "\n"
			}
			code, stdout, stderr := p.run(c)
			if code != tc.wantCode || !strings.Contains(stderr, wantError) || tc.wantError == "" && stderr != "" {
				t.Errorf("exit code %d, stderr %q, want %d and %q", code, stderr, tc.wantCode, tc.wantError)
			}
			if started := stdout != ""; started && tc.wantError != "" {
				t.Errorf("started: %q", stdout)
			}
			if strings.Contains(stderr, "s3cret") {
				t.Errorf("stderr %q repeats an argument", stderr)
			}
		})
	}
}

// Without the uid, a waiting container would count as warm, and could never start.
func TestWrapEndsWithoutThePodUID(t *testing.T) {
	const want = "gate: environment variable STATEFULSINGLETON_POD_UID is missing or empty, so the gate cannot recognize the signal of this pod. "
	wantHelp := map[string]string{"wrap": "Delete the pod:", "started": "gate started runs only in held containers."}
	signals := map[string]string{"held": "", "released": signalOf(7), "released without a uid": `{"uid":"","epoch":7}`}
	for env, entries := range map[string][]string{"missing": nil, "empty": {"STATEFULSINGLETON_POD_UID="}} {
		for state, content := range signals {
			for what, argv := range map[string][]string{"wrap": {"/gate", "wrap", "--", "sh", "-c", "echo started"}, "started": {"/gate", "started", "20s"}} {
				t.Run(env+"/"+state+"/"+what, func(t *testing.T) {
					t.Parallel()
					p := newPod(t)
					if content != "" {
						p.write(p.signalFile(), content, 0o644)
					}
					c := p.container(argv...)
					c.Env = append([]string{"PATH=/usr/bin:/bin"}, entries...)
					if code, stdout, stderr := p.run(c); code != 64 || stdout != "" || !strings.HasPrefix(stderr, want+wantHelp[what]) {
						t.Errorf("exit code %d, stdout %q, stderr %q, want 64 and %q", code, stdout, stderr, want+wantHelp[what])
					}
				})
			}
		}
	}
}

// A person asks the sidecar for the state of its pod.
func TestStatus(t *testing.T) {
	p := newPod(t)
	sidecar := p.start(p.sidecar())
	for _, want := range []string{"State:      standby\n", "State:      active\nEpoch:      7\n"} {
		eventually(t, want, func() bool {
			output, err := sidecar.inside("/gate", "status").Output()
			return err == nil && strings.HasPrefix(string(output), want)
		})
		p.annotate(signalOf(7))
	}
	output, err := sidecar.inside("/gate", "started").CombinedOutput()
	if err == nil || strings.Contains(string(output), "Delete the pod") {
		t.Errorf("gate started: %v, output %q, want no advice to delete the pod", err, output)
	}
}

// stopsAtOnce sends the signal, and fails unless the process exits with the code before the next poll. Because the
// machine may be busy, it tries three times.
func stopsAtOnce(t *testing.T, started func() *process, s syscall.Signal, wantCode int) {
	t.Helper()
	const soon = 200 * time.Millisecond
	var took time.Duration
	for range 3 {
		p := started()
		begin := time.Now()
		p.send(s)
		p.wantExit(wantCode)
		if took = time.Since(begin); took < soon || t.Failed() {
			return
		}
	}
	t.Errorf("took %s to stop, want less than %s", took, soon)
}

// The gate is PID 1, for which the kernel ignores signals without a handler.
func TestStopsAtOnceWhileItWaits(t *testing.T) {
	wrapper := func(p *pod) container { return p.wrapped(mainProcess...) }
	for name, tc := range map[string]struct {
		container func(p *pod) container
		signal    syscall.Signal
		wantCode  int
	}{
		"SIGTERM":    {wrapper, syscall.SIGTERM, 143},
		"SIGINT":     {wrapper, syscall.SIGINT, 130},
		"SIGQUIT":    {wrapper, syscall.SIGQUIT, 131},
		"SIGWINCH":   {wrapper, syscall.SIGWINCH, 156},
		"SIGRTMIN+3": {wrapper, 37, 165},
		"sidecar":    {func(p *pod) container { return p.sidecar("POD_IP=" + loopback()) }, syscall.SIGTERM, 0},
	} {
		t.Run(name, func(t *testing.T) {
			stopsAtOnce(t, func() *process {
				p := newPod(t)
				held := p.start(tc.container(p))
				held.says("Held: ")
				return held
			}, tc.signal, tc.wantCode)
		})
	}
}

// The stop signal and the release are there at once when the gate wakes up. The kernel can deliver the signal to a
// thread that is slower than the exec. As PID 1, a main process also loses signals that arrive before it has a handler.
// So the test accepts a few lost signals. A gate that does not check for signals loses more than half.
func TestStopSignalBeforeTheReleaseIsNotLost(t *testing.T) {
	lost := 0
	const times = 20
	for range times {
		p := newPod(t)
		held := p.start(p.wrapped("sh", "-c", "echo started"))
		held.says(heldLog)
		held.send(syscall.SIGSTOP)
		held.send(syscall.SIGTERM)
		p.release()
		held.send(syscall.SIGCONT)
		if code := held.exit(); code != 143 {
			lost++
		}
	}
	if lost > times/4 {
		t.Errorf("%d of %d stop signals were lost", lost, times)
	}
}

// The kubelet marks the container as started when the probe ends.
func TestStartedWaitsForTheRelease(t *testing.T) {
	p := newPod(t)
	p.createPipe()
	probe := p.start(p.container("/gate", "started", "1m"))
	probe.waits()
	p.release()
	for _, ended := range []*process{probe, p.start(p.container("/gate", "started"))} {
		if ended.wantEnd(0, ""); ended.said() != "" {
			t.Errorf("output %q, want none", ended.said())
		}
	}
}

// sidecarPort is the port of the sidecar.
var sidecarPort = strconv.Itoa(signal.ProbePort)

// loopback returns a random loopback address for each test, because the containers share the network of this machine.
func loopback() string { return fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254)) }

// status returns the response of /status.
func status(t *testing.T, podIP string) (got map[string]any) {
	t.Helper()
	eventually(t, "/status", func() bool {
		response, err := http.Get("http://" + net.JoinHostPort(podIP, sidecarPort) + "/status")
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		return json.NewDecoder(response.Body).Decode(&got) == nil
	})
	return got
}

// saysEpoch is a command that prints its epoch.
var saysEpoch = []string{"sh", "-c", "echo started with $STATEFULSINGLETON_EPOCH"}

// The gate in a pod, from the delivery to the release, and after restarts.
func TestHandoff(t *testing.T) {
	p := newPod(t)
	podIP := loopback()
	c := p.sidecar("POD_IP=" + podIP)
	c.Umask = 0o077
	sidecar := p.start(c)
	hook := c
	hook.Argv = []string{"/gate", "delivered"}
	p.start(hook).wantExit(0)
	delivered, err := os.Stat(p.volume + "/gate")
	must(t, err)
	if delivered.Mode() != 0o755 || read(t, p.volume+"/gate") != read(t, gateBinary) {
		t.Errorf("the delivered gate is not a copy, or has the wrong mode: %s", delivered.Mode())
	}

	one, two := p.start(p.delivered(saysEpoch...)), p.start(p.delivered(saysEpoch...))
	one.says("Held")
	two.says("Held")
	if got := status(t, podIP); got["released"] != false || got["delivered"] != true {
		t.Errorf("/status while held: %v", got)
	}
	response, err := http.Get("http://" + net.JoinHostPort(podIP, sidecarPort) + "/healthz")
	must(t, err)
	must(t, response.Body.Close())
	if response.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %s", response.Status)
	}

	p.annotate(signalOf(3))
	for _, held := range []*process{one, two} {
		held.wantEnd(0, "started with 3\n")
		if said := held.said(); strings.Contains(said, "Polling the signal file") {
			t.Errorf("polls, stderr %q", said)
		}
	}
	eventually(t, "/status reports released", func() bool { return status(t, podIP)["released"] == true })

	// A restarted container starts at once, with or without the sidecar.
	stopsAtOnce(t, func() *process { sidecar.says("Released"); return sidecar }, syscall.SIGTERM, 0)
	restarted := p.start(p.delivered(saysEpoch...))
	if restarted.wantEnd(0, "started with 3\n"); restarted.said() != "" {
		t.Errorf("restarted: stderr %q", restarted.said())
	}
	sidecar = p.start(c)
	sidecar.says("Released")
	p.start(hook).wantExit(0)

	// If the signal of another pod replaces the annotation, the sidecar removes the signal file.
	p.annotate(signal.Signal{UID: "another", Epoch: 4}.String())
	p.awaitNoSignal()
	p.start(p.delivered(saysEpoch...)).says("Held")
	sidecar.says(`it is for a pod with uid \"another\"`)
	eventually(t, "/status reports a problem", func() bool { return status(t, podIP)["problem"] == "see the log of container status-sidecar" })
}

// While the sidecar does not run, nothing removes a forged signal, and the wrapper ignores it.
func TestForgedSignalWhileTheSidecarIsAway(t *testing.T) {
	p := newPod(t)
	c := p.sidecar("POD_IP=" + loopback())
	sidecar := p.start(c)
	sidecar.says("Held")
	before := p.start(p.delivered(saysEpoch...))
	before.says(heldLog)
	sidecar.kill()

	p.write(p.signalFile(), `{"uid":"not-my-uid","epoch":1}`, 0o644)
	p.wake()
	during := p.start(p.delivered(saysEpoch...)) // a container that restarts
	for _, held := range []*process{before, during} {
		held.says(`has the signal of another pod, with uid \"not-my-uid\"`)
	}
	sidecar = p.start(c)
	p.awaitNoSignal()
	for _, held := range []*process{before, during} {
		if got := held.printed(); got != "" {
			t.Errorf("started while held: %q", got)
		}
	}

	p.annotate(signalOf(3))
	for _, held := range []*process{before, during} {
		held.wantEnd(0, "started with 3\n")
	}
	sidecar.says("Released")
}

// If the sidecar is killed at any point of the release, the restarted sidecar delivers the signal.
func TestSidecarIsKilledAtTheRelease(t *testing.T) {
	for i := range 20 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			c := p.sidecar("POD_IP=" + loopback())
			sidecar := p.start(c)
			sidecar.says("Held")
			held := p.start(p.wrapped(saysEpoch...))
			held.says("Held")
			p.annotate(signalOf(3))
			time.Sleep(time.Duration(i) * 100 * time.Microsecond) // the time of the kill varies
			sidecar.kill()
			p.start(c).says("Released")
			held.wantEnd(0, "started with 3\n")
		})
	}
}

func TestSidecarWorksWithoutServing(t *testing.T) {
	busy, err := net.Listen("tcp", net.JoinHostPort(loopback(), sidecarPort))
	must(t, err)
	defer func() { _ = busy.Close() }()
	podIP, _, err := net.SplitHostPort(busy.Addr().String())
	must(t, err)
	for name, env := range map[string]string{"the port is busy": "POD_IP=" + podIP, "no POD_IP": "POD_IP="} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.annotate(signalOf(3))
			sidecar := p.start(p.sidecar(env))
			sidecar.says("Cannot serve /healthz")
			sidecar.says("Released")
		})
	}
}
