package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// benchLabel marks the nodes and namespaces that the benchmark creates.
	benchLabel = "apps.statefulsingleton.com/bench"
	benchName  = "scale"
	selector   = benchLabel + "=" + benchName
	// podsOnNode leaves room on each node for the additional pods of handoffs.
	podsOnNode = 50
)

//go:embed kwok.yaml
var kwokConfig []byte

var ours = map[string]string{benchLabel: benchName}

// startKwok starts kwok, which ends together with this process.
func startKwok(directory string) (stop func(), err error) {
	config := filepath.Join(directory, "kwok.yaml")
	if err := os.WriteFile(config, kwokConfig, 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(directory, "kwok.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("kwok", "--config", config, "--kubeconfig", os.Getenv("KUBECONFIG"))
	cmd.Stdout, cmd.Stderr = log, log
	// Setpgid keeps kwok alive after Ctrl-C, while the objects are removed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kwok, whose directory `cluster tools kwok` prints and `make bench-scale` adds to PATH: %w", err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}, nil
}

// addNodes creates nodes that only the benchmark's pods tolerate, and waits until kwok manages them.
func (r *run) addNodes(ctx context.Context) error {
	for n := range r.singletons[len(r.singletons)-1]/podsOnNode + 2 {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kwok-%d", n), Labels: ours},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: benchLabel, Value: benchName, Effect: corev1.TaintEffectNoSchedule}}},
		}
		if err := r.Create(ctx, node); err != nil {
			return err
		}
	}
	_, err := r.Kubectl(ctx, "wait", "nodes", "--selector", selector, "--for=condition=Ready", "--timeout=3m")
	return err
}
