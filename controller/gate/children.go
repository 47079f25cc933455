package gate

import (
	"errors"
	"sync"
	"syscall"
)

// children are processes beside the main process whose end somebody waits for. PID 1 reaps every child, so os/exec cannot
// wait for them.
type children struct {
	mu     sync.Mutex
	ended  map[int]chan syscall.WaitStatus
	closed bool
}

// errClosed is the error of start after close.
var errClosed = errors.New("the main process has ended")

func newChildren() *children { return &children{ended: map[int]chan syscall.WaitStatus{}} }

// start starts a command in a process group of its own. The channel receives how the process ended.
func (c *children) start(argv, env []string) (<-chan syscall.WaitStatus, error) {
	path, err := lookUp(argv[0])
	if err != nil {
		return nil, err
	}
	c.mu.Lock() // the process can end before it is known
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, startError(argv[0], err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	c.ended[pid] = ended
	return ended, nil
}

// close makes later starts fail. It returns true if a process has been started, and nobody has reaped it.
func (c *children) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return len(c.ended) > 0
}

// reaped passes the end of a process on.
func (c *children) reaped(pid int, status syscall.WaitStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended := c.ended[pid]; ended != nil {
		ended <- status
		delete(c.ended, pid)
	}
}
