package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxEntries is the largest number of processes and descriptors that scan visits, which takes some milliseconds.
	maxEntries = 4096
	// maxInfo is how many bytes a scan reads from files in /proc/PID/fdinfo. Each file that an epoll set watches takes about 80.
	maxInfo = 1 << 20
	// maxValue is the size in bytes of the longest option that is noted: TCP_CONGESTION, or a struct timeval.
	maxValue = 16
	// maxAddress is the size of struct sockaddr_storage. The kernel accepts no longer address.
	maxAddress = 128
	// minInet6 is the size of a sockaddr_in6 without a scope (RFC 2133).
	minInet6 = 24
)

// errTooMany is the error of a scan that would take too long.
var errTooMany = errors.New("more to examine than allowed")

// task is a thread of the application that waits in a call on one of its descriptors.
type task struct{ pid, fd int }

func (t task) path(elements ...string) string {
	return path.Join(append([]string{"/proc", strconv.Itoa(t.pid)}, elements...)...)
}

// link returns what the descriptor refers to, for example "socket:[1234]".
func (t task) link() (string, error) { return os.Readlink(t.path("fd", strconv.Itoa(t.fd))) }

func isSocket(link string) bool { return strings.HasPrefix(link, "socket:") }

// protocol returns the name of the socket's protocol, as in /proc/net/protocols.
func (t task) protocol() (string, error) {
	name := make([]byte, 32) // that of the kernel's struct proto
	n, err := unix.Getxattr(t.path("fd", strconv.Itoa(t.fd)), "system.sockprotoname", name)
	if err != nil {
		return "", err
	}
	return unix.ByteSliceToString(name[:n]), nil
}

// flags returns the flags of the descriptor, as for open(2).
func (t task) flags() (int, error) {
	info, err := readFields(t.path("fdinfo", strconv.Itoa(t.fd)))
	if err != nil {
		return 0, err
	}
	flags, err := strconv.ParseInt(info["flags"], 8, 64)
	return int(flags), err
}

// user returns the user as which the thread creates sockets.
func (t task) user() (int, error) {
	status, err := readFields(t.path("status"))
	if err != nil {
		return 0, err
	}
	users := status["Uid"] // real, effective, saved, file system
	return strconv.Atoi(users[strings.LastIndex(users, "\t")+1:])
}

// sharesNetwork returns true if the thread is in the network namespace of this process.
func (t task) sharesNetwork() (bool, error) {
	var its, own unix.Stat_t
	err := errors.Join(unix.Stat(t.path("ns", "net"), &its), unix.Stat("/proc/self/ns/net", &own))
	return its.Dev == own.Dev && its.Ino == own.Ino, err
}

// argument returns the memory that the thread passes to bind or setsockopt, as far as it matters. Another thread can change
// it before the kernel reads it, as it could without a queue.
func (t task) argument(n *notification) ([]byte, error) {
	var address, size uint64
	switch {
	case n.arch != nativeArch:
	case n.nr == unix.SYS_BIND && uint32(n.args[2]) <= maxAddress:
		address, size = n.args[1], min(uint64(uint32(n.args[2])), unix.SizeofSockaddrInet6)
	case n.nr == unix.SYS_SETSOCKOPT:
		address, size = n.args[3], min(uint64(uint32(n.args[4])), maxValue)
	}
	if size == 0 {
		return nil, nil
	}
	b := make([]byte, size)
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	read, err := unix.ProcessVMReadv(t.pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}, 0)
	if err == nil && read != len(b) {
		err = unix.EFAULT
	}
	return b, err
}

// parseSockaddr returns the address as bind(2) understands it: an address without a family is an IPv4 address if it is
// 0.0.0.0. It returns the zero address for what is no internet address.
func parseSockaddr(b []byte) netip.AddrPort {
	if len(b) < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	v4 := netip.AddrFrom4([4]byte(b[4:8]))
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET, family == unix.AF_UNSPEC && v4.IsUnspecified():
		return netip.AddrPortFrom(v4, port)
	case family == unix.AF_INET6 && len(b) >= minInet6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
	}
	return netip.AddrPort{}
}

// scan visits each descriptor of every other process of the container. A process that ends is no error, and neither is one
// that entered the container, for example for an exec probe: until it executes the probe, nobody in the container can read it.
func scan(visit func(process, fd, link string) error) error {
	left := maxEntries
	processes, err := list("/proc", &left)
	if err != nil {
		return err
	}
	self := strconv.Itoa(os.Getpid())
	for _, process := range processes {
		if process == self || process[0] < '0' || process[0] > '9' {
			continue
		}
		err := scanProcess(process, &left, visit)
		if err != nil && !errors.Is(err, errTooMany) && harmless(process) {
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanProcess visits each descriptor of a process. It takes their number from left.
func scanProcess(process string, left *int, visit func(process, fd, link string) error) error {
	dir := path.Join("/proc", process, "fd")
	fds, err := list(dir, left)
	if err != nil {
		return err
	}
	for _, fd := range fds {
		link, err := os.Readlink(path.Join(dir, fd))
		if errors.Is(err, fs.ErrNotExist) {
			continue // closed since
		}
		if err == nil {
			err = visit(process, fd, link)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a directory. It takes their number from left, and returns errTooMany if there are more.
func list(dir string, left *int) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(*left + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > *left {
		return nil, errTooMany
	}
	*left -= len(names)
	return names, nil
}

// harmless returns true if a process that cannot be read has no descriptor of the application: because it is gone, is a
// zombie (whose descriptors the kernel shows only to root), or has its parent outside of the container.
func harmless(process string) bool {
	status, err := readFields(path.Join("/proc", process, "status"))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	state := status["State"]
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") || status["PPid"] == "0"
}

// polls returns true if an epoll set watches the socket with the link. It takes the bytes that it reads from left.
func polls(process, fd, link string, left *int) (bool, error) {
	inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]"), 10, 64)
	if err != nil {
		return false, err
	}
	info, err := readSmall(path.Join("/proc", process, "fdinfo", fd), left)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return bytes.Contains(info, fmt.Appendf(nil, " ino:%x ", inode)), err
}

// readFields returns the "name: value" lines of a file in /proc.
func readFields(name string) (map[string]string, error) {
	left := maxInfo
	content, err := readSmall(name, &left)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	return fields, nil
}

// readSmall returns the content of a file. It takes its size from left, and returns errTooMany if it is larger.
func readSmall(name string, left *int) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, int64(*left)+1))
	if err == nil && len(content) > *left {
		return nil, errTooMany
	}
	*left -= len(content)
	return content, err
}
