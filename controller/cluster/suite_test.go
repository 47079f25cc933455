package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// The tests use a real etcd and kube-apiserver, with the chart's CRDs, and with the chart's RBAC and guards for StatefulClusters. There
// is no scheduler and no kubelet: the tests do what these do.
var (
	// controllerConfig has the permissions of the controller.
	controllerConfig *rest.Config
	// c has all permissions, and controller those of the controller. kubelet writes as the kubelet does, and uninstaller can remove
	// finalizers.
	c, controller, kubelet, uninstaller client.WithWatch
	// used are the permissions that the controller has used, as group/resource/verb.
	used = usedPermissions{names: sets.New[string]()}
)

const (
	release = testenv.Release
	user    = testenv.User
	// lateGuard is a label of namespaces without guard "members-recorded". This guard can admit late pods, and rejects most.
	lateGuard = "late-guard"
	// unguarded is a label of pods that guard "members" does not check, as if they were created while the guard was not installed.
	unguarded = "unguarded"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	testenv.Main(m, nil, func(ctx context.Context, e *testenv.Env) (err error) {
		controllerConfig = e.As(user + "-clusters")
		controllerConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{next} })
		c = e.Client
		if controller, err = testenv.ClientOf(controllerConfig); err != nil {
			return err
		}
		if kubelet, err = e.Kubelet(); err != nil {
			return err
		}
		if uninstaller, err = testenv.ClientOf(e.As(user+"-uninstall", "system:masters")); err != nil {
			return err
		}
		return applyChart(ctx, e)
	})
}

// applyChart creates the permissions of the controller and the guards of StatefulClusters.
func applyChart(ctx context.Context, e *testenv.Env) error {
	objects, err := testenv.Chart(ctx, "clusters.yaml", "guards-clusters.yaml")
	if err != nil {
		return err
	}
	for _, object := range objects {
		for guard, by := range map[string][2]string{"-members-recorded": {"namespaceSelector", lateGuard}, "-members": {"objectSelector", unguarded}} {
			if object.GetKind() != "ValidatingAdmissionPolicyBinding" || !strings.HasSuffix(object.GetName(), guard) {
				continue
			}
			expressions := []any{map[string]any{"key": by[1], "operator": "DoesNotExist"}}
			if err := unstructured.SetNestedSlice(object.Object, expressions, "spec", "matchResources", by[0], "matchExpressions"); err != nil {
				return err
			}
		}
	}
	if err := e.Create(ctx, objects); err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: release + "-clusters"}}
	err = c.Get(ctx, client.ObjectKeyFromObject(role), role)
	e.Check = func() error { return used.check(role.Rules) }
	return err
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
