package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// This program is also the first process of the machines of TestMachines, and their etcd.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == machineCommand:
		main()
	case filepath.Base(os.Args[0]) == "etcd":
		if _, err := net.Listen("tcp", "127.0.0.1:2379"); err == nil {
			time.Sleep(time.Hour)
		}
	default:
		os.Exit(m.Run())
	}
}

// Machines keep their processes running, are connected, and leave nothing behind, whatever they run.
func TestMachines(t *testing.T) {
	c := cluster{name: "machine-test", dir: t.TempDir()}
	self, err := os.Executable()
	must(t, err)
	must(t, os.MkdirAll(c.tools().bin(), 0o755))
	must(t, os.Symlink(self, filepath.Join(c.tools().bin(), "etcd")))
	t.Cleanup(func() { must(t, c.down(context.Background())) })

	control, releaseControl, err := c.startMachine(controlMachine)
	must(t, err)
	must(t, makeBridge(control, 1))
	must(t, releaseControl())
	must(t, c.makeCgroup("node1"))
	node, releaseNode, err := c.startMachine("node1")
	must(t, err)
	must(t, connectNode(control, node, 1))
	must(t, releaseNode())

	etcd := awaitEtcd(t, control, 0)
	if missing := c.missingProcesses(controlMachine, control); len(missing) != 3 {
		t.Errorf("missing processes %v, want all but etcd, whose programs do not exist", missing)
	}
	for _, want := range []string{"T", "S"} {
		s := map[string]unix.Signal{"T": unix.SIGSTOP, "S": unix.SIGCONT}[want]
		if n, err := c.signalProcesses(t.Context(), "etcd", controlMachine, s); n != 1 || err != nil {
			t.Errorf("signal %s: %d processes, error %v", s, n, err)
		}
		must(t, poll(t.Context(), time.Minute, 10*time.Millisecond, func() error {
			if state := stat(etcd).State; state != want {
				return fmt.Errorf("etcd has the state %s, want %s", state, want)
			}
			return nil
		}))
	}
	_, err = c.signalProcesses(t.Context(), "etcd", "node1", unix.SIGKILL)
	wantError(t, err, `no process "etcd" runs on node1`)
	_, err = c.signalProcesses(t.Context(), "etcd", "", unix.SIGKILL)
	must(t, err)
	etcd = awaitEtcd(t, control, etcd)

	for range 2 {
		if !nodeConnected(control, 1) {
			t.Error("node1 is not connected")
		}
		must(t, c.partitionNode(1))
		if nodeConnected(control, 1) {
			t.Error("node1 is connected, although it is cut off")
		}
		must(t, c.startNode(t.Context(), 1))
	}
	if own, err := output(insideMachine(t.Context(), node, "ls", "/var/lib")); err != nil || own != "kubelet" {
		t.Errorf("/var/lib of node1 has %q, error %v, want only its own files", own, err)
	}
	if machines := c.machinePIDs(); len(machines) != 2 || machines["node1"] != node {
		t.Errorf("machines %v, want node1 as process %d", machines, node)
	}

	must(t, c.down(t.Context()))
	if machines := c.machinePIDs(); len(machines) > 0 || stat(etcd).PPID != 0 || c.exists() {
		t.Errorf("after down: machines %v, etcd of process %d", machines, stat(etcd).PPID)
	}
	_, err = c.runningPID(controlMachine)
	wantError(t, err, "the control plane does not run")
}

// awaitEtcd waits until the machine runs another etcd than the process, and returns its process id.
func awaitEtcd(t *testing.T, machine, other int) (pid int) {
	t.Helper()
	must(t, poll(t.Context(), time.Minute, 10*time.Millisecond, func() error {
		running := runningChildren(machine)
		if pid = running["etcd"]; pid == 0 || pid == other {
			return fmt.Errorf("no new etcd among %v", running)
		}
		return nil
	}))
	return pid
}
