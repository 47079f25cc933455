package charts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

var digest = "sha256:" + strings.Repeat("0123456789abcdef", 4)

// valueCase sets a value, and checks its effect on the rendered objects.
type valueCase struct {
	set  []string
	got  func([]client.Object) any
	want any
}

func values(t *testing.T) map[string]valueCase {
	spec := func(o []client.Object) corev1.PodSpec { return only[*appsv1.Deployment](t, o).Spec.Template.Spec }
	manager := func(o []client.Object) corev1.Container { return spec(o).Containers[0] }
	flag := func(name string) func([]client.Object) any {
		return func(o []client.Object) any {
			for _, arg := range manager(o).Args {
				if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
					return value
				}
			}
			return nil
		}
	}
	// ofPods gets a field of the controller's pods and of the hook's pods.
	ofPods := func(get func(corev1.PodSpec) any) func([]client.Object) any {
		return func(o []client.Object) any {
			found := map[string]any{}
			for owner, template := range podTemplates(o) {
				found[owner] = get(template.Spec)
			}
			return found
		}
	}
	both := func(value any) any {
		return map[string]any{"Deployment " + name: value, "Job " + name + "-uninstall": value}
	}
	// clusterManager returns the container of the manager of StatefulClusters, or an empty container.
	clusterManager := func(o []client.Object) corev1.Container {
		if template, ok := podTemplates(o)["Deployment "+clusters]; ok {
			return template.Spec.Containers[0]
		}
		return corev1.Container{}
	}
	clusterManagerImage := func(o []client.Object) any { return clusterManager(o).Image }
	managerImages := ofPods(func(s corev1.PodSpec) any { return s.Containers[0].Image })
	dns := []networkingv1.NetworkPolicyPort{
		{Port: new(intstr.FromInt32(53)), Protocol: new(corev1.ProtocolUDP)},
		{Port: new(intstr.FromInt32(53)), Protocol: new(corev1.ProtocolTCP)},
		{Port: new(intstr.FromInt32(5353)), Protocol: new(corev1.ProtocolUDP)},
		{Port: new(intstr.FromInt32(5353)), Protocol: new(corev1.ProtocolTCP)},
	}
	// monitoring returns a field of the object of the Prometheus Operator, or nil.
	monitoring := func(o []client.Object, field ...string) any {
		objects := all[*unstructured.Unstructured](o)
		if len(objects) == 0 {
			return nil
		}
		value, _, err := unstructured.NestedFieldNoCopy(objects[0].Object, field...)
		if err != nil {
			t.Error(err)
		}
		return value
	}
	// endpoint returns the only endpoint of the ServiceMonitor, or nil.
	endpoint := func(o []client.Object) map[string]any {
		if endpoints, ok := monitoring(o, "spec", "endpoints").([]any); ok && len(endpoints) == 1 {
			return endpoints[0].(map[string]any)
		}
		return nil
	}
	// runbook returns the URL of the runbook of the first alert, or nil.
	runbook := func(o []client.Object) any {
		if len(all[*unstructured.Unstructured](o)) == 0 {
			return nil
		}
		return rulesOf(t, o).Groups[0].Rules[0].Annotations["runbook_url"]
	}
	guard := func(o []client.Object, end string) *admissionregistrationv1.ValidatingAdmissionPolicy {
		for _, policy := range all[*admissionregistrationv1.ValidatingAdmissionPolicy](o) {
			if strings.HasSuffix(policy.Name, "-"+end) {
				return policy
			}
		}
		return &admissionregistrationv1.ValidatingAdmissionPolicy{}
	}
	// dashboard returns the ConfigMap of the dashboard, or an empty ConfigMap.
	dashboard := func(o []client.Object) *corev1.ConfigMap {
		if found := dashboards(o); len(found) > 0 {
			return found[0]
		}
		return &corev1.ConfigMap{}
	}
	return map[string]valueCase{
		"fullnameOverride": {
			set:  []string{"fullnameOverride=stfs"},
			got:  func(o []client.Object) any { return only[*appsv1.Deployment](t, o).Name },
			want: "stfs",
		},
		"commonLabels": {
			set:  []string{"commonLabels.team=data"},
			got:  func(o []client.Object) any { return without(o, "team") },
			want: []string(nil),
		},
		"image.manager.repository": {
			set:  []string{"image.manager.repository=mirror.example/m"},
			got:  managerImages,
			want: both("mirror.example/m:0.1.0"),
		},
		"image.manager.tag": {
			set:  []string{"image.manager.tag=v9"},
			got:  managerImages,
			want: both("ghcr.io/statefulsingleton/manager:v9"),
		},
		"image.manager.digest": {
			set:  []string{"image.manager.digest=" + digest},
			got:  managerImages,
			want: both("ghcr.io/statefulsingleton/manager@" + digest),
		},
		"image.manager.pullPolicy": {
			set:  []string{"image.manager.pullPolicy=Always"},
			got:  ofPods(func(s corev1.PodSpec) any { return s.Containers[0].ImagePullPolicy }),
			want: both(corev1.PullAlways),
		},
		"image.gate.repository": {
			set:  []string{"image.gate.repository=mirror.example/g"},
			got:  flag("gate-image"),
			want: "mirror.example/g:0.1.0",
		},
		"image.gate.tag": {
			set:  []string{"image.gate.tag=v9", "image.gate.digest=" + digest},
			got:  flag("gate-image"),
			want: "ghcr.io/statefulsingleton/gate:v9@" + digest,
		},
		"image.gate.digest": {
			set:  []string{"image.gate.digest=" + digest},
			got:  flag("gate-image"),
			want: "ghcr.io/statefulsingleton/gate@" + digest,
		},
		"image.gate.pullPolicy": {
			set:  []string{"image.gate.pullPolicy=Never"},
			got:  flag("gate-image-pull-policy"),
			want: "Never",
		},
		"image.gate.pullSecrets": {
			set:  []string{"image.gate.pullSecrets[0].name=mirror"},
			got:  flag("gate-image-pull-secret"),
			want: "mirror",
		},
		"image.clusterManager.repository": {
			set:  []string{"statefulClusters.enabled=true", "image.clusterManager.repository=mirror.example/c"},
			got:  clusterManagerImage,
			want: "mirror.example/c:0.1.0",
		},
		"image.clusterManager.tag": {
			set:  []string{"statefulClusters.enabled=true", "image.clusterManager.tag=v9"},
			got:  clusterManagerImage,
			want: "ghcr.io/statefulsingleton/cluster-manager:v9",
		},
		"image.clusterManager.digest": {
			set:  []string{"statefulClusters.enabled=true", "image.clusterManager.digest=" + digest},
			got:  clusterManagerImage,
			want: "ghcr.io/statefulsingleton/cluster-manager@" + digest,
		},
		"image.clusterManager.pullPolicy": {
			set:  []string{"statefulClusters.enabled=true", "image.clusterManager.pullPolicy=Always"},
			got:  func(o []client.Object) any { return clusterManager(o).ImagePullPolicy },
			want: corev1.PullAlways,
		},
		"statefulClusters.enabled": {
			set:  []string{"statefulClusters.enabled=true"},
			got:  func(o []client.Object) any { return slices.Sorted(maps.Keys(podTemplates(o))) },
			want: []string{"Deployment " + name, "Deployment " + clusters, "Job " + name + "-uninstall"},
		},
		"sidecar.resources": {
			set:  []string{"sidecar.resources.requests.cpu=1", "sidecar.resources.requests.memory=1Mi", "sidecar.resources.limits.memory=null"},
			got:  func(o []client.Object) any { return []any{flag("sidecar-requests")(o), flag("sidecar-limits")(o)} },
			want: []any{"cpu=1,memory=1Mi", ""},
		},
		"policyKind": {set: []string{"policyKind=NamespacedMutatingPolicy"}, got: flag("policy-kind"), want: "NamespacedMutatingPolicy"},
		"policyPer":  {set: []string{"policyPer=namespace"}, got: flag("policy-per"), want: "namespace"},
		"imagePullSecrets": {
			set:  []string{"imagePullSecrets[0].name=mirror"},
			got:  ofPods(func(s corev1.PodSpec) any { return s.ImagePullSecrets }),
			want: both([]corev1.LocalObjectReference{{Name: "mirror"}}),
		},
		"replicas": {
			set:  []string{"replicas=3"},
			got:  func(o []client.Object) any { return *only[*appsv1.Deployment](t, o).Spec.Replicas },
			want: int32(3),
		},
		"resources": {
			set:  []string{"resources.limits.memory=1Gi"},
			got:  ofPods(func(s corev1.PodSpec) any { return s.Containers[0].Resources.Limits[corev1.ResourceMemory] }),
			want: both(resource.MustParse("1Gi")),
		},
		"nodeSelector": {
			set:  []string{"nodeSelector.pool=system"},
			got:  ofPods(func(s corev1.PodSpec) any { return s.NodeSelector }),
			want: both(map[string]string{"kubernetes.io/os": "linux", "pool": "system"}),
		},
		"tolerations": {
			set:  []string{"tolerations[0].operator=Exists"},
			got:  ofPods(func(s corev1.PodSpec) any { return s.Tolerations }),
			want: both([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}),
		},
		"affinity": {
			set: []string{"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone"},
			got: ofPods(func(s corev1.PodSpec) any { return s.Affinity }),
			want: both(&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}},
			}}),
		},
		"topologySpreadConstraints": {
			set: []string{
				"topologySpreadConstraints[0].maxSkew=2", "topologySpreadConstraints[0].topologyKey=zone",
				"topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
			},
			got: func(o []client.Object) any { return spec(o).TopologySpreadConstraints },
			want: []corev1.TopologySpreadConstraint{{
				MaxSkew: 2, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, MatchLabelKeys: []string{"pod-template-hash"},
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
					"app.kubernetes.io/name":      "statefulsingleton",
					"app.kubernetes.io/instance":  release,
					"app.kubernetes.io/component": "controller",
				}},
			}},
		},
		"podAnnotations": {
			set:  []string{"podAnnotations.example\\.com/scrape=yes"},
			got:  func(o []client.Object) any { return only[*appsv1.Deployment](t, o).Spec.Template.Annotations },
			want: map[string]string{"example.com/scrape": "yes"},
		},
		"podLabels": {
			set:  []string{"podLabels.team=data"},
			got:  func(o []client.Object) any { return only[*appsv1.Deployment](t, o).Spec.Template.Labels["team"] },
			want: "data",
		},
		"priorityClassName": {
			set:  []string{"priorityClassName=system-cluster-critical"},
			got:  ofPods(func(s corev1.PodSpec) any { return s.PriorityClassName }),
			want: both("system-cluster-critical"),
		},
		"leaderElection.leaseDuration": {
			set:  []string{"leaderElection.leaseDuration=1m30s"},
			got:  flag("leader-election-lease-duration"),
			want: "1m30s",
		},
		"leaderElection.renewDeadline": {
			set:  []string{"leaderElection.renewDeadline=12s"},
			got:  flag("leader-election-renew-deadline"),
			want: "12s",
		},
		"leaderElection.retryPeriod": {
			set:  []string{"leaderElection.retryPeriod=500ms"},
			got:  flag("leader-election-retry-period"),
			want: "500ms",
		},
		"logLevel":  {set: []string{"logLevel=debug"}, got: flag("log-level"), want: "debug"},
		"logFormat": {set: []string{"logFormat=console"}, got: flag("log-format"), want: "console"},
		"metrics.certificateSecret": {
			set: []string{"metrics.certificateSecret=its-certificate", "serviceMonitor.enabled=true"},
			got: func(o []client.Object) any {
				return map[string]any{
					"flag": flag("metrics-cert-dir")(o), "volumes": spec(o).Volumes, "mounts": manager(o).VolumeMounts, "tlsConfig": endpoint(o)["tlsConfig"],
				}
			},
			want: map[string]any{
				"flag": "/var/run/metrics-certificate",
				"volumes": []corev1.Volume{{Name: "metrics-certificate", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
					SecretName: "its-certificate",
					Items:      []corev1.KeyToPath{{Key: "tls.crt", Path: "tls.crt"}, {Key: "tls.key", Path: "tls.key"}},
				}}}},
				"mounts": []corev1.VolumeMount{{Name: "metrics-certificate", MountPath: "/var/run/metrics-certificate", ReadOnly: true}},
				"tlsConfig": map[string]any{
					"serverName": name + "-metrics." + namespace + ".svc",
					"ca":         map[string]any{"secret": map[string]any{"name": "its-certificate", "key": "ca.crt"}},
				},
			},
		},
		"serviceMonitor.tlsConfig": {
			set: []string{"serviceMonitor.enabled=true", "metrics.certificateSecret=its-certificate",
				"serviceMonitor.tlsConfig.ca.configMap.name=company", "serviceMonitor.tlsConfig.ca.configMap.key=ca.crt"},
			got:  func(o []client.Object) any { return endpoint(o)["tlsConfig"] },
			want: map[string]any{"ca": map[string]any{"configMap": map[string]any{"name": "company", "key": "ca.crt"}}},
		},
		"serviceMonitor.enabled": {
			set: []string{"serviceMonitor.enabled=true"},
			got: func(o []client.Object) any { return monitoring(o, "spec") },
			want: map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{
					"app.kubernetes.io/name":      "statefulsingleton",
					"app.kubernetes.io/instance":  release,
					"app.kubernetes.io/component": "metrics",
				}},
				"endpoints": []any{map[string]any{
					"port": "metrics", "scheme": "https", "honorLabels": true,
					"bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
					"tlsConfig":       map[string]any{"insecureSkipVerify": true},
				}},
			},
		},
		"serviceMonitor.labels": {
			set:  []string{"serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus"},
			got:  func(o []client.Object) any { return monitoring(o, "metadata", "labels", "release") },
			want: "prometheus",
		},
		"serviceMonitor.interval": {
			set:  []string{"serviceMonitor.enabled=true", "serviceMonitor.interval=15s"},
			got:  func(o []client.Object) any { return endpoint(o)["interval"] },
			want: "15s",
		},
		"serviceMonitor.scrapeTimeout": {
			set:  []string{"serviceMonitor.enabled=true", "serviceMonitor.scrapeTimeout=5s"},
			got:  func(o []client.Object) any { return endpoint(o)["scrapeTimeout"] },
			want: "5s",
		},
		"prometheusRule.enabled": {
			set:  []string{"prometheusRule.enabled=true"},
			got:  func(o []client.Object) any { return monitoring(o, "kind") },
			want: "PrometheusRule",
		},
		"prometheusRule.labels": {
			set:  []string{"prometheusRule.enabled=true", "prometheusRule.labels.release=prometheus"},
			got:  func(o []client.Object) any { return monitoring(o, "metadata", "labels", "release") },
			want: "prometheus",
		},
		"prometheusRule.runbookURL": {
			set:  []string{"prometheusRule.enabled=true", "prometheusRule.runbookURL=https://wiki.example/stfs"},
			got:  runbook,
			want: "https://wiki.example/stfs#statefulsingletonseveralrun",
		},
		"dashboard.enabled": {
			set:  []string{"dashboard.enabled=true"},
			got:  func(o []client.Object) any { return len(dashboards(o)) },
			want: 1,
		},
		"dashboard.labels": {
			set:  []string{"dashboard.enabled=true", "dashboard.labels.instance=main"},
			got:  func(o []client.Object) any { return dashboard(o).Labels["instance"] },
			want: "main",
		},
		"dashboard.annotations": {
			set:  []string{"dashboard.enabled=true", "dashboard.annotations.grafana_folder=Platform"},
			got:  func(o []client.Object) any { return dashboard(o).Annotations },
			want: map[string]string{"grafana_folder": "Platform"},
		},
		"dashboard.namespace": {
			set:  []string{"dashboard.enabled=true", "dashboard.namespace=grafana"},
			got:  func(o []client.Object) any { return dashboard(o).Namespace },
			want: "grafana",
		},
		"networkPolicy.enabled": {
			set: []string{"networkPolicy.enabled=true"},
			got: func(o []client.Object) any { return network(o) },
			want: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{
					"app.kubernetes.io/name":     "statefulsingleton",
					"app.kubernetes.io/instance": release,
				}},
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
				Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: ports("metrics")}, {Ports: ports("health")}},
				Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: ports("443", "6443")}, {Ports: dns}},
			},
		},
		"networkPolicy.metricsFrom": {
			set: []string{"networkPolicy.enabled=true", "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus"},
			got: func(o []client.Object) any { return network(o).Ingress },
			want: []networkingv1.NetworkPolicyIngressRule{
				{Ports: ports("metrics"), From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "prometheus"}}},
				}},
				{Ports: ports("health")},
			},
		},
		"networkPolicy.apiServer.cidrs": {
			set: []string{"networkPolicy.enabled=true", "networkPolicy.apiServer.cidrs={192.0.2.10/32,2001:db8::10/128}"},
			got: func(o []client.Object) any { return network(o).Egress },
			want: []networkingv1.NetworkPolicyEgressRule{
				{Ports: ports("443", "6443"), To: []networkingv1.NetworkPolicyPeer{
					{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.10/32"}},
					{IPBlock: &networkingv1.IPBlock{CIDR: "2001:db8::10/128"}},
				}},
				{Ports: dns},
			},
		},
		"networkPolicy.apiServer.ports": {
			set:  []string{"networkPolicy.enabled=true", "networkPolicy.apiServer.ports={16443}"},
			got:  func(o []client.Object) any { return network(o).Egress },
			want: []networkingv1.NetworkPolicyEgressRule{{Ports: ports("16443")}, {Ports: dns}},
		},
		"rbac.aggregateClusterRoles": {
			set:  []string{"rbac.aggregateClusterRoles=false"},
			got:  func(o []client.Object) any { return aggregated(o) },
			want: map[string]string{},
		},
		"crds.install": {
			set:  []string{"crds.install=false", "guards.enabled=false"},
			got:  func(o []client.Object) any { return len(all[*apiextensionsv1.CustomResourceDefinition](o)) },
			want: 0,
		},
		"guards.enabled": {
			set:  []string{"guards.enabled=false"},
			got:  func(o []client.Object) any { return len(all[*admissionregistrationv1.ValidatingAdmissionPolicy](o)) },
			want: 0,
		},
		"guards.kubeletUsers": {
			set: []string{"guards.kubeletUsers={edge-kubelet}"},
			got: func(o []client.Object) any {
				return strings.Contains(guard(o, "reports").Spec.MatchConditions[0].Expression, `["edge-kubelet"]`)
			},
			want: true,
		},
		"guards.exemptNamespaces": {
			set: []string{"guards.exemptNamespaces={kube-system,network}"},
			got: func(o []client.Object) any {
				return guard(o, "copied").Spec.MatchConstraints.NamespaceSelector
			},
			want: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", "network"},
			}}},
		},
		"guards.gateImages": {
			set: []string{"guards.gateImages={mirror.example/gate:0.1.0}"},
			got: func(o []client.Object) any {
				for _, v := range guard(o, "held").Spec.Variables {
					if v.Name == "sidecarImages" {
						return v.Expression
					}
				}
				return nil
			},
			want: `["ghcr.io/statefulsingleton/gate:0.1.0","mirror.example/gate:0.1.0"]`,
		},
		"uninstallHook.enabled": {
			set:  []string{"uninstallHook.enabled=false"},
			got:  func(o []client.Object) any { return hooks(o) },
			want: map[string]string{},
		},
	}
}

