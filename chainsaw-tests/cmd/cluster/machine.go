package main

import (
	"context"
	"crypto/tls"
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
	Name string
	// Path is the environment variable PATH of the processes.
	Path string
	// Own maps the machine's own directories to the directories where they are stored. /run is also the machine's own,
	// and is lost with the machine. All other files are shared with the host and the other machines.
	Own map[string]string
	// Files maps the files that the processes read to their contents.
	Files     map[string]string
	Processes []process
	// Proxies is nil unless the machine has several API servers.
	Proxies *proxySpec `json:",omitempty"`
}

// process is a program that a machine keeps running.
type process struct {
	Name string
	// Program is the name of the program, if it is not Name.
	Program string `json:",omitempty"`
	Binary  string
	Args    []string
	Log     string
	// After is the address that must answer before the start: tcp://ADDRESS, unix://PATH, or https://ADDRESS/PATH with
	// status 200.
	After string `json:",omitempty"`
	// Import lists directories of image archives to import into containerd before the first start.
	Import []string `json:",omitempty"`
}

// command returns the command of the process. Its first argument has the name of the process.
func (p process) command() *exec.Cmd {
	return &exec.Cmd{Path: p.Binary, Args: append([]string{filepath.Join(filepath.Dir(p.Binary), p.Name)}, p.Args...)}
}

var machineOwnDirs = []string{"/run", "/var/run", "/var/lib", "/var/log"}

const (
	systemPath     = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	machineCommand = "machine"
)

func (c cluster) specFile(name string) string {
	return filepath.Join(c.machineDir(name), "machine.json")
}

// specOf returns the right specification of the machine.
func (c cluster) specOf(name string) machineSpec {
	if name == controlMachine {
		return c.controlSpec()
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(name, "node"))
	return c.nodeSpec(n)
}

// specChanged returns true if the machine runs with another specification than the right one, for example with older
// versions.
func (c cluster) specChanged(name string) bool {
	got, err := os.ReadFile(c.specFile(name))
	return err != nil || string(got) != encode(c.specOf(name))
}

// startMachine starts the first process of a machine. Its processes wait until release is called, after the network
// exists. The machine ends if release is never called.
func (c cluster) startMachine(name string) (pid int, release func() error, err error) {
	spec := c.specOf(name)
	err = writeFile(c.specFile(name), encode(spec))
	for _, dir := range spec.Own {
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
	}
	for file, content := range spec.Files {
		err = errors.Join(err, writeFile(file, content))
	}
	if err != nil {
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
	// This halves the garbage collection, which by default takes a fifth of the processor time of the API server.
	cmd.Env = []string{"PATH=" + spec.Path, "HOME=/root", "GOGC=200"}
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

// processes returns all processes of this machine. No command works without /proc.
func processes() procfs.Procs {
	all, err := procfs.AllProcs()
	if err != nil {
		panic(err)
	}
	return all
}

// arguments returns the command line of a process, or nothing if the process has ended.
func arguments(p procfs.Proc) []string {
	args, _ := p.CmdLine()
	return args
}

// machinePIDs returns the process ids of the first processes of the cluster's machines. A machine that does not run has none. It
// identifies the processes by their command lines, and needs no stored state.
func (c cluster) machinePIDs() map[string]int {
	prefix := c.path("machines") + "/"
	found := map[string]int{}
	for _, p := range processes() {
		args := arguments(p)
		if len(args) == 3 && args[1] == machineCommand && strings.HasPrefix(args[2], prefix) && isNamespaceInit(p) {
			found[filepath.Base(filepath.Dir(args[2]))] = p.PID
		}
	}
	return found
}

// runningPID returns the process id of the first process of a machine. It returns an error with the command that starts the
// machine if it does not run.
func (c cluster) runningPID(name string) (int, error) {
	pid := c.machinePIDs()[name]
	switch {
	case pid != 0:
		return pid, nil
	case name == controlMachine:
		return 0, errors.New("the control plane does not run: run `cluster up`")
	}
	return 0, fmt.Errorf("%[1]s does not run: run `cluster node heal %[1]s`", name)
}

// killMachine ends a machine as a power failure does, and waits until all its processes have ended.
func (c cluster) killMachine(ctx context.Context, name string) error {
	if pid := c.machinePIDs()[name]; pid != 0 {
		if err := killAndWait(ctx, pid); err != nil {
			return fmt.Errorf("end the machine %s: %w", name, err)
		}
	}
	return c.removeCgroup(ctx, name)
}

// killAndWait waits until all threads of the process have ended. For the first process of a namespace, all other
// processes of the namespace have then ended too.
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

// insideMachine returns a command that runs in all namespaces of a machine.
func insideMachine(ctx context.Context, pid int, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(pid), "--mount", "--pid", "--net", "--"}, argv...)...)
	cmd.Env = []string{"PATH=" + systemPath}
	return cmd
}

// runningChildren maps the programs that a machine keeps running to their process ids, by the first process of the machine.
func runningChildren(init int) map[string]int {
	return children(children(init)[supervisor])
}

// children maps the programs of the children of a process to their process ids.
func children(parent int) map[string]int {
	found := map[string]int{}
	for _, p := range processes() {
		if args := arguments(p); len(args) > 0 && stat(p.PID).PPID == parent {
			found[filepath.Base(args[0])] = p.PID
		}
	}
	return found
}

// missingProcesses returns the machine's processes that do not run.
func (c cluster) missingProcesses(name string, init int) (missing []string) {
	running := runningChildren(init)
	for _, p := range c.specOf(name).Processes {
		if running[p.Name] == 0 {
			missing = append(missing, p.Name)
		}
	}
	return missing
}

// isNamespaceInit returns true if the process is the first process of a process namespace.
func isNamespaceInit(p procfs.Proc) bool {
	status, _ := p.NewStatus() // the process may have ended
	ids := status.NSpids
	return len(ids) > 1 && ids[len(ids)-1] == 1
}

// stat returns zero for a process that has ended.
func stat(pid int) procfs.ProcStat {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}
	}
	s, _ := p.Stat()
	return s
}

// poll retries until there is no error. It returns the last error after the timeout.
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

// dial connects to an address in the form of process.After.
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

// get does not verify the server. It sends no secrets, and only one server can answer in the machine's own network. On a busy
// machine, an API server took more than a second to answer.
func get(url string) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
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
