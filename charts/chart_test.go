// Package charts tests the charts: it renders them with helm and checks the objects.
//
// These tests are in Go and not in helm-unittest, because they decode the rendered objects strictly into the types of
// the API. They apply the code of Pod Security, and compare objects with each other, for example selectors with the
// pods that they select.
package charts

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	psaapi "k8s.io/pod-security-admission/api"
	psapolicy "k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

func TestLint(t *testing.T) {
	if _, err := helm(t, "lint", "--strict", chart); err != nil {
		t.Error(err)
	}
}

// TestPods: all pods of the chart meet Pod Security restricted, need no user IDs, run on Linux, and mount the token of their
// ServiceAccount because the chart says so. OpenShift's restricted-v2 assigns a range of IDs to each namespace, and rejects pods with
// other IDs.
func TestPods(t *testing.T) {
	evaluator, err := psapolicy.NewEvaluator(psapolicy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	objects := render(t, withClusters...)
	templates := podTemplates(objects)
	if want := []string{"Deployment " + name, "Deployment " + clusters, "Job " + name + "-uninstall"}; !slices.Equal(slices.Sorted(maps.Keys(templates)), want) {
		t.Fatalf("pods of %v, want of %v", slices.Sorted(maps.Keys(templates)), want)
	}
	for owner, template := range templates {
		result := psapolicy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec))
		if !result.Allowed {
			t.Errorf("%s: rejected by Pod Security restricted: %s: %s", owner, result.ForbiddenReason(), result.ForbiddenDetail())
		}
		for _, c := range template.Spec.Containers {
			if !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%s: container %s can write to its root file system", owner, c.Name)
			}
		}
		if diff := cmp.Diff(map[string]string{"kubernetes.io/os": "linux"}, template.Spec.NodeSelector); diff != "" {
			t.Errorf("labels of the nodes of %s's pods (-want +got):\n%s", owner, diff)
		}
		if mounts := template.Spec.AutomountServiceAccountToken; mounts == nil || !*mounts {
			t.Errorf("the pods of %s do not mount the token", owner)
		}
	}
	for _, account := range all[*corev1.ServiceAccount](objects) {
		if mounts := account.AutomountServiceAccountToken; mounts == nil || *mounts {
			t.Errorf("ServiceAccount %s mounts its token into each pod that names it", account.Name)
		}
	}
	out, err := helm(t, append([]string{"template", release, chart}, withClusters...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"} {
		if strings.Contains(out, field) {
			t.Errorf("the chart sets %s", field)
		}
	}
}

