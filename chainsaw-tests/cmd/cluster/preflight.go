package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const cniPlugins = "/usr/lib/cni"

// buildNeeds maps the programs and files that the build of the tools needs to Debian packages.
var buildNeeds = map[string]string{
	"gcc":                    "gcc", // runc, and the race detector of make unit
	"/usr/include/stdlib.h":  "libc6-dev",
	"pkg-config":             "pkgconf",
	"/usr/include/seccomp.h": "libseccomp-dev",
}

// systemPrograms maps the programs that nodes and the commands of the pages need to Debian packages.
var systemPrograms = map[string]string{
	"nft":        "nftables", // kube-proxy
	"iptables":   "iptables", // the CNI's portmap plugin
	"curl":       "curl",     // commands of docs/monitoring.md
	"mount":      "mount",    // kubelet
	"nsenter":    "util-linux",
	"ptp":        "containernetworking-plugins",
	"host-local": "containernetworking-plugins",
	"portmap":    "containernetworking-plugins",
	"loopback":   "containernetworking-plugins",
}

// checkRoot returns an error if the user is not root.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a cluster needs root, for namespaces, mounts and cgroups: run it again with sudo -E %s", strings.Join(os.Args, " "))
	}
	return nil
}

// checkPackages returns an error with the missing packages and the command that installs them.
func checkPackages() error {
	if missing := missingPackages(onThisMachine, buildNeeds, systemPrograms); len(missing) > 0 {
		return fmt.Errorf("this machine lacks the packages %[1]s: run\n  apt-get update && apt-get install -y %[1]s", strings.Join(missing, " "))
	}
	return nil
}

// onThisMachine returns true if a node can find the program, or if the file exists.
func onThisMachine(program string) bool {
	if filepath.IsAbs(program) {
		return exists(program)
	}
	for _, dir := range append(filepath.SplitList(systemPath), cniPlugins) {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	return false
}

func missingPackages(installed func(program string) bool, needs ...map[string]string) []string {
	var missing []string
	for _, need := range needs {
		for program, pkg := range need {
			if !installed(program) && !slices.Contains(missing, pkg) {
				missing = append(missing, pkg)
			}
		}
	}
	slices.Sort(missing)
	return missing
}
