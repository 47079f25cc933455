package queue

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

const (
	over4 = "127.0.0.1:8080"
	over6 = "[::1]:8080"
	// server4 are the steps of the commonest server.
	server4 = "socket=tcp4 bind=0.0.0.0:8080 listen=5 serve"
)

func port8080(shape Shape) []Port { return []Port{{8080, shape}} }

// No client is refused from the moment on at which the gate listens.
func TestClientsWait(t *testing.T) {
	for name, tc := range map[string]struct {
		shape   Shape
		user    int
		steps   string
		through []string
	}{
		"Go":              {Dual, 0, "sleep=200ms go=tcp,:8080 wait", []string{over4, over6}},
		"Go, IPv4":        {IPv4, 0, "sleep=200ms go=tcp4,:8080 wait", []string{over4}},
		"Go, IPv6":        {IPv6, 0, "sleep=200ms go=tcp6,:8080 wait", []string{over6}},
		"Go, pair":        {Pair, 0, "go=tcp4,:8080 sleep=200ms go=tcp6,:8080 wait", []string{over4, over6}},
		"IPv4":            {IPv4, 0, "socket=tcp4 sleep=200ms bind=0.0.0.0:8080 sleep=200ms listen=5 sleep=200ms serve", []string{over4}},
		"IPv6":            {IPv6, 0, "socket=tcp6 option=41,26,1 bind=[::]:8080 listen=5 serve", []string{over6}},
		"dual":            {Dual, 0, "socket=tcp6 option=41,26,1 option=41,26,0 bind=[::]:8080 listen=5 serve", []string{over4, over6}},
		"dual by default": {Dual, 0, "socket=tcp6 bind=[::]:8080 listen=5 serve", []string{over4, over6}},
		"not root":        {IPv4, 1000, "sleep=200ms " + server4, []string{over4}},
		"a child binds":   {IPv4, 0, "children=1 sleep=200ms " + server4, []string{over4}},
		"a zombie":        {IPv4, 1000, "zombie sleep=200ms " + server4, []string{over4}},
		"SO_REUSEPORT":    {IPv4, 0, "children=3 sleep=200ms socket=tcp4 option=1,15,1 bind=0.0.0.0:8080 listen=5 serve", []string{over4}},
		"UDP":             {IPv4, 0, "socket=udp4 bind=0.0.0.0:8080 " + server4, []string{over4}},
		"no family":       {IPv4, 0, "socket=tcp4 bind-without-family listen=5 serve", []string{over4}},
		"other ports":     {IPv4, 0, "socket=tcp4 bind=127.0.0.1:9090 listen=5 socket=tcp6 bind=[::]:9091 " + server4, []string{over4}},
		"many sockets":    {IPv4, 0, "v6closed=2000 " + server4, []string{over4}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := start(t, config{Ports: port8080(tc.shape), User: tc.user, Steps: strings.Fields(tc.steps)})
			c := &clients{}
			s.load(c, tc.through, 200)
			c.wg.Wait()
			t.Logf("%d answered, %d refused, %d reset", c.answered, c.refused, c.failed)
			if c.refused+c.failed > 0 {
				t.Errorf("%d clients were refused, and %d reset", c.refused, c.failed)
			}
			s.wantSays("closed", "HandedOver 0")
		})
	}
}

// A program that binds and ends, as nginx -t does, loses no client, even if the next one starts after Options.Keep.
func TestProbingBind(t *testing.T) {
	for name, afterKeep := range map[string]bool{"within Keep": false, "after Keep": true} {
		t.Run(name, func(t *testing.T) {
			s, _ := start(t, config{Ports: port8080(IPv4), Steps: strings.Fields("socket=tcp4 bind=0.0.0.0:8080 listen=5 close await=next " + server4)})
			before := s.connects(3, over4)
			s.tell("start")
			s.says("gave")
			between := s.connects(3, over4)
			if afterKeep {
				s.tell("end-keep")
				s.says("kept")
			}
			after := s.connects(3, over4)
			s.allow("next")
			for _, c := range []*clients{before, between, after} {
				c.wantAnswered(t, 3)
			}
			s.wantSays("closed", "HandedOver 0")
		})
	}
}

