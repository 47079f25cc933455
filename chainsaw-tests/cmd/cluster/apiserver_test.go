package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testServers returns a cluster with several API servers.
func testServers(t *testing.T, n int) cluster {
	t.Helper()
	c := testCluster(t)
	must(t, c.useAPIServers(n))
	return c
}

func TestSeveralAPIServers(t *testing.T) {
	if one := testCluster(t).controlSpec(); one.Proxies != nil || one.Processes[1].Name != "kube-apiserver" {
		t.Errorf("with one API server: %+v", one)
	}
	c := testServers(t, 3)
	if same, other := c.checkAPIServers(3), c.checkAPIServers(1); same != nil || other == nil {
		t.Errorf("with 3 API servers: %v, with another number: %v", same, other)
	}
	spec := c.controlSpec()
	var names []string
	unique := map[string]bool{}
	for _, p := range spec.Processes {
		names = append(names, p.Name)
		if !strings.HasPrefix(p.Name, "kube-apiserver") {
			continue
		}
		if cmd := p.command(); !strings.HasSuffix(cmd.Path, "/kube-apiserver") || !strings.HasSuffix(cmd.Args[0], "/"+p.Name) {
			t.Errorf("%s is started as %s with the name %s", p.Name, cmd.Path, cmd.Args[0])
		}
		for _, arg := range p.Args {
			for _, flag := range []string{"--etcd-servers=", "--advertise-address=", "--bind-address=", "--audit-log-path="} {
				if strings.HasPrefix(arg, flag) && unique[arg] {
					t.Errorf("two API servers have %s", arg)
				}
			}
			unique[arg] = true
		}
	}
	want := []string{"etcd", "kube-apiserver-1", "kube-apiserver-2", "kube-apiserver-3", "kube-controller-manager", "kube-scheduler"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	clients := map[string]string{}
	for _, user := range []string{"admin", "proxy", "node1", "node2", "node3", "node4", "controller-manager"} {
		clients[user] = c.apiServerFor(user)
	}
	wantClients := map[string]string{"admin": controlAddress, "proxy": controlAddress,
		"node1": "10.99.0.2", "node2": "10.99.0.3", "node3": "10.99.0.4", "node4": "10.99.0.2", "controller-manager": "10.99.0.4"}
	if diff := cmp.Diff(wantClients, clients); diff != "" {
		t.Errorf("API servers of clients (-want +got):\n%s", diff)
	}
	for _, n := range nodes {
		for i := 1; i <= maxAPIServers; i++ {
			if nodeAddress(n) == apiServerAddress(i) {
				t.Errorf("node %d has the address of API server %d", n, i)
			}
		}
	}
}

func TestAskedAPIServers(t *testing.T) {
	for value, want := range map[string]int{"": 1, "1": 1, "3": 3, "5": 5, "0": 0, "6": 0, "three": 0} {
		t.Setenv(apiServersVariable, value)
		if got, err := askedAPIServers(); got != want || (err == nil) != (want > 0) {
			t.Errorf("%s=%q: %d, error %v; want %d", apiServersVariable, value, got, err, want)
		}
	}
}

func TestParseAPIServer(t *testing.T) {
	three := testServers(t, 3)
	for arg, want := range map[string]int{"1": 1, "kube-apiserver-3": 3, "0": 0, "4": 0, "node1": 0} {
		if got, err := three.parseAPIServer(arg); got != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %d, error %v; want %d", arg, got, err, want)
		}
	}
	if _, err := testCluster(t).parseAPIServer("1"); err == nil || !strings.Contains(err.Error(), "API_SERVERS=3 cluster up") {
		t.Errorf("with one API server: error %v", err)
	}
}

func TestFaultsOfAPIServers(t *testing.T) {
	c := testServers(t, 2)
	for arg, fault := range map[string]etcdFault{"1": {Delay: 5 * time.Second}, "2": {Cut: true}} {
		i, err := c.parseAPIServer(arg)
		must(t, errors.Join(err, c.proxyOf(i).set(fault)))
	}
	want := []string{"kube-apiserver-1 is late by 5s with changes in etcd", "kube-apiserver-2 is cut off from etcd"}
	if diff := cmp.Diff(want, c.apiServerFaults(t.Context())); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	must(t, c.healAPIServers())
	for i := 1; i <= 2; i++ {
		if fault := c.proxyOf(i).fault(); fault != (etcdFault{}) {
			t.Errorf("proxy %d after the end of all faults: %+v", i, fault)
		}
	}
	write(t, c.dir, "unreadable", "{")
	if fault := (etcdProxy{faultFile: c.path("unreadable")}).fault(); !fault.Cut {
		t.Errorf("a proxy whose fault cannot be read forwards: %+v", fault)
	}
}
