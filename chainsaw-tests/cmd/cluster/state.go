package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cluster is a cluster with a name. All its files are in its state directory.
type cluster struct {
	name string
	dir  string
}

func openCluster(name string) (cluster, error) {
	if err := checkName(name); err != nil {
		return cluster{}, err
	}
	root, err := stateRoot()
	if err != nil {
		return cluster{}, err
	}
	return cluster{name: name, dir: filepath.Join(root, name)}, nil
}

// stateRoot must not be in a directory that each machine has for itself, because the machines could not read it.
func stateRoot() (string, error) {
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the state directory: %w: set HOME or XDG_STATE_HOME", err)
		}
		dir = filepath.Join(home, ".local/state")
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("the state directory %q is not absolute: set XDG_STATE_HOME to an absolute path", dir)
	}
	for _, own := range machineOwnDirs {
		if dir == own || strings.HasPrefix(dir, own+"/") {
			return "", fmt.Errorf("the state directory %s is in %s, of which each node has its own: set XDG_STATE_HOME to another directory", dir, own)
		}
	}
	return filepath.Join(dir, "statefulsingleton"), nil
}

func (c cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

func (c cluster) kubeconfig() string           { return c.path("admin.kubeconfig") }
func (c cluster) logs() string                 { return c.path("logs") }
func (c cluster) images() string               { return c.path("images") }
func (c cluster) tools() tools                 { return tools{c.path("tools")} }
func (c cluster) machineDir(m string) string   { return c.path("machines", m) }
func (c cluster) log(m, process string) string { return c.path("logs", m+"-"+process+".log") }
func (c cluster) cert(name string) string      { return c.path("pki", name+".crt") }
func (c cluster) key(name string) string       { return c.path("pki", name+".key") }

// exists returns true if `up` has created anything of this cluster.
func (c cluster) exists() bool { return exists(c.dir) }

// useTools stores the path of the tools for later commands, which then need no checkout.
func (c cluster) useTools(t tools) error {
	partial := c.path(".tools")
	return errors.Join(os.MkdirAll(c.dir, 0o755), os.RemoveAll(partial), os.Symlink(t.dir, partial), os.Rename(partial, c.path("tools")))
}

// parseNode parses the number of a node on the command line, for example "2" or "node2". It returns an error if there
// is no such node.
func (c cluster) parseNode(arg string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(arg, "node"))
	if err != nil || !slices.Contains(nodes, n) {
		return 0, fmt.Errorf("the cluster %s has no node %q: it has %v", c.name, arg, nodes)
	}
	return n, nil
}
