package charts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The release that the tests render.
const (
	chart     = "statefulsingleton"
	release   = "demo"
	namespace = "the-namespace"
	name      = "demo-statefulsingleton"
	clusters  = name + "-clusters"
)

// withClusters are flags of helm that install StatefulClusters too.
var withClusters = []string{"--set", "statefulClusters.enabled=true"}

// helm runs helm and returns its output. The error has the messages of helm.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if err := readChart(); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("helm", args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatal("helm is not in PATH: run the tests by `make test`, which builds it, or put Helm 3 or 4 there")
	}
	if err != nil {
		return "", fmt.Errorf("helm %s: %w: %s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// readChart reads the metadata of each file of the chart. The cache of go test only knows files that the test process
// itself opens, and not files that helm opens. Without these reads, a changed chart would reuse an old result.
var readChart = sync.OnceValue(func() error {
	return filepath.Walk(chart, func(_ string, _ fs.FileInfo, err error) error { return err })
})

// render returns the objects of the chart, including hooks.
func render(t *testing.T, args ...string) []client.Object {
	t.Helper()
	out, err := helm(t, append([]string{"template", release, chart, "--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// decode returns the objects of manifests. The test fails if an object has an unknown field.
func decode(t *testing.T, manifests string) []client.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	var objects []client.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		var raw unstructured.Unstructured
		if err := yaml.UnmarshalStrict(document, &raw.Object); err != nil {
			t.Fatalf("decode: %v\n%s", err, document)
		}
		// The project does not depend on the module with the types of the Prometheus Operator.
		if raw.GroupVersionKind().Group == "monitoring.coreos.com" {
			objects = append(objects, &raw)
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("decode: %v\n%s", err, document)
		}
		objects = append(objects, object.(client.Object))
	}
}

// all returns the objects of one kind.
func all[T client.Object](objects []client.Object) []T {
	var found []T
	for _, o := range objects {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// only returns the one object of its kind.
func only[T client.Object](t *testing.T, objects []client.Object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("found %d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}

// podTemplates returns the pod templates of the chart, by kind and name of their owners.
func podTemplates(objects []client.Object) map[string]corev1.PodTemplateSpec {
	templates := map[string]corev1.PodTemplateSpec{}
	for _, deployment := range all[*appsv1.Deployment](objects) {
		templates["Deployment "+deployment.Name] = deployment.Spec.Template
	}
	for _, job := range all[*batchv1.Job](objects) {
		templates["Job "+job.Name] = job.Spec.Template
	}
	return templates
}

// rights returns the verbs of each service account, by scope and resource: "everywhere deployments.apps/name". The name
// of any other subject includes the kind and the namespace.
func rights(objects []client.Object) map[string]map[string]string {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, role := range all[*rbacv1.ClusterRole](objects) {
		rules["ClusterRole "+role.Name] = role.Rules
	}
	for _, role := range all[*rbacv1.Role](objects) {
		rules["Role "+role.Name] = role.Rules
	}
	rights := map[string]map[string]string{}
	grant := func(where string, role rbacv1.RoleRef, subjects []rbacv1.Subject) {
		for _, subject := range subjects {
			account := subject.Name
			if subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace != namespace {
				account = fmt.Sprintf("%s %s/%s", subject.Kind, subject.Namespace, subject.Name)
			}
			if rights[account] == nil {
				rights[account] = map[string]string{}
			}
			for _, rule := range rules[role.Kind+" "+role.Name] {
				for _, what := range resources(rule) {
					verbs := append(strings.Fields(rights[account][where+" "+what]), rule.Verbs...)
					slices.Sort(verbs)
					rights[account][where+" "+what] = strings.Join(verbs, " ")
				}
			}
		}
	}
	for _, binding := range all[*rbacv1.ClusterRoleBinding](objects) {
		grant("everywhere", binding.RoleRef, binding.Subjects)
	}
	for _, binding := range all[*rbacv1.RoleBinding](objects) {
		grant(binding.Namespace, binding.RoleRef, binding.Subjects)
	}
	return rights
}

// aggregated returns the verbs that Kubernetes adds to its own ClusterRoles, by role and resource: "edit deployments.apps".
func aggregated(objects []client.Object) map[string]string {
	added := map[string]string{}
	for _, role := range all[*rbacv1.ClusterRole](objects) {
		for label := range role.Labels {
			to, ok := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-")
			if !ok {
				continue
			}
			for _, rule := range role.Rules {
				for _, what := range resources(rule) {
					added[to+" "+what] = strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " ")
				}
			}
		}
	}
	return added
}

// resources returns the resources and URLs of a rule.
func resources(rule rbacv1.PolicyRule) []string {
	found := slices.Clone(rule.NonResourceURLs)
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			what := strings.TrimSuffix(resource+"."+group, ".")
			if len(rule.ResourceNames) == 0 {
				found = append(found, what)
			}
			for _, name := range rule.ResourceNames {
				found = append(found, what+"/"+name)
			}
		}
	}
	return found
}
