package queue

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_X86_64

// x32 marks the calls of the x32 ABI, which has the architecture of 64-bit programs.
const x32 = 0x40000000

// Calls of 32-bit programs, see arch/x86/entry/syscalls/syscall_32.tbl and socketcall(2).
const (
	i386Socketcall = 102
	i386Bind       = 361
	socketcallBind = 2
)

var foreignCalls = []call{
	on(nativeArch, unix.SYS_BIND|x32),
	on(nativeArch, unix.SYS_IO_URING_SETUP|x32),
	on(unix.AUDIT_ARCH_I386, i386Bind),
	on(unix.AUDIT_ARCH_I386, i386Socketcall, arg(0, unix.BPF_JEQ, socketcallBind)),
	on(unix.AUDIT_ARCH_I386, unix.SYS_IO_URING_SETUP),
}
