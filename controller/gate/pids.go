package gate

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	// firstPID is the lowest PID of a main process. Threads of the gate have PIDs too, and their number differs each time.
	// A main process that was killed can leave a PID file. If the PID is that of a thread of the next gate, many programs
	// do not start, because another instance seems to run.
	firstPID = 100
	// sparePIDs is the number of PIDs that the gate leaves for threads that it starts while it waits. The gate usually
	// starts none. Before the start, the gate forks once for each PID that is left.
	sparePIDs = 5
)

// skipPIDs uses up the PIDs of this container that are lower than next.
func skipPIDs(next int) {
	for before, used := -1, lastPID(); before < used && used < next-1; before, used = used, lastPID() {
		_, _ = syscall.ForkExec("", []string{"skip"}, &syscall.ProcAttr{}) // uses a PID, and fails because the path is empty
	}
}

// lastPID returns the last PID that the kernel has assigned in this container, or 0 if that is not known.
func lastPID() int {
	content, _ := os.ReadFile("/proc/loadavg") // the fifth field
	fields := append(strings.Fields(string(content)), "", "", "", "", "")
	pid, _ := strconv.Atoi(fields[4])
	return pid
}
