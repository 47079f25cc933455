package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// useCurrent returns whether the environment variable CLUSTER selects the cluster of the current kubeconfig.
func useCurrent() (bool, error) {
	choice := os.Getenv("CLUSTER")
	if choice != "" && choice != "current" {
		return false, fmt.Errorf("CLUSTER=%s: write CLUSTER=current for the cluster of the current kubeconfig, or unset it to use a local cluster", choice)
	}
	return choice == "current", nil
}

// findCachedTools appends the cached tools to PATH if they were built. Another cluster may need only kubectl, and
// Kubernetes is not built for it.
func findCachedTools() error {
	if _, err := findSource(); err != nil {
		return nil // outside of a checkout, the caller's PATH is enough
	}
	source, err := openTools("")
	if err != nil {
		return err
	}
	return os.Setenv("PATH", os.Getenv("PATH")+":"+source.tools.bin())
}

// checkCurrent returns an error if the tests cannot use the cluster of the current kubeconfig.
func checkCurrent(ctx context.Context) error {
	kubectl := func(args ...string) (string, error) { return output(exec.CommandContext(ctx, "kubectl", args...)) }
	name, err := kubectl("config", "current-context")
	if err != nil {
		return fmt.Errorf("CLUSTER=current, but there is no current context: set KUBECONFIG, or run `kubectl config use-context NAME`: %w", err)
	}
	if _, err := kubectl("get", "--raw", "/readyz", "--request-timeout=10s"); err != nil {
		return fmt.Errorf("the cluster of the context %s does not answer: %w", name, err)
	}
	if _, err := kubectl("get", "crd", "clusterpolicies.kyverno.io"); err != nil {
		return fmt.Errorf("the cluster of the context %s has no Kyverno: install it (https://kyverno.io/docs/installation), 1.19: %w", name, err)
	}
	ready, err := kubectl("get", "deployments", "--all-namespaces",
		"--selector", "app.kubernetes.io/part-of=kyverno,app.kubernetes.io/component=admission-controller",
		"--output", "jsonpath={.items[*].status.readyReplicas}")
	if err != nil {
		return err
	}
	if ready == "" {
		return errors.New("Kyverno's admission controller is not Ready in the cluster of the context " + name + ": see `kubectl get pods -A -l app.kubernetes.io/part-of=kyverno`")
	}
	progress("the cluster of the context %s answers, and Kyverno is Ready", name)
	return nil
}
