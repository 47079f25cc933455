package queue

import (
	"errors"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// option is a socket option, see setsockopt(2).
type option struct{ level, name int }

// Programs set these options on listeners, and seldom on connections, where each notification costs time. The queue notes
// them from setsockopt, because it cannot read them from a socket of another process: common seccomp profiles forbid
// pidfd_getfd(2).
var (
	v6only = option{unix.SOL_IPV6, unix.IPV6_V6ONLY}

	replayedOptions = []option{
		{unix.SOL_SOCKET, unix.SO_REUSEPORT},
		{unix.SOL_SOCKET, unix.SO_RCVBUF},
		{unix.SOL_SOCKET, unix.SO_SNDBUF},
		{unix.SOL_SOCKET, unix.SO_RCVTIMEO}, // limits accept(2)
		{unix.SOL_SOCKET, unix.SO_LINGER},
		{unix.SOL_IP, unix.IP_TOS},
		{unix.SOL_IPV6, unix.IPV6_TCLASS},
		{unix.SOL_TCP, unix.TCP_DEFER_ACCEPT},
		{unix.SOL_TCP, unix.TCP_FASTOPEN},
		{unix.SOL_TCP, unix.TCP_CONGESTION},
		{unix.SOL_TCP, unix.TCP_MAXSEG},
		{unix.SOL_TCP, unix.TCP_USER_TIMEOUT},
	}

	// doubtfulOptions change which clients reach a socket, or need more than their value to be set again.
	doubtfulOptions = []option{
		{unix.SOL_SOCKET, unix.SO_BINDTODEVICE},
		{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX},
		{unix.SOL_SOCKET, unix.SO_MARK},
		{unix.SOL_SOCKET, unix.SO_ATTACH_FILTER},
		{unix.SOL_SOCKET, unix.SO_ATTACH_BPF},
		{unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF},
		{unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF},
		{unix.SOL_IP, unix.IP_TRANSPARENT},
		{unix.SOL_IP, unix.IP_MINTTL},
		{unix.SOL_IPV6, unix.IPV6_TRANSPARENT},
		{unix.SOL_IPV6, unix.IPV6_MINHOPCOUNT},
		{unix.SOL_TCP, unix.TCP_MD5SIG},
		{unix.SOL_TCP, unix.TCP_MD5SIG_EXT},
		{unix.SOL_TCP, tcpAOAddKey},
	}
)

// tcpAOAddKey is TCP_AO_ADD_KEY (Linux 6.7), see linux/tcp.h.
const tcpAOAddKey = 38

// call is a system call of which the kernel notifies the queue, if all tests are true.
type call []test

// test compares 32 bits of struct seccomp_data with a value. The kernel, too, uses only the lower 32 bits of the arguments
// that are compared.
type test struct {
	offset uint32
	op     uint16
	value  uint32
}

// Offsets in struct seccomp_data, see seccomp(2).
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
)

func on(arch, nr uint32, args ...test) call {
	return append(call{{offsetArch, unix.BPF_JEQ, arch}, {offsetNr, unix.BPF_JEQ, nr}}, args...)
}

func arg(number uint32, op uint16, value uint32) test { return test{offsetArgs + 8*number, op, value} }

// calls returns every call of which the kernel notifies the queue.
func calls() []call {
	all := []call{
		// A shorter address is no internet address. The C library binds such a netlink address for each name that it looks up.
		on(nativeArch, unix.SYS_BIND, arg(2, unix.BPF_JGE, unix.SizeofSockaddrInet4)),
		on(nativeArch, unix.SYS_LISTEN),
		on(nativeArch, unix.SYS_IO_URING_SETUP),
		on(nativeArch, unix.SYS_SETNS),
		on(nativeArch, unix.SYS_UNSHARE, arg(0, unix.BPF_JSET, unix.CLONE_NEWNET|unix.CLONE_FILES)),
		on(nativeArch, unix.SYS_CLOSE_RANGE, arg(2, unix.BPF_JSET, unix.CLOSE_RANGE_UNSHARE)),
	}
	for _, o := range slices.Concat([]option{v6only}, replayedOptions, doubtfulOptions) {
		all = append(all, on(nativeArch, unix.SYS_SETSOCKOPT, arg(1, unix.BPF_JEQ, uint32(o.level)), arg(2, unix.BPF_JEQ, uint32(o.name))))
	}
	return append(all, foreignCalls...)
}

// program returns the filter. It allows a call that is not in calls by its architecture and number alone. Since Linux 5.11,
// the kernel keeps such calls in a bitmap, and does not run the filter for them.
func program() (p []unix.SockFilter) {
	for _, tests := range calls() {
		for i, t := range tests {
			next := 2*(len(tests)-i-1) + 1 // skips the tests that are left, and the return
			p = append(p,
				unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: t.offset},
				unix.SockFilter{Code: unix.BPF_JMP | t.op | unix.BPF_K, K: t.value, Jf: uint8(next)})
		}
		p = append(p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	return append(p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

// filterFlags make the kernel return a notify descriptor, spare the application the mitigations for speculative execution,
// and let no signal but a deadly one interrupt a call that the gate has received (Linux 5.19).
const filterFlags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV

// install gives this thread the filter, and returns its notify descriptor, which is closed on exec.
func install() (fd int, err error) {
	filter := program()
	return seccomp(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

func seccomp(program *unix.SockFprog) (fd int, err error) {
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, filterFlags, uintptr(unsafe.Pointer(program)))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// supported returns nil if this process can install the filter, unless the container has a listener already.
func supported() error {
	// Without no_new_privs, a container with CAP_SYS_ADMIN could install the filter. The shim must not set no_new_privs,
	// because setuid programs of the application would lose their privileges.
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || set == 0 {
		return Closed{Reason: NoNewPrivileges, Cause: err}
	}
	// The supervisor could not see when the last process has ended.
	if _, err := unix.Poll(nil, 0); err != nil {
		return Closed{Reason: NoSeccomp, Cause: err}
	}
	// The kernel examines the flags before the program.
	if _, err := seccomp(nil); !errors.Is(err, unix.EFAULT) {
		return refused(err)
	}
	return nil
}

// refused returns why seccomp(2) failed.
func refused(err error) Closed {
	reason := NoSeccomp
	switch {
	case errors.Is(err, unix.EINVAL):
		reason = KernelTooOld
	case errors.Is(err, unix.EBUSY):
		reason = OtherListener
	}
	return Closed{Reason: reason, Cause: err}
}
