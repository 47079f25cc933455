package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// signalProcesses sends a signal to every process of a program, by its name, on one machine, or on all machines if
// machine is "". It returns the number of processes. It includes the main processes of containers. After a kill, it
// waits until they have ended.
func (c cluster) signalProcesses(ctx context.Context, program, machine string, s unix.Signal) (int, error) {
	var inits []int
	for name, pid := range c.machinePIDs() {
		if machine == "" || machine == name {
			inits = append(inits, pid)
		}
	}
	found := processesOf(program, inits)
	if len(found) == 0 {
		return 0, fmt.Errorf("no process %q runs on %s of the cluster %s", program, cmp.Or(machine, "any machine"), c.name)
	}
	for _, pid := range found {
		var err error
		if s == unix.SIGKILL {
			err = killAndWait(ctx, pid)
		} else if err = unix.Kill(pid, s); errors.Is(err, unix.ESRCH) {
			err = nil // the process has just ended
		}
		if err != nil {
			return 0, fmt.Errorf("signal %s, process %d: %w", program, pid, err)
		}
	}
	return len(found), nil
}

// numbered matches the names of the API servers.
var numbered = regexp.MustCompile(`-\d+$`)

// processesOf returns the processes of a program below the first processes of machines, by the first word of their command line.
// The name of the program stands for all API servers, and the name of a process for that server.
func processesOf(program string, inits []int) (found []int) {
	isInit := func(pid int) bool { return slices.Contains(inits, pid) }
	for _, p := range processes() {
		args := arguments(p)
		if len(args) == 0 {
			continue
		}
		name := filepath.Base(args[0])
		if (name == program || numbered.ReplaceAllString(name, "") == program) && slices.ContainsFunc(ancestors(p.PID), isInit) {
			found = append(found, p.PID)
		}
	}
	return found
}

// ancestors returns the parent of a process, its parent, and so on.
func ancestors(pid int) (found []int) {
	for pid = stat(pid).PPID; pid > 0; pid = stat(pid).PPID {
		found = append(found, pid)
	}
	return found
}

// parseMachine parses the name of a machine on the command line: "control", "node2" or "2".
func (c cluster) parseMachine(arg string) (string, error) {
	if arg == "" || arg == controlMachine {
		return arg, nil
	}
	n, err := c.parseNode(arg)
	if err != nil {
		return "", fmt.Errorf("%w; the control plane is %q", err, controlMachine)
	}
	return nodeName(n), nil
}
