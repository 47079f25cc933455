package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// clusterVariable marks the processes that `exec` starts with the state directory of the cluster.
const clusterVariable = "STATEFULSINGLETON_CLUSTER"

// environment returns the caller's environment with the cluster's KUBECONFIG, name, version of Kubernetes and number of
// API servers. The cluster's tools and this program come first in PATH.
func (c cluster) environment() []string {
	path := c.tools().bin()
	if self, err := os.Executable(); err == nil {
		path += ":" + filepath.Dir(self)
	}
	noProxy := controlAddress
	for i := 1; i <= c.apiServers(); i++ {
		noProxy += "," + apiServerAddress(i)
	}
	if v := os.Getenv("NO_PROXY"); v != "" {
		noProxy += "," + v
	}
	return append(os.Environ(),
		"KUBECONFIG="+c.kubeconfig(),
		"PATH="+path+":"+os.Getenv("PATH"),
		"CLUSTER_NAME="+c.name,
		kubernetesVariable+"="+c.tools().version(kubernetesModule),
		fmt.Sprintf("%s=%d", apiServersVariable, c.apiServers()),
		// kubectl caches the API resources by address, and all clusters have the same address.
		"KUBECACHEDIR="+c.path("kubectl-cache"),
		"NO_PROXY="+noProxy, "no_proxy="+noProxy,
		clusterVariable+"="+c.dir,
	)
}

// outside returns a command that runs argv in the network of the control plane and otherwise in the caller's
// environment.
func outside(control int, argv []string) []string {
	return append([]string{"nsenter", "--net=" + filepath.Join("/proc", strconv.Itoa(control), "ns/net"), "--"}, argv...)
}

// run runs a tool, for example kubectl, on the cluster and returns its output.
func (c cluster) run(ctx context.Context, argv ...string) (string, error) {
	control, err := c.runningPID(controlMachine)
	if err != nil {
		return "", err
	}
	line := outside(control, argv)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = c.environment()
	return output(cmd)
}

// output runs a command and returns its output. The error has the end of its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
