package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two kubelets that share a cgroup root, an address or a pod network destroy each other's pods.
func TestNodesShareNothing(t *testing.T) {
	roots := map[any]bool{}
	for _, name := range []string{"a", "b"} {
		for _, n := range nodes {
			roots[kubeletConfig(cluster{name: name}, n)["cgroupRoot"]] = true
		}
	}
	if len(roots) != 4 {
		t.Errorf("cgroup roots of two nodes of two clusters: %v", roots)
	}
	seen := map[string]bool{}
	for _, n := range nodes {
		for _, network := range []string{nodeAddress(n), nodePodNetwork(n), controlLinkName(n)} {
			if seen[network] {
				t.Errorf("node %d shares %s", n, network)
			}
			seen[network] = true
		}
		if len(controlLinkName(n)) > 15 {
			t.Errorf("the kernel takes 15 characters for an interface: %s", controlLinkName(n))
		}
	}
}

func TestNodeSpec(t *testing.T) {
	c := cluster{name: "test", dir: "/state/test"}
	spec := c.nodeSpec(2)
	var names []string
	for _, p := range spec.Processes {
		names = append(names, p.Name)
		if want := "/state/test/logs/node2-" + p.Name + ".log"; p.Log != want {
			t.Errorf("%s logs to %s, want %s", p.Name, p.Log, want)
		}
		if p.Binary != "/state/test/tools/bin/"+p.Name {
			t.Errorf("%s is started as %s", p.Name, p.Binary)
		}
		// Files that a process reads must exist or be created before.
		for _, arg := range p.Args {
			_, file, _ := strings.Cut(arg, "=")
			if strings.HasPrefix(file, c.machineDir("node2")) && spec.Files[file] == "" {
				t.Errorf("%s reads %s, which nobody writes", p.Name, file)
			}
		}
	}
	if diff := cmp.Diff([]string{"containerd", "kubelet", "kube-proxy"}, names); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	for dir := range spec.Own {
		if !slices.Contains(machineOwnDirs, dir) {
			t.Errorf("%s is the machine's own, but a state directory in it is not refused", dir)
		}
	}
	var network struct{ Plugins []struct{ Type string } }
	if err := json.Unmarshal([]byte(spec.Files[filepath.Join(c.machineDir("node2"), "cni/10-pods.conflist")]), &network); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range network.Plugins {
		if systemPrograms[plugin.Type] == "" {
			t.Errorf("the CNI plugin %s is not looked for before the start", plugin.Type)
		}
	}
}

func TestSpecChanged(t *testing.T) {
	c := testCluster(t)
	if !c.specChanged("node1") {
		t.Error("a machine that was never started is not told from a running one")
	}
	same := c.nodeSpec(1)
	other := c.nodeSpec(1)
	other.Processes[1].Binary = "/cache/kubernetes-older/bin/kubelet"
	for spec, want := range map[string]bool{encode(same): false, encode(other): true} {
		must(t, writeFile(c.specFile("node1"), spec))
		if got := c.specChanged("node1"); got != want {
			t.Errorf("changed %t, want %t, after %s", got, want, spec)
		}
	}
}
