package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/prometheus/procfs"
)

// down ends everything that this cluster's name owns, and removes it: processes, and with them mounts and network
// namespaces; cgroups; files. It removes what it finds, and works in each state of the cluster.
func (c cluster) down(ctx context.Context) error {
	if err := c.stop(ctx); err != nil {
		return err
	}
	return os.RemoveAll(c.dir)
}

// stop ends everything that runs, and keeps the files.
func (c cluster) stop(ctx context.Context) error {
	pids, err := c.machinePIDs()
	if err != nil {
		return err
	}
	if err := c.killVisitors(ctx); err != nil {
		return err
	}
	for _, pid := range pids {
		if err := killAndWait(ctx, pid); err != nil {
			return err
		}
	}
	if err := c.removeCgroup(ctx, ""); err != nil {
		return err
	}
	// the parent is for all clusters: it stays while another one needs it
	roots, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		err := os.Remove(filepath.Join(root, cgroupParent))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// killVisitors ends what `exec` started and is still there, which would keep the control plane's network namespace: all but
// this process and those that it comes from.
func (c cluster) killVisitors(ctx context.Context) error {
	var spared []int
	for pid := os.Getpid(); pid > 0; pid = stat(pid).PPID {
		spared = append(spared, pid)
	}
	processes, err := procfs.AllProcs()
	for _, p := range processes {
		if c.isVisitor(p) && !slices.Contains(spared, p.PID) {
			err = errors.Join(err, killAndWait(ctx, p.PID))
		}
	}
	return err
}

func (c cluster) isVisitor(p procfs.Proc) bool {
	environment, _ := p.Environ() // none of one that is gone
	return slices.Contains(environment, clusterVariable+"="+c.dir)
}
