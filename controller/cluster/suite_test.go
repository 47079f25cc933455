package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The tests use a real etcd and kube-apiserver, with the chart's CRDs. There is no scheduler, no kubelet and no Kyverno: the tests do
// what these do.
var (
	// controllerConfig has the permissions of the controller.
	controllerConfig *rest.Config
	// c has all permissions, controller those of the controller, and kubelet writes as the kubelet does.
	c, controller, kubelet client.WithWatch
)

const user = "system:serviceaccount:statefulsingleton:statefulsingleton-clusters"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code, err := runWithAPIServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runWithAPIServer(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 0, errors.New("KUBEBUILDER_ASSETS is not set: run `make unit`, or set it to the directory that `bin/cluster tools` prints")
	}
	environment := &envtest.Environment{CRDDirectoryPaths: []string{"../../charts/statefulsingleton/files/crds"}, ErrorIfCRDPathMissing: true}
	defer func() { _ = environment.Stop() }() // also stops a partly started environment
	config, err := environment.Start()
	if err != nil {
		return 0, fmt.Errorf("start etcd and kube-apiserver: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return 0, err
	}
	controllerConfig = rest.CopyConfig(config)
	controllerConfig.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	kubeletConfig := rest.CopyConfig(config)
	kubeletConfig.UserAgent = "kubelet" // becomes the field manager, on which proofs depend
	for to, of := range map[*client.WithWatch]*rest.Config{&c: config, &controller: controllerConfig, &kubelet: kubeletConfig} {
		if *to, err = client.NewWithWatch(of, client.Options{Scheme: scheme.Scheme}); err != nil {
			return 0, err
		}
	}
	if err := grantRights(context.Background()); err != nil {
		return 0, fmt.Errorf("give the controller its rights: %w", err)
	}
	gomega.SetDefaultEventuallyTimeout(30 * time.Second)
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	return m.Run(), nil
}

// grantRights gives the controller the rights that it needs, and no others.
func grantRights(ctx context.Context) error {
	const name = "clusters"
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.GroupVersion.Group}, Resources: []string{"statefulclusters"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{v1.GroupVersion.Group}, Resources: []string{"statefulclusters/status"}, Verbs: []string{"update"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{"apps"}, Resources: []string{"controllerrevisions"}, Verbs: []string{"list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}
	if err := c.Create(ctx, role); err != nil {
		return err
	}
	return c.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
}
