package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	controlTimeout = 90 * time.Second
	nodeTimeout    = 2 * time.Minute
)

// up starts or repairs the whole cluster from any state.
func (c cluster) up(ctx context.Context, t tools, apiServers int) error {
	start := time.Now()
	existed := c.exists()
	if err := errors.Join(c.useTools(t), c.useAPIServers(apiServers)); err != nil {
		return err
	}
	if existed {
		faults := c.faults(ctx)
		if len(faults) == 0 {
			progress("the cluster %s is running already", c.name)
			return nil
		}
		progress("the cluster %s needs repair:\n  %s", c.name, strings.Join(faults, "\n  "))
	}
	if err := c.bringUp(ctx); err != nil {
		return err
	}
	progress("the cluster %s is up, %s in all", c.name, time.Since(start).Round(100*time.Millisecond))
	return nil
}

// bringUp creates everything that does not exist: files, machines, links, Kyverno.
func (c cluster) bringUp(ctx context.Context) error {
	if err := c.ensureCertificates(); err != nil {
		return err
	}
	since := time.Now()
	err := step("start the control plane", func() error { return c.startControl(ctx) })
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := c.startNode(ctx, n); err != nil {
			return err
		}
	}
	err = step("install Kyverno", func() error { return c.installKyverno(ctx) })
	if err != nil {
		return err
	}
	for _, n := range nodes {
		err := step("wait for "+nodeName(n), func() error { return c.awaitNode(ctx, n, since) })
		if err != nil {
			return err
		}
	}
	return step("wait for Kyverno", func() error { return c.awaitKyverno(ctx) })
}

// startControl starts the machine of the control plane if it does not run with the right specification, and waits until
// it answers. It restarts a control plane that ran before and does not answer.
func (c cluster) startControl(ctx context.Context) error {
	pid := c.machinePIDs()[controlMachine]
	if pid != 0 && !c.specChanged(controlMachine) {
		err := c.healAPIServers()
		if err == nil {
			err = c.awaitControl(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		progress("the control plane does not answer: starting it again")
	}
	if err := c.killMachine(ctx, controlMachine); err != nil {
		return err
	}
	pid, release, err := c.startMachine(controlMachine)
	if err != nil {
		return err
	}
	if err := makeBridge(pid, c.apiServers()); err != nil {
		return err
	}
	if err := release(); err != nil {
		return err
	}
	return c.awaitControl(ctx)
}

func (c cluster) awaitControl(ctx context.Context) error {
	err := poll(ctx, controlTimeout, 200*time.Millisecond, func() error { return c.controlReady(ctx) })
	if err != nil {
		return fmt.Errorf("the API server does not answer: %w; see the logs of control in %s. If it can't be repaired, run: cluster down", err, c.logs())
	}
	return nil
}

func (c cluster) controlReady(ctx context.Context) error {
	if err := c.serverReady(ctx, controlAddress); err != nil {
		return err
	}
	if faults := c.apiServerFaults(ctx); len(faults) > 0 {
		return errors.New(strings.Join(faults, ", "))
	}
	return nil
}

// startNode starts the machine of a node if it does not run with the right specification, and connects it.
func (c cluster) startNode(ctx context.Context, n int) error {
	name := nodeName(n)
	control, err := c.runningPID(controlMachine)
	if err != nil {
		return err
	}
	pid := c.machinePIDs()[name]
	if pid != 0 && !c.specChanged(name) {
		return connectNode(control, pid, n)
	}
	if err := c.killMachine(ctx, name); err != nil {
		return err
	}
	if err := c.makeCgroup(name); err != nil {
		return err
	}
	pid, release, err := c.startMachine(name)
	if err != nil {
		return err
	}
	if err := connectNode(control, pid, n); err != nil {
		return err
	}
	return release()
}

// awaitNode waits for a Ready report of the node after the given time. Until then, the API server still reports the
// state before a failure.
func (c cluster) awaitNode(ctx context.Context, n int, since time.Time) error {
	name := nodeName(n)
	err := poll(ctx, nodeTimeout, 300*time.Millisecond, func() error {
		renewed, err := c.run(ctx, "kubectl", "--namespace", "kube-node-lease", "get", "lease", name, "--output", "jsonpath={.spec.renewTime}")
		if err != nil {
			return err
		}
		if t, err := time.Parse(time.RFC3339, renewed); err != nil || t.Before(since) {
			return fmt.Errorf("its kubelet has not reported since %s (last: %s)", since.Format(time.TimeOnly), renewed)
		}
		ready, err := c.run(ctx, "kubectl", "get", "node", name, "--output",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && ready != "True" {
			return fmt.Errorf("its condition Ready is %q", ready)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s is not Ready: %w; see %s and %s", name, err, c.log(name, "kubelet"), c.log(name, "containerd"))
	}
	return nil
}
