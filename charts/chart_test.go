// Package charts tests the charts: it renders them with helm and looks at what comes out.
//
// These tests are in Go and not in helm-unittest, because they decode the rendered objects strictly into the types of
// the API. They apply the code of Pod Security, and compare objects with each other, for example selectors with the
// pods that they select.
package charts

import (
	"errors"
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

func TestPodsMeetRestricted(t *testing.T) {
	evaluator, err := psapolicy.NewEvaluator(psapolicy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	templates := podTemplates(render(t))
	if want := []string{"Deployment " + name, "Job " + name + "-uninstall"}; !slices.Equal(slices.Sorted(maps.Keys(templates)), want) {
		t.Fatalf("pods of %v, want of %v", slices.Sorted(maps.Keys(templates)), want)
	}
	for owner, template := range templates {
		t.Run(owner, func(t *testing.T) {
			result := psapolicy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec))
			if !result.Allowed {
				t.Errorf("refused by Pod Security restricted: %s: %s", result.ForbiddenReason(), result.ForbiddenDetail())
			}
			for _, c := range template.Spec.Containers {
				if !*c.SecurityContext.ReadOnlyRootFilesystem {
					t.Errorf("container %s can write to its root file system", c.Name)
				}
			}
		})
	}
}

// TestNoUserIDs: OpenShift's restricted-v2 gives each namespace ids of its own, and refuses pods that bring others.
func TestNoUserIDs(t *testing.T) {
	out, err := helm(t, "template", release, chart)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"} {
		if strings.Contains(out, field) {
			t.Errorf("the chart sets %s", field)
		}
	}
}

// TestNodes: no pod of the chart is scheduled to a node of another system than its image is for.
func TestNodes(t *testing.T) {
	for owner, template := range podTemplates(render(t)) {
		if diff := cmp.Diff(map[string]string{"kubernetes.io/os": "linux"}, template.Spec.NodeSelector); diff != "" {
			t.Errorf("labels of the nodes of %s's pods (-want +got):\n%s", owner, diff)
		}
	}
}

// TestTokens: who reaches the API server is said in the chart, and not left to a default.
func TestTokens(t *testing.T) {
	objects := render(t)
	for _, account := range all[*corev1.ServiceAccount](objects) {
		if mounts := account.AutomountServiceAccountToken; mounts == nil || *mounts {
			t.Errorf("ServiceAccount %s gives its token to any pod that bears its name", account.Name)
		}
	}
	for owner, template := range podTemplates(objects) {
		if mounts := template.Spec.AutomountServiceAccountToken; mounts == nil || !*mounts {
			t.Errorf("the pods of %s do not ask for their token", owner)
		}
	}
}

// TestMemoryLimit: the controller is told its limit of memory, as bytes, which is what Go reads there.
func TestMemoryLimit(t *testing.T) {
	want := []corev1.EnvVar{{Name: "GOMEMLIMIT", ValueFrom: &corev1.EnvVarSource{
		ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"},
	}}}
	if diff := cmp.Diff(want, only[*appsv1.Deployment](t, render(t)).Spec.Template.Spec.Containers[0].Env); diff != "" {
		t.Errorf("environment of the controller (-want +got):\n%s", diff)
	}
}

// TestProbes: the kubelet asks a port that the controller has whether it lives, and whether it is ready.
func TestProbes(t *testing.T) {
	manager := only[*appsv1.Deployment](t, render(t)).Spec.Template.Spec.Containers[0]
	for path, probe := range map[string]*corev1.Probe{"/healthz": manager.LivenessProbe, "/readyz": manager.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path {
			t.Errorf("nobody asks the controller for %s: %v", path, probe)
			continue
		}
		if !slices.ContainsFunc(manager.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal }) {
			t.Errorf("the controller has no port %s, which is asked for %s", probe.HTTPGet.Port.String(), path)
		}
	}
}

