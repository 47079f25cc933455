package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// addNode adds the next node and waits until it is Ready.
func (c cluster) addNode(ctx context.Context) error {
	if err := c.requireControl(); err != nil {
		return err
	}
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	n := 1
	if len(nodes) > 0 {
		n = nodes[len(nodes)-1] + 1
	}
	if n > maxNodes {
		return fmt.Errorf("the cluster %s has %d nodes: more do not fit its network", c.name, len(nodes))
	}
	if err := c.ensureIdentity(nodeIdentity(n)); err != nil {
		return err
	}
	return c.healNode(ctx, n)
}

// healNode starts a stopped node, connects a disconnected node, and waits until the node is Ready.
func (c cluster) healNode(ctx context.Context, n int) error {
	if err := c.requireControl(); err != nil {
		return err
	}
	return step("bring up "+nodeName(n), func() error {
		since := time.Now()
		if err := c.startNode(ctx, n); err != nil {
			return err
		}
		return c.awaitNode(ctx, n, since)
	})
}

// partitionNode disconnects a node from the control plane and the other nodes. Its processes continue to run.
func (c cluster) partitionNode(n int) error {
	if err := c.requireControl(); err != nil {
		return err
	}
	control, err := c.machinePID(controlMachine)
	if err != nil {
		return err
	}
	return cutNode(control, n)
}

func (c cluster) requireControl() error {
	control, err := c.machinePID(controlMachine)
	if err == nil && control == 0 {
		return errors.New("the control plane does not run: run `cluster up`")
	}
	return err
}
