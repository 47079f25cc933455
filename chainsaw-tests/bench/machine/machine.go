// Package machine tells what a benchmark ran on.
package machine

import (
	"bufio"
	"cmp"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/bench/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/faults/world"
)

// Describe tells of the machine and the cluster's nodes, and of the versions by what
// they are of.
func Describe(ctx context.Context, w *world.World) (figures.Machine, map[string]string, error) {
	var list corev1.NodeList
	if err := w.List(ctx, &list); err != nil {
		return figures.Machine{}, nil, err
	}
	kyverno := &appsv1.Deployment{}
	if err := w.Get(ctx, types.NamespacedName{Namespace: "kyverno", Name: "kyverno-admission-controller"}, kyverno); err != nil {
		return figures.Machine{}, nil, err
	}
	info := list.Items[0].Status.NodeInfo
	_, kyvernoVersion, _ := strings.Cut(kyverno.Spec.Template.Spec.Containers[0].Image, ":")
	memory := list.Items[0].Status.Capacity[corev1.ResourceMemory]
	return figures.Machine{
			CPU: processor(), CPUs: runtime.NumCPU(), MemoryGiB: int(memory.Value() >> 30),
			Kernel: info.KernelVersion, System: info.OSImage, Nodes: len(list.Items),
		}, map[string]string{
			"statefulsingleton": git(ctx, "describe", "--always", "--dirty"), "kubernetes": info.KubeletVersion,
			"controller": git(ctx, "rev-parse", "--short", "HEAD:controller"), "policies": git(ctx, "rev-parse", "--short", "HEAD:policies"),
			"containerd": strings.TrimPrefix(info.ContainerRuntimeVersion, "containerd://"), "kyverno": kyvernoVersion, "go": runtime.Version(),
		}, nil
}

// git tells of the checkout that is run.
func git(ctx context.Context, args ...string) string {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return "unknown, no git checkout"
	}
	return strings.TrimSpace(string(out))
}

// processor is the name that the kernel tells.
func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "model name" {
			return cmp.Or(strings.TrimSpace(value), runtime.GOARCH)
		}
	}
	return runtime.GOARCH
}
