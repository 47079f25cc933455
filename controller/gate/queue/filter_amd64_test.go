package queue

import (
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	applicationSteps["x32-bind"] = func(a *application, _ string) error {
		rawBind(unix.SYS_BIND|x32, a.fd, 1, 16) // most kernels refuse x32
		return nil
	}
}

func TestForeignABI(t *testing.T) {
	doubtful{shape: IPv4, steps: "socket=tcp4 x32-bind " + server4, want: ForeignABI, wantLost: 3}.test(t)
}
