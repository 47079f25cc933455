package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// apiServersVariable is the environment variable with the number of API servers.
	apiServersVariable = "API_SERVERS"
	maxAPIServers      = 5
)

func apiServerName(i int) string    { return fmt.Sprintf("kube-apiserver-%d", i) }
func apiServerAddress(i int) string { return fmt.Sprintf("10.99.0.%d", 1+i) }

// etcdProxyAddress is the address at which API server i reaches etcd.
func etcdProxyAddress(i int) string { return fmt.Sprintf("127.0.0.1:%d", 12379+i) }

// askedAPIServers returns the number of API servers that the environment selects. The default is 1.
func askedAPIServers() (int, error) {
	value := os.Getenv(apiServersVariable)
	if value == "" {
		return 1, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxAPIServers {
		return 0, fmt.Errorf("%s=%s: set it to a number from 1 to %d", apiServersVariable, value, maxAPIServers)
	}
	return n, nil
}

// apiServers returns the number of API servers of the cluster.
func (c cluster) apiServers() int {
	text, _ := os.ReadFile(c.path("api-servers"))
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 1
	}
	return n
}

// checkAPIServers returns an error if the cluster has another number of API servers. The configuration of all its machines
// depends on the number.
func (c cluster) checkAPIServers(asked int) error {
	has := c.apiServers()
	if !c.exists() || has == asked {
		return nil
	}
	return fmt.Errorf("start the cluster %[1]s with %[2]d API servers: the cluster has %[3]d, and the number cannot change.\n"+
		"To use the cluster as it is, set %[4]s=%[3]d. To create it again, first run: cluster --name %[1]s down",
		c.name, asked, has, apiServersVariable)
}

// useAPIServers stores the number of API servers of a new cluster.
func (c cluster) useAPIServers(n int) error {
	if n == c.apiServers() {
		return nil
	}
	return writeFile(c.path("api-servers"), strconv.Itoa(n)+"\n")
}

// apiServerFor returns the address of the API server that a client uses. Kubelets and the other programs of the control plane
// are spread over the servers. The others use the only server, or the balancer.
func (c cluster) apiServerFor(user string) string {
	servers := c.apiServers()
	n, _ := strconv.Atoi(strings.TrimPrefix(user, "node"))
	switch {
	case servers == 1:
		return controlAddress
	case n > 0:
		return apiServerAddress(1 + (n-1)%servers)
	case user == "controller-manager" || user == "scheduler":
		return apiServerAddress(servers)
	}
	return controlAddress
}

// proxySpec describes what connects several API servers with clients and etcd: a balancer in front of them, and a proxy to
// etcd behind each. The supervisor of the machine runs them.
type proxySpec struct {
	// Balancer is the address of the balancer.
	Balancer string
	// Servers has the addresses of the API servers.
	Servers []string
	// Proxies maps the address of the proxy to etcd of each server to the file with its fault.
	Proxies map[string]string
	Etcd    string
}

// faultFile returns the file with the fault of an API server.
func (c cluster) faultFile(i int) string {
	return filepath.Join(c.machineDir(controlMachine), "faults", apiServerName(i)+".json")
}

// proxySpec returns nil for one API server.
func (c cluster) proxySpec() *proxySpec {
	servers := c.apiServers()
	if servers == 1 {
		return nil
	}
	p := &proxySpec{Balancer: controlAddress + ":6443", Etcd: "127.0.0.1:2379", Proxies: map[string]string{}}
	for i := 1; i <= servers; i++ {
		p.Servers = append(p.Servers, apiServerAddress(i)+":6443")
		p.Proxies[etcdProxyAddress(i)] = c.faultFile(i)
	}
	return p
}

// start starts to listen at all addresses, and then serves until the machine ends. A part that fails is reported to failed. Faults
// of an earlier machine end.
func (s *proxySpec) start(failed chan<- error) error {
	serve := func(address string, serve func(net.Listener) error) error {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			go func() { failed <- fmt.Errorf("serve %s: %w", address, serve(listener)) }()
		}
		return err
	}
	for address, file := range s.Proxies {
		p := etcdProxy{etcd: s.Etcd, faultFile: file}
		if err := errors.Join(p.set(etcdFault{}), serve(address, p.serve)); err != nil {
			return err
		}
	}
	b := newBalancer(s.Servers)
	b.check(context.Background(), func(address string) error { return get("https://" + address + "/readyz") })
	return serve(s.Balancer, b.serve)
}

// proxyOf returns the proxy of an API server, for its fault.
func (c cluster) proxyOf(i int) etcdProxy { return etcdProxy{faultFile: c.faultFile(i)} }

// healAPIServers ends the faults of all API servers.
func (c cluster) healAPIServers() (err error) {
	for i := 1; i <= c.apiServers(); i++ {
		err = errors.Join(err, c.proxyOf(i).set(etcdFault{}))
	}
	return err
}

// parseAPIServer parses the number of an API server on the command line, for example "2" or "kube-apiserver-2".
func (c cluster) parseAPIServer(arg string) (int, error) {
	servers := c.apiServers()
	if servers == 1 {
		return 0, fmt.Errorf("the cluster %s has one API server. For a cluster with several, run `cluster down` and `%s=3 cluster up`", c.name, apiServersVariable)
	}
	i, err := strconv.Atoi(strings.TrimPrefix(arg, "kube-apiserver-"))
	if err != nil || i < 1 || i > servers {
		return 0, fmt.Errorf("the cluster %s has no API server %q: it has 1 to %d", c.name, arg, servers)
	}
	return i, nil
}

// apiServerFaults returns the reasons why not all of several API servers serve.
func (c cluster) apiServerFaults(ctx context.Context) (faults []string) {
	if c.apiServers() == 1 {
		return nil
	}
	for i := 1; i <= c.apiServers(); i++ {
		if fault := c.proxyOf(i).fault().String(); fault != "" {
			faults = append(faults, apiServerName(i)+" is "+fault)
		} else if err := c.serverReady(ctx, apiServerAddress(i)); err != nil {
			faults = append(faults, fmt.Sprintf("%s is not ready: %v", apiServerName(i), err))
		}
	}
	return faults
}

// serverReady returns an error unless the API server at the address is ready.
func (c cluster) serverReady(ctx context.Context, address string) error {
	_, err := c.run(ctx, "kubectl", "--server=https://"+address+":6443", "get", "--raw", "/readyz", "--request-timeout=5s")
	return err
}
