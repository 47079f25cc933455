package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/bench/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/faults/world"
)

// describe tells what the run is of, and on what.
func describe(ctx context.Context, w *world.World) (*figures.Results, error) {
	var list corev1.NodeList
	if err := w.List(ctx, &list); err != nil {
		return nil, err
	}
	kyverno := &appsv1.Deployment{}
	if err := w.Get(ctx, types.NamespacedName{Namespace: "kyverno", Name: "kyverno-admission-controller"}, kyverno); err != nil {
		return nil, err
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = []byte("unknown, no git checkout")
	}
	info := list.Items[0].Status.NodeInfo
	_, kyvernoVersion, _ := strings.Cut(kyverno.Spec.Template.Spec.Containers[0].Image, ":")
	memory := list.Items[0].Status.Capacity[corev1.ResourceMemory]
	return &figures.Results{
		Date: time.Now().UTC().Truncate(time.Second),
		Machine: figures.Machine{
			CPU: processor(), CPUs: runtime.NumCPU(), MemoryGiB: int(memory.Value() >> 30),
			Kernel: info.KernelVersion, System: info.OSImage, Nodes: len(list.Items),
		},
		Versions: map[string]string{
			"statefulsingleton": strings.TrimSpace(string(commit)), "kubernetes": info.KubeletVersion,
			"containerd": strings.TrimPrefix(info.ContainerRuntimeVersion, "containerd://"), "kyverno": kyvernoVersion, "go": runtime.Version(),
		},
	}, nil
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

// print shows the figures on the terminal.
func (r *run) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells ...any) {
		for _, cell := range cells {
			_, _ = fmt.Fprintf(table, "%v\t", cell)
		}
		_, _ = fmt.Fprintln(table)
	}
	triple := func(d figures.Distribution) string { return fmt.Sprintf("%d %d %d", d.P50, d.P95, d.Max) }
	line("\nmilliseconds: p50 p95 max", "cause", "condition", "n", "failed", "gap", "downtime", "ready", "overlaps", "to Recreate")
	for _, row := range r.results.Rows {
		line(row.System, row.Cause, row.Condition, row.N, len(row.Failed), triple(row.GapMS), triple(row.DowntimeMS), triple(row.ReadyMS),
			row.Overlaps, figures.Ratio(row.RatioToRecreate))
	}
	line()
	for _, row := range r.results.Rows {
		for _, leg := range row.Legs {
			line(row.System, row.Cause, row.Condition, leg.From+" to "+leg.To, triple(leg.Distribution))
		}
	}
	_ = table.Flush()
}
