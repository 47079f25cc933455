package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	kyvernoNamespace  = "kyverno"
	kyvernoDeployment = "kyverno-admission-controller"
	kyvernoTimeout    = 3 * time.Minute
)

// kyvernoValues enable only the admission controller. The other parts would need images that are not built here.
var kyvernoValues = []string{
	"backgroundController.enabled=false",
	"cleanupController.enabled=false",
	"reportsController.enabled=false",
	"crds.migration.enabled=false",
	"webhooksCleanup.enabled=false",
	"policyReportsCleanup.enabled=false",
	"features.admissionReports.enabled=false",
}

// installKyverno does not change a working Kyverno. It does not wait for the pod, because the nodes may not exist yet.
func (c cluster) installKyverno(ctx context.Context) error {
	if c.kyvernoReady(ctx) == nil {
		return nil
	}
	halfway, err := c.run(ctx, "helm", "list", "--namespace", kyvernoNamespace, "--pending", "--short")
	if err != nil {
		return err
	}
	if halfway != "" {
		// Helm considers an interrupted installation as still in progress.
		if _, err := c.run(ctx, "helm", "uninstall", "kyverno", "--namespace", kyvernoNamespace, "--no-hooks"); err != nil {
			return err
		}
	}
	// This restores the values of a Kyverno that was scaled down or changed by hand.
	_, err = c.run(ctx, "helm", "upgrade", "--install", "kyverno", c.tools().kyvernoChart(), "--force-conflicts",
		"--namespace", kyvernoNamespace, "--create-namespace", "--set", strings.Join(kyvernoValues, ","),
		"--set", fmt.Sprintf("admissionController.replicas=%d", c.kyvernoReplicas()))
	return err
}

// kyvernoReplicas returns the number of replicas of Kyverno: two beside several API servers, as in production.
func (c cluster) kyvernoReplicas() int { return min(c.apiServers(), 2) }

// kyvernoReady returns an error if Kyverno does not serve.
func (c cluster) kyvernoReady(ctx context.Context) error {
	ready, err := c.run(ctx, "kubectl", "--namespace", kyvernoNamespace, "get", "deployment", kyvernoDeployment,
		"--ignore-not-found", "--output", "jsonpath={.status.readyReplicas}/{.status.updatedReplicas}")
	switch {
	case err != nil:
		return err
	case ready == "":
		return errors.New("Kyverno is not installed")
	case ready != fmt.Sprintf("%[1]d/%[1]d", c.kyvernoReplicas()):
		return errors.New("Kyverno's admission controller is not Ready")
	}
	return nil
}

func (c cluster) awaitKyverno(ctx context.Context) error {
	err := poll(ctx, kyvernoTimeout, 500*time.Millisecond, func() error { return c.kyvernoReady(ctx) })
	if err == nil {
		return nil
	}
	pods, _ := c.run(ctx, "kubectl", "--namespace", kyvernoNamespace, "get", "pods,events")
	return fmt.Errorf("%w after %s\n%s\nIts log: cluster exec -- kubectl -n %s logs deployment/%s\nThe nodes' logs: %s",
		err, kyvernoTimeout, pods, kyvernoNamespace, kyvernoDeployment, c.logs())
}
