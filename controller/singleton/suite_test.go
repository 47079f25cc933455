package singleton_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// The tests use a real etcd and kube-apiserver, with the chart's CRD, RBAC and guards for the controller, and with
// Kyverno's CRDs. There is no kubelet and no Kyverno. The tests write the status that the kubelet reports, and
// kyverno_test.go stands in for Kyverno.
var (
	// config and c have all permissions.
	config *rest.Config
	c      client.WithWatch
	// controllerConfig and controllerClient have the permissions of the controller in the chart.
	controllerConfig *rest.Config
	controllerClient client.WithWatch
	kyvernoCRDs      envtest.CRDInstallOptions
)

// nodeName is the node of every pod.
const nodeName = "node"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // each manager logs to its test
	kyverno, err := testenv.KyvernoDefinitions(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kyvernoCRDs = envtest.CRDInstallOptions{Paths: kyverno, MaxTime: time.Minute}
	environment := &envtest.Environment{CRDDirectoryPaths: append([]string{testenv.Definitions}, kyverno...), ErrorIfCRDPathMissing: true}
	environment.WebhookInstallOptions.MutatingWebhooks = kyvernoWebhooks()
	// The tests mostly wait, for the controller's delays and for other tests. A flag -parallel still wins.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	testenv.Main(m, environment, func(ctx context.Context, e *testenv.Env) (err error) {
		config, c = e.Config, e.Client
		controllerConfig = e.As(testenv.User)
		if controllerClient, err = testenv.ClientOf(controllerConfig); err != nil {
			return err
		}
		serveKyverno(ctx, environment.WebhookInstallOptions)
		// Many tests read large policies while they wait, so a shorter interval costs more time than it saves.
		gomega.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
		objects, err := testenv.Chart(ctx, "rbac.yaml", "guards-controller.yaml", "guards-policies.yaml")
		return errors.Join(err, e.CreateNode(ctx, nodeName), e.Create(ctx, objects), grantAccess(ctx))
	})
}

// grantAccess gives the controller the rights for the access to Leases, which are not in the chart. The API server
// accepts a Role only from a client that has all rights of the Role. With the chart, the controller may create policies of
// one kind, and some tests use both.
func grantAccess(ctx context.Context) error {
	const name = "leaseaccess"
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{"policies.kyverno.io"}, Resources: []string{"namespacedmutatingpolicies"}, Verbs: []string{"create"}},
	}}
	if err := c.Create(ctx, role); err != nil {
		return err
	}
	return c.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: controllerConfig.Impersonate.UserName}},
	})
}