// without returns the objects and the pods that do not have a label.
func without(o []client.Object, label string) []string {
	var bare []string
	for _, object := range o {
		if _, ok := object.GetLabels()[label]; !ok {
			bare = append(bare, fmt.Sprintf("%T %s", object, object.GetName()))
		}
	}
	for owner, template := range podTemplates(o) {
		if _, ok := template.Labels[label]; !ok {
			bare = append(bare, "pods of "+owner)
		}
	}
	return bare
}

// network returns the spec of the NetworkPolicy, or an empty spec.
func network(o []client.Object) networkingv1.NetworkPolicySpec {
	policies := all[*networkingv1.NetworkPolicy](o)
	if len(policies) == 0 {
		return networkingv1.NetworkPolicySpec{}
	}
	return policies[0].Spec
}

// ports returns the ports of a NetworkPolicy's rule, by name or number.
func ports(names ...string) []networkingv1.NetworkPolicyPort {
	var found []networkingv1.NetworkPolicyPort
	for _, name := range names {
		found = append(found, networkingv1.NetworkPolicyPort{Port: new(intstr.Parse(name))})
	}
	return found
}

func TestEachValueDoesSomething(t *testing.T) {
	defaults := render(t)
	for value, tc := range values(t) {
		t.Run(value, func(t *testing.T) {
			var args []string
			for _, s := range tc.set {
				args = append(args, "--set", s)
			}
			if diff := cmp.Diff(tc.want, tc.got(render(t, args...))); diff != "" {
				t.Errorf("with %v (-want +got):\n%s", tc.set, diff)
			}
			if cmp.Equal(tc.want, tc.got(defaults)) {
				t.Errorf("without %v the result is also %v", tc.set, tc.want)
			}
		})
	}
}

