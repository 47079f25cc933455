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
			path := filepath.Join(t.TempDir(), "gate")
			if err := buildGate(path, "linux", goarch); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if most := int64(8 << 20); info.Size() > most {
				t.Errorf("%d bytes, want %d at most", info.Size(), most)
			}
			file, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			for _, p := range file.Progs {
				if p.Type == elf.PT_INTERP {
					t.Error("needs a dynamic loader")
				}
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
			code, stdout, stderr := runToEnd(t, newPod(t).container(append([]string{"/gate"}, tc.args...)...))
			if code != tc.wantCode {
				t.Errorf("exit code %d, want %d", code, tc.wantCode)
			}
			said, silent := stdout, stderr
			if tc.wantCode != 0 {
				said, silent = stderr, stdout
			}
			if !strings.Contains(said, tc.want) || silent != "" {
				t.Errorf("stdout %q, stderr %q, want %q", stdout, stderr, tc.want)
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
	p.release(t)
	code, stdout, stderr := runToEnd(t, p.wrapped(append([]string{"printf", `%s\0`}, want...)...))
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q, want 0 and no output, because the pod is released", code, stderr)
	}
	if diff := cmp.Diff(strings.Join(want, "\x00")+"\x00", stdout); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

// A process inherits the same attributes with and without the gate.
func TestWrapLeavesTheProcessAsItIs(t *testing.T) {
	changes := map[string]func(c *container){
		"no change":         func(*container) {},
		"few files":         func(c *container) { c.Files = syscall.Rlimit{Cur: 100, Max: 1000} },
		"another directory": func(c *container) { c.Dir = "/srv/sub" },
		"a umask":           func(c *container) { c.Umask = 0o077 },
		"root":              func(c *container) { c.UID = 0 },
		"signals are ignored": func(c *container) {
			c.Argv = append([]string{"/bin/sh", "-c", `trap "" HUP INT; exec "$@"`, "sh"}, c.Argv...)
		},
		// A Go program unblocks the signals that end a process: SIGTERM, SIGINT and SIGHUP.
		"signals are blocked": func(c *container) {
			c.Argv = append([]string{"/usr/bin/env", "--block-signal=USR1,PIPE"}, c.Argv...)
		},
		"odd environment": func(c *container) { c.Env = append(c.Env, "EMPTY=", "LINES=a\nb", "=x", "PATHS=a=b") },
	}
	commands := map[string][]string{
		"state":       {"grep", "-E", "^(Pid|PPid|NSpid|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Umask|Sig[BIC]|Shd|Threads|Cpus|THP|Max )", "/proc/self/status", "/proc/self/limits"},
		"score":       {"grep", "-r", "", "/proc/self/oom_score_adj", "/proc/self/cgroup", "/proc/self/personality", "/proc/self/timerslack_ns"},
		"files":       {"find", "/proc/self/fd", "/proc/self/cwd", "-printf", `%p %l\n`},
		"environment": {"env", "-0"},
	}
	testDir := regexp.MustCompile(`/\S*/` + t.Name() + `\S*`)
	for name, change := range changes {
		for what, command := range commands {
			t.Run(name+"/"+what, func(t *testing.T) {
				p := newPod(t)
				p.release(t)
				plain, held := p.container(append([]string{"/usr/bin/env"}, command...)...), p.wrapped(append([]string{"/usr/bin/env"}, command...)...)
				change(&plain)
				change(&held)
				plain.Env = slices.DeleteFunc(plain.Env, func(e string) bool { return strings.HasPrefix(e, signal.PodUIDEnv+"=") })
				_, want, _ := runToEnd(t, plain)
				_, got, stderr := runToEnd(t, held)
				if what == "environment" {
					want += "STATEFULSINGLETON_EPOCH=7\x00"
				}
				want, got = testDir.ReplaceAllString(want, "DIR"), testDir.ReplaceAllString(got, "DIR")
				if diff := cmp.Diff(want, got); diff != "" || want == "" || stderr != "" {
					t.Errorf("stderr %q; process (-plain +under the gate):\n%s", stderr, diff)
				}
			})
		}
	}
}

func TestWrapStartsWhatAShellWould(t *testing.T) {
	tests := map[string]struct {
		command  []string
		path     string
		dir      string
		wantCode int
		// wantError is the last line of the gate. Empty: the command starts.
		wantError string
	}{
		"in PATH":                          {command: []string{"sh", "-c", "exit 7"}, path: "/nowhere:/bin", wantCode: 7},
		"by its path":                      {command: []string{"/bin/sh", "-c", "exit 7"}, wantCode: 7},
		"relative to the directory":        {command: []string{"./run"}, dir: "/srv", wantCode: 8},
		"a relative directory in PATH":     {command: []string{"run"}, path: ":/bin", dir: "/srv", wantCode: 8},
		"killed by itself":                 {command: []string{"sh", "-c", "kill -KILL $$; exit 9"}, path: "/bin", wantCode: 9}, // PID 1 cannot kill itself
		"not in PATH":                      {command: []string{"run", "s3cret"}, path: "/bin", wantCode: 127, wantError: `start the main process "run": executable file not found in $PATH`},
		"no PATH":                          {command: []string{"run"}, wantCode: 127, wantError: `start the main process "run": executable file not found in $PATH`},
		"no name":                          {command: []string{""}, path: "/bin", wantCode: 127, wantError: `start the main process "": executable file not found in $PATH`},
		"no such file":                     {command: []string{"/srv/missing"}, wantCode: 127, wantError: `start the main process "/srv/missing": stat /srv/missing: no such file or directory`},
		"no interpreter":                   {command: []string{"/srv/orphan"}, wantCode: 127, wantError: `start the main process "/srv/orphan": /srv/orphan exists, but its interpreter or dynamic loader does not: no such file or directory`},
		"not executable":                   {command: []string{"/srv/data"}, wantCode: 126, wantError: `start the main process "/srv/data": permission denied`},
		"not executable in PATH":           {command: []string{"data"}, path: "/bin:/srv", wantCode: 126, wantError: `start the main process "data": /srv/data: permission denied`},
		"a directory":                      {command: []string{"/srv"}, wantCode: 126, wantError: `start the main process "/srv": is a directory`},
		"neither a program nor an #! line": {command: []string{"/srv/garbage"}, wantCode: 126, wantError: `start the main process "/srv/garbage": exec format error`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.write(t, p.root+"/srv/run", "#!/bin/sh\nexit 8\n", 0o755)
			p.write(t, p.root+"/srv/orphan", "#!/srv/missing\n", 0o755)
			p.write(t, p.root+"/srv/garbage", "\x00", 0o755)
			p.write(t, p.root+"/srv/data", "", 0o644)
			c := p.wrapped(tc.command...)
			c.Env = []string{"PATH=" + tc.path, signal.PodUIDEnv + "=" + podUID}
			if tc.dir != "" {
				c.Dir = tc.dir
			}
			held := start(t, c)
			held.says(t, "Held: the main process starts when the controller releases this pod")
			warning := `msg="The command of the main process cannot be started yet. The gate tries again after the release"`
			if warns := tc.wantError != "" && name != "no interpreter" && !strings.HasPrefix(name, "neither"); warns {
				held.says(t, warning)
			}
			p.release(t)
			if got := held.exit(t); got != tc.wantCode {
				t.Errorf("exit code %d, want %d", got, tc.wantCode)
			}
			stderr := read(t, held.stderr)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if last := lines[len(lines)-1]; tc.wantError != "" && last != "gate: "+tc.wantError {
				t.Errorf("last line %q, want %q", last, "gate: "+tc.wantError)
			}
			if tc.wantError == "" && strings.Contains(stderr, warning) {
				t.Errorf("unexpected warning: %s", stderr)
			}
			if strings.Contains(stderr, "s3cret") {
				t.Errorf("stderr %q repeats an argument", stderr)
			}
		})
	}
}

