package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKubeconfig(t *testing.T) {
	c := cluster{name: "test", dir: "/state/test"}
	want := `{
  "apiVersion": "v1",
  "clusters": [
    {
      "cluster": {
        "certificate-authority": "/state/test/pki/ca.crt",
        "server": "https://10.99.0.1:6443"
      },
      "name": "test"
    }
  ],
  "contexts": [
    {
      "context": {
        "cluster": "test",
        "user": "admin"
      },
      "name": "test"
    }
  ],
  "current-context": "test",
  "kind": "Config",
  "users": [
    {
      "name": "admin",
      "user": {
        "client-certificate": "/state/test/pki/admin.crt",
        "client-key": "/state/test/pki/admin.key"
      }
    }
  ]
}
`
	if diff := cmp.Diff(want, encode(kubeconfig(c, "admin"))); diff != "" {
		t.Errorf("kubeconfig (-want +got):\n%s", diff)
	}
}

// Two kubelets that share a cgroup root, an address or a pod network destroy each other's pods.
func TestNodesShareNothing(t *testing.T) {
	first, second := cluster{name: "a", dir: "/state/a"}, cluster{name: "b", dir: "/state/b"}
	roots := map[any]bool{}
	for _, c := range []cluster{first, second} {
		for n := 1; n <= 2; n++ {
			roots[kubeletConfig(c, n)["cgroupRoot"]] = true
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
	spec := c.nodeSpec(1)
	if !c.specChanged("node1") {
		t.Error("a machine that was never started is not told from a running one")
	}
	if err := writeFile(c.specFile("node1"), encode(spec)); err != nil {
		t.Fatal(err)
	}
	if c.specChanged("node1") {
		t.Error("changed at once")
	}
	spec.Processes[1].Binary = "/cache/kubernetes-older/bin/kubelet"
	if err := writeFile(c.specFile("node1"), encode(spec)); err != nil {
		t.Fatal(err)
	}
	if !c.specChanged("node1") {
		t.Error("another kubelet goes unnoticed")
	}
}
