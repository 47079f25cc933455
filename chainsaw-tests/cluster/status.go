package main

import (
	"context"
	"slices"
	"strings"
)

// faults lists what keeps the cluster from being whole, nothing if it is.
func (c cluster) faults(ctx context.Context) []string {
	nodes, err := c.nodes()
	if err != nil {
		return []string{err.Error()}
	}
	pids, err := c.machinePIDs()
	if err != nil {
		return []string{err.Error()}
	}
	faults := c.machineFaults(controlMachine, pids[controlMachine])
	for n := range firstNodes {
		if !slices.Contains(nodes, n+1) {
			faults = append(faults, nodeName(n+1)+" does not exist")
		}
	}
	for _, n := range nodes {
		pid := pids[nodeName(n)]
		faults = append(faults, c.machineFaults(nodeName(n), pid)...)
		if pid != 0 && pids[controlMachine] != 0 && !nodeConnected(pids[controlMachine], n) {
			faults = append(faults, nodeName(n)+" is cut off")
		}
	}
	if len(faults) > 0 {
		return faults
	}
	return c.apiFaults(ctx, nodes)
}

func (c cluster) machineFaults(name string, pid int) []string {
	if pid == 0 {
		return []string{name + " does not run"}
	}
	if c.specChanged(name) {
		return []string{name + " runs other versions than the checkout wants"}
	}
	missing, err := c.missingProcesses(name, pid)
	if err != nil {
		return []string{err.Error()}
	}
	if len(missing) > 0 {
		return []string{name + " lacks " + strings.Join(missing, ", ")}
	}
	return nil
}

// apiFaults asks the API server.
func (c cluster) apiFaults(ctx context.Context, nodes []int) []string {
	if err := c.controlReady(ctx); err != nil {
		return []string{"the API server does not answer: " + err.Error()}
	}
	var faults []string
	ready, err := c.run(ctx, "kubectl", "get", "nodes", "--output",
		`jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	if err != nil {
		return []string{err.Error()}
	}
	for _, n := range nodes {
		if !slices.Contains(strings.Fields(ready), nodeName(n)+"=True") {
			faults = append(faults, nodeName(n)+" is not Ready")
		}
	}
	if err := c.kyvernoReady(ctx); err != nil {
		faults = append(faults, err.Error())
	}
	return faults
}
