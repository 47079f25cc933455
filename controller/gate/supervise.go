package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	ossignal "os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// endPatience is how long the processes that are left may take to end after SIGKILL.
	endPatience = 5 * time.Second
	// endPause is the time between two signals to these processes.
	endPause = time.Millisecond
)

// ErrProcessesLeft is the error of Supervise if processes of the container may still run. They end with PID 1.
var ErrProcessesLeft = errors.New("processes of the container did not end after SIGKILL")

var errNotPID1 = errors.New("the gate is not PID 1, so it cannot end the processes of the container. Remove shareProcessNamespace and hostPID from the pod")

// Starter starts the main process like syscall.ForkExec.
type Starter func(*syscall.ProcAttr) (pid int, err error)

// Execute returns the Starter of a command.
func Execute(path string, argv, env []string) Starter {
	return func(attr *syscall.ProcAttr) (pid int, err error) {
		attr.Env = env
		return syscall.ForkExec(path, argv, attr)
	}
}

// Supervise runs a command as the main process of this container. It returns the exit code of the command after every
// other process of the container has ended, or ErrProcessesLeft. If a signal ended the command, the code is 128 plus
// the number of the signal. This process must be PID 1 of the container.
//
// The command leads a process group of its own, in the foreground of the terminal if standard input is one. Supervise
// forwards the received signals to the command, and SIGKILL to every process of the container. When the command ends,
// Supervise kills the other processes, as the kernel does after the end of PID 1. Supervise calls started when the
// command has started, and reaped with every other child that ends before the command.
func Supervise(start Starter, received <-chan os.Signal, started func(), reaped func(int, syscall.WaitStatus), log *slog.Logger) (code int, err error) {
	if os.Getpid() != 1 {
		return 0, errNotPID1
	}
	pid, err := start(&syscall.ProcAttr{
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Foreground: isTerminal(0)},
	})
	if err != nil {
		if left := endOthers(); left != nil {
			return 0, left
		}
		return 0, err
	}
	// The gate is in the background of the terminal now, and must be able to log.
	ossignal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU)
	ended := make(chan syscall.WaitStatus, 1)
	go func() { ended <- reapUntil(pid, reaped) }()
	started()
	for {
		select {
		case s := <-received:
			if err := forward(pid, s); err != nil {
				// Without CAP_KILL, the gate cannot signal a main process that has changed its user.
				log.Warn("A signal does not reach the main process", "signal", s.String(), "error", err)
			}
		case status := <-ended:
			return exitCode(status), endOthers()
		}
	}
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// forwardedSignals returns the signals that a supervisor receives for the main process. The others are about its own
// children and terminal, belong to the C library, or are SIGURG and SIGPROF, which Go's runtime handles. The main process
// inherits ignored signals only if the supervisor does not receive them.
func forwardedSignals() (all []os.Signal) {
	for s := syscall.Signal(1); s <= 64; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE, syscall.SIGURG, syscall.SIGPROF, 32, 33, 34:
		default:
			if !ossignal.Ignored(s) {
				all = append(all, s)
			}
		}
	}
	return all
}

// forward sends a signal to the main process, or SIGKILL to every process of the container.
func forward(pid int, s os.Signal) error {
	if s == syscall.SIGKILL {
		return killOthers()
	}
	number, ok := s.(syscall.Signal)
	if !ok {
		return nil
	}
	return syscall.Kill(pid, number)
}

// reapUntil reaps every child until the process with the pid ends, and returns how that process ended. It calls other with
// each other child. The children of PID 1 include the orphans of its container.
func reapUntil(pid int, other func(int, syscall.WaitStatus)) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		reaped, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case reaped == pid:
			return status
		case reaped > 0:
			other(reaped, status)
		case err != nil && !errors.Is(err, syscall.EINTR):
			panic(fmt.Sprintf("wait for child processes: %v", err)) // the main process is a child
		}
	}
}

// killOthers sends SIGKILL to every process of the container except this one. It returns ESRCH if there is none.
func killOthers() error { return syscall.Kill(-1, syscall.SIGKILL) }

// endOthers kills every other process of the container, and returns after they have ended. Processes of kubectl exec
// and of probes are no children of the gate. A process of another user can refuse the signal, and a process that waits
// for a device does not end.
func endOthers() error {
	for begun := time.Now(); ; time.Sleep(endPause) {
		err := killOthers()
		reap()
		switch {
		case errors.Is(err, syscall.ESRCH):
			return nil
		case time.Since(begun) > endPatience:
			return ErrProcessesLeft
		}
	}
}

// reap reaps the children that have ended.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// exitCode returns the exit code of a process as a shell has it.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return exitSignalled + int(status.Signal())
	}
	return status.ExitStatus()
}
