package queue

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_AARCH64

// armBind is bind(2) of 32-bit programs, see arch/arm/tools/syscall.tbl.
const armBind = 282

var foreignCalls = []call{
	on(unix.AUDIT_ARCH_ARM, armBind),
	on(unix.AUDIT_ARCH_ARM, unix.SYS_IO_URING_SETUP),
}
