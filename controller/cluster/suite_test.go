package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The tests use a real etcd and kube-apiserver, with the chart's CRDs, and with the chart's RBAC and guards for StatefulClusters. There
// is no scheduler, no kubelet and no Kyverno: the tests do what these do.
var (
	// controllerConfig has the permissions of the controller.
	controllerConfig *rest.Config
	// c has all permissions, and controller those of the controller. kubelet writes as the kubelet does. policyController writes
	// condition PolicyInstalled, and uninstaller can remove finalizers.
	c, controller, kubelet, policyController, uninstaller client.WithWatch
	// used are the permissions that the controller has used, as group/resource/verb.
	used = usedPermissions{names: sets.New[string]()}
)

const (
	release = "statefulsingleton"
	user    = "system:serviceaccount:" + release + ":" + release
	// lateGuard is a label of namespaces without guard "members-recorded". This guard can admit late pods, and rejects most.
	lateGuard = "late-guard"
)

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
	as := func(name string, groups ...string) *rest.Config {
		impersonated := rest.CopyConfig(config)
		impersonated.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
		return impersonated
	}
	controllerConfig = as(user + "-clusters")
	controllerConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{next} })
	kubeletConfig := rest.CopyConfig(config)
	kubeletConfig.UserAgent = "kubelet" // becomes the field manager, on which proofs depend
	for to, of := range map[*client.WithWatch]*rest.Config{
		&c: config, &controller: controllerConfig, &kubelet: kubeletConfig, &policyController: as(user, "system:masters"), &uninstaller: as(user+"-uninstall", "system:masters"),
	} {
		if *to, err = client.NewWithWatch(of, client.Options{Scheme: scheme.Scheme}); err != nil {
			return 0, err
		}
	}
	granted, err := applyChart(context.Background())
	if err != nil {
		return 0, fmt.Errorf("apply the permissions and the guards of the chart: %w", err)
	}
	gomega.SetDefaultEventuallyTimeout(30 * time.Second)
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	if code = m.Run(); code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" {
		return 0, used.check(granted)
	}
	return code, nil
}

// applyChart creates the permissions of the controller and the guards of StatefulClusters. It returns the permissions.
func applyChart(ctx context.Context) (granted []rbacv1.PolicyRule, err error) {
	rendered, err := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"), "template", release, "../../charts/statefulsingleton",
		"--namespace", release, "--set", "statefulClusters.enabled=true", "--show-only", "templates/clusters.yaml", "--show-only", "templates/guards-clusters.yaml").Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: release}}); err != nil {
		return nil, err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(rendered), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if object.GetKind() == "ValidatingAdmissionPolicyBinding" && strings.HasSuffix(object.GetName(), "-members-recorded") {
			expressions := []any{map[string]any{"key": lateGuard, "operator": "DoesNotExist"}}
			if err := unstructured.SetNestedSlice(object.Object, expressions, "spec", "matchResources", "namespaceSelector", "matchExpressions"); err != nil {
				return nil, err
			}
		}
		if err := c.Create(ctx, object); err != nil {
			return nil, err
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: release + "-clusters"}}
	err = c.Get(ctx, client.ObjectKeyFromObject(role), role)
	return role.Rules, err
}

// usedPermissions are the permissions of requests that the API server accepted.
type usedPermissions struct {
	mu    sync.Mutex
	names sets.Set[string]
}

// recorder is a transport that records the permissions of its requests.
type recorder struct{ next http.RoundTripper }

func (r recorder) RoundTrip(sent *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(sent)
	if err != nil || response.StatusCode >= http.StatusBadRequest {
		return response, err
	}
	info := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	if is, err := info.NewRequestInfo(sent); err == nil && is.IsResourceRequest {
		used.mu.Lock()
		defer used.mu.Unlock()
		used.names.Insert(permission(is.APIGroup, strings.TrimSuffix(is.Resource+"/"+is.Subresource, "/"), is.Verb))
	}
	return response, nil
}

func permission(group, resource, verb string) string {
	return fmt.Sprintf("%s %s.%s", verb, resource, group)
}

// check returns an error if the controller did not use a permission. RBAC rejects requests without a permission. The metrics endpoint
// uses the permissions for reviews, and does not run here. A cache lists objects only if the API server cannot send them by a watch.
func (u *usedPermissions) check(granted []rbacv1.PolicyRule) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	unused := sets.New[string]()
	for _, rule := range granted {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				asked := verb
				if verb == "list" && slices.Contains(rule.Verbs, "watch") {
					asked = "watch"
				}
				if name := permission(rule.APIGroups[0], resource, asked); !u.names.Has(name) && !strings.Contains(resource, "reviews") {
					unused.Insert(name)
				}
			}
		}
	}
	if unused.Len() > 0 {
		return fmt.Errorf("the controller did not use these permissions in the tests: %v", slices.Sorted(slices.Values(unused.UnsortedList())))
	}
	return nil
}
