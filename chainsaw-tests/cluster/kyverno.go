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

// kyvernoValues leave the admission controller only. What is switched off besides would need images that are not
// built here, or serves what is off.
var kyvernoValues = []string{
	"backgroundController.enabled=false",
	"cleanupController.enabled=false",
	"reportsController.enabled=false",
	"admissionController.replicas=1",
	"crds.migration.enabled=false",
	"webhooksCleanup.enabled=false",
	"policyReportsCleanup.enabled=false",
	"features.admissionReports.enabled=false",
}

// installKyverno is idempotent: a release that is there is left as it is.
func (c cluster) installKyverno(ctx context.Context) error {
	status, err := c.run(ctx, "helm", "list", "--namespace", kyvernoNamespace, "--deployed", "--short", "--filter", "^kyverno$")
	if err == nil && status == "kyverno" {
		return nil
	}
	// not --wait: the nodes may not be there yet
	_, err = c.run(ctx, "helm", "upgrade", "--install", "kyverno", c.tools().kyvernoChart(),
		"--namespace", kyvernoNamespace, "--create-namespace", "--set", strings.Join(kyvernoValues, ","))
	return err
}

// kyvernoReady says why Kyverno does not serve, nil if it does.
func (c cluster) kyvernoReady(ctx context.Context) error {
	ready, err := c.run(ctx, "kubectl", "--namespace", kyvernoNamespace, "get", "deployment", kyvernoDeployment,
		"--ignore-not-found", "--output", "jsonpath={.status.readyReplicas}/{.status.updatedReplicas}")
	switch {
	case err != nil:
		return err
	case ready == "":
		return errors.New("Kyverno is not installed")
	case ready != "1/1":
		return fmt.Errorf("Kyverno has %s replicas ready", ready)
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