// A doubt that may pass is no reason to close the queue at once.
func TestPatiently(t *testing.T) {
	for name, tc := range map[string]struct {
		doubt              error
		lasting, wantLooks int
		wantFree           bool
	}{
		"no doubt":            {nil, 0, 1, true},
		"forks":               {Closed{Reason: Shared}, 2, 3, true},
		"cannot be read yet":  {unix.EACCES, 2, 3, true},
		"shared":              {Closed{Reason: Shared}, 100, maxLooks, false},
		"polled":              {Closed{Reason: Polled}, 100, 1, false},
		"too much to look at": {errTooMany, 100, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				looks := 0
				free, err := patiently(func() (bool, error) {
					if looks++; looks <= tc.lasting {
						return false, tc.doubt
					}
					return true, nil
				})
				if free != tc.wantFree || looks != tc.wantLooks || (err == nil) != free {
					t.Errorf("free %t, %v, after %d looks, want %t after %d", free, err, looks, tc.wantFree, tc.wantLooks)
				}
			})
		})
	}
}

// A process that enters the container, as an exec probe does, is no reason to close the queue.
func TestProbe(t *testing.T) {
	s, _ := start(t, config{Ports: port8080(IPv4), Steps: strings.Fields(server4)})
	s.enters()
	c := s.connects(3, over4)
	s.tell("start")
	c.wantAnswered(t, 3)
	s.wantSays("closed", "HandedOver 0")
}

// doubtful is an application whose socket the queue must not replace.
type doubtful struct {
	shape    Shape
	steps    string
	want     Reason
	wantLost int
	gate     config
}

// test fails unless the queue is closed, the waiting clients are lost, and the application binds and serves other clients.
func (d doubtful) test(t *testing.T) { d.testWhen(t, func(*sandbox) {}) }

// testWhen makes something happen after the start.
func (d doubtful) testWhen(t *testing.T, happens func(s *sandbox)) {
	d.gate.Ports, d.gate.Steps = port8080(d.shape), strings.Fields(d.steps)
	s, _ := start(t, d.gate)
	address := over4
	if strings.Contains(d.steps, "::") {
		address = over6
	}
	c := s.connects(3, address)
	s.tell("start")
	happens(s)
	s.wantSays("closed", fmt.Sprintf("%s %d", d.want, d.wantLost))
	s.allow("closed")
	s.wantSays("bound", "<nil>")
	if !strings.Contains(d.steps, "network") {
		s.wantServed(address)
	}
	if c.wg.Wait(); c.failed != d.wantLost {
		t.Errorf("%d clients were reset, want %d", c.failed, d.wantLost)
	}
}

func TestDoubt(t *testing.T) {
	other, ptrace := config{User: 1000}, config{Ptrace: true}
	for name, tc := range map[string]doubtful{
		"io_uring":                 {IPv4, "io_uring " + server4, IOUring, 3, config{}},
		"socket of a new network":  {IPv4, "network-socket bind=0.0.0.0:8080 wait", OtherNetwork, 3, config{}},
		"child in a new network":   {IPv4, "network-child socket=tcp4 bind=0.0.0.0:8080 wait", OtherNetwork, 3, config{}},
		"setns":                    {IPv4, "setns " + server4, OtherNetwork, 3, config{}},
		"another user":             {IPv4, "user=1000 " + server4, OtherUser, 3, config{}},
		"another readable user":    {IPv4, "user=1000 dumpable " + server4, OtherUser, 3, ptrace},
		"bind without memory":      {IPv4, "socket=tcp4 bad-bind " + server4, Inaccessible, 3, config{}},
		"bind in secret memory":    {IPv4, "undumpable " + server4, Inaccessible, 3, other},
		"option in secret memory":  {IPv4, "undumpable socket=tcp4 option=1,8,4096 dumpable bind=0.0.0.0:8080 listen=5 serve", Inaccessible, 3, other},
		"one address":              {IPv4, "socket=tcp4 bind=127.0.0.1:8080 listen=5 serve", OneAddress, 3, config{}},
		"one IPv6 address":         {Dual, "socket=tcp6 bind=[::1]:8080 listen=5 serve", OneAddress, 3, config{}},
		"IPv4 for dual":            {Dual, server4, OtherShape, 3, config{}},
		"IPv6 for dual":            {Dual, "socket=tcp6 option=41,26,1 bind=[::]:8080 listen=5 serve", OtherShape, 3, config{}},
		"dual for IPv6":            {IPv6, "socket=tcp6 bind=[::]:8080 listen=5 serve", OtherShape, 3, config{}},
		"dual for a pair":          {Pair, "socket=tcp6 bind=[::]:8080 listen=5 serve", OtherShape, 3, config{}},
		"duplicated":               {IPv4, "socket=tcp4 dup bind=0.0.0.0:8080 listen=5 serve", Shared, 3, config{}},
		"inherited":                {IPv4, "socket=tcp4 lend bind=0.0.0.0:8080 listen=5 serve", Shared, 3, config{}},
		"inherited, hidden":        {IPv4, "socket=tcp4 lend-hidden bind=0.0.0.0:8080 listen=5 serve", Inaccessible, 3, other},
		"own descriptors, unshare": {IPv4, "socket=tcp4 thread=unshare " + server4, Shared, 3, config{}},
		"own descriptors, range":   {IPv4, "socket=tcp4 thread=close_range " + server4, Shared, 3, config{}},
		"in epoll":                 {IPv4, "socket=tcp4 epoll bind=0.0.0.0:8080 listen=5 serve", Polled, 3, config{}},
		"SO_MARK":                  {IPv4, "socket=tcp4 option=1,36,7 bind=0.0.0.0:8080 listen=5 serve", SocketOption, 3, config{}},
		"O_ASYNC":                  {IPv4, "socket=tcp4 async bind=0.0.0.0:8080 listen=5 serve", SocketOption, 3, config{}},
		"many noted sockets":       {IPv4, "v6sockets=300 " + server4, TooMany, 3, config{}},
		"many descriptors":         {IPv4, "files=5000 " + server4, TooMany, 3, config{}},
		"many calls":               {IPv4, "socket=tcp4 bind=0.0.0.0:8080 bind-in-vain=300 serve", TooMany, 0, config{}},
		"not bound in time":        {IPv4, "await=closed " + server4, NotBound, 3, config{BindWithin: 200 * time.Millisecond}},
	} {
		t.Run(name, tc.test)
	}
}

