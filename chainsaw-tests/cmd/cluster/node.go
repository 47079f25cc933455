package main

import (
	"context"
	"errors"
	"time"
)

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
