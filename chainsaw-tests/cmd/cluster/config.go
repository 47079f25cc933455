package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
)

type object = map[string]any

// encode returns a configuration or a machineSpec as JSON, which is also YAML, and always in the same way. It cannot fail, because
// both have only maps, lists, strings and numbers.
func encode(content any) string {
	text, _ := json.MarshalIndent(content, "", "  ")
	return string(text) + "\n"
}

func kubeconfig(c cluster, user string) object {
	server := "https://" + c.apiServerFor(user) + ":6443"
	return object{
		"apiVersion": "v1", "kind": "Config",
		"clusters": []object{{"name": c.name, "cluster": object{
			"server": server, "certificate-authority": c.cert("ca")}}},
		"users": []object{{"name": user, "user": object{
			"client-certificate": c.cert(user), "client-key": c.key(user)}}},
		"contexts":        []object{{"name": c.name, "context": object{"cluster": c.name, "user": user}}},
		"current-context": c.name,
	}
}

func kubeletConfig(c cluster, n int) object {
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": c.cert("ca")},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              c.cert(nodeName(n)),
		"tlsPrivateKeyFile":        c.key(nodeName(n)),
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"volumePluginDir":          volumePlugins,
		"cgroupDriver":             "cgroupfs",
		// A kubelet removes pod cgroups that it does not know, therefore each kubelet needs a root of its own.
		"cgroupRoot":   "/" + c.cgroup(nodeName(n)),
		"failCgroupV1": false,
		"failSwapOn":   false,
		"resolvConf":   "",
		// A removed image cannot be pulled again. The nodes share the disk of the host, which may be rather full.
		"imageGCHighThresholdPercent": 100,
		"evictionHard":                object{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
	}
}