// TestManagers: the replicas elect a leader and spread within each revision, the environment has the memory limit in bytes, which the runtime of Go reads, and the
// probes use a port of the container.
func TestManagers(t *testing.T) {
	memory := []corev1.EnvVar{{Name: "GOMEMLIMIT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}}}
	for _, deployment := range all[*appsv1.Deployment](render(t, withClusters...)) {
		manager := deployment.Spec.Template.Spec.Containers[0]
		if !slices.Contains(manager.Args, "--leader-elect") {
			t.Errorf("%s: no --leader-elect: %q", deployment.Name, manager.Args)
		}
		if keys := deployment.Spec.Template.Spec.TopologySpreadConstraints[0].MatchLabelKeys; !slices.Equal(keys, []string{"pod-template-hash"}) {
			t.Errorf("%s: a rollout counts the pods of the old revision too: matchLabelKeys %v", deployment.Name, keys)
		}
		if diff := cmp.Diff(memory, manager.Env); diff != "" {
			t.Errorf("environment of %s (-want +got):\n%s", deployment.Name, diff)
		}
		for path, probe := range map[string]*corev1.Probe{"/healthz": manager.LivenessProbe, "/readyz": manager.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path {
				t.Errorf("%s: the probe does not request %s: %v", deployment.Name, path, probe)
			} else if !slices.ContainsFunc(manager.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal }) {
				t.Errorf("%s: the probe requests %s at port %s, which the container does not have", deployment.Name, path, probe.HTTPGet.Port.String())
			}
		}
	}
}

// TestRights lists all permissions. A new permission is therefore a decision.
func TestRights(t *testing.T) {
	got := rights(render(t, withClusters...))
	want := map[string]map[string]string{
		clusters: {
			"everywhere statefulclusters.apps.statefulsingleton.com":        "get list patch watch",
			"everywhere statefulclusters/status.apps.statefulsingleton.com": "update",
			"everywhere pods":                                      "create delete get list patch watch",
			"everywhere pods/status":                               "patch",
			"everywhere pods/resize":                               "patch",
			"everywhere persistentvolumeclaims":                    "create delete get list patch watch",
			"everywhere controllerrevisions.apps":                  "create delete get list patch watch",
			"everywhere nodes":                                     "get list watch",
			"everywhere endpointslices.discovery.k8s.io":           "list",
			"everywhere events.events.k8s.io":                      "create",
			"everywhere tokenreviews.authentication.k8s.io":        "create",
			"everywhere subjectaccessreviews.authorization.k8s.io": "create",

			"the-namespace leases.coordination.k8s.io":                  "create",
			"the-namespace leases.coordination.k8s.io/statefulclusters": "get update",
			"the-namespace events":                                      "create patch",
		},
		name: {
			"everywhere statefulsingletons.apps.statefulsingleton.com":        "get list patch watch",
			"everywhere statefulsingletons/status.apps.statefulsingleton.com": "update",
			"everywhere statefulsetlocks.apps.statefulsingleton.com":          "get list patch watch",
			"everywhere statefulsetlocks/status.apps.statefulsingleton.com":   "update",
			"everywhere pods":                                           "create delete get list patch watch",
			"everywhere services":                                       "list",
			"everywhere endpointslices.discovery.k8s.io":                "list",
			"everywhere pods/status":                                    "patch",
			"everywhere configmaps":                                     "create",
			"everywhere deployments.apps":                               "get patch",
			"everywhere replicasets.apps":                               "get",
			"everywhere replicasets/scale.apps":                         "patch",
			"everywhere statefulsets.apps":                              "get",
			"everywhere nodes":                                          "get list watch",
			"everywhere poddisruptionbudgets.policy":                    "create delete list watch",
			"everywhere leases.coordination.k8s.io":                     "create delete get list patch update watch",
			"everywhere roles.rbac.authorization.k8s.io":                "create delete get list patch update watch",
			"everywhere rolebindings.rbac.authorization.k8s.io":         "create delete get list patch update watch",
			"everywhere persistentvolumeclaims":                         "get",
			"everywhere persistentvolumes":                              "get",
			"everywhere volumeattachments.storage.k8s.io":               "get",
			"everywhere events.events.k8s.io":                           "create patch",
			"everywhere clusterpolicies.kyverno.io":                     "create delete get list patch watch",
			"everywhere namespacedmutatingpolicies.policies.kyverno.io": "delete get list patch watch",
			"everywhere subjectaccessreviews.authorization.k8s.io":      "create",

			"everywhere tokenreviews.authentication.k8s.io": "create",

			"the-namespace leases.coordination.k8s.io":                   "create",
			"the-namespace leases.coordination.k8s.io/statefulsingleton": "get update",
			"the-namespace configmaps/statefulsingleton-api-server":      "get patch",
			"the-namespace events":                                       "create patch",
		},
		name + "-uninstall": {
			"everywhere statefulsingletons.apps.statefulsingleton.com": "list patch",
			"everywhere statefulsetlocks.apps.statefulsingleton.com":   "list patch",
			"everywhere statefulclusters.apps.statefulsingleton.com":   "list patch",
			"everywhere pods":                                           "list patch",
			"everywhere clusterpolicies.kyverno.io":                     "delete list",
			"everywhere namespacedmutatingpolicies.policies.kyverno.io": "delete list",
			"everywhere poddisruptionbudgets.policy":                    "delete list",
			"the-namespace deployments.apps/" + name:                    "get patch",
			"the-namespace deployments.apps/" + clusters:                "get patch",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permissions of the service accounts (-want +got):\n%s", diff)
	}
}

// TestRightsOfPeople lists the permissions that the chart adds to the ClusterRoles of Kubernetes.
func TestRightsOfPeople(t *testing.T) {
	want := map[string]string{
		"view statefulsingletons.apps.statefulsingleton.com": "get list watch",
		"view statefulsetlocks.apps.statefulsingleton.com":   "get list watch",
		"edit statefulsetlocks.apps.statefulsingleton.com":   "create delete deletecollection patch update",
		"view statefulclusters.apps.statefulsingleton.com":   "get list watch",
		"edit statefulclusters.apps.statefulsingleton.com":   "create delete deletecollection patch update",

		"view statefulclusters/scale.apps.statefulsingleton.com": "get",
		"edit statefulclusters/scale.apps.statefulsingleton.com": "patch update",
		"edit statefulsingletons.apps.statefulsingleton.com":     "create delete deletecollection patch update",
	}
	if diff := cmp.Diff(want, aggregated(render(t))); diff != "" {
		t.Errorf("permissions of users (-want +got):\n%s", diff)
	}
}

// TestMetricsReader: the role for reading the metrics has no other permission, and the chart does not bind the role.
func TestMetricsReader(t *testing.T) {
	objects := render(t)
	var got [][]rbacv1.PolicyRule
	for _, role := range all[*rbacv1.ClusterRole](objects) {
		if role.Name == name+"-metrics-reader" {
			got = append(got, role.Rules)
		}
	}
	want := [][]rbacv1.PolicyRule{{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules of ClusterRole %s-metrics-reader (-want +got):\n%s", name, diff)
	}
	for _, binding := range all[*rbacv1.ClusterRoleBinding](objects) {
		if binding.RoleRef.Name == name+"-metrics-reader" {
			t.Errorf("ClusterRoleBinding %s binds the role to %v", binding.Name, binding.Subjects)
		}
	}
}

// TestGuards: each guard has a binding, without which it has no effect, and rejects requests if it fails.
func TestGuards(t *testing.T) {
	objects := render(t, withClusters...)
	bindings := map[string][]*admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	for _, binding := range all[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](objects) {
		bindings[binding.Spec.PolicyName] = append(bindings[binding.Spec.PolicyName], binding)
	}
	var got []string
	for _, guard := range all[*admissionregistrationv1.ValidatingAdmissionPolicy](objects) {
		got = append(got, strings.TrimPrefix(guard.Name, name+"-"))
		if len(bindings[guard.Name]) == 0 {
			t.Errorf("guard %s has no binding", guard.Name)
		}
		for _, binding := range bindings[guard.Name] {
			if want := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}; !slices.Equal(binding.Spec.ValidationActions, want) {
				t.Errorf("guard %s has actions %v, want %v", guard.Name, binding.Spec.ValidationActions, want)
			}
			if (guard.Spec.ParamKind == nil) != (binding.Spec.ParamRef == nil) {
				t.Errorf("guard %s has paramKind %v, and its binding paramRef %v", guard.Name, guard.Spec.ParamKind, binding.Spec.ParamRef)
			}
		}
		if *guard.Spec.FailurePolicy != admissionregistrationv1.Fail {
			t.Errorf("guard %s has failurePolicy %s, want Fail", guard.Name, *guard.Spec.FailurePolicy)
		}
	}
	slices.Sort(got)
	want := []string{"api-server", "attestation", "barrier", "bindings", "cluster-manager", "cluster-manager-spec", "controller-budgets", "controller-configmaps", "controller-deletions", "controller-events",
		"controller-leases", "controller-mutating-policies", "controller-pods", "controller-policies", "controller-rolebindings", "controller-roles", "controller-scale",
		"controller-singletons", "copied", "definition", "dry-run", "ephemeral-containers", "exempt-namespaces", "fenced", "finalizer",
		"held", "lease", "marks", "members", "members-attestation", "members-claims", "members-finalizer", "members-marks", "members-record", "members-recorded", "pod-tokens", "readers", "record", "reports", "roles", "roll", "sidecar-image", "unfenced", "unreleased",
		"writer-attestation", "writer-finalizer", "writer-lease"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("guards (-want +got):\n%s", diff)
	}
}

// TestSelectors: whatever labels the values add, each selector of a manager selects only its own pods. It must not select the pod of the
// hook, which waits until those of the managers are removed. The NetworkPolicy selects all pods, also that of the hook, which must
// reach the API server too. The ServiceMonitor selects the Services and names one of their ports.
func TestSelectors(t *testing.T) {
	objects := render(t, append(withClusters, "--set", "serviceMonitor.enabled=true,networkPolicy.enabled=true,podLabels.team=data", "--set",
		"podLabels.app\\.kubernetes\\.io/component=other,commonLabels.app\\.kubernetes\\.io/component=other,commonLabels.app\\.kubernetes\\.io/name=other")...)
	templates := podTemplates(objects)
	var monitor struct {
		Spec struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port string `json:"port"`
			} `json:"endpoints"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(only[*unstructured.Unstructured](t, objects).Object, &monitor); err != nil {
		t.Fatal(err)
	}
	selectors := map[string][]*metav1.LabelSelector{}
	for _, d := range all[*appsv1.Deployment](objects) {
		selectors[d.Name] = append(selectors[d.Name], d.Spec.Selector, d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector)
	}
	for _, b := range all[*policyv1.PodDisruptionBudget](objects) {
		selectors[b.Name] = append(selectors[b.Name], b.Spec.Selector)
	}
	for _, s := range all[*corev1.Service](objects) {
		of := strings.TrimSuffix(s.Name, "-metrics")
		selectors[of] = append(selectors[of], &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		if !selects(t, &monitor.Spec.Selector, s.Labels) {
			t.Errorf("the ServiceMonitor does not select Service %s, which has labels %v", s.Name, s.Labels)
		}
		for _, endpoint := range monitor.Spec.Endpoints {
			if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == endpoint.Port }) {
				t.Errorf("Service %s has no port %s", s.Name, endpoint.Port)
			}
		}
	}
	for _, of := range []string{name, clusters} {
		if len(selectors[of]) != 4 {
			t.Errorf("%d selectors of %s, want those of a Deployment, its spread, a PodDisruptionBudget and a Service", len(selectors[of]), of)
		}
		for _, selector := range selectors[of] {
			for owner, template := range templates {
				if got := selects(t, selector, template.Labels); got != (owner == "Deployment "+of) {
					t.Errorf("%v of %s selects the pods of %s: %t", selector, of, owner, got)
				}
			}
		}
		var named []string
		for _, port := range templates["Deployment "+of].Spec.Containers[0].Ports {
			named = append(named, port.Name)
		}
		for _, rule := range only[*networkingv1.NetworkPolicy](t, objects).Spec.Ingress {
			for _, port := range rule.Ports {
				if !slices.Contains(named, port.Port.StrVal) {
					t.Errorf("%s has no port %s of the NetworkPolicy, but %v", of, port.Port, named)
				}
			}
		}
		if account := templates["Deployment "+of].Spec.ServiceAccountName; account != of {
			t.Errorf("%s runs as ServiceAccount %s", of, account)
		}
	}
	network := only[*networkingv1.NetworkPolicy](t, objects).Spec
	for owner, template := range templates {
		if !selects(t, &network.PodSelector, template.Labels) {
			t.Errorf("the NetworkPolicy selects %v, and the pods of %s have labels %v", network.PodSelector, owner, template.Labels)
		}
	}
	if want := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}; !slices.Equal(network.PolicyTypes, want) {
		t.Errorf("the NetworkPolicy restricts %v, want %v", network.PolicyTypes, want)
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, of map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(of))
}

// TestBudget: a drain evicts one controller pod at a time, and does not wait for pods that are not Ready.
func TestBudget(t *testing.T) {
	want := policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable:             new(intstr.FromInt32(1)),
		UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
	}
	got := only[*policyv1.PodDisruptionBudget](t, render(t)).Spec
	got.Selector = nil // TestSelectors
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("budget of the controller's pods (-want +got):\n%s", diff)
	}
}

// TestHook: the Job of helm uninstall and its permissions exist only while the Job runs.
func TestHook(t *testing.T) {
	want, got := map[string]string{}, map[string]string{}
	for _, kind := range []string{"v1.ServiceAccount", "v1.ClusterRole", "v1.ClusterRoleBinding", "v1.Role", "v1.RoleBinding", "v1.Job"} {
		want["*"+kind+" "+name+"-uninstall"] = "pre-delete: before-hook-creation,hook-succeeded"
	}
	for _, o := range render(t) {
		if hook, ok := o.GetAnnotations()["helm.sh/hook"]; ok {
			got[fmt.Sprintf("%T %s", o, o.GetName())] = hook + ": " + o.GetAnnotations()["helm.sh/hook-delete-policy"]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestHookJob: the Job of helm uninstall stops the controller of this release. Its permissions are created before the
// Job. The Job can run twice within the five minutes that helm waits.
func TestHookJob(t *testing.T) {
	objects := render(t)
	job := only[*batchv1.Job](t, objects)
	container := job.Spec.Template.Spec.Containers[0]
	want := []string{"uninstall", "--deployment=" + only[*appsv1.Deployment](t, objects).Name, "--deployment=" + clusters, "--namespace=" + namespace, "--timeout=2m"}
	if diff := cmp.Diff(want, container.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	tries := *job.Spec.BackoffLimit + 1
	deadline := time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
	if tries != 2 || 2*2*time.Minute > deadline || deadline >= 5*time.Minute {
		t.Errorf("%d tries of 2m within %s, want 2 tries within less than 5m", tries, deadline)
	}
	// Helm creates hooks in the order of their weights. Without the annotation the weight is 0.
	weight := func(o client.Object) int {
		text := o.GetAnnotations()["helm.sh/hook-weight"]
		if text == "" {
			return 0
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Errorf("%T %s has weight %q", o, o.GetName(), text)
		}
		return n
	}
	for _, o := range objects {
		if o.GetName() == job.Name && o != client.Object(job) && weight(o) >= weight(job) {
			t.Errorf("%T %s has weight %d, want less than %d, the weight of the Job", o, o.GetName(), weight(o), weight(job))
		}
	}
}

// TestCustomResourceDefinition: an installation and an upgrade apply the generated definitions, and helm uninstall keeps
// the definitions.
func TestCustomResourceDefinition(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chart, "files/crds/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if definitions := all[*apiextensionsv1.CustomResourceDefinition](render(t)); len(definitions) != len(files)-1 {
		t.Errorf("%d definitions without StatefulClusters, want %d", len(definitions), len(files)-1)
	}
	for what, args := range map[string][]string{"install": nil, "upgrade": {"--is-upgrade"}} {
		t.Run(what, func(t *testing.T) {
			definitions := all[*apiextensionsv1.CustomResourceDefinition](render(t, append(args, withClusters...)...))
			if len(definitions) != len(files) {
				t.Fatalf("%d definitions, want %d", len(definitions), len(files))
			}
			for _, got := range definitions {
				var want apiextensionsv1.CustomResourceDefinition
				readYAML(t, filepath.Join(chart, "files/crds", got.Spec.Group+"_"+got.Spec.Names.Plural+".yaml"), &want)
				if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
					t.Errorf("the definition is not the generated one (-want +got):\n%s", diff)
				}
				if got.Annotations["helm.sh/resource-policy"] != "keep" {
					t.Errorf("helm uninstall would delete the definition and every %s: annotations are %v", got.Spec.Names.Kind, got.Annotations)
				}
				if got.Annotations["argocd.argoproj.io/sync-options"] != "Prune=false" {
					t.Errorf("Argo CD would prune the definition once crds.install is false, and every %s with it: annotations are %v", got.Spec.Names.Kind, got.Annotations)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(chart, "crds")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the chart has a folder crds, whose definitions Helm never upgrades: %v", err)
	}
}

// TestArtifactHub: Artifact Hub shows the images and kinds that the chart installs, and the example of the quickstart.
func TestArtifactHub(t *testing.T) {
	var definition struct {
		Annotations map[string]string `json:"annotations"`
	}
	readYAML(t, filepath.Join(chart, "Chart.yaml"), &definition)
	objects := render(t, withClusters...)
	crd := func(kind string) map[string]any {
		definitions := all[*apiextensionsv1.CustomResourceDefinition](objects)
		crd := definitions[slices.IndexFunc(definitions, func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Spec.Names.Kind == kind })]
		return map[string]any{"kind": kind, "version": crd.Spec.Versions[0].Name, "name": crd.Name, "displayName": kind}
	}
	templates := podTemplates(objects)
	manager, clusterManager := templates["Deployment "+name].Spec.Containers[0], templates["Deployment "+clusters].Spec.Containers[0]
	gate := slices.IndexFunc(manager.Args, func(arg string) bool { return strings.HasPrefix(arg, "--gate-image=") })
	var example any
	readYAML(t, "../examples/quickstart/quickstart.yaml", &example)
	platforms := []any{"linux/amd64", "linux/arm64"}
	withoutDescription := cmpopts.IgnoreMapEntries(func(key string, _ any) bool { return key == "description" })
	tests := map[string]any{
		"images": []any{
			map[string]any{"name": "manager", "image": manager.Image, "platforms": platforms},
			map[string]any{"name": "gate", "image": strings.TrimPrefix(manager.Args[gate], "--gate-image="), "platforms": platforms},
			map[string]any{"name": "cluster-manager", "image": clusterManager.Image, "platforms": platforms},
		},
		"crds": []any{
			crd("StatefulSingleton"),
			crd("StatefulSetLock"),
			crd("StatefulCluster"),
		},
		"crdsExamples": []any{example},
	}
	for annotation, want := range tests {
		var got any
		if err := yaml.UnmarshalStrict([]byte(definition.Annotations["artifacthub.io/"+annotation]), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, withoutDescription); diff != "" {
			t.Errorf("annotation %s of Chart.yaml for Artifact Hub (-want +got):\n%s", annotation, diff)
		}
	}
}

// readYAML reads the first document of a file.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	document, _, _ := strings.Cut(string(data), "\n---\n")
	if err := yaml.Unmarshal([]byte(document), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestNotes: the notes name the next commands, and warn of what is missing or off.
func TestNotes(t *testing.T) {
	for set, want := range map[string][]string{
		"": {
			"WARNING: this cluster serves no kyverno.io/v1 ClusterPolicy\n",
			"kubectl --namespace " + namespace + " rollout status deployment/" + name + "\n",
			"\nkind: StatefulSingleton\n",
			"kubectl stfs explain my-database --namespace default\n",
			"helm uninstall " + release + " --namespace " + namespace,
		},
		"policyKind=NamespacedMutatingPolicy": {"WARNING: this cluster serves no policies.kyverno.io/v1 NamespacedMutatingPolicy\n"},
		"guards.enabled=false":                {"WARNING: guards.enabled is false"},
		"uninstallHook.enabled=false":         {"uninstallHook.enabled is false: "},
	} {
		out, err := helm(t, "install", release, chart, "--namespace", namespace, "--dry-run=client", "--set", set)
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(out, "\nNOTES:\n")
		for _, want := range want {
			if !strings.Contains(notes, want) {
				t.Errorf("with %q, %q is not in the notes:\n%s", set, want, notes)
			}
		}
	}
}