// TestRights lists all permissions, so a new permission is a decision.
func TestRights(t *testing.T) {
	got := rights(render(t))
	want := map[string]map[string]string{
		name: {
			"everywhere statefulsingletons.apps.statefulsingleton.com":        "get list patch watch",
			"everywhere statefulsingletons/status.apps.statefulsingleton.com": "update",
			"everywhere pods":                                      "create get list patch watch",
			"everywhere pods/status":                               "patch",
			"everywhere configmaps":                                "create",
			"everywhere deployments.apps":                          "get patch",
			"everywhere replicasets.apps":                          "get",
			"everywhere replicasets/scale.apps":                    "patch",
			"everywhere statefulsets.apps":                         "get",
			"everywhere nodes":                                     "get list watch",
			"everywhere poddisruptionbudgets.policy":               "create delete list watch",
			"everywhere persistentvolumeclaims":                    "get",
			"everywhere events.events.k8s.io":                      "create patch",
			"everywhere clusterpolicies.kyverno.io":                "create delete get list patch watch",
			"everywhere subjectaccessreviews.authorization.k8s.io": "create",

			"everywhere tokenreviews.authentication.k8s.io": "create",

			"the-namespace leases.coordination.k8s.io":                   "create",
			"the-namespace leases.coordination.k8s.io/statefulsingleton": "get update",
			"the-namespace events":                                       "create patch",
		},
		name + "-uninstall": {
			"everywhere statefulsingletons.apps.statefulsingleton.com": "list patch",
			"everywhere pods":                        "list patch",
			"everywhere clusterpolicies.kyverno.io":  "delete list",
			"everywhere poddisruptionbudgets.policy": "delete list",
			"the-namespace deployments.apps/" + name: "get patch",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights of the service accounts (-want +got):\n%s", diff)
	}
}

// TestRightsOfPeople names what each of Kubernetes' own ClusterRoles is given.
func TestRightsOfPeople(t *testing.T) {
	want := map[string]string{
		"view statefulsingletons.apps.statefulsingleton.com": "get list watch",
		"edit statefulsingletons.apps.statefulsingleton.com": "create delete deletecollection patch update",
	}
	if diff := cmp.Diff(want, aggregated(render(t))); diff != "" {
		t.Errorf("rights of people (-want +got):\n%s", diff)
	}
}

// TestMetricsReader: the role for whom may read the metrics holds nothing else, and the chart gives it to nobody.
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
			t.Errorf("ClusterRoleBinding %s gives it to %v", binding.Name, binding.Subjects)
		}
	}
}

// TestGuards: a guard without its binding guards nothing, and one that fails open guards little.
func TestGuards(t *testing.T) {
	objects := render(t)
	bindings := map[string]*admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	for _, binding := range all[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](objects) {
		bindings[binding.Spec.PolicyName] = binding
	}
	var got []string
	for _, guard := range all[*admissionregistrationv1.ValidatingAdmissionPolicy](objects) {
		got = append(got, strings.TrimPrefix(guard.Name, name+"-"))
		binding := bindings[guard.Name]
		if binding == nil {
			t.Errorf("guard %s has no binding", guard.Name)
			continue
		}
		if want := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}; !slices.Equal(binding.Spec.ValidationActions, want) {
			t.Errorf("guard %s does %v, want %v", guard.Name, binding.Spec.ValidationActions, want)
		}
		if *guard.Spec.FailurePolicy != admissionregistrationv1.Fail {
			t.Errorf("guard %s has failurePolicy %s, want Fail", guard.Name, *guard.Spec.FailurePolicy)
		}
		if (guard.Spec.ParamKind == nil) != (binding.Spec.ParamRef == nil) {
			t.Errorf("guard %s has paramKind %v, and its binding paramRef %v", guard.Name, guard.Spec.ParamKind, binding.Spec.ParamRef)
		}
	}
	slices.Sort(got)
	want := []string{"attestation", "barrier", "bindings", "controller-budgets", "controller-configmaps", "controller-events",
		"controller-pods", "controller-policies", "controller-scale", "controller-singletons", "copied", "definition", "dry-run",
		"ephemeral-containers", "exempt-namespaces", "finalizer", "held", "marks", "record", "reports", "roll", "sidecar-image", "unreleased"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("guards (-want +got):\n%s", diff)
	}
}

