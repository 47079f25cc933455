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

// systemPrograms maps what a node needs from the operating system to the Debian package that has it.
var systemPrograms = map[string]string{
	"runc":       "runc",
	"nft":        "nftables", // kube-proxy
	"iptables":   "iptables", // the CNI's portmap plugin
	"mount":      "mount",    // kubelet
	"nsenter":    "util-linux",
	"ptp":        "containernetworking-plugins",
	"host-local": "containernetworking-plugins",
	"portmap":    "containernetworking-plugins",
	"loopback":   "containernetworking-plugins",
}

// checkMachine says what this machine lacks, and the command that mends it.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a cluster needs root, for namespaces, mounts and cgroups: run it again with sudo -E %s", strings.Join(os.Args, " "))
	}
	if missing := missingPackages(onThisMachine); len(missing) > 0 {
		return fmt.Errorf("this machine lacks the packages %[1]s: run\n  apt-get update && apt-get install -y %[1]s", strings.Join(missing, " "))
	}
	return nil
}

// onThisMachine says whether a program is where a node will look for it.
func onThisMachine(program string) bool {
	for _, dir := range append(filepath.SplitList(systemPath), cniPlugins) {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	return false
}

func missingPackages(installed func(program string) bool) []string {
	var missing []string
	for program, pkg := range systemPrograms {
		if !installed(program) && !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	return missing
}
