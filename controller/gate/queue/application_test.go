package queue

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// application is a program that takes the steps of its arguments. Most steps use its socket.
type application struct{ fd int }

// The main goroutine stays on the main thread.
func init() { runtime.LockOSThread() }

// runApplication takes the steps. Without a step that blocks, it ends.
func runApplication(steps []string) int {
	runtime.LockOSThread()
	a := &application{fd: -1}
	for i, step := range steps {
		name, value, _ := strings.Cut(step, "=")
		switch name { // these take the other steps
		case "children":
			n, _ := strconv.Atoi(value)
			return children(n, 0, steps[i+1:])
		case "network-child":
			return children(1, unix.CLONE_NEWNET, steps[i+1:])
		}
		take, ok := applicationSteps[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "unknown step", step)
			return 2
		}
		if err := take(a, value); err != nil {
			fmt.Fprintf(os.Stderr, "step %s: %v\n", step, err)
			return 3
		}
	}
	return 0
}

var applicationSteps = map[string]func(a *application, value string) error{
	"socket": func(a *application, value string) (err error) {
		family, kind := unix.AF_INET, unix.SOCK_STREAM
		if strings.HasSuffix(value, "6") {
			family = unix.AF_INET6
		}
		if strings.HasPrefix(value, "udp") {
			kind = unix.SOCK_DGRAM
		}
		a.fd, err = unix.Socket(family, kind, 0)
		return err
	},
	"option": func(a *application, value string) error {
		var o option
		var number int
		if _, err := fmt.Sscanf(value, "%d,%d,%d", &o.level, &o.name, &number); err != nil {
			return err
		}
		return unix.SetsockoptInt(a.fd, o.level, o.name, number)
	},
	"linger": func(a *application, _ string) error {
		return unix.SetsockoptLinger(a.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 7})
	},
	"no-congestion": func(a *application, _ string) error { // fails
		_ = unix.SetsockoptString(a.fd, unix.SOL_TCP, unix.TCP_CONGESTION, "unavailable")
		return nil
	},
	"bind": func(a *application, value string) error {
		// The kernel may refuse the address, which is for the test to judge.
		err := bindTo(a.fd, value)
		fmt.Println("bound", err)
		return nil
	},
	"bind-without-family": func(a *application, _ string) error {
		address := unix.RawSockaddrInet4{Port: 8080>>8 | 8080&0xff<<8}
		rawBind(unix.SYS_BIND, a.fd, uintptr(unsafe.Pointer(&address)), unix.SizeofSockaddrInet4)
		return nil
	},
	"listen": func(a *application, value string) error {
		backlog, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		return unix.Listen(a.fd, backlog)
	},
	"shutdown": func(a *application, _ string) error { return unix.Shutdown(a.fd, unix.SHUT_RD) },
	"serve":    func(a *application, _ string) error { fmt.Println("serves"); return serveClients(a.fd) },
	"close":    func(a *application, _ string) error { defer fmt.Println("gave back"); return unix.Close(a.fd) },
	"await": func(_ *application, name string) error {
		for {
			if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
	},
	"sleep": func(_ *application, value string) error {
		d, err := time.ParseDuration(value)
		time.Sleep(d)
		return err
	},
	"go": func(_ *application, value string) error {
		network, address, _ := strings.Cut(value, ",")
		l, err := net.Listen(network, address)
		if err == nil {
			go serveListener(l)
		}
		return err
	},
	"wait": func(*application, string) error { return unix.Pause() },
	"dup":  func(a *application, _ string) error { _, err := unix.Dup(a.fd); return err },
	"lend": func(a *application, _ string) error {
		_, err := syscall.ForkExec("/proc/self/exe", []string{"app", "application", "wait"}, &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{0, 1, 2, uintptr(a.fd)},
		})
		return err
	},
	"lend-hidden": func(a *application, _ string) error {
		pid, err := syscall.ForkExec("/proc/self/exe", []string{"app", "application", "undumpable", "wait"}, &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{0, 1, 2, uintptr(a.fd)},
		})
		for err == nil {
			if _, hidden := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", pid)); hidden != nil {
				return nil
			}
		}
		return err
	},
	"zombie": func(*application, string) error {
		_, err := syscall.ForkExec("/proc/self/exe", []string{"app", "application"}, &syscall.ProcAttr{Env: os.Environ()})
		return err
	},
	"thread": func(_ *application, value string) error {
		failed := make(chan error)
		go func() {
			runtime.LockOSThread()
			if value == "unshare" {
				failed <- unix.Unshare(unix.CLONE_FILES)
			} else {
				failed <- unix.CloseRange(1000, 1000, unix.CLOSE_RANGE_UNSHARE)
			}
		}()
		return <-failed
	},
	"nonblock": func(a *application, _ string) error { return unix.SetNonblock(a.fd, true) },
	"cloexec":  func(a *application, _ string) error { unix.CloseOnExec(a.fd); return nil },
	"async": func(a *application, _ string) error {
		_, err := unix.FcntlInt(uintptr(a.fd), unix.F_SETFL, unix.O_ASYNC)
		return err
	},
	"epoll": func(a *application, _ string) error {
		set, err := unix.EpollCreate1(0)
		if err != nil {
			return err
		}
		return unix.EpollCtl(set, unix.EPOLL_CTL_ADD, a.fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	},
	"user": func(_ *application, value string) error {
		id, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		return syscall.Setresuid(id, id, id)
	},
	"dumpable":   func(*application, string) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	"undumpable": func(*application, string) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
	"io_uring": func(*application, string) error {
		_, _, _ = unix.Syscall(unix.SYS_IO_URING_SETUP, 0, 0, 0) // fails
		return nil
	},
	"network-socket": func(a *application, _ string) error {
		failed := make(chan error)
		go func() {
			runtime.LockOSThread()
			err := unix.Unshare(unix.CLONE_NEWNET)
			if err == nil {
				a.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			}
			failed <- err
		}()
		return <-failed
	},
	"setns":    func(*application, string) error { _ = unix.Setns(-1, 0); return nil }, // fails
	"bad-bind": func(a *application, _ string) error { rawBind(unix.SYS_BIND, a.fd, 1, 16); return nil },
	"files": func(_ *application, value string) error {
		n, err := strconv.Atoi(value)
		for ; n > 0 && err == nil; n-- {
			_, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		return err
	},
	"v6sockets": func(_ *application, value string) error { return v6sockets(value, false) },
	"v6closed":  func(_ *application, value string) error { return v6sockets(value, true) },
	"show":      func(a *application, _ string) error { fmt.Println("shows", show(a.fd)); return nil },
	"mode": func(*application, string) error {
		status, err := readFields("/proc/self/status")
		fmt.Println("mode", status["Seccomp"])
		return err
	},
	"bind-in-vain": func(_ *application, value string) error {
		n, err := strconv.Atoi(value)
		for ; n > 0 && err == nil; n-- {
			var fd int
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
				_ = bindTo(fd, "0.0.0.0:8080")
			}
		}
		return err
	},
	"flood": func(_ *application, value string) error {
		var ports [2]int
		_, err := fmt.Sscanf(value, "%d,%d", &ports[0], &ports[1])
		if err == nil {
			flood(ports)
		}
		return err
	},
}

