package main

import (
	"context"
	"time"
)

// healNode starts a stopped node, connects a disconnected node, and waits until the node is Ready.
func (c cluster) healNode(ctx context.Context, n int) error {
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
	control, err := c.runningPID(controlMachine)
	if err != nil {
		return err
	}
	return cutNode(control, n)
}
