package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// restartDelay limits the CPU time of a process that cannot start.
	restartDelay = time.Second
	// supervisor is the name of the child of a machine's first process.
	supervisor = "supervisor"
)

// runMachine is the first process in the namespaces of a machine. It waits for the orphans of the machine, and runs this program
// again as the supervisor, which can use package os/exec, because nothing else waits for its children. It returns when the
// supervisor has ended.
func runMachine(program, specFile string) error {
	// Signals of the terminal and the session are not meant for a machine.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	child, err := syscall.ForkExec(program, []string{supervisor, machineCommand, specFile},
		&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	for {
		if pid, _ := syscall.Wait4(-1, nil, 0, nil); pid == child {
			return errors.New("the supervisor has ended")
		}
	}
}

// supervise creates the machine's own files and keeps its processes running. It returns only with an error.
func supervise(specFile string) error {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	content, err := os.ReadFile(specFile)
	if err != nil {
		return err
	}
	var spec machineSpec
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("read %s: %w", specFile, err)
	}
	if err := mountOwn(spec); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := prepareNetwork(); err != nil {
		return err
	}
	if answer, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil || answer != "go\n" {
		return errors.New("the command that started this machine ended before its network was made")
	}
	failed := make(chan error)
	if spec.Proxies != nil {
		if err := spec.Proxies.start(failed); err != nil {
			return err
		}
	}
	for _, p := range spec.Processes {
		go p.keepRunning()
	}
	return <-failed
}

// mountOwn separates the mounts of the machine from the host's, and mounts the machine's own directories. Within the
// machine, mounts propagate, as containers with mountPropagation expect.
func mountOwn(spec machineSpec) error {
	type mount struct {
		source, target, kind string
		flags                uintptr
	}
	mounts := []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
	}
	for target, source := range spec.Own {
		mounts = append(mounts, mount{source, target, "", unix.MS_BIND})
	}
	mounts = append(mounts, mount{"", "/", "", unix.MS_REC | unix.MS_SHARED})
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// prepareNetwork makes the new network namespace a router. Nodes route for their pods, and the control plane routes
// between nodes.
func prepareNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
}

// keepRunning starts a process, and starts it again after each end. It never returns.
func (p process) keepRunning() {
	for first := true; ; first = false {
		for p.After != "" && dial(p.After) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		if first {
			p.importImages()
		}
		if err := p.run(p.command()); err != nil {
			log.Printf("%s: %v", p.Name, err)
		}
		time.Sleep(restartDelay)
	}
}

// run runs a command in a session of its own, with the log of the process.
func (p process) run(cmd *exec.Cmd) error {
	output, err := openLog(p.Log)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Run()
}

// importImages imports the archives into containerd. It logs an archive that fails and continues with the others.
func (p process) importImages() {
	for _, dir := range p.Import {
		archives, _ := filepath.Glob(filepath.Join(dir, "*.tar"))
		for _, archive := range archives {
			if err := p.run(exec.Command("ctr", ctrArgs("images", "import", "--local", archive)...)); err != nil {
				log.Printf("import %s: %v", archive, err)
			}
		}
	}
}

// ctrArgs returns the arguments of ctr for a command in the namespace of the kubelet's images.
func ctrArgs(args ...string) []string {
	return append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)
}
