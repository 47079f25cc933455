//go:build cluster && apiservers

package main

import (
	"strings"
	"testing"
)

// The life of a cluster with several API servers: go -C chainsaw-tests test -tags cluster,apiservers ./cmd/cluster
func TestLifeOfSeveralAPIServers(t *testing.T) {
	t.Setenv(apiServersVariable, "3")
	l := newLab(t)
	l.must(t, "up")
	l.kubectl(t, "--namespace", kyvernoNamespace, "wait", "deployment", kyvernoDeployment, "--for=jsonpath={.status.readyReplicas}=2", "--timeout=1s")
	if got := l.kubectl(t, "get", "endpointslice", "kubernetes", "--output", "jsonpath={.endpoints[*].addresses[*]}"); len(strings.Fields(got)) != 3 {
		t.Errorf("Service kubernetes has the endpoints %s, want three", got)
	}
	t.Run("one killed API server", func(t *testing.T) {
		other := l.child(t, controlMachine, "kube-apiserver-1")
		repaired(t, l, func() { l.must(t, "process", "kill", "kube-apiserver-2", "--on", "control") })
		if after := l.child(t, controlMachine, "kube-apiserver-1"); after != other {
			t.Error("another API server was killed")
		}
	})
	t.Run("all API servers killed", func(t *testing.T) {
		repaired(t, l, func() { l.must(t, "process", "kill", "kube-apiserver") })
	})
	for command, want := range map[string]string{
		"apiserver cut 2":      "kube-apiserver-2 is cut off from etcd",
		"apiserver delay 1 1h": "kube-apiserver-1 is late by 1h0m0s with changes in etcd",
	} {
		t.Run(command, func(t *testing.T) {
			repaired(t, l, func() {
				l.must(t, strings.Fields(command)...)
				l.wantFault(t, want)
			})
		})
	}
	t.Run("another number", func(t *testing.T) {
		t.Setenv(apiServersVariable, "1")
		_, err := l.try("up")
		wantError(t, err, "the number cannot change")
	})
}
