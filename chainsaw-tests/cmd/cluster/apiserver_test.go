package main

import (
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testServers returns a cluster with several API servers.
func testServers(t *testing.T, n int) cluster {
	t.Helper()
	c := testCluster(t)
	if err := c.useAPIServers(n); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOneAPIServerHasNoProxies(t *testing.T) {
	spec := testCluster(t).controlSpec()
	if spec.Proxies != nil {
		t.Errorf("proxies: %+v", spec.Proxies)
	}
	if i := slices.IndexFunc(spec.Processes, func(p process) bool { return p.Name == "kube-apiserver" }); i < 0 {
		t.Errorf("no process kube-apiserver in %+v", spec.Processes)
	}
}

func TestSeveralAPIServers(t *testing.T) {
	c := testServers(t, 3)
	spec := c.controlSpec()
	var names []string
	unique := map[string]bool{}
	for _, p := range spec.Processes {
		names = append(names, p.Name)
		program, argv := p.command()
		if !strings.HasPrefix(p.Name, "kube-apiserver") {
			continue
		}
		if !strings.HasSuffix(program, "/kube-apiserver") || !strings.HasSuffix(argv[0], "/"+p.Name) {
			t.Errorf("%s is started as %s with the name %s", p.Name, program, argv[0])
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

func TestNumberOfAPIServersStays(t *testing.T) {
	c := testServers(t, 3)
	if err := c.checkAPIServers(3); err != nil {
		t.Error(err)
	}
	if err := c.checkAPIServers(1); err == nil || !strings.Contains(err.Error(), "the cluster has 3, and the number cannot change") {
		t.Errorf("error %v", err)
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

func TestFaultsOfProxies(t *testing.T) {
	c := testServers(t, 2)
	proxies := []*etcdProxy{newEtcdProxy(), newEtcdProxy()}
	serveFaults(t, c, proxies)
	if _, err := c.etcdFaults(t.Context(), &etcdFaultChange{Server: 2, Fault: etcdFault{Cut: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.etcdFaults(t.Context(), &etcdFaultChange{Server: 1, Fault: etcdFault{Delay: 5 * time.Second}}); err != nil {
		t.Fatal(err)
	}
	want := []string{"kube-apiserver-1 is late by 5s with changes in etcd", "kube-apiserver-2 is cut off from etcd"}
	if diff := cmp.Diff(want, c.apiServerFaults(t.Context())); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if fault, _ := proxies[1].now(); !fault.Cut {
		t.Error("the proxy does not cut")
	}
	if err := c.healEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, p := range proxies {
		if fault, _ := p.now(); fault != (etcdFault{}) {
			t.Errorf("proxy %d after the end of all faults: %+v", i+1, fault)
		}
	}
}

// serveFaults receives the faults of the proxies as the control plane of the cluster does.
func serveFaults(t *testing.T, c cluster, proxies []*etcdProxy) {
	t.Helper()
	if err := os.MkdirAll(c.machineDir(controlMachine), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", c.faultsSocket())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: faultsHandler(proxies), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}
