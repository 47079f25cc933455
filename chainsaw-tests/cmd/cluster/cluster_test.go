//go:build cluster

// The whole life of a cluster, as a person at a shell sees it: go -C chainsaw-tests test -tags cluster ./cmd/cluster
package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

const testImage = "registry.local/cluster-test:1"

// lab is a cluster with a name of its own, which the test controls with the program.
type lab struct {
	cluster
	program string
}

func newLab(t *testing.T) lab {
	t.Helper()
	c, err := openCluster("cluster-test")
	must(t, err)
	l := lab{cluster: c, program: filepath.Join(t.TempDir(), "cluster")}
	if out, err := exec.Command("go", "build", "-o", l.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	l.must(t, "down") // of a test that was killed
	t.Cleanup(func() { _, _ = l.try("down") })
	return l
}

func (l lab) try(args ...string) (string, error) {
	cmd := exec.Command(l.program, append([]string{"--name", l.name}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("cluster %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String() + stderr.String(), nil
}

func (l lab) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (l lab) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return l.must(t, append([]string{"exec", "--", "kubectl"}, args...)...)
}

func (l lab) pid(t *testing.T, machine string) int {
	t.Helper()
	pid, err := l.runningPID(machine)
	must(t, err)
	return pid
}

// wantBridgeMAC checks that the other nodes can still send to the control plane.
func (l lab) wantBridgeMAC(t *testing.T) {
	t.Helper()
	h, err := networkOf(l.pid(t, controlMachine))
	must(t, err)
	defer h.close()
	bridge, err := h.LinkByName(bridgeName)
	must(t, err)
	if is := bridge.Attrs().HardwareAddr; !bytes.Equal(is, bridgeMAC) {
		t.Errorf("the bridge has the address %s, want %s", is, bridgeMAC)
	}
}

// child returns the process id of a program of a machine.
func (l lab) child(t *testing.T, machine, program string) int {
	t.Helper()
	running := runningChildren(l.pid(t, machine))
	if running[program] == 0 {
		t.Fatalf("find %s of %s: %v", program, machine, running)
	}
	return running[program]
}

// wantFault checks that status reports the fault.
func (l lab) wantFault(t *testing.T, want string) {
	t.Helper()
	_, err := l.try("status")
	wantError(t, err, want)
}

func (l lab) wantReady(t *testing.T, nodes ...string) {
	t.Helper()
	got := l.kubectl(t, "get", "nodes", "--output",
		`jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`)
	var want []string
	for _, n := range nodes {
		want = append(want, n+"=True")
	}
	if diff := cmp.Diff(want, strings.Fields(got)); diff != "" {
		t.Fatalf("nodes (-want +got):\n%s", diff)
	}
}

func TestLifeOfACluster(t *testing.T) {
	interfaces := hostInterfaces(t)
	t.Setenv(apiServersVariable, "")
	l := newLab(t)
	l.must(t, "up")
	l.wantReady(t, "node1", "node2")
	l.kubectl(t, "--namespace", kyvernoNamespace, "rollout", "status", "deployment", kyvernoDeployment, "--timeout=1s")

	t.Run("up again changes nothing", func(t *testing.T) { upAgain(t, l) })
	t.Run("exec passes the exit code through", func(t *testing.T) { execPasses(t, l) })
	t.Run("an image is loaded", func(t *testing.T) { loadImage(t, l) })
	t.Run("an image is unloaded", func(t *testing.T) { unloadImage(t, l) })
	for name, damage := range map[string]func(t *testing.T){
		"a killed API server": func(t *testing.T) { kill(t, l.child(t, controlMachine, "kube-apiserver")) },
		"a killed containerd": func(t *testing.T) { kill(t, l.child(t, "node1", "containerd")) },
		"a killed control plane": func(t *testing.T) {
			kill(t, l.pid(t, controlMachine))
			l.wantFault(t, "control does not run")
		},
		"Kyverno scaled to zero": func(t *testing.T) {
			l.kubectl(t, "--namespace", kyvernoNamespace, "scale", "deployment", kyvernoDeployment, "--replicas=0")
		},
		"a kubelet stopped, continued and killed": func(t *testing.T) { signalKubelet(t, l) },
	} {
		t.Run(name, func(t *testing.T) { repaired(t, l, func() { damage(t) }) })
	}
	t.Run("a node cut off and healed", func(t *testing.T) { partition(t, l) })
	t.Run("a node killed and healed", func(t *testing.T) { powerCut(t, l) })
	t.Run("down leaves nothing", func(t *testing.T) { downLeavesNothing(t, l, interfaces) })
}

func upAgain(t *testing.T, l lab) {
	before := l.machinePIDs()
	start := time.Now()
	if out := l.must(t, "up"); !strings.Contains(out, "running already") {
		t.Errorf("up says:\n%s", out)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	if diff := cmp.Diff(before, l.machinePIDs()); diff != "" {
		t.Errorf("machines (-before +after):\n%s", diff)
	}
}

func execPasses(t *testing.T, l lab) {
	_, err := l.try("exec", "--", "sh", "-c", `test "$(which kubectl)" = "$1"; exit 7`, "-", filepath.Join(l.tools().bin(), "kubectl"))
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		t.Errorf("error %v, want exit code 7", err)
	}
	l.must(t, "exec", "--", "helm", "status", "kyverno", "--namespace", kyvernoNamespace)
}

// loadPause writes and loads an image with the program pause at the path.
func (l lab) loadPause(t *testing.T, ref, path string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "test.tar")
	must(t, image.Write(archive, image.Spec{
		Ref:        ref,
		Files:      map[string]string{path: filepath.Join(l.tools().bin(), "pause")},
		Entrypoint: []string{path},
	}))
	l.must(t, "load", archive)
}

// loadImage runs a pod of the image on every node.
func loadImage(t *testing.T, l lab) {
	l.loadPause(t, testImage, "/pause")
	dir := t.TempDir()
	write(t, dir, "daemonset.yaml", `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: test, image: "`+testImage+`"}]
`)
	l.kubectl(t, "apply", "--filename", dir)
	l.kubectl(t, "rollout", "status", "daemonset/everywhere", "--timeout=60s")
}

// unloadImage removes an image from one node. The other node keeps it.
func unloadImage(t *testing.T, l lab) {
	const ref = "registry.local/cluster-test-unload:1"
	l.loadPause(t, ref, "/unload")
	l.must(t, "unload", ref, "--on", "1")
	for node, want := range map[string]bool{"node1": false, "node2": true} {
		out, err := l.ctr(t.Context(), l.pid(t, node), "images", "list", "--quiet")
		if err != nil || strings.Contains(out, ref) != want {
			t.Errorf("images of %s, want %s there: %t; error %v\n%s", node, ref, want, err, out)
		}
	}
	l.must(t, "unload", ref, "--on", "1") // it does not exist there
}

// repaired causes damage, and checks that `up` repairs it.
func repaired(t *testing.T, l lab, damage func()) {
	damage()
	l.must(t, "up")
	l.must(t, "status")
	l.wantReady(t, "node1", "node2")
}

func signalKubelet(t *testing.T, l lab) {
	kubelet := l.child(t, "node2", "kubelet")
	other := l.child(t, "node1", "kubelet")
	l.must(t, "process", "stop", "kubelet", "--on", "2")
	if state := stat(kubelet).State; state != "T" {
		t.Errorf("the kubelet's state is %q, want it stopped", state)
	}
	l.must(t, "process", "continue", "kubelet", "--on", "2")
	if state := stat(kubelet).State; state == "T" {
		t.Errorf("the kubelet's state is %q, want it to go on", state)
	}
	l.must(t, "process", "kill", "kubelet", "--on", "2")
	if !dead(kubelet) {
		t.Error("the kubelet lives on")
	}
	if after := l.child(t, "node1", "kubelet"); after != other {
		t.Error("another node's kubelet was killed")
	}
	_, err := l.try("process", "kill", "nosuch")
	wantError(t, err, `no process "nosuch" runs`)
}

func partition(t *testing.T, l lab) {
	kubelet := l.child(t, "node2", "kubelet")
	asks := []string{"exec", "--", "kubectl", "get", "--raw", "/api/v1/nodes/node2/proxy/healthz", "--request-timeout=3s"}
	l.must(t, asks...)
	l.must(t, "node", "partition", "2")
	if out, err := l.try(asks...); err == nil {
		t.Errorf("the kubelet of a node that is cut off answers: %s", out)
	}
	l.wantFault(t, "cut off")
	l.must(t, "node", "heal", "2")
	l.must(t, asks...)
	if after := l.child(t, "node2", "kubelet"); after != kubelet {
		t.Errorf("the kubelet was process %d and is %d: a partition ends no process", kubelet, after)
	}
	l.wantReady(t, "node1", "node2")
}

func powerCut(t *testing.T, l lab) {
	before := descendants(l.pid(t, "node2"))
	if !slices.ContainsFunc(before, func(p runningProcess) bool { return p.name == "pause" }) {
		t.Fatalf("no container among the node's processes: %v", before)
	}
	l.must(t, "node", "kill", "2")
	wantGone(t, before)
	l.wantNoCgroup(t, "node2")
	l.wantBridgeMAC(t)
	l.must(t, "node", "heal", "2")
	l.wantBridgeMAC(t)
	l.wantReady(t, "node1", "node2")
	// As after a power failure, the kubelet finds dead containers and starts them again.
	l.kubectl(t, "wait", "pod", "--selector=app=everywhere", "--field-selector=spec.nodeName=node2",
		"--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=60s")
}

func downLeavesNothing(t *testing.T, l lab, interfaces []string) {
	var owned []runningProcess
	for _, machine := range []string{controlMachine, "node1", "node2"} {
		owned = append(owned, descendants(l.pid(t, machine))...)
	}
	visitor := exec.Command(l.program, "--name", l.name, "exec", "--", "sleep", "600")
	must(t, visitor.Start())
	ended := make(chan error, 1)
	go func() { ended <- visitor.Wait() }()
	unrelated := exec.Command("sleep", "600")
	must(t, unrelated.Start())
	defer func() { _ = unrelated.Process.Kill(); _ = unrelated.Wait() }()
	awaitVisitor(t, l, visitor.Process.Pid)

	l.must(t, "down")
	wantGone(t, owned)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("what exec started runs on, and with it the network namespace")
	}
	if dead(unrelated.Process.Pid) {
		t.Error("a process that is none of the cluster's was ended")
	}
	l.wantNoCgroup(t, "")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(mounts), l.dir) {
		t.Errorf("mounts are left:\n%s", mounts)
	}
	if diff := cmp.Diff(interfaces, hostInterfaces(t)); diff != "" {
		t.Errorf("network interfaces (-before +after):\n%s", diff)
	}
	if exists(l.dir) {
		t.Errorf("%s is left", l.dir)
	}
	l.must(t, "down")
	l.wantFault(t, "there is no cluster")
}