// After each step of a case, the process must still wait.
func TestWrapHolds(t *testing.T) {
	whole := signal.Signal{UID: podUID, Epoch: 7}.String()
	tests := map[string][]struct{ signal, wantLog string }{
		"no signal":    {},
		"empty":        {{"", `error="/var/run/signal/start-signal: parse signal: unexpected end of JSON input"`}},
		"half written": {{whole[:5], "unexpected end of JSON input"}, {whole[:len(whole)-1], "unexpected end of JSON input"}},
		"malformed":    {{"released", "invalid character"}},
		"no epoch":     {{`{"uid":"` + podUID + `"}`, "epoch is 0, but must be at least 1"}},
		"another pod's": {
			{`{"uid":"not-my-uid","epoch":1}`, `Held: the signal file does not release this pod`},
			{`{"uid":"not-my-uid","epoch":1}`, `with uid \"not-my-uid\"`},
		},
		"of a longer uid":      {{`{"uid":"` + podUID + `0","epoch":1}`, `with uid \"` + podUID + `0\"`}},
		"of a shorter uid":     {{`{"uid":"` + podUID[:35] + `","epoch":1}`, `with uid \"` + podUID[:35] + `\"`}},
		"of a uid in capitals": {{`{"uid":"` + strings.ToUpper(podUID) + `","epoch":1}`, `with uid \"` + strings.ToUpper(podUID) + `\"`}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			held := start(t, p.wrapped("sh", "-c", "echo started with $STATEFULSINGLETON_EPOCH"))
			held.says(t, "Held: the main process starts")
			for _, step := range steps {
				p.write(t, p.volume+"/start-signal", step.signal, 0o644)
				p.wake(t)
				held.says(t, step.wantLog)
			}
			if code, _, stderr := runToEnd(t, p.container("/gate", "started")); code != 1 || !strings.HasPrefix(stderr, "gate: the pod is not released, so the main process has not started: ") {
				t.Errorf("gate started: exit code %d, stderr %q", code, stderr)
			}
			// The main process has not started before the release.
			if got := read(t, held.stdout); got != "" {
				t.Errorf("started while held: %q", got)
			}
			p.release(t)
			if code := held.exit(t); code != 0 || read(t, held.stdout) != "started with 7\n" {
				t.Errorf("exit code %d, stdout %q, want it released with epoch 7", code, read(t, held.stdout))
			}
			if got, want := strings.Count(read(t, held.stderr), "\n"), 2; got > want {
				t.Errorf("%d lines, want %d at most, because each message is logged once\n%s", got, want, read(t, held.stderr))
			}
		})
	}
}

