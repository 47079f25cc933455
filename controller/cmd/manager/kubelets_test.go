package main

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// TestKubeletUsers uses two API servers, with the permissions of the chart. One has the Node authorizer, as in clusters
// whose kubelets act as their nodes. The other does not have it.
func TestKubeletUsers(t *testing.T) {
	const logged = "Kubelets seem to act as other users than their nodes"
	withNodes := &envtest.Environment{}
	withNodes.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "Node,RBAC")
	nodeConfig, err := withNodes.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := withNodes.Stop(); err != nil {
			t.Error(err)
		}
	})
	for name, test := range map[string]struct {
		config *rest.Config
		ready  corev1.ConditionStatus
		want   string
	}{
		"Node authorizer":    {nodeConfig, corev1.ConditionTrue, ""},
		"no Node authorizer": {config, corev1.ConditionTrue, logged},
		"no node is Ready":   {config, corev1.ConditionUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			admin, err := client.New(test.config, client.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
			g.Expect(admin.Create(t.Context(), node)).To(Succeed())
			t.Cleanup(func() { g.Expect(admin.Delete(context.Background(), node)).To(Succeed()) })
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: test.ready}}
			g.Expect(admin.Status().Update(t.Context(), node)).To(Succeed())

			checker := admin
			if test.config == config { // the API server with the permissions of the chart
				impersonating := rest.CopyConfig(config)
				impersonating.Impersonate = rest.ImpersonationConfig{
					UserName: "system:serviceaccount:" + release + ":" + release, Groups: []string{"system:authenticated"},
				}
				checker, err = client.New(impersonating, client.Options{})
				g.Expect(err).NotTo(HaveOccurred())
			}
			log, lines := linesOf()
			g.Expect(kubeletUsers{client: checker, live: checker, log: log}.Start(t.Context())).To(Succeed())
			switch output := strings.Join(*lines, "\n"); {
			case test.want == "" && output != "":
				t.Errorf("log %q, want nothing", output)
			case !strings.Contains(output, test.want), test.want != "" && !strings.Contains(output, `"deniedUser"="system:node:node-1"`):
				t.Errorf("log %q, want %q for system:node:node-1", output, test.want)
			}
		})
	}
}

// linesOf returns a logger, and the lines that it logs.
func linesOf() (logr.Logger, *[]string) {
	var mu sync.Mutex
	lines := &[]string{}
	return funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		*lines = append(*lines, args)
	}, funcr.Options{}), lines
}
