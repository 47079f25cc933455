package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// faults returns the reasons why the cluster is not complete.
func (c cluster) faults(ctx context.Context) []string {
	pids := c.machinePIDs()
	faults := c.machineFaults(controlMachine, pids[controlMachine])
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
	return c.apiFaults(ctx)
}

func (c cluster) machineFaults(name string, pid int) []string {
	if pid == 0 {
		return []string{name + " does not run"}
	}
	if c.specChanged(name) {
		return []string{name + " runs with other versions or another configuration than it should"}
	}
	if missing := c.missingProcesses(name, pid); len(missing) > 0 {
		return []string{name + " lacks " + strings.Join(missing, ", ")}
	}
	return nil
}

// apiFaults returns the reasons that the API server reports.
func (c cluster) apiFaults(ctx context.Context) []string {
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

// writeStatus prints where the cluster is. It returns an error if the cluster is not complete.
func (c cluster) writeStatus(ctx context.Context, w io.Writer) error {
	if !c.exists() {
		return fmt.Errorf("there is no cluster %s: run `cluster up`", c.name)
	}
	fmt.Fprintf(w, "cluster     %s\n", c.name)
	fmt.Fprintf(w, "versions    %s\n", c.versions())
	fmt.Fprintf(w, "KUBECONFIG  %s (its address answers inside `cluster exec` only)\n", c.kubeconfig())
	fmt.Fprintf(w, "logs        %s\n", c.logs())
	if faults := c.faults(ctx); len(faults) > 0 {
		return fmt.Errorf("the cluster %s is incomplete. To repair it, run: cluster up\n  %s", c.name, strings.Join(faults, "\n  "))
	}
	return nil
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
