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

// TestKubeletUsers asks two API servers, with the chart's rights: one that has the Node authorizer, as clusters whose
// kubelets act as their nodes have, and one that has not.
func TestKubeletUsers(t *testing.T) {
	const logged = "kubelets seem to act as other users than their nodes"
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

			asker := admin
			if test.config == config { // where the chart's rights are
				impersonating := rest.CopyConfig(config)
				impersonating.Impersonate = rest.ImpersonationConfig{
					UserName: "system:serviceaccount:" + release + ":" + release, Groups: []string{"system:authenticated"},
				}
				asker, err = client.New(impersonating, client.Options{})
				g.Expect(err).NotTo(HaveOccurred())
			}
			log, lines := linesOf()
			g.Expect(kubeletUsers{client: asker, live: asker, log: log}.Start(t.Context())).To(Succeed())
			switch said := strings.Join(*lines, "\n"); {
			case test.want == "" && said != "":
				t.Errorf("it logs %q, want nothing", said)
			case !strings.Contains(said, test.want), test.want != "" && !strings.Contains(said, `"deniedUser"="system:node:node-1"`):
				t.Errorf("it logs %q, want %q of system:node:node-1", said, test.want)
			}
		})
	}
}

// linesOf returns a log, and what is logged.
func linesOf() (logr.Logger, *[]string) {
	var mu sync.Mutex
	lines := &[]string{}
	return funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		*lines = append(*lines, args)
	}, funcr.Options{}), lines
}
