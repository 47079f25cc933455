package queue

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ShimCommand is the first argument of the program when it must call Shim.
const ShimCommand = "start-queued"

// exitShim is the exit code of a shim that did not become the application. Only ForkExec sees it.
const exitShim = 126

// The shim and the gate talk over a pair of sockets. Each message of the shim is an errno of 4 bytes: first that of
// installing the filter, and with 0 the notify descriptor; then, only if exec fails, that of exec. In between, the gate
// answers with one byte when it serves the descriptor. If one ends, the other reads the end of the file.

// Shim becomes the application, with the filter on it. It is for the main function of the gate, and expects the arguments
// after ShimCommand. It returns an exit code if there is no application to become.
//
// The filter is that of a thread, and exec keeps the thread that calls it.
func Shim(args []string) (code int) {
	if len(args) < 3 {
		return exitShim
	}
	gate, err := strconv.Atoi(args[0])
	if err != nil {
		return exitShim
	}
	path, argv := args[1], args[2:]
	runtime.LockOSThread()
	unix.CloseOnExec(gate)
	notify, err := install()
	var rights []byte
	if err == nil {
		rights = unix.UnixRights(notify)
	}
	if err := unix.Sendmsg(gate, encode(err), rights, nil, 0); err != nil || rights == nil {
		return exitShim
	}
	if n, err := retry(func() (int, error) { return unix.Read(gate, make([]byte, 1)) }); n != 1 || err != nil {
		return exitShim
	}
	_ = unix.Sendmsg(gate, encode(syscall.Exec(path, argv, syscall.Environ())), nil, nil, 0)
	return exitShim
}

// ForkExec starts the application like syscall.ForkExec, but with the filter. If that fails, it closes the queue and starts
// the application without the filter, as it does if the queue is already closed or was used for an earlier start.
//
// Right before the application starts, after everything that can take long, ForkExec calls mayStart. If that returns an error,
// the application does not start, and ForkExec returns the error.
//
// The main function of this program must call Shim for ShimCommand.
func (q *Queue) ForkExec(path string, argv []string, attr *syscall.ProcAttr, mayStart func() error) (pid int, err error) {
	if q.begin() {
		pid, err := q.forkShim(path, argv, attr, mayStart)
		failed, ok := errors.AsType[Closed](err)
		if !ok {
			return pid, err
		}
		q.close(failed)
	}
	if err := mayStart(); err != nil {
		return 0, err
	}
	return syscall.ForkExec(path, argv, attr)
}

// forkShim returns the process of the application, the error of mayStart, the errno of the application's exec, or Closed if there
// was no exec. If it returns an error, no process is left.
func (q *Queue) forkShim(path string, argv []string, attr *syscall.ProcAttr, mayStart func() error) (pid int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, Closed{Reason: CannotStart, Cause: err}
	}
	own := *attr
	own.Files = append(slices.Clone(attr.Files), uintptr(pair[1]))
	shim := []string{argv[0], ShimCommand, strconv.Itoa(len(attr.Files)), path}
	pid, err = syscall.ForkExec("/proc/self/exe", append(shim, argv...), &own)
	_ = unix.Close(pair[1])
	if err != nil {
		_ = unix.Close(pair[0])
		return 0, Closed{Reason: CannotStart, Cause: err}
	}
	err = q.converse(pair[0], mayStart)
	_ = unix.Close(pair[0]) // before the wait: the shim may wait for an answer
	if err != nil {
		_, _ = retry(func() (int, error) { return unix.Wait4(pid, nil, 0, nil) })
		return 0, err
	}
	return pid, nil
}

// converse serves the notify descriptor that it receives from the shim, and returns how the shim's exec went: nil, its errno,
// or the error of mayStart or Closed if there was no exec.
func (q *Queue) converse(shim int, mayStart func() error) error {
	notify, err := receiveDescriptor(shim)
	if err != nil {
		return err
	}
	go q.serve(notify)
	if err := mayStart(); err != nil {
		return err
	}
	// From here on, the shim is like an application: if it ends, that is for the caller to see.
	if _, err := unix.SendmsgN(shim, []byte{0}, nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return nil
	}
	if failed, err := receive(shim, nil); err == nil {
		return failed
	}
	return nil
}

// receiveDescriptor returns the notify descriptor of the shim.
func receiveDescriptor(shim int) (notify int, err error) {
	rights := make([]byte, unix.CmsgSpace(4))
	refusal, err := receive(shim, rights)
	if err != nil {
		return -1, Closed{Reason: CannotStart, Cause: err}
	}
	if refusal != 0 {
		return -1, refused(refusal)
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(rights)
	if err == nil && len(messages) == 1 {
		fds, err = unix.ParseUnixRights(&messages[0])
	}
	if len(fds) != 1 {
		// The limit of open files makes the kernel drop the descriptor.
		return -1, Closed{Reason: CannotStart, Cause: errors.Join(err, unix.EMFILE)}
	}
	return fds[0], nil
}

// receive returns the errno that the shim sends, or io.EOF.
func receive(shim int, rights []byte) (syscall.Errno, error) {
	message := make([]byte, 4)
	n, err := retry(func() (int, error) {
		n, _, _, _, err := unix.Recvmsg(shim, message, rights, unix.MSG_CMSG_CLOEXEC)
		return n, err
	})
	if err == nil && n != len(message) {
		err = io.EOF
	}
	return syscall.Errno(binary.NativeEndian.Uint32(message)), err
}

// encode returns the message with the errno. It is 0 without an error.
func encode(err error) []byte {
	errno, _ := errors.AsType[syscall.Errno](err)
	return binary.NativeEndian.AppendUint32(nil, uint32(errno))
}

// retry repeats a system call that a signal interrupts.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