// TestSelectors: what picks the controller's pods must not pick the hook's, which waits until they are gone.
func TestSelectors(t *testing.T) {
	objects := render(t, "--set", "podLabels.app\\.kubernetes\\.io/component=other", "--set", "podLabels.team=data",
		"--set", "commonLabels.app\\.kubernetes\\.io/component=other", "--set", "commonLabels.app\\.kubernetes\\.io/name=other")
	templates := podTemplates(objects)
	controller := labels.Set(templates["Deployment "+name].Labels)
	hook := labels.Set(templates["Job "+name+"-uninstall"].Labels)
	spread := templates["Deployment "+name].Spec.TopologySpreadConstraints[0].LabelSelector
	for what, selector := range map[string]*metav1.LabelSelector{
		"Deployment":          only[*appsv1.Deployment](t, objects).Spec.Selector,
		"PodDisruptionBudget": only[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector,
		"Service":             {MatchLabels: only[*corev1.Service](t, objects).Spec.Selector},
		"topology spread":     spread,
	} {
		t.Run(what, func(t *testing.T) {
			s, err := metav1.LabelSelectorAsSelector(selector)
			if err != nil {
				t.Fatal(err)
			}
			if !s.Matches(controller) {
				t.Errorf("%s does not pick the controller's pods, which bear %s", s, controller)
			}
			if s.Matches(hook) {
				t.Errorf("%s picks the hook's pods, which bear %s", s, hook)
			}
		})
	}
}

// TestScraped: the ServiceMonitor picks the Service, and names a port of it.
func TestScraped(t *testing.T) {
	objects := render(t, "--set", "serviceMonitor.enabled=true")
	service := only[*corev1.Service](t, objects)
	var monitor struct {
		Spec struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port string `json:"port"`
			} `json:"endpoints"`
		} `json:"spec"`
	}
	object := only[*unstructured.Unstructured](t, objects).Object
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &monitor); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(labels.Set(service.Labels)) {
		t.Errorf("%s does not pick Service %s, which bears %v", selector, service.Name, service.Labels)
	}
	for _, endpoint := range monitor.Spec.Endpoints {
		if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == endpoint.Port }) {
			t.Errorf("Service %s has no port %s", service.Name, endpoint.Port)
		}
	}
}

// TestBudget: a drain leaves a controller, and waits for none that does not work.
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

// TestNetworkPolicy: where a namespace lets out nothing else, the hook needs the API server as the controller does.
func TestNetworkPolicy(t *testing.T) {
	objects := render(t, "--set", "networkPolicy.enabled=true")
	policy := only[*networkingv1.NetworkPolicy](t, objects)
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	for owner, template := range podTemplates(objects) {
		if !selector.Matches(labels.Set(template.Labels)) {
			t.Errorf("%s does not pick the pods of %s, which bear %v", selector, owner, template.Labels)
		}
	}
	if want := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}; !slices.Equal(policy.Spec.PolicyTypes, want) {
		t.Errorf("the policy restricts %v, want %v", policy.Spec.PolicyTypes, want)
	}
	var named []string
	for _, port := range only[*appsv1.Deployment](t, objects).Spec.Template.Spec.Containers[0].Ports {
		named = append(named, port.Name)
	}
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			if !slices.Contains(named, port.Port.StrVal) {
				t.Errorf("the controller has no port %s, but %v", port.Port, named)
			}
		}
	}
}

// TestHook: what helm uninstall runs, and its rights, exist only while it runs.
func TestHook(t *testing.T) {
	want := map[string]string{}
	for _, kind := range []string{"v1.ServiceAccount", "v1.ClusterRole", "v1.ClusterRoleBinding", "v1.Role", "v1.RoleBinding", "v1.Job"} {
		want["*"+kind+" "+name+"-uninstall"] = "pre-delete: before-hook-creation,hook-succeeded"
	}
	if diff := cmp.Diff(want, hooks(render(t))); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestHookJob: the Job of helm uninstall stops this release's controller, has its rights when it starts, and can try
// twice before helm gives up after five minutes.
func TestHookJob(t *testing.T) {
	objects := render(t)
	job := only[*batchv1.Job](t, objects)
	container := job.Spec.Template.Spec.Containers[0]
	want := []string{"uninstall", "--deployment=" + only[*appsv1.Deployment](t, objects).Name, "--namespace=" + namespace, "--timeout=2m"}
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
			t.Errorf("%T %s has weight %d, and the Job needs it and has %d", o, o.GetName(), weight(o), weight(job))
		}
	}
}

