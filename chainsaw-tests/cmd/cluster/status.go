package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// faults returns the reasons why the cluster is not complete.
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
		return []string{name + " runs with other versions or another configuration than it should"}
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

// apiFaults returns the reasons that the API server reports.
func (c cluster) apiFaults(ctx context.Context, nodes []int) []string {
	if err := c.serverReady(ctx, controlAddress); err != nil {
		return []string{"the API server does not answer: " + err.Error()}
	}
	faults := c.apiServerFaults(ctx)
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

// writeStatus prints the state of the cluster. It returns an error if the cluster is not complete.
func (c cluster) writeStatus(ctx context.Context, w io.Writer) error {
	if !c.exists() {
		return fmt.Errorf("there is no cluster %s: run `cluster up`", c.name)
	}
	faults := c.faults(ctx)
	fmt.Fprintf(w, "cluster     %s: %s\n", c.name, condition(faults))
	fmt.Fprintf(w, "versions    %s\n", c.versions())
	fmt.Fprintf(w, "KUBECONFIG  %s (its address answers inside `cluster exec` only)\n", c.kubeconfig())
	fmt.Fprintf(w, "logs        %s\n\n", c.logs())
	if err := c.writeAPIServers(ctx, w); err != nil {
		return err
	}
	if err := c.writeNodes(ctx, w); err != nil {
		return err
	}
	if err := c.writeProcesses(w); err != nil {
		return err
	}
	if len(faults) > 0 {
		return fmt.Errorf("the cluster %s is incomplete. To repair it, run: cluster up\n  %s", c.name, strings.Join(faults, "\n  "))
	}
	return nil
}

func condition(faults []string) string {
	if len(faults) == 0 {
		return "running"
	}
	return "incomplete"
}

func (c cluster) versions() string {
	var versions []string
	for _, m := range toolModules {
		if version := c.tools().version(m.name); version != "" {
			versions = append(versions, m.name+" "+version)
		}
	}
	return strings.Join(versions, ", ")
}

// writeAPIServers prints the state of several API servers.
func (c cluster) writeAPIServers(ctx context.Context, w io.Writer) error {
	if c.apiServers() == 1 {
		return nil
	}
	faults, err := c.etcdFaults(ctx, nil)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "API SERVER\tADDRESS\tSTATE")
	for i := 1; i <= c.apiServers(); i++ {
		var state []string
		switch {
		case err != nil:
			state = append(state, "unknown")
		case c.serverReady(ctx, apiServerAddress(i)) == nil:
			state = append(state, "ready")
		default:
			state = append(state, "not ready")
		}
		if err == nil && faults[i-1].String() != "" {
			state = append(state, faults[i-1].String())
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", apiServerName(i), apiServerAddress(i), strings.Join(state, ", "))
	}
	fmt.Fprintln(table)
	return table.Flush()
}

func (c cluster) writeNodes(ctx context.Context, w io.Writer) error {
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	pids, err := c.machinePIDs()
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tADDRESS\tPODS\tSTATE")
	for _, n := range nodes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", nodeName(n), nodeAddress(n), nodePodNetwork(n), c.nodeState(ctx, n, pids))
	}
	fmt.Fprintln(table)
	return table.Flush()
}

func (c cluster) nodeState(ctx context.Context, n int, pids map[string]int) string {
	switch control := pids[controlMachine]; {
	case pids[nodeName(n)] == 0:
		return "dead"
	case control == 0:
		return "unknown: the control plane does not run"
	case !nodeConnected(control, n):
		return "cut off"
	}
	ready, err := c.run(ctx, "kubectl", "get", "node", nodeName(n), "--request-timeout=5s", "--output", nodeReadyPath)
	switch {
	case err != nil:
		return "unknown: the API server does not answer"
	case ready == "True":
		return "Ready"
	}
	return "not Ready"
}

func (c cluster) writeProcesses(w io.Writer) error {
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	pids, err := c.machinePIDs()
	if err != nil {
		return err
	}
	names := []string{controlMachine}
	for _, n := range nodes {
		names = append(names, nodeName(n))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MACHINE\tPROCESS\tSTATE\tPID\tLOG")
	for _, name := range names {
		running, err := runningChildren(pids[name])
		if err != nil {
			return err
		}
		for _, p := range c.specOf(name).Processes {
			state, pid := "down", "-"
			if running[p.Name] != 0 {
				state, pid = "up", strconv.Itoa(running[p.Name])
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", name, p.Name, state, pid, filepath.Base(p.Log))
		}
	}
	return table.Flush()
}