// The queue closes at the end of Options.BindWithin if a port is left, or as soon as the application gives one back.
func TestBindWithin(t *testing.T) {
	t.Run("half of a pair", func(t *testing.T) {
		doubtful{Pair, server4, NotBound, 0, config{}}.testWhen(t, func(s *sandbox) {
			s.says("serves")
			s.tell("end-bind-within")
		})
	})
	t.Run("given back, too late", func(t *testing.T) {
		doubtful{IPv4, "socket=tcp4 bind=0.0.0.0:8080 close await=closed " + server4, NotBound, 3, config{}}.testWhen(t, func(s *sandbox) {
			s.says("gave")
			s.tell("end-bind-within")
			s.tell("end-keep")
		})
	})
}

// Where a queue cannot work, the application starts without one.
func TestNoQueue(t *testing.T) {
	for name, tc := range map[string]struct {
		gate config
		want Reason
		// atStart means that the gate can only see it when it starts the application.
		atStart bool
	}{
		"privileges":     {config{Privileges: true}, NoNewPrivileges, false},
		"old kernel":     {config{Seccomp: unix.EINVAL}, KernelTooOld, false},
		"no seccomp":     {config{Seccomp: unix.ENOSYS}, NoSeccomp, false},
		"forbidden":      {config{Seccomp: unix.EPERM}, NoSeccomp, false},
		"same port":      {config{Ports: []Port{{8080, Dual}, {8080, IPv4}}}, CannotListen, false},
		"no port":        {config{Ports: []Port{{0, Dual}}}, CannotListen, false},
		"other listener": {config{Listener: true}, OtherListener, true},
		"no shim":        {config{ShimEnds: true}, CannotStart, true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.gate.Steps = strings.Fields(server4)
			if tc.gate.Ports == nil {
				tc.gate.Ports = port8080(IPv4)
			}
			s, refusal := start(t, tc.gate)
			s.tell("start")
			if tc.atStart && refusal == "" {
				refusal = strings.TrimSuffix(s.says("closed"), " 0")
			}
			if refusal != string(tc.want) {
				t.Errorf("reason %s, want %s", refusal, tc.want)
			}
			s.wantServed(over4)
		})
	}
}

// A program sees the same socket with a queue as without.
func TestSocketIsTheSame(t *testing.T) {
	for name, tc := range map[string]struct {
		shape   Shape
		options string
	}{
		"plain":       {IPv4, ""},
		"nonblocking": {IPv4, "nonblock"},
		"cloexec":     {IPv4, "cloexec"},
		"options":     {IPv4, "linger option=0,1,16 option=1,15,1 option=1,8,9000 option=1,7,9000 option=6,9,3 option=6,18,5000 option=6,23,7 option=6,2,1000"},
		"IPv6 option": {Dual, "option=41,67,32"},
		"refused":     {IPv4, "no-congestion"},
	} {
		t.Run(name, func(t *testing.T) {
			steps := "socket=tcp4 " + tc.options + " bind=0.0.0.0:8080 listen=5 show serve"
			if tc.shape == Dual {
				steps = "socket=tcp6 " + tc.options + " bind=[::]:8080 listen=5 show serve"
			}
			plain, _ := start(t, config{Plain: true, Steps: strings.Fields(steps)})
			plain.tell("start")
			queued, _ := start(t, config{Ports: port8080(tc.shape), Steps: strings.Fields(steps)})
			c := queued.connects(1, over4)
			queued.tell("start")
			if want, got := plain.says("shows"), queued.says("shows"); got != want {
				t.Errorf("without a queue: %s\nwith a queue:    %s", want, got)
			}
			c.wantAnswered(t, 1)
			queued.wantSays("closed", "HandedOver 0")
		})
	}
}

