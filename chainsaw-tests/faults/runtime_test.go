//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// containerd loses the running containers of the holder, as in a replacement of the runtime without a drain. The
// kubelet cannot locate them, kills all processes in the cgroup of the pod, and reports ContainerStatusUnknown. The
// next pod starts afterwards.
func TestContainerdForgets(t *testing.T) {
	alone(t)
	node, cordon := victim(t)
	old := snapshotContainerd(t, node)
	s, pod := on(t, node, world.Options{})
	cordon()
	t.Cleanup(func() { _ = w.Cluster(context.Background(), "process", "continue", "kubelet", "--on", node) })
	cluster(t, "process", "stop", "kubelet", "--on", node) // otherwise it starts the containers a second time
	old.restore(t)
	deletePod(t, pod, nil)
	if _, err := world.Process(pod, "/app"); err != nil {
		t.Fatalf("the application has to run on without a runtime: %v", err)
	}
	reports, err := w.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name})
	must(t, err)
	defer reports.Stop()
	cluster(t, "process", "kill", "kubelet", "--on", node)
	last := lastReport(t, reports)
	if pid, err := world.Process(pod, "/app"); err == nil {
		t.Errorf("process %d runs after the kubelet's last report", pid)
	}
	if last.State.Terminated.Reason != "ContainerStatusUnknown" || last.ContainerID != "" {
		t.Errorf("the kubelet's last report is %+v, want ContainerStatusUnknown without a container ID", last)
	}
	wantHandedOver(t, s, 2, v1.CauseDeletion, v1.ProofKubeletReported)
}

// lastReport waits for the report that the pod's only container has terminated.
func lastReport(t *testing.T, reports watch.Interface) corev1.ContainerStatus {
	t.Helper()
	deadline := time.After(world.Patience)
	for {
		select {
		case e := <-reports.ResultChan():
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("the watch ended: %v", e)
			}
			if status := pod.Status.ContainerStatuses; status[0].State.Terminated != nil {
				return status[0]
			}
		case <-deadline:
			t.Fatalf("gave up after %s: the kubelet did not report an end", world.Patience)
		}
	}
}

// containerdState is the state of containerd on a node at one time.
type containerdState struct {
	node string
	// database is a copy of the metadata of all containers and images.
	database string
	// tasks are the names of the directories of the running containers.
	tasks []string
}

const (
	containerdDatabase = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"
	containerdTasks    = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
)

// snapshotContainerd copies the state while containerd is suspended.
func snapshotContainerd(t *testing.T, node string) containerdState {
	t.Helper()
	cluster(t, "process", "stop", "containerd", "--on", node)
	defer cluster(t, "process", "continue", "containerd", "--on", node)
	root := containerdRoot(t, node)
	s := containerdState{node: node, database: filepath.Join(t.TempDir(), "meta.db"), tasks: tasks(t, root)}
	copyFile(t, filepath.Join(root, containerdDatabase), s.database)
	return s
}

// restore starts containerd with the state. Containers that started later continue to run.
func (s containerdState) restore(t *testing.T) {
	t.Helper()
	cluster(t, "process", "stop", "containerd", "--on", s.node)
	root := containerdRoot(t, s.node)
	copyFile(t, s.database, filepath.Join(root, containerdDatabase))
	for _, task := range tasks(t, root) {
		if !slices.Contains(s.tasks, task) { // containerd stops tasks that it finds here and does not know
			must(t, os.Rename(filepath.Join(root, containerdTasks, task), filepath.Join(root, "run", "forgotten-"+task)))
		}
	}
	cluster(t, "process", "kill", "containerd", "--on", s.node)
}

func tasks(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, containerdTasks))
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o644))
}

// containerdRoot returns the root directory of the node's containerd on the machine.
func containerdRoot(t *testing.T, node string) string {
	t.Helper()
	processes, err := procfs.AllProcs()
	must(t, err)
	for _, p := range processes {
		line, _ := p.CmdLine() // the process may have ended
		if len(line) == 2 && filepath.Base(line[0]) == "containerd" && strings.HasSuffix(line[1], filepath.Join("/machines", node, "containerd.toml")) {
			return fmt.Sprintf("/proc/%d/root", p.PID)
		}
	}
	must(t, errors.New("no containerd of "+node+" runs"))
	return ""
}