// awaitVisitor waits until exec has started the command.
func awaitVisitor(t *testing.T, l lab, pid int) {
	t.Helper()
	visitor, err := procfs.NewProc(pid)
	must(t, err)
	must(t, poll(t.Context(), 10*time.Second, 10*time.Millisecond, func() error {
		if args := arguments(visitor); len(args) == 0 || args[0] != "sleep" || !l.isVisitor(visitor) {
			return fmt.Errorf("process %d is %v", pid, args)
		}
		return nil
	}))
}

func (l lab) wantNoCgroup(t *testing.T, machine string) {
	t.Helper()
	for _, pattern := range []string{filepath.Join("*", l.cgroup(machine)), l.cgroup(machine)} {
		if left, err := filepath.Glob(filepath.Join(cgroupMount, pattern)); err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %v, error %v", left, err)
		}
	}
}

// runningProcess is a process with its start time, because process ids are reused.
type runningProcess struct {
	pid       int
	name      string
	namespace [3]string
}

// descendants returns a process and all its descendants. For the first process of a namespace, they are all processes
// of the namespace.
func descendants(ancestor int) (found []runningProcess) {
	for _, p := range processes() {
		if p.PID == ancestor || slices.Contains(ancestors(p.PID), ancestor) {
			found = append(found, runningProcess{p.PID, stat(p.PID).Comm, namespaces(p.PID)})
		}
	}
	return found
}

