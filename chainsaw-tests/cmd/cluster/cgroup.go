package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupMount = "/sys/fs/cgroup"
	// cgroupParent is the parent of the cgroups of all clusters.
	cgroupParent = "statefulsingleton"
)

// cgroup returns the path of the parent of a machine's pods in each hierarchy.
func (c cluster) cgroup(machine string) string {
	return filepath.Join(cgroupParent, c.name, machine)
}

// cgroupHierarchies returns the roots: one for version 2, or one for each controller of version 1.
func cgroupHierarchies() ([]string, error) {
	if unifiedCgroups() {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, e := range entries {
		// Some are links to a hierarchy of several controllers.
		if e.IsDir() {
			roots = append(roots, filepath.Join(cgroupMount, e.Name()))
		}
	}
	return roots, nil
}

func unifiedCgroups() bool {
	var fs unix.Statfs_t
	return unix.Statfs(cgroupMount, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// makeCgroup creates the root that the kubelet expects, in every hierarchy and with all controllers. In version 1, it
// also sets the processors and memory nodes, which a new cpuset does not have.
func (c cluster) makeCgroup(machine string) error {
	roots, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for element := range strings.SplitSeq(c.cgroup(machine), "/") {
			parent := dir
			dir = filepath.Join(parent, element)
			if err := delegateControllers(parent); err != nil {
				return err
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := inheritCpuset(dir, parent); err != nil {
				return err
			}
		}
		if err := delegateControllers(dir); err != nil {
			return err
		}
	}
	return nil
}

// delegateControllers enables for the children of a version 2 cgroup every controller that the cgroup has.
func delegateControllers(dir string) error {
	if !unifiedCgroups() {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(controllers)) {
		file := filepath.Join(dir, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("enable the cgroup controller %s for the pods (start a container with --privileged --cgroupns=host): %w", controller, err)
		}
	}
	return nil
}

func inheritCpuset(dir, parent string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		file := filepath.Join(dir, name)
		if unifiedCgroups() || !exists(file) {
			continue
		}
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes the cgroups of a machine, or all cgroups of the cluster if machine is "". Their processes were
// killed, but may exist for a short time.
func (c cluster) removeCgroup(ctx context.Context, machine string) error {
	roots, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	return poll(ctx, 10*time.Second, 50*time.Millisecond, func() error {
		for _, root := range roots {
			if err := removeCgroupTree(filepath.Join(root, c.cgroup(machine))); err != nil {
				return fmt.Errorf("remove the cgroups of %s: %w", c.cgroup(machine), err)
			}
		}
		return nil
	})
}

// removeCgroupTree removes only directories, because the files in a cgroup disappear with it.
func removeCgroupTree(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroupTree(filepath.Join(dir, e.Name())))
		}
	}
	if err == nil {
		err = os.Remove(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