// TestDependency: a parent chart can enable and disable this chart.
func TestDependency(t *testing.T) {
	parent := t.TempDir()
	if err := os.CopyFS(filepath.Join(parent, "charts", chart), os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	definition := `
apiVersion: v2
name: platform
version: 1.0.0
dependencies:
  - {name: statefulsingleton, version: ">=0.0.0-0", condition: statefulsingleton.enabled}
`
	if err := os.WriteFile(filepath.Join(parent, "Chart.yaml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		out, err := helm(t, "template", release, parent, "--set", "statefulsingleton.enabled="+enabled)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out, "\nkind: Deployment\n"); got != want {
			t.Errorf("with statefulsingleton.enabled=%s the controller is installed: %t, want %t", enabled, got, want)
		}
	}
}

// testedValues returns the names of all values. TestDependency tests the value "enabled".
func testedValues(t *testing.T) []string {
	names := append(slices.Collect(maps.Keys(values(t))), "enabled")
	slices.Sort(names)
	return names
}

// TestEachValueIsTested: values.yaml and these tests have the same values.
func TestEachValueIsTested(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.UnmarshalStrict(data, &defaults); err != nil {
		t.Fatal(err)
	}
	tested := testedValues(t)
	var got []string
	var walk func(path string, value any)
	walk = func(path string, value any) {
		if children, ok := value.(map[string]any); ok && len(children) > 0 && !slices.Contains(tested, path) {
			for key, child := range children {
				walk(strings.TrimPrefix(path+"."+key, "."), child)
			}
			return
		}
		got = append(got, path)
	}
	walk("", defaults)
	slices.Sort(got)
	if diff := cmp.Diff(tested, got); diff != "" {
		t.Errorf("values (-tested +values.yaml):\n%s", diff)
	}
}

// TestReadmeNamesEachValue: each value has a comment in values.yaml, from which README.md is generated.
func TestReadmeNamesEachValue(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, heading := range regexp.MustCompile(`(?m)^#### \*\*(.+)\*\* ~ `).FindAllSubmatch(readme, -1) {
		got = append(got, string(heading[1]))
	}
	slices.Sort(got)
	if diff := cmp.Diff(testedValues(t), got); diff != "" {
		t.Errorf("values (-tested +README.md):\n%s", diff)
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	cases := map[string]struct {
		args []string
		want string
	}{
		"unknown at the top":      {[]string{"--set", "replica=2"}, "additional properties 'replica' not allowed"},
		"unknown in an image":     {[]string{"--set", "image.gate.name=g"}, "at '/image/gate': additional properties 'name' not allowed"},
		"unknown image":           {[]string{"--set", "image.sidecar.tag=v1"}, "at '/image': additional properties 'sidecar' not allowed"},
		"no name of a namespace":  {[]string{"--set-json", `guards.exemptNamespaces=["Network"]`}, "at '/guards/exemptNamespaces/0': 'Network' does not match pattern"},
		"no name of an image":     {[]string{"--set-json", `guards.gateImages=[""]`}, "at '/guards/gateImages/0': minLength: got 0, want 1"},
		"unknown guard":           {[]string{"--set", "guards.enable=true"}, "at '/guards': additional properties 'enable' not allowed"},
		"no port":                 {[]string{"--set-json", "networkPolicy.apiServer.ports=[]"}, "at '/networkPolicy/apiServer/ports': minItems: got 0, want 1"},
		"text for a port":         {[]string{"--set-string", "networkPolicy.apiServer.ports={https}"}, "at '/networkPolicy/apiServer/ports/0': got string, want integer"},
		"unknown kind of rule":    {[]string{"--set", "networkPolicy.egress[0].x=1"}, "at '/networkPolicy': additional properties 'egress' not allowed"},
		"unknown right":           {[]string{"--set", "rbac.create=false"}, "at '/rbac': additional properties 'create' not allowed"},
		"unknown affinity":        {[]string{"--set", "affinity.antiAffinity.x=1"}, "at '/affinity': additional properties 'antiAffinity' not allowed"},
		"text for a number":       {[]string{"--set-string", "replicas=2"}, "at '/replicas': got string, want integer"},
		"no replica":              {[]string{"--set", "replicas=0"}, "at '/replicas': minimum: got 0, want 1"},
		"unknown hook":            {[]string{"--set", "uninstallHook.enable=true"}, "at '/uninstallHook': additional properties 'enable' not allowed"},
		"text for a switch":       {[]string{"--set", "crds.install=yes"}, "at '/crds/install': got string, want boolean"},
		"number for a tag":        {[]string{"--set", "image.manager.tag=13"}, "at '/image/manager/tag': got number, want string"},
		"no repository":           {[]string{"--set", "image.gate.repository="}, "at '/image/gate/repository': minLength: got 0, want 1"},
		"half a digest":           {[]string{"--set", "image.manager.digest=sha256:12"}, "at '/image/manager/digest': 'sha256:12' does not match pattern"},
		"unknown pull policy":     {[]string{"--set", "image.gate.pullPolicy=Often"}, "at '/image/gate/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"},
		"policy for each pod":     {[]string{"--set", "policyPer=pod"}, "at '/policyPer': value must be one of 'singleton', 'namespace'"},
		"unknown kind of policy":  {[]string{"--set", "policyKind=MutatingPolicy"}, "at '/policyKind': value must be one of 'ClusterPolicy', 'NamespacedMutatingPolicy'"},
		"pods without guards":     {[]string{"--set", "policyKind=NamespacedMutatingPolicy,guards.enabled=false"}, "only the guards reject these pods. Set guards.enabled=true"},
		"unknown log level":       {[]string{"--set", "logLevel=loud"}, "at '/logLevel': value must be one of 'debug', 'info', 'error'"},
		"unknown log format":      {[]string{"--set", "logFormat=xml"}, "at '/logFormat': value must be one of 'json', 'console'"},
		"number in commonLabels":  {[]string{"--set", "commonLabels.tier=1"}, "at '/commonLabels/tier': got number, want string"},
		"number for a label":      {[]string{"--set", "podLabels.tier=1"}, "at '/podLabels/tier': got number, want string"},
		"interval without unit":   {[]string{"--set-string", "serviceMonitor.interval=30"}, "at '/serviceMonitor/interval': '30' does not match pattern"},
		"number for an interval":  {[]string{"--set", "serviceMonitor.scrapeTimeout=30"}, "at '/serviceMonitor/scrapeTimeout': got number, want string"},
		"lease without unit":      {[]string{"--set-string", "leaderElection.leaseDuration=60"}, "at '/leaderElection/leaseDuration': '60' does not match pattern"},
		"number for a deadline":   {[]string{"--set", "leaderElection.renewDeadline=30"}, "at '/leaderElection/renewDeadline': got number, want string"},
		"unknown time of leading": {[]string{"--set", "leaderElection.renewPeriod=2s"}, "at '/leaderElection': additional properties 'renewPeriod' not allowed"},
		"selector in a spread":    {[]string{"--set", "topologySpreadConstraints[0].labelSelector.x=1"}, "at '/topologySpreadConstraints/0': additional properties 'labelSelector' not allowed"},
		"number on the dashboard": {[]string{"--set", "dashboard.labels.instance=1"}, "at '/dashboard/labels/instance': got number, want string"},
		"number on a rule":        {[]string{"--set", "prometheusRule.labels.tier=1"}, "at '/prometheusRule/labels/tier': got number, want string"},
		"unknown toleration":      {[]string{"--set", "tolerations[0].operater=Exists"}, "at '/tolerations/0': additional properties 'operater' not allowed"},
		"unknown peer":            {[]string{"--set", "networkPolicy.metricsFrom[0].podselector.x=1"}, "at '/networkPolicy/metricsFrom/0': additional properties 'podselector' not allowed"},
		"switch for a quantity":   {[]string{"--set", "resources.limits.memory=true"}, "at '/resources/limits/memory': got boolean, want number or string"},
		"pull secret's text":      {[]string{"--set", "image.gate.pullSecrets={mirror}"}, "at '/image/gate/pullSecrets/0': got string, want object"},
		"unknown sidecar amount":  {[]string{"--set", "sidecar.resources.requests.cup=1"}, "at '/sidecar/resources/requests': additional properties 'cup' not allowed"},
		"secret without name":     {[]string{"--set", "imagePullSecrets[0].secret=x"}, "at '/imagePullSecrets/0': missing property 'name'"},
		"guards without a CRD":    {[]string{"--set", "crds.install=false"}, "the guards would have every pod outside guards.exemptNamespaces refused"},
		"clusters without a CRD": {
			[]string{"--set", "crds.install=false,statefulClusters.enabled=true", "--api-versions", "apps.statefulsingleton.com/v1/StatefulSingleton,apps.statefulsingleton.com/v1/StatefulSetLock"},
			"the cluster serves no apps.statefulsingleton.com/v1 StatefulCluster",
		},
		"text for clusters":       {[]string{"--set-string", "statefulClusters.enabled=yes"}, "at '/statefulClusters/enabled': got string, want boolean"},
		"Kubernetes is too old":   {[]string{"--kube-version", "1.32.9"}, "chart requires kubeVersion: >=1.33.0-0"},
		"name too long to append": {[]string{"--set", "fullnameOverride=" + strings.Repeat("n", 53)}, "at '/fullnameOverride': maxLength: got 53, want 52"},
	}
	for what, tc := range cases {
		t.Run(what, func(t *testing.T) {
			_, err := helm(t, append([]string{"template", release, chart}, tc.args...)...)
			if err == nil {
				t.Fatalf("helm accepted %v, want an error", tc.args)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("helm rejected %v with %q, want %q", tc.args, err, tc.want)
			}
		})
	}
}