func namespaces(pid int) (names [3]string) {
	for i, kind := range []string{"mnt", "pid", "net"} {
		names[i], _ = os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", kind))
	}
	return names
}

// wantGone checks that the processes have ended, and that no process is left in their namespaces.
func wantGone(t *testing.T, ended []runningProcess) {
	t.Helper()
	own := namespaces(os.Getpid())
	for _, left := range processes() {
		if dead(left.PID) {
			continue
		}
		now := namespaces(left.PID)
		for i := range now {
			in := func(p runningProcess) bool { return now[i] == p.namespace[i] }
			if now[i] != "" && now[i] != own[i] && slices.ContainsFunc(ended, in) {
				t.Errorf("process %d (%s) is left in a namespace of the cluster's", left.PID, stat(left.PID).Comm)
				break
			}
		}
	}
}

// dead returns true if the process has ended, or only waits for its parent to read the exit code.
func dead(pid int) bool {
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	return err != nil || len(threads) == 1 && stat(pid).State == "Z"
}

func hostInterfaces(t *testing.T) []string {
	t.Helper()
	interfaces, err := net.Interfaces()
	must(t, err)
	var names []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	return names
}

func kill(t *testing.T, pid int) {
	t.Helper()
	must(t, killAndWait(t.Context(), pid))
}
