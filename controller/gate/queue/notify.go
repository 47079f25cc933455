package queue

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// retryPause is the time between two attempts to receive a notification.
const retryPause = 10 * time.Millisecond

// notification is struct seccomp_notif, see seccomp_unotify(2).
type notification struct {
	id    uint64
	pid   uint32 // of the thread, or 0 if it has none in this container
	flags uint32
	nr    uint32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// addition is struct seccomp_notif_addfd.
type addition struct {
	id         uint64
	flags      uint32
	source, fd uint32
	fdFlags    uint32
}

// listener is a notify descriptor.
type listener int

func (l listener) ioctl(request uint, argument unsafe.Pointer) error {
	_, err := retry(func() (int, error) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), uintptr(request), uintptr(argument)); errno != 0 {
			return 0, errno
		}
		return 0, nil
	})
	return err
}

// next waits for the next notification. It returns nil when no task with the filter is left.
func (l listener) next() *notification {
	for {
		// Before Linux 6.11, the ioctl would wait forever when the last task has ended.
		polled := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
		_, err := unix.Poll(polled, -1)
		if err == nil && polled[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		var n notification // the kernel wants zeros
		if err == nil {
			err = l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		}
		switch {
		case err == nil:
			return &n
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT): // ENOENT: the thread was killed in the meantime
		default: // the kernel lacks memory, and must not be left without a listener
			time.Sleep(retryPause)
		}
	}
}

// valid returns true if the thread still waits for the answer. Until then, nothing else can have its PID.
func (l listener) valid(n *notification) bool {
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) == nil
}

// answer ends the call of the thread. A call that is done returns 0, and the kernel executes any other. The answer fails only
// if the thread was killed.
func (l listener) answer(n *notification, done bool) {
	r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if done {
		r.flags = 0
	}
	_ = l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// replace puts the file behind descriptor source of this process in the place of descriptor fd of the thread.
func (l listener) replace(n *notification, source, fd int, closeOnExec bool) error {
	a := addition{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, source: uint32(source), fd: uint32(fd)}
	if closeOnExec {
		a.fdFlags = unix.O_CLOEXEC
	}
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
}