// Without the uid, a waiting container would count as warm, and could never start.
func TestWrapEndsWithoutThePodUID(t *testing.T) {
	const want = "gate: environment variable STATEFULSINGLETON_POD_UID is missing or empty, so the gate cannot recognize the signal of this pod. "
	wantHelp := map[string]string{"wrap": "Delete the pod:", "started": "gate started runs only in held containers."}
	signals := map[string]string{"held": "", "released": signal.Signal{UID: podUID, Epoch: 7}.String(), "released without a uid": `{"uid":"","epoch":7}`}
	for env, entries := range map[string][]string{"missing": nil, "empty": {"STATEFULSINGLETON_POD_UID="}} {
		for state, content := range signals {
			for what, argv := range map[string][]string{"wrap": {"/gate", "wrap", "--", "sh", "-c", "echo started"}, "started": {"/gate", "started", "20s"}} {
				t.Run(env+"/"+state+"/"+what, func(t *testing.T) {
					p := newPod(t)
					if content != "" {
						p.write(t, p.volume+"/start-signal", content, 0o644)
					}
					c := p.container(argv...)
					c.Env = append([]string{"PATH=/usr/bin:/bin"}, entries...)
					if code, stdout, stderr := runToEnd(t, c); code != 64 || stdout != "" || !strings.HasPrefix(stderr, want+wantHelp[what]) {
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
	c := p.sidecar()
	sidecar := start(t, c)
	for _, want := range []string{"State:      standby\n", "State:      active\nEpoch:      7\n"} {
		eventually(t, want, func() bool {
			output, err := c.inside(sidecar, "/gate", "status").Output()
			return err == nil && strings.HasPrefix(string(output), want)
		})
		p.write(t, p.podinfo+"/start-signal", signal.Signal{UID: podUID, Epoch: 7}.String(), 0o644)
	}
	output, err := c.inside(sidecar, "/gate", "started").CombinedOutput()
	if err == nil || strings.Contains(string(output), "Delete the pod") {
		t.Errorf("gate started: %v, output %q, want no advice to delete the pod", err, output)
	}
}

func TestWrapHoldsWithoutAVolume(t *testing.T) {
	p := newPod(t)
	must(t, os.Remove(p.root+signal.Dir))
	c := p.wrapped("sh", "-c", "echo started")
	c.Volume = ""
	held := start(t, c)
	held.says(t, "Held: the main process starts")
	must(t, held.Process.Signal(syscall.SIGTERM))
	if code := held.exit(t); code != 143 || read(t, held.stdout) != "" {
		t.Errorf("exit code %d, stdout %q, want 143 and nothing", code, read(t, held.stdout))
	}
	if !strings.Contains(read(t, held.stderr), "pipe=/var/run/signal/wakeup") {
		t.Errorf("stderr %q does not name the volume", read(t, held.stderr))
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
		must(t, p.Process.Signal(s))
		code := p.exit(t)
		took = time.Since(begin)
		if code != wantCode {
			t.Fatalf("exit code %d, want %d; stderr:\n%s", code, wantCode, read(t, p.stderr))
		}
		if took < soon {
			return
		}
	}
	t.Errorf("took %s to stop, want less than %s", took, soon)
}

// The gate is PID 1, for which the kernel ignores signals without a handler.
func TestWrapStopsAtOnceWhileItWaits(t *testing.T) {
	tests := map[string]struct {
		signal   syscall.Signal
		wantCode int
	}{
		"SIGTERM":    {syscall.SIGTERM, 143},
		"SIGINT":     {syscall.SIGINT, 130},
		"SIGQUIT":    {syscall.SIGQUIT, 131},
		"SIGWINCH":   {syscall.SIGWINCH, 156},
		"SIGRTMIN+3": {37, 165},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			stopsAtOnce(t, func() *process {
				held := start(t, newPod(t).wrapped("sh", "-c", "echo started"))
				held.says(t, "Held: the main process starts")
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
		held := start(t, p.wrapped("sh", "-c", "echo started"))
		held.says(t, "Held: the main process starts")
		must(t, held.Process.Signal(syscall.SIGSTOP))
		must(t, held.Process.Signal(syscall.SIGTERM))
		p.release(t)
		must(t, held.Process.Signal(syscall.SIGCONT))
		if code := held.exit(t); code != 143 {
			lost++
		}
	}
	if lost > times/4 {
		t.Errorf("%d of %d stop signals were lost", lost, times)
	}
}

func TestStarted(t *testing.T) {
	p := newPod(t)
	p.release(t)
	if code, stdout, stderr := runToEnd(t, p.container("/gate", "started")); code != 0 || stdout+stderr != "" {
		t.Errorf("exit code %d, output %q, want 0 and no output", code, stdout+stderr)
	}
}

// The kubelet marks the container as started when the probe ends.
func TestStartedWaitsForTheRelease(t *testing.T) {
	p := newPod(t)
	p.createPipe()
	probe := start(t, p.container("/gate", "started", "1m"))
	waits(t, probe)
	p.release(t)
	if code := probe.exit(t); code != 0 || read(t, probe.stdout)+read(t, probe.stderr) != "" {
		t.Errorf("exit code %d, output %q, want 0 and no output", code, read(t, probe.stdout)+read(t, probe.stderr))
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

// The gate in a pod, from the delivery to the release, and after restarts.
func TestHandoff(t *testing.T) {
	p := newPod(t)
	podIP := loopback()
	c := p.sidecar("POD_IP=" + podIP)
	c.Umask = 0o077
	sidecar := start(t, c)
	hook := c
	hook.Argv = []string{"/gate", "delivered"}
	if code, _, stderr := runToEnd(t, hook); code != 0 {
		t.Fatalf("gate delivered: exit code %d: %s", code, stderr)
	}
	delivered, err := os.Stat(p.volume + "/gate")
	must(t, err)
	if delivered.Mode() != 0o755 || read(t, p.volume+"/gate") != read(t, gateBinary) {
		t.Errorf("the delivered gate is not a copy, or has the wrong mode: %s", delivered.Mode())
	}

	// From here on, the test uses the delivered gate.
	wrap := func(name string) *process {
		c := p.wrapped("sh", "-c", "echo "+name+" started with $STATEFULSINGLETON_EPOCH")
		c.Argv[0] = signal.GatePath
		return start(t, c)
	}
	one, two := wrap("one"), wrap("two")
	one.says(t, "Held")
	two.says(t, "Held")
	if got := status(t, podIP); got["released"] != false || got["delivered"] != true {
		t.Errorf("/status while held: %v", got)
	}
	response, err := http.Get("http://" + net.JoinHostPort(podIP, sidecarPort) + "/healthz")
	must(t, err)
	must(t, response.Body.Close())
	if response.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %s", response.Status)
	}

	p.write(t, p.podinfo+"/start-signal", signal.Signal{UID: podUID, Epoch: 3}.String(), 0o644)
	for name, held := range map[string]*process{"one": one, "two": two} {
		if code := held.exit(t); code != 0 || read(t, held.stdout) != name+" started with 3\n" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", name, code, read(t, held.stdout), read(t, held.stderr))
		}
		if stderr := read(t, held.stderr); strings.Contains(stderr, "Polling the signal file") {
			t.Errorf("%s polls, stderr %q", name, stderr)
		}
	}
	eventually(t, "/status reports released", func() bool { return status(t, podIP)["released"] == true })

	// A restarted container starts at once, with or without the sidecar.
	stopsAtOnce(t, func() *process { sidecar.says(t, "Released"); return sidecar }, syscall.SIGTERM, 0)
	restarted := wrap("again")
	if code := restarted.exit(t); code != 0 || read(t, restarted.stdout) != "again started with 3\n" || read(t, restarted.stderr) != "" {
		t.Errorf("restarted: exit code %d, stdout %q, stderr %q", code, read(t, restarted.stdout), read(t, restarted.stderr))
	}
	sidecar = start(t, c)
	sidecar.says(t, "Released")
	if code, _, stderr := runToEnd(t, hook); code != 0 {
		t.Errorf("gate delivered after the restart of the sidecar: exit code %d: %s", code, stderr)
	}

	// If the signal of another pod replaces the annotation, the sidecar removes the signal file.
	p.write(t, p.podinfo+"/start-signal", signal.Signal{UID: "another", Epoch: 4}.String(), 0o644)
	eventually(t, "the signal file is removed", func() bool { _, err := os.Stat(p.volume + "/start-signal"); return os.IsNotExist(err) })
	held := wrap("late")
	held.says(t, "Held")
	sidecar.says(t, `it is for a pod with uid \"another\"`)
	eventually(t, "/status reports a problem", func() bool { return status(t, podIP)["problem"] == "see the log of container status-sidecar" })
}

// While the sidecar does not run, nothing removes a forged signal, and the wrapper ignores it.
func TestForgedSignalWhileTheSidecarIsAway(t *testing.T) {
	p := newPod(t)
	c := p.sidecar("POD_IP=" + loopback())
	sidecar := start(t, c)
	sidecar.says(t, "Held")
	wrap := func() *process {
		c := p.wrapped("sh", "-c", "echo started with $STATEFULSINGLETON_EPOCH")
		c.Argv[0] = signal.GatePath
		return start(t, c)
	}
	before := wrap()
	before.says(t, "Held: the main process starts")
	must(t, sidecar.Process.Kill())
	_ = sidecar.exit(t)

	p.write(t, p.volume+"/start-signal", `{"uid":"not-my-uid","epoch":1}`, 0o644)
	p.wake(t)
	during := wrap() // a container that restarts
	for _, held := range []*process{before, during} {
		held.says(t, `has the signal of another pod, with uid \"not-my-uid\"`)
	}
	sidecar = start(t, c)
	eventually(t, "the sidecar removes the forged signal", func() bool { _, err := os.Stat(p.volume + "/start-signal"); return os.IsNotExist(err) })
	for _, held := range []*process{before, during} {
		if got := read(t, held.stdout); got != "" {
			t.Errorf("started while held: %q", got)
		}
	}

	p.write(t, p.podinfo+"/start-signal", signal.Signal{UID: podUID, Epoch: 3}.String(), 0o644)
	for _, held := range []*process{before, during} {
		if code := held.exit(t); code != 0 || read(t, held.stdout) != "started with 3\n" {
			t.Errorf("exit code %d, stdout %q, stderr %q, want it released with epoch 3", code, read(t, held.stdout), read(t, held.stderr))
		}
	}
	sidecar.says(t, "Released")
}

// If the sidecar is killed at any point of the release, the restarted sidecar delivers the signal.
func TestSidecarIsKilledAtTheRelease(t *testing.T) {
	for i := range 20 {
		p := newPod(t)
		c := p.sidecar("POD_IP=" + loopback())
		sidecar := start(t, c)
		sidecar.says(t, "Held")
		held := start(t, p.wrapped("sh", "-c", "echo started with $STATEFULSINGLETON_EPOCH"))
		held.says(t, "Held")
		p.write(t, p.podinfo+"/start-signal", signal.Signal{UID: podUID, Epoch: 3}.String(), 0o644)
		time.Sleep(time.Duration(i) * 100 * time.Microsecond) // the time of the kill varies
		must(t, sidecar.Process.Kill())
		_ = sidecar.exit(t)
		start(t, c).says(t, "Released")
		if code := held.exit(t); code != 0 || read(t, held.stdout) != "started with 3\n" {
			t.Errorf("exit code %d, stdout %q, stderr %q, want it released with epoch 3", code, read(t, held.stdout), read(t, held.stderr))
		}
	}
}

func TestSidecarStopsAtOnce(t *testing.T) {
	stopsAtOnce(t, func() *process {
		sidecar := start(t, newPod(t).sidecar("POD_IP="+loopback()))
		sidecar.says(t, "Held")
		return sidecar
	}, syscall.SIGTERM, 0)
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
			p.write(t, p.podinfo+"/start-signal", signal.Signal{UID: podUID, Epoch: 3}.String(), 0o644)
			sidecar := start(t, p.sidecar(env))
			sidecar.says(t, "Cannot serve /healthz")
			sidecar.says(t, "Released")
		})
	}
}

func TestSidecarFails(t *testing.T) {
	tests := map[string]struct {
		change func(c *container)
		want   string
	}{
		"the volume is read-only": {func(c *container) { c.VolumeReadOnly = true }, "gate: deliver the gate to the held containers: open /var/run/signal/gate.partial: read-only file system\n"},
		"no uid":                  {func(c *container) { c.Env = []string{"POD_IP=" + loopback()} }, "gate: POD_UID is empty"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newPod(t).sidecar()
			tc.change(&c)
			if code, _, stderr := runToEnd(t, c); code != 1 || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, stderr %q, want 1 and %q", code, stderr, tc.want)
			}
		})
	}
}
