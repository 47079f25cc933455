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

// down stops and removes everything of the cluster: processes, and with them mounts and network namespaces; cgroups;
// files. It works in each state of the cluster.
func (c cluster) down(ctx context.Context) error {
	machines := c.machinePIDs()
	if err := c.killVisitors(ctx); err != nil {
		return err
	}
	for _, pid := range machines {
		if err := killAndWait(ctx, pid); err != nil {
			return err
		}
	}
	if err := c.removeCgroup(ctx, ""); err != nil {
		return err
	}
	// The parent of all clusters stays while another cluster uses it.
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
	return os.RemoveAll(c.dir)
}

// killVisitors kills processes that `exec` started, because they would keep the network namespace of the control plane.
// It spares this process and its ancestors.
func (c cluster) killVisitors(ctx context.Context) (err error) {
	spared := append(ancestors(os.Getpid()), os.Getpid())
	for _, p := range processes() {
		if c.isVisitor(p) && !slices.Contains(spared, p.PID) {
			err = errors.Join(err, killAndWait(ctx, p.PID))
		}
	}
	return err
}

func (c cluster) isVisitor(p procfs.Proc) bool {
	environment, _ := p.Environ() // the process may have ended
	return slices.Contains(environment, clusterVariable+"="+c.dir)
}
