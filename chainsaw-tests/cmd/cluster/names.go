package main

import (
	"fmt"
	"regexp"
)

const (
	// registryName is the name of a registry that a test may serve at registryAddress, without TLS.
	registryName  = "registry.local"
	pauseImageRef = registryName + "/pause:1"

	// The addresses exist only in the cluster's own network namespaces. Every cluster has the same addresses.
	controlAddress  = "10.99.0.1"
	registryAddress = controlAddress + ":5000"
	serviceNetwork  = "10.96.0.0/16"
	serviceAddress  = "10.96.0.1" // of the Service "kubernetes"
	podNetwork      = "10.244.0.0/16"

	controlMachine = "control"
)

// nodes are the numbers of the nodes of each cluster.
var nodes = []int{1, 2}

func nodeName(n int) string        { return fmt.Sprintf("node%d", n) }
func nodeAddress(n int) string     { return fmt.Sprintf("10.99.0.%d", 10+n) }
func nodePodNetwork(n int) string  { return fmt.Sprintf("10.244.%d.0/24", n) }
func controlLinkName(n int) string { return fmt.Sprintf("node%d", n) }

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

func checkName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("cluster name %q: write lower case letters, digits and dashes, at most 32", name)
	}
	return nil
}
