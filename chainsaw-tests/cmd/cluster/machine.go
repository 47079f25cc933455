package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// machineSpec is a machine of the cluster: the control plane, or a node. It has mount, process, network, host name and
// IPC namespaces of its own, whose first process is this program (see init.go). When that process ends, the kernel ends
// all processes, containers and mounts of the machine, as after a power failure.
type machineSpec struct {
	Hostname string
	// Path is PATH of the processes.
	Path string
	// Own maps directories that the machine has for itself to where they are kept. /run is its own too, and is lost
	// with the machine; all other files are shared with the host and between the machines.
	Own map[string]string
	// Files maps files that the processes read to what they hold.
	Files     map[string]string
	Processes []process
}

// process is a program that a machine keeps running.
type process struct {
	Name   string
	Binary string
	Args   []string
	Log    string
	// After is what must answer before it is started: tcp://ADDRESS, unix://PATH, or https://ADDRESS/PATH with status 200.
	After string `json:",omitempty"`
	// Import lists directories of image archives that containerd is given before the first start.
	Import []string `json:",omitempty"`
}

// encode is deterministic. It cannot fail: all of it is maps, lists and strings.
func (s machineSpec) encode() string {
	text, _ := json.MarshalIndent(s, "", "  ")
	return string(text) + "\n"
}

var machineOwnDirs = []string{"/run", "/var/run", "/var/lib", "/var/log"}

const (
	systemPath     = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	machineCommand = "machine"
)

func (c cluster) specFile(name string) string {
	return filepath.Join(c.machineDir(name), "machine.json")
}

// specOf is how the machine ought to be.
func (c cluster) specOf(name string) machineSpec {
	if name == controlMachine {
		return c.controlSpec()
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(name, "node"))
	return c.nodeSpec(n)
}

// specChanged says whether a machine was started otherwise than it ought to be: from other versions, for one.
func (c cluster) specChanged(name string) bool {
	got, err := os.ReadFile(c.specFile(name))
	return err != nil || string(got) != c.specOf(name).encode()
}

// startMachine starts a machine's first process. The processes wait until `release` is called, once the network
// is there; without it the machine ends.
func (c cluster) startMachine(name string) (pid int, release func() error, err error) {
	spec := c.specOf(name)
	for _, dir := range spec.Own {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return 0, nil, err
		}
	}
	for file, content := range spec.Files {
		if err := writeFile(file, content); err != nil {
			return 0, nil, err
		}
	}
	if err := writeFile(c.specFile(name), spec.encode()); err != nil {
		return 0, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	log, err := openLog(c.log(name, "machine"))
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(self, machineCommand, c.specFile(name))
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = []string{"PATH=" + spec.Path, "HOME=/root"}
	gate, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start the machine %s: %w", name, err)
	}
	release = func() error {
		_, err := io.WriteString(gate, "go\n")
		return errors.Join(err, gate.Close(), cmd.Process.Release())
	}
	return cmd.Process.Pid, release, nil
}

// machinePID finds a machine's first process, 0 if it does not run. It is known by its command line, so a record that is
// lost or stale does no harm.
func (c cluster) machinePID(name string) (int, error) {
	pids, err := c.machinePIDs()
	return pids[name], err
}

// machinePIDs finds the first processes of all the cluster's machines.
func (c cluster) machinePIDs() (map[string]int, error) {
	prefix := c.path("machines") + "/"
	found := map[string]int{}
	processes, err := procfs.AllProcs()
	for _, p := range processes {
		args, _ := p.CmdLine() // none of one that is gone
		if len(args) == 3 && args[1] == machineCommand && strings.HasPrefix(args[2], prefix) && isNamespaceInit(p) {
			found[filepath.Base(filepath.Dir(args[2]))] = p.PID
		}
	}
	return found, err
}

// killMachine ends a machine as a power cut does, and waits until nothing of it runs.
func (c cluster) killMachine(ctx context.Context, name string) error {
	pid, err := c.machinePID(name)
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := killAndWait(ctx, pid); err != nil {
			return fmt.Errorf("end the machine %s: %w", name, err)
		}
	}
	return c.removeCgroup(ctx, name)
}

// killAndWait returns once all threads of the process are gone, which for a namespace's first process means that all the
// others are gone too.
func killAndWait(ctx context.Context, pid int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(process) }()
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return poll(ctx, 30*time.Second, 0, func() error {
		events := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
		ready, err := unix.Poll(events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) || ready > 0 {
			return err
		}
		return fmt.Errorf("process %d is still there", pid)
	})
}

// insideMachine is a command in all of a machine's namespaces.
func insideMachine(ctx context.Context, pid int, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(pid), "--mount", "--pid", "--net", "--"}, argv...)...)
	cmd.Env = []string{"PATH=" + systemPath}
	return cmd
}

// runningChildren maps the names of the programs that a machine's first process has running to their process ids.
func runningChildren(init int) (map[string]int, error) {
	children := map[string]int{}
	if init == 0 {
		return children, nil
	}
	processes, err := procfs.AllProcs()
	for _, p := range processes {
		args, _ := p.CmdLine() // none of one that is gone, or a zombie
		s, _ := p.Stat()
		if len(args) > 0 && s.PPID == init {
			children[filepath.Base(args[0])] = p.PID
		}
	}
	return children, err
}

// missingProcesses lists the machine's processes that are not running.
func (c cluster) missingProcesses(name string, init int) ([]string, error) {
	running, err := runningChildren(init)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, p := range c.specOf(name).Processes {
		if running[p.Name] == 0 {
			missing = append(missing, p.Name)
		}
	}
	return missing, nil
}

// isNamespaceInit says whether the process is the first of a process namespace of its own.
func isNamespaceInit(p procfs.Proc) bool {
	status, _ := p.NewStatus() // none of one that is gone
	ids := status.NSpids
	return len(ids) > 1 && ids[len(ids)-1] == 1
}

// stat is zero of a process that is gone.
func stat(pid int) procfs.ProcStat {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}
	}
	s, _ := p.Stat()
	return s
}

// poll tries until there is no error, and returns the last error when the time is over.
func poll(ctx context.Context, timeout, interval time.Duration, try func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return last
}

// dial tries an address of the form that process.After has.
func dial(address string) error {
	network, target, _ := strings.Cut(address, "://")
	if network == "https" {
		return get(address)
	}
	connection, err := net.DialTimeout(network, target, time.Second)
	if err != nil {
		return err
	}
	return connection.Close()
}

// get asks without proof of who answers: nothing is told, and in the machine's own network only one can answer.
func get(url string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}