// TestLeader: only one of the replicas works.
func TestLeader(t *testing.T) {
	args := only[*appsv1.Deployment](t, render(t)).Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--leader-elect") {
		t.Errorf("no --leader-elect: %q", args)
	}
}

// TestCustomResourceDefinition: the definition is the generated one, an upgrade brings it along, and it outlives the release.
func TestCustomResourceDefinition(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(chart, "files/crds/apps.statefulsingleton.com_statefulsingletons.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(source, &want); err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{"install": nil, "upgrade": {"--is-upgrade"}} {
		t.Run(what, func(t *testing.T) {
			got := only[*apiextensionsv1.CustomResourceDefinition](t, render(t, args...))
			if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
				t.Errorf("the definition is not the generated one (-want +got):\n%s", diff)
			}
			if got.Annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("helm uninstall would delete the definition and every StatefulSingleton: annotations are %v", got.Annotations)
			}
			if got.Annotations["argocd.argoproj.io/sync-options"] != "Prune=false" {
				t.Errorf("Argo CD would prune the definition once crds.install is false, and every StatefulSingleton with it: annotations are %v", got.Annotations)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(chart, "crds")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Helm would install what is in the chart's folder crds, and never upgrade it: %v", err)
	}
}

// TestArtifactHub: what Artifact Hub shows of images and kinds is what the chart installs, and the example is the quickstart's.
func TestArtifactHub(t *testing.T) {
	var definition struct {
		Annotations map[string]string `json:"annotations"`
	}
	readYAML(t, filepath.Join(chart, "Chart.yaml"), &definition)
	objects := render(t)
	crd := only[*apiextensionsv1.CustomResourceDefinition](t, objects)
	manager := only[*appsv1.Deployment](t, objects).Spec.Template.Spec.Containers[0]
	gate := slices.IndexFunc(manager.Args, func(arg string) bool { return strings.HasPrefix(arg, "--gate-image=") })
	var example any
	readYAML(t, "../examples/quickstart/quickstart.yaml", &example)
	platforms := []any{"linux/amd64", "linux/arm64"}
	tests := map[string]any{
		"images": []any{
			map[string]any{"name": "manager", "image": manager.Image, "platforms": platforms},
			map[string]any{"name": "gate", "image": strings.TrimPrefix(manager.Args[gate], "--gate-image="), "platforms": platforms},
		},
		"crds": []any{map[string]any{
			"kind": crd.Spec.Names.Kind, "version": crd.Spec.Versions[0].Name, "name": crd.Name, "displayName": crd.Spec.Names.Kind,
			"description": "Makes of the pods that its selector picks a singleton, of which no two run at once.",
		}},
		"crdsExamples": []any{example},
	}
	for annotation, want := range tests {
		t.Run(annotation, func(t *testing.T) {
			var got any
			if err := yaml.UnmarshalStrict([]byte(definition.Annotations["artifacthub.io/"+annotation]), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what Chart.yaml tells Artifact Hub (-want +got):\n%s", diff)
			}
		})
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

func TestNotes(t *testing.T) {
	cases := map[string]struct {
		args []string
		want []string
	}{
		"what to do next, and that there is no Kyverno": {
			want: []string{
				"WARNING: this cluster has no Kyverno",
				"the guards reject them",
				"kubectl --namespace " + namespace + " rollout status deployment/" + name + "\n",
				"\nkind: StatefulSingleton\n",
				"kubectl stfs explain my-database --namespace default\n",
				"helm uninstall " + release + " --namespace " + namespace,
			},
		},
		"guards off": {
			args: []string{"--set", "guards.enabled=false"},
			want: []string{"WARNING: guards.enabled is false"},
		},
		"no hook": {
			args: []string{"--set", "uninstallHook.enabled=false"},
			want: []string{"uninstallHook.enabled is false: first remove the finalizers of the pods by hand"},
		},
	}
	for what, tc := range cases {
		t.Run(what, func(t *testing.T) {
			args := append([]string{"install", release, chart, "--namespace", namespace, "--dry-run=client"}, tc.args...)
			out, err := helm(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			_, notes, _ := strings.Cut(out, "\nNOTES:\n")
			for _, want := range tc.want {
				if !strings.Contains(notes, want) {
					t.Errorf("%q is not in the notes:\n%s", want, notes)
				}
			}
		})
	}
}