// A program is the same process with a queue as without.
func TestProcessIsTheSame(t *testing.T) {
	script := `echo process $(cat /proc/$$/limits
		grep -E '^(Name|Uid|Gid|Groups|Umask|Sig[PBIC]|Cap|NoNew|Cpus)' /proc/$$/status
		cksum </proc/$$/environ; cksum </proc/$$/cmdline
		ls /proc/$$/fd
		[ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] && echo leads a process group)`
	var seen []string
	for _, plain := range []bool{true, false} {
		s, _ := start(t, config{Plain: plain, Ports: port8080(IPv4), Argv: []string{"/bin/sh", "-c", script, "ünï", "", "*"}})
		s.tell("start")
		seen = append(seen, s.says("process"))
	}
	if seen[0] != seen[1] {
		t.Errorf("without a queue: %s\nwith a queue:    %s", seen[0], seen[1])
	}
}

// A small backlog of the application sends no client away.
func TestListenKeepsBacklog(t *testing.T) {
	s, _ := start(t, config{Ports: port8080(IPv4), Steps: strings.Fields("socket=tcp4 bind=0.0.0.0:8080 listen=1 show wait")})
	s.tell("start")
	s.says("shows")
	s.connects(4, over4)
	s.tell("waiting")
	s.wantSays("waiting", "4")
}

// The application can ask for a larger backlog, and listen again after it has shut the socket down.
func TestListenAgain(t *testing.T) {
	steps := "socket=tcp4 bind=0.0.0.0:8080 listen=1 shutdown listen=10 show wait"
	s, _ := start(t, config{Ports: port8080(IPv4), Backlog: 1, Steps: strings.Fields(steps)})
	s.tell("start")
	s.says("shows")
	s.connects(4, over4)
	s.tell("waiting")
	s.wantSays("waiting", "4")
}

// Without clients, the queue ends after Options.Keep.
func TestIdle(t *testing.T) {
	s, _ := start(t, config{Ports: port8080(IPv4), Keep: 50 * time.Millisecond, Steps: strings.Fields(server4)})
	s.tell("start")
	s.wantSays("closed", "HandedOver 0")
	s.wantServed(over4)
}

// The kernel decides on a bind that no socket of the queue can answer, and the queue stays open.
func TestOtherBind(t *testing.T) {
	for name, tc := range map[string]struct {
		steps string
		want  []error
	}{
		"no descriptor": {"bind=0.0.0.0:8080 " + server4, []error{unix.EBADF, nil}},
		"second socket": {"socket=tcp4 bind=0.0.0.0:8080 socket=tcp4 bind=0.0.0.0:8080 wait", []error{nil, unix.EADDRINUSE}},
		"bound socket": {
			"socket=tcp4 bind=0.0.0.0:8080 bind=0.0.0.0:8080 bind=127.0.0.1:8080 listen=5 serve", []error{nil, unix.EINVAL, unix.EINVAL},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := start(t, config{Ports: port8080(IPv4), Steps: strings.Fields(tc.steps)})
			c := s.connects(1, over4)
			s.tell("start")
			for _, want := range tc.want {
				s.wantSays("bound", fmt.Sprint(want))
			}
			if strings.HasSuffix(tc.steps, "serve") {
				c.wantAnswered(t, 1)
				s.wantSays("closed", "HandedOver 0")
			}
		})
	}
}

// A command that cannot be executed is reported as by syscall.ForkExec, and leaves no process.
func TestExecFails(t *testing.T) {
	for path, want := range map[string]syscall.Errno{"/missing": unix.ENOENT, "/": unix.EACCES, "/proc/self/status": unix.EACCES} {
		t.Run(path, func(t *testing.T) {
			s, _ := start(t, config{Ports: port8080(IPv4), Argv: []string{path}})
			s.tell("start")
			s.wantSays("started", want.Error())
			s.tell("children")
			s.wantSays("children", unix.ECHILD.Error())
		})
	}
}

