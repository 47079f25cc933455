package main

import (
	"fmt"
	"regexp"
)

const (
	// registryName is that of a registry that a test may serve, without TLS, at registryAddress.
	registryName  = "registry.local"
	pauseImageRef = registryName + "/pause:1"

	// the addresses exist inside the cluster's own network namespaces only, so every cluster has the same
	controlAddress  = "10.99.0.1"
	registryAddress = controlAddress + ":5000"
	serviceNetwork  = "10.96.0.0/16"
	serviceAddress  = "10.96.0.1" // of the service "kubernetes"
	podNetwork      = "10.244.0.0/16"

	controlMachine = "control"
	maxNodes       = 200
)

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
