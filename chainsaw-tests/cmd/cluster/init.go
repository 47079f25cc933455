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
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// restartDelay limits the CPU time of a process that cannot start.
const restartDelay = time.Second

// runMachine is the first process in the namespaces of a machine. It creates the machine's own files and keeps its
// processes running. It returns only with an error.
func runMachine(specFile string) error {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	content, err := os.ReadFile(specFile)
	if err != nil {
		return err
	}
	var spec machineSpec
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("read %s: %w", specFile, err)
	}
	// Signals of the terminal and the session are not meant for a machine.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := mountOwn(spec); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := prepareNetwork(); err != nil {
		return err
	}
	if answer, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil || answer != "go\n" {
		return errors.New("the command that started this machine ended before its network was made")
	}
	if spec.Proxies != nil {
		failed := make(chan error)
		if err := spec.Proxies.start(failed); err != nil {
			return err
		}
		go func() { log.Fatal(<-failed) }()
	}
	children := &reaper{waiting: map[int]chan<- syscall.WaitStatus{}, started: make(chan struct{}, 1)}
	for _, p := range spec.Processes {
		go keepRunning(children, p)
	}
	children.reap()
	return nil
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
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// reaper waits for every process of the machine, also for orphans. No other code may use os/exec here: two calls would
// wait for one process, and one of them would not get its exit code.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan<- syscall.WaitStatus
	started chan struct{}
}

// start starts a program and returns a channel for its exit status.
func (r *reaper) start(program string, argv []string, output *os.File) (<-chan syscall.WaitStatus, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	done := make(chan syscall.WaitStatus, 1)
	// Locked, because the program may end before its process id is stored.
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(program, argv, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(),
		Files: []uintptr{null.Fd(), output.Fd(), output.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	r.waiting[pid] = done
	select {
	case r.started <- struct{}{}:
	default:
	}
	return done, nil
}

// reap never returns.
func (r *reaper) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.ECHILD) {
			<-r.started
			continue
		}
		if err != nil {
			continue
		}
		r.mu.Lock()
		done, ours := r.waiting[pid]
		delete(r.waiting, pid)
		r.mu.Unlock()
		if ours {
			done <- status
		}
	}
}

// keepRunning starts a process, and starts it again after each end. It never returns.
func keepRunning(children *reaper, p process) {
	imported := false
	for {
		awaitAnswer(p.After)
		if !imported {
			importImages(children, p)
			imported = true
		}
		program, argv := p.command()
		if err := runOnce(children, program, argv, p.Log); err != nil {
			log.Printf("%s: %v", p.Name, err)
		}
		time.Sleep(restartDelay)
	}
}

// runOnce returns why the program ended, or nil after exit code 0.
func runOnce(children *reaper, program string, argv []string, logFile string) error {
	output, err := openLog(logFile)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	done, err := children.start(program, argv, output)
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	status := <-done
	switch {
	case status.Signaled():
		return fmt.Errorf("ended by signal %v", status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("exit code %d", status.ExitStatus())
	}
	return nil
}

func awaitAnswer(address string) {
	for address != "" && dial(address) != nil {
		time.Sleep(100 * time.Millisecond)
	}
}

// importImages imports the archives into containerd. It logs an archive that fails and continues with the others.
func importImages(children *reaper, p process) {
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		log.Printf("import images: %v", err)
		return
	}
	for _, dir := range p.Import {
		archives, _ := filepath.Glob(filepath.Join(dir, "*.tar"))
		for _, archive := range archives {
			if err := runOnce(children, ctr, append([]string{ctr}, importArgs(archive)...), p.Log); err != nil {
				log.Printf("import %s: %v", archive, err)
			}
		}
	}
}

// importArgs returns the arguments of ctr for an import into the namespace of the kubelet's images.
func importArgs(archive string) []string {
	return []string{"--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "--local", archive}
}