// cniConfig gives each pod a link of its own to the node. A bridge would need br_netfilter for Services.
func cniConfig(n int) object {
	return object{
		"cniVersion": "0.4.0", "name": "pods",
		"plugins": []object{
			{"type": "ptp", "ipam": object{
				"type":    "host-local",
				"dataDir": "/run/cni-ipam",
				"ranges":  [][]object{{{"subnet": nodePodNetwork(n)}}},
				"routes":  []object{{"dst": "0.0.0.0/0"}},
			}},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}
}

// containerdConfig uses containerd's default paths, because each machine has its own /run and /var/lib.
func containerdConfig(dir string) string {
	return fmt.Sprintf(`version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.images".registry]
  config_path = %q
[plugins."io.containerd.cri.v1.runtime"]
  # Otherwise pods fail on a host without CAP_SYS_RESOURCE, which cannot lower the OOM score of a process.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`, pauseImageRef, filepath.Join(dir, "registries"), cniPlugins, filepath.Join(dir, "cni"))
}

const (
	containerdSocket = "/run/containerd/containerd.sock"
	// volumePlugins is created if it does not exist. The default is a directory of the host.
	volumePlugins = "/var/lib/kubelet/volume-plugins"
)

// seccompProfileName is the localhostProfile that pods of the cluster can use.
const seccompProfileName = "strict.json"

// seccompProfile rejects system calls that neither the gate nor runc needs.
func seccompProfile() object {
	return object{
		"defaultAction": "SCMP_ACT_ALLOW",
		"syscalls": []object{{
			"names":  []string{"inotify_add_watch", "inotify_init1", "mknodat", "ptrace"},
			"action": "SCMP_ACT_ERRNO",
		}},
	}
}

// auditPolicy logs the metadata of the controller's requests, and no other requests.
func auditPolicy() object {
	return object{
		"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
		"omitStages": []string{"RequestReceived"},
		"rules": []object{
			{"level": "Metadata", "userGroups": []string{"system:serviceaccounts:statefulsingleton"}},
			{"level": "None"},
		},
	}
}

// controlSpec returns the machine of the control plane, with etcd, the API servers and one of each other server.
func (c cluster) controlSpec() machineSpec {
	api := "https://" + c.apiServerFor("controller-manager") + ":6443/readyz"
	audit := filepath.Join(c.machineDir(controlMachine), "audit.yaml")
	processes := []process{{Name: "etcd", Args: []string{
		"--data-dir=/var/lib/etcd",
		// `cluster up` creates again what a power failure loses.
		"--unsafe-no-fsync",
	}}}
	processes = append(processes, c.apiServerProcesses(audit)...)
	processes = append(processes,
		process{Name: "kube-controller-manager", After: api, Args: append(c.clientArgs("controller-manager"),
			"--service-account-private-key-file="+c.key("sa"),
			"--root-ca-file="+c.cert("ca"),
			"--cluster-signing-cert-file="+c.cert("ca"),
			"--cluster-signing-key-file="+c.key("ca"),
			"--use-service-account-credentials=true",
			"--flex-volume-plugin-dir="+volumePlugins,
		)},
		process{Name: "kube-scheduler", After: api, Args: c.clientArgs("scheduler")},
	)
	spec := c.spec(controlMachine, processes)
	spec.Files = map[string]string{audit: encode(auditPolicy())}
	spec.Proxies = c.proxySpec()
	return spec
}

// clientArgs returns the arguments of the programs that ask the API server, and whose own API it authorizes.
func (c cluster) clientArgs(user string) []string {
	config := "kubeconfig=" + c.path(user+".kubeconfig")
	return []string{"--" + config, "--authentication-" + config, "--authorization-" + config, "--leader-elect=false"}
}

// apiServerProcesses returns the only API server, or several that reach etcd by a proxy each.
func (c cluster) apiServerProcesses(audit string) (all []process) {
	servers := c.apiServers()
	if servers == 1 {
		return []process{c.apiServer("kube-apiserver", "127.0.0.1:2379", controlAddress, audit, c.log(controlMachine, "audit"))}
	}
	for i := 1; i <= servers; i++ {
		p := c.apiServer(apiServerName(i), etcdProxyAddress(i), apiServerAddress(i), audit, c.log(controlMachine, fmt.Sprintf("audit-%d", i)))
		p.Program = "kube-apiserver"
		// The balancer has the port of the other address.
		p.Args = append(p.Args, "--bind-address="+apiServerAddress(i))
		all = append(all, p)
	}
	return all
}

func (c cluster) apiServer(name, etcd, address, audit, auditLog string) process {
	return process{Name: name, After: "tcp://127.0.0.1:2379", Args: []string{
		"--etcd-servers=http://" + etcd,
		"--advertise-address=" + address,
		"--service-cluster-ip-range=" + serviceNetwork,
		"--client-ca-file=" + c.cert("ca"),
		"--tls-cert-file=" + c.cert("apiserver"),
		"--tls-private-key-file=" + c.key("apiserver"),
		"--service-account-key-file=" + c.path("pki/sa.pub"),
		"--service-account-signing-key-file=" + c.key("sa"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--requestheader-client-ca-file=" + c.cert("ca"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.cert("front-proxy-client"),
		"--proxy-client-key-file=" + c.key("front-proxy-client"),
		"--kubelet-client-certificate=" + c.cert("apiserver-kubelet-client"),
		"--kubelet-client-key=" + c.key("apiserver-kubelet-client"),
		"--kubelet-certificate-authority=" + c.cert("ca"),
		"--kubelet-preferred-address-types=InternalIP",
		// The API server calls webhooks at the addresses of their pods, because no kube-proxy runs beside it.
		"--enable-aggregator-routing=true",
		"--audit-policy-file=" + audit,
		"--audit-log-path=" + auditLog,
		// In MB.
		"--audit-log-maxsize=200",
		"--audit-log-maxbackup=1",
	}}
}

func (c cluster) nodeSpec(n int) machineSpec {
	dir := c.machineDir(nodeName(n))
	spec := c.spec(nodeName(n), []process{
		{Name: "containerd", Args: []string{"--config=" + filepath.Join(dir, "containerd.toml")}},
		{Name: "kubelet", After: "unix://" + containerdSocket, Import: []string{c.tools().images(), c.images()}, Args: []string{
			"--config=" + filepath.Join(dir, "kubelet.yaml"),
			"--kubeconfig=" + c.path(nodeName(n)+".kubeconfig"),
			"--node-ip=" + nodeAddress(n),
		}},
		{Name: "kube-proxy", Args: []string{
			"--kubeconfig=" + c.path("proxy.kubeconfig"),
			"--proxy-mode=nftables",
			"--cluster-cidr=" + podNetwork,
			// The host configures the size of the table.
			"--conntrack-max-per-core=0",
		}},
	})
	spec.Files = map[string]string{
		filepath.Join(dir, "containerd.toml"): containerdConfig(dir),
		// Images of the registry are pulled from the cluster network, where a test may serve them.
		filepath.Join(dir, "registries", registryName, "hosts.toml"):  fmt.Sprintf("server = %q\n", "http://"+registryAddress),
		filepath.Join(dir, "cni/10-pods.conflist"):                    encode(cniConfig(n)),
		filepath.Join(dir, "kubelet.yaml"):                            encode(kubeletConfig(c, n)),
		filepath.Join(dir, "lib/kubelet/seccomp", seccompProfileName): encode(seccompProfile()),
	}
	return spec
}

// spec completes the processes of a machine with their logs and the paths of their binaries in the cache. The paths
// show whether a machine runs old binaries.
func (c cluster) spec(name string, processes []process) machineSpec {
	for i, p := range processes {
		binary := filepath.Join(c.tools().bin(), cmp.Or(p.Program, p.Name))
		if resolved, err := filepath.EvalSymlinks(binary); err == nil {
			binary = resolved
		}
		processes[i].Binary, processes[i].Log = binary, c.log(name, p.Name)
	}
	dir := c.machineDir(name)
	return machineSpec{
		Name:      name,
		Path:      c.tools().bin() + ":" + systemPath,
		Own:       map[string]string{"/var/lib": filepath.Join(dir, "lib"), "/var/log": filepath.Join(dir, "log")},
		Processes: processes,
	}
}