// children starts n children that take the steps, and returns the exit code of the first that ends.
func children(n int, flags uintptr, steps []string) int {
	for range n {
		_, err := syscall.ForkExec("/proc/self/exe", append([]string{"app", "application"}, steps...), &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Cloneflags: flags},
		})
		if err != nil {
			return 4
		}
	}
	var status unix.WaitStatus
	_, _ = retry(func() (int, error) { return unix.Wait4(-1, &status, 0, nil) })
	return status.ExitStatus()
}

func bindTo(fd int, value string) error {
	address, err := netip.ParseAddrPort(value)
	if err != nil {
		return err
	}
	if address.Addr().Is4() {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()})
	}
	return unix.Bind(fd, &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()})
}

func rawBind(call uintptr, fd int, address, size uintptr) {
	_, _, _ = unix.Syscall(call, uintptr(fd), address, size)
}

// serveClients answers clients, each with a byte.
func serveClients(fd int) error {
	if err := unix.SetNonblock(fd, false); err != nil {
		return err
	}
	for {
		conn, err := retry(func() (int, error) { c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC); return c, err })
		if err != nil {
			return err
		}
		if n, _ := retry(func() (int, error) { return unix.Read(conn, make([]byte, 1)) }); n == 1 {
			_, _ = unix.Write(conn, []byte("!"))
		}
		_ = unix.Close(conn)
	}
}

func serveListener(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			if n, _ := conn.Read(make([]byte, 1)); n == 1 {
				_, _ = conn.Write([]byte("!"))
			}
		}()
	}
}

// v6sockets opens sockets with an option that the queue notes.
func v6sockets(number string, closes bool) error {
	n, err := strconv.Atoi(number)
	for ; n > 0 && err == nil; n-- {
		var fd int
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1)
		}
		if closes {
			_ = unix.Close(fd)
		}
	}
	return err
}

// show returns what a program can see of its socket.
func show(fd int) string {
	descriptor, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	file, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	address, _ := unix.Getsockname(fd)
	seen := fmt.Sprintf("%x %x %+v", descriptor, file, address)
	for _, o := range replayedOptions {
		value, _ := unix.GetsockoptString(fd, o.level, o.name)
		seen += fmt.Sprintf(" %d,%d:%x", o.level, o.name, value)
	}
	return seen
}

// flood calls bind and setsockopt without end on several threads, with a port that changes all the time.
func flood(ports [2]int) {
	address := unix.RawSockaddrInet4{Family: unix.AF_INET}
	port := (*[2]byte)(unsafe.Pointer(&address.Port))
	for range 4 {
		go func() {
			for {
				fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
				rawBind(unix.SYS_BIND, fd, uintptr(unsafe.Pointer(&address)), unix.SizeofSockaddrInet4)
				_ = unix.Close(fd)
			}
		}()
	}
	fmt.Println("floods")
	for {
		for _, number := range ports {
			copy(port[:], []byte{byte(number >> 8), byte(number)})
			time.Sleep(100 * time.Microsecond)
		}
	}
}
