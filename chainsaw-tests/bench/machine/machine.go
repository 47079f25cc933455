// Package machine tells what a benchmark ran on.
package machine

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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
	code, err := builtFrom(ctx, ".")
	if err != nil {
		return figures.Machine{}, nil, err
	}
	info := list.Items[0].Status.NodeInfo
	_, kyvernoVersion, _ := strings.Cut(kyverno.Spec.Template.Spec.Containers[0].Image, ":")
	memory := list.Items[0].Status.Capacity[corev1.ResourceMemory]
	return figures.Machine{
			CPU: processor(), CPUs: runtime.NumCPU(), MemoryGiB: int(memory.Value() >> 30),
			Kernel: info.KernelVersion, System: info.OSImage, Nodes: len(list.Items),
		}, map[string]string{
			"statefulsingleton": commit(ctx), "code": code, "kubernetes": info.KubeletVersion,
			"containerd": strings.TrimPrefix(info.ContainerRuntimeVersion, "containerd://"), "kyverno": kyvernoVersion, "go": runtime.Version(),
		}, nil
}

// commit names the one that is checked out.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown, no git checkout"
	}
	return strings.TrimSpace(string(out))
}

// builtFrom is a checksum of all source files of the controller and the gate. Figures are comparable if it is the same.
func builtFrom(ctx context.Context, checkout string) (string, error) {
	const format = `{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range $.EmbedFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{else}}{{.Path}}@{{.Version}}{{end}}{{end}}`
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-f", format, "./controller/cmd/manager", "./controller/cmd/gate")
	list.Dir = checkout
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("list what the controller and the gate are built from: %w", err)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	sum := sha256.New()
	for _, line := range slices.Compact(lines) {
		content := []byte(line)
		if filepath.IsAbs(line) {
			if content, err = os.ReadFile(line); err != nil {
				return "", err
			}
			_, _ = fmt.Fprintf(sum, "%s %d\n", filepath.Base(line), len(content))
		}
		_, _ = sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
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
