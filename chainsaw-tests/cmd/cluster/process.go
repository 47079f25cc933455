package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// signalProcesses sends a signal to every process of a program, by its name, on one machine, or on all machines if
// machine is "". It returns the number of processes. It includes the main processes of containers. After a kill, it
// waits until they have ended.
func (c cluster) signalProcesses(ctx context.Context, program, machine string, s unix.Signal) (int, error) {
	machines, err := c.machinePIDs()
	if err != nil {
		return 0, err
	}
	found, err := processesOf(program, machines, machine)
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		where := "any machine of the cluster " + c.name
		if machine != "" {
			where = machine + " of the cluster " + c.name
		}
		return 0, fmt.Errorf("no process %q runs on %s", program, where)
	}
	for _, pid := range found {
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

// processesOf returns the processes of a program, by the first word of their command line. The name of the program stands for
// all API servers, and the name of a process for that server.
func processesOf(program string, machines map[string]int, machine string) ([]int, error) {
	inits := map[int]bool{}
	for name, pid := range machines {
		if machine == "" || machine == name {
			inits[pid] = true
		}
	}
	var found []int
	processes, err := procfs.AllProcs()
	for _, p := range processes {
		args, _ := p.CmdLine() // the process may have ended
		if len(args) == 0 {
			continue
		}
		if name := filepath.Base(args[0]); name != program && numbered.ReplaceAllString(name, "") != program {
			continue
		}
		for parent := stat(p.PID).PPID; parent > 1; parent = stat(parent).PPID {
			if inits[parent] {
				found = append(found, p.PID)
				break
			}
		}
	}
	return found, err
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