// An application that may not start any more does not start, neither with the filter nor without it, and leaves no process.
func TestTooLate(t *testing.T) {
	s, _ := start(t, config{Ports: port8080(IPv4), Late: true, Steps: []string{"mode"}})
	s.connects(3, over4)
	for range 2 {
		s.tell("start")
		s.wantSays("started", "late")
		s.tell("children")
		s.wantSays("children", unix.ECHILD.Error())
	}
	s.wantSays("closed", "ApplicationEnded 3")
}

// An application that ends takes its clients along. The next start is without a queue, and nothing is left of it.
func TestApplicationEnds(t *testing.T) {
	s, _ := start(t, config{Ports: port8080(IPv4), Steps: []string{"mode"}})
	s.connects(3, over4)
	s.tell("waiting")
	s.wantSays("waiting", "3")
	s.tell("start")
	s.wantSays("closed", "ApplicationEnded 3")
	s.wantSays("mode", strconv.Itoa(unix.SECCOMP_MODE_FILTER))
	s.wantUnused()
	s.tell("start")
	s.wantSays("mode", strconv.Itoa(unix.SECCOMP_MODE_DISABLED))
}

// The gate can close the queue at any time, also that of an application that runs.
func TestClose(t *testing.T) {
	s, _ := start(t, config{Ports: port8080(IPv4), Steps: strings.Fields("await=closed " + server4)})
	s.connects(3, over4)
	s.tell("start")
	s.says("started")
	s.tell("close")
	s.wantSays("closed", "Stopped 3")
	s.allow("closed")
	s.wantServed(over4)
}

// A queue that is closed just after the application has got its socket loses no client, if none waits.
func TestCloseAfterBind(t *testing.T) {
	for want, waiting := range map[string]int{"HandedOver 0": 0, "Stopped 0": 3} {
		s, _ := start(t, config{Ports: port8080(IPv4), Steps: strings.Fields("socket=tcp4 bind=0.0.0.0:8080 listen=5 mode await=closed")})
		s.connects(waiting, over4)
		s.tell("start")
		s.says("mode")
		s.tell("close")
		s.wantSays("closed", want)
	}
}

// An application that calls bind and setsockopt without end does not keep the gate from its work.
func TestFlood(t *testing.T) {
	for name, flood := range map[string]string{"its ports": "flood=8080,9090", "other ports": "flood=7070,7071"} {
		t.Run(name, func(t *testing.T) {
			s, _ := start(t, config{Ports: []Port{{8080, IPv4}, {9090, IPv4}}, Steps: []string{flood}})
			s.tell("start")
			s.says("floods")
			for range 20 {
				s.tell("waiting")
				s.says("waiting")
			}
			if name == "its ports" {
				s.wantSays("closed", "TooMany 0")
				return
			}
			s.tell("close")
			if why := s.says("closed"); why != "Stopped 0" && why != "TooMany 0" { // after enough sockets with options
				t.Error("closed", why)
			}
		})
	}
}

func TestShapeText(t *testing.T) {
	for _, want := range []Shape{IPv4, IPv6, Dual, Pair} {
		var got Port
		text, err := json.Marshal(Port{80, want})
		must(t, err)
		if must(t, json.Unmarshal(text, &got)); got.Shape != want {
			t.Errorf("%s became %q", want, got.Shape)
		}
	}
	for _, unknown := range []string{"", "ipv4", "IPv4 ", "IPv5"} {
		var shape Shape
		if shape.UnmarshalText([]byte(unknown)) == nil || shape != "" {
			t.Errorf("%q became %q", unknown, shape)
		}
	}
}

// Only an address whose bytes were there becomes an internet address.
func FuzzSockaddr(f *testing.F) {
	for _, seed := range []string{
		"", "\x02", "\x02\x00\x1f\x90\x00\x00\x00\x00", "\x02\x00\x1f\x90\x7f\x00\x00\x01........", "\x00\x00\x1f\x90\x00\x00\x00\x00........",
		"\x0a\x00\x1f\x90\x00\x00\x00\x00................", "\x0a\x00\x1f\x90\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := parseSockaddr(b)
		var want netip.AddrPort
		if len(b) >= 16 {
			number := uint16(b[2])<<8 | uint16(b[3])
			switch {
			case b[0] == unix.AF_INET && b[1] == 0, string(b[:2])+string(b[4:8]) == "\x00\x00\x00\x00\x00\x00":
				want = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), number)
			case b[0] == unix.AF_INET6 && b[1] == 0 && len(b) >= 24:
				want = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), number)
			}
		}
		if got != want {
			t.Errorf("%x is %v, want %v", b, got, want)
		}
	})
}
