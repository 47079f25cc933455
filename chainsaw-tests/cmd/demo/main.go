// Command demo rolls out a singleton, and prints each step of the handoff when it happens.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

//go:embed app.yaml
var manifest string

const (
	namespace = "demo"
	name      = "demo"
	// patience is the timeout of one handoff.
	patience = 2 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context) error {
	c, err := world.Client()
	if err != nil {
		return err
	}
	directory, err := dataDirectory(ctx, c)
	if err != nil {
		return err
	}
	heading("Create a Deployment with one replica, and its StatefulSingleton")
	if err := kubectl(ctx, strings.ReplaceAll(manifest, "DIRECTORY", directory), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := kubectl(ctx, "", "wait", "stfs/"+name, "--for=jsonpath={.status.phase}=Running", "--timeout=2m"); err != nil {
		return err
	}
	if err := rollOver(ctx, c); err != nil {
		return err
	}
	heading("The gap of each handoff by the application's log on its volume: from the end of the old process to the start of the next")
	if err := kubectl(ctx, "", "exec", "deployment/"+name, "-c", "app", "--", "/app", "check", "/data"); err != nil {
		return err
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

// dataDirectory creates the namespace of the demo and returns a new directory for its journal. A journal of an earlier
// cluster must not be reused.
func dataDirectory(ctx context.Context, c client.Client) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	err := c.Create(ctx, ns)
	if apierrors.IsAlreadyExists(err) {
		err = c.Get(ctx, client.ObjectKeyFromObject(ns), ns)
	}
	if err != nil {
		return "", fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	return "/tmp/statefulsingleton-demo/" + string(ns.UID), nil
}

// rollOver restarts the Deployment and prints each step until the handoff is complete.
func rollOver(ctx context.Context, c client.WithWatch) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := watchEvents(ctx, c)
	if err != nil {
		return err
	}
	heading("kubectl rollout restart deployment/%s", name)
	s.begin(time.Now())
	if err := exec.CommandContext(ctx, "kubectl", "rollout", "restart", "-n", namespace, "deployment/"+name).Run(); err != nil {
		return fmt.Errorf("restart deployment %s: %w", name, err)
	}
	return s.tell(ctx)
}

func heading(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }

// kubectl runs kubectl in the namespace of the demo, and shows its output.
func kubectl(ctx context.Context, input string, args ...string) error {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"-n", namespace}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %v: %w", args, err)
	}
	return nil
}
