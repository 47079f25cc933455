// Command demo rolls out a singleton, and prints the events of the handoff when they happen.
package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

//go:embed app.yaml
var manifest string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context) error {
	heading("Create a Deployment with one replica, and its StatefulSingleton")
	if err := create(ctx); err != nil {
		return err
	}
	heading("kubectl rollout restart deployment/demo")
	if err := rollOver(ctx); err != nil {
		return err
	}
	heading("The gap of each handoff by the application's log on its volume: from the end of the old process to the start of the next")
	if err := kubectl(ctx, "exec", "deployment/demo", "-c", "app", "--", "/app", "check", "/data", "--min-handoffs", "1").Run(); err != nil {
		return fmt.Errorf("check the application's log: %w", err)
	}
	heading("Next steps")
	fmt.Print(`  bin/cluster exec -- kubectl get stfs -n demo -o wide     show the singleton
  bin/cluster exec -- kubectl describe stfs -n demo demo   show its events and conditions
  bin/cluster exec -- kubectl get pod -n demo -o yaml      show what the policy injected
  bin/cluster exec -- kubectl get clusterpolicies          show the policy that holds the pods
  bin/cluster exec -- kubectl rollout restart -n demo deployment/demo
                                                           start another rollout; follow it with: kubectl get stfs -n demo -w
  make down                                                remove the cluster
`)
	return nil
}

// create creates the application, and waits until its first pod is active. The journal's directory has the uid of the namespace, because
// the journal of an earlier cluster must not be reused.
func create(ctx context.Context) error {
	namespace := kubectl(ctx, "apply", "-o", "jsonpath={.metadata.uid}", "-f", "-")
	namespace.Stdin = strings.NewReader(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}`)
	namespace.Stdout = nil
	uid, err := namespace.Output()
	if err != nil {
		return fmt.Errorf("create namespace demo: %w", err)
	}
	application := kubectl(ctx, "apply", "-f", "-")
	application.Stdin = strings.NewReader(strings.ReplaceAll(manifest, "DIRECTORY", "/tmp/statefulsingleton-demo/"+string(uid)))
	if err := application.Run(); err != nil {
		return fmt.Errorf("create the application: %w", err)
	}
	if err := kubectl(ctx, "wait", "stfs/demo", "--for=jsonpath={.status.phase}=Running", "--timeout=2m").Run(); err != nil {
		return fmt.Errorf("wait for the first pod: %w", err)
	}
	return nil
}

// rollOver restarts the Deployment, and prints the events of its StatefulSingleton until the handoff is complete.
func rollOver(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	watch := kubectl(ctx, "get", "events", "--watch-only", "--field-selector", "involvedObject.kind=StatefulSingleton",
		"-o", "custom-columns=TIME:.metadata.creationTimestamp,REASON:.reason,MESSAGE:.message")
	watch.Stdout = nil
	events, err := watch.StdoutPipe()
	if err != nil {
		return err
	}
	if err := errors.Join(watch.Start(), kubectl(ctx, "rollout", "restart", "deployment/demo").Run()); err != nil {
		return fmt.Errorf("roll out: %w", err)
	}
	for lines := bufio.NewScanner(events); lines.Scan(); {
		fmt.Println(lines.Text())
		if strings.Contains(lines.Text(), "HandoffCompleted") {
			stop()
		}
	}
	_ = watch.Wait() // stopped
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("the handoff took more than two minutes: see `kubectl describe stfs -n demo demo`")
	}
	return nil
}

func heading(text string) { fmt.Printf("\n== %s\n", text) }

// kubectl returns a command in the namespace of the demo, which shows its output.
func kubectl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--namespace", "demo"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}
