package v1_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// minimal is the shortest spec without claims.
const minimal = "selector: {matchLabels: {app: coder}}\ntemplate: {spec: {containers: [{name: a, image: b}]}}\n"

// withClaims is a spec as users of the first StatefulCluster operator have it. The template has no labels.
const withClaims = `
replicas: 3
selector: {matchLabels: {app: coder, example.com/cluster: coder}}
template:
  spec:
    containers:
    - {name: coder, image: code-server, args: [--no-auth], ports: [{containerPort: 8443, name: https}], volumeMounts: [{mountPath: /project, name: data}]}
volumeClaimTemplates:
- metadata: {name: data}
  spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

func TestClusterDefaults(t *testing.T) {
	got := accepted[v1.StatefulCluster](t, objectOf(t, "StatefulCluster", "coder", withClaims))
	const template = `{"spec":{"containers":[{"args":["--no-auth"],"image":"code-server","name":"coder","ports":[{"containerPort":8443,"name":"https"}],"volumeMounts":[{"mountPath":"/project","name":"data"}]}]}}`
	if string(got.Spec.Template.Raw) != template {
		t.Errorf("the template is %s", got.Spec.Template.Raw)
	}
	got.Spec.Template.Raw = nil
	want := v1.StatefulClusterSpec{
		Replicas: new(int32(3)),
		Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "coder", "example.com/cluster": "coder"}},
		VolumeClaimTemplates: []v1.ClaimTemplate{{Metadata: v1.ClaimMetadata{Name: "data"}, Spec: v1.ClaimSpec{
			AccessModes: []string{"ReadWriteOnce"}, Resources: v1.ClaimResources{Requests: v1.ClaimSize{Storage: new(resource.MustParse("1Gi"))}},
		}}},
		PodManagementPolicy:  v1.ClusterParallel,
		UpdateStrategy:       v1.ClusterUpdateStrategy{Type: v1.ClusterRollingUpdate},
		RevisionHistoryLimit: new(int32(10)),
		PersistentVolumeClaimRetentionPolicy: v1.ClaimRetentionPolicy{
			WhenDeleted: v1.ClaimRetain, WhenScaled: v1.ClaimRetain, WhenReplaced: v1.ClaimRetain,
		},
		Replacement: v1.ClusterReplacement{State: v1.ReplacementCarry},
	}
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

// A StatefulSet becomes a StatefulCluster by a change of its apiVersion and its kind, also as the API server returns it.
func TestStatefulSetIsACluster(t *testing.T) {
	manifest := `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  serviceName: web
  podManagementPolicy: OrderedReady
  revisionHistoryLimit: 3
  minReadySeconds: 5
  ordinals: {start: 4}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1, maxUnavailable: 25%}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  template:
    metadata: {labels: {app: web, tier: gold}}
    spec:
      containers: [{name: web, image: nginx, volumeMounts: [{name: www, mountPath: /www}]}]
      volumes: [{name: tmp, emptyDir: {}}]
  volumeClaimTemplates:
  - metadata: {name: www, labels: {a: b}}
    spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}
`
	set := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal([]byte(manifest), &set.Object))
	strict := client.WithFieldValidation(c, metav1.FieldValidationStrict)
	must(t, strict.Create(t.Context(), set, client.DryRunAll))
	o := objectOf(t, "StatefulCluster", set.GetName(), "")
	o.Object["spec"] = set.Object["spec"]
	must(t, strict.Create(t.Context(), o, client.DryRunAll))
	want, got := set.Object["spec"].(map[string]any), o.Object["spec"].(map[string]any)
	delete(got, "replacement")
	delete(got["persistentVolumeClaimRetentionPolicy"].(map[string]any), "whenReplaced")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spec (-StatefulSet +StatefulCluster):\n%s", diff)
	}
}

func TestClusterRefusals(t *testing.T) {
	claims := func(rest string) string { return minimal + "volumeClaimTemplates:\n" + rest }
	wantRefusals(t, "StatefulCluster", map[string]refusal{
		"no spec":                {want: "spec: Required value"},
		"no template":            {spec: "selector: {matchLabels: {app: coder}}", want: "spec.template: Required value"},
		"no selector":            {spec: "template: {}", want: "spec.selector: Required value"},
		"an empty selector":      {spec: "selector: {}\ntemplate: {}", want: "spec.selector is empty and would select every pod"},
		"a long name":            {name: strings.Repeat("a", 53), spec: minimal, want: "choose at most 52 characters"},
		"a name with dots":       {name: "a.b", spec: minimal, want: "metadata.name becomes part of host names"},
		"a negative number":      {spec: minimal + "replicas: -1", want: "spec.replicas is out of range"},
		"a bad policy":           {spec: minimal + "podManagementPolicy: Ordered", want: `supported values: "Parallel", "OrderedReady"`},
		"a bad strategy":         {spec: minimal + "updateStrategy: {type: Recreate}", want: `supported values: "RollingUpdate", "InPlaceIfPossible", "OnDelete"`},
		"a strategy of two":      {spec: minimal + "updateStrategy: {type: OnDelete, rollingUpdate: {partition: 1}}", want: "spec.updateStrategy.rollingUpdate has no effect with type OnDelete"},
		"nothing unavailable":    {spec: minimal + "updateStrategy: {rollingUpdate: {maxUnavailable: 0}}", want: "maxUnavailable must be a number or a percentage above 0"},
		"no percent unavailable": {spec: minimal + "updateStrategy: {rollingUpdate: {maxUnavailable: 0%}}", want: "maxUnavailable must be a number or a percentage above 0"},
		"a negative partition":   {spec: minimal + "updateStrategy: {rollingUpdate: {partition: -1}}", want: "partition is negative"},
		"a negative start":       {spec: minimal + "ordinals: {start: -1}", want: "spec.ordinals.start is negative"},
		"a large start":          {spec: minimal + "ordinals: {start: 2147483648}", want: "must be of type integer with format int32 in spec.ordinals.start"},
		"a negative limit":       {spec: minimal + "revisionHistoryLimit: -1", want: "spec.revisionHistoryLimit is negative"},
		"a negative time":        {spec: minimal + "minReadySeconds: -1", want: "spec.minReadySeconds is negative"},
		"a bad retention":        {spec: minimal + "persistentVolumeClaimRetentionPolicy: {whenReplaced: Keep}", want: `supported values: "Retain", "Delete"`},
		"a bad replacement":      {spec: minimal + "replacement: {state: Move}", want: `supported values: "Carry", "Fresh"`},
		"a negative loss":        {spec: minimal + "replacement: {maxLost: -1}", want: "spec.replacement.maxLost is negative"},
		"a bad Service":          {spec: minimal + "serviceName: My_Service", want: "spec.serviceName must be the name of a Service"},
		"a claim without name":   {spec: claims("- {metadata: {}, spec: {}}"), want: "metadata.name: Required value"},
		"a claim with dots":      {spec: claims("- {metadata: {name: a.b}, spec: {}}"), want: "metadata.name must be the name of a volume"},
		"a claim twice":          {spec: claims("- {metadata: {name: a}, spec: {}}\n- {metadata: {name: a}, spec: {}}"), want: "two templates have the same metadata.name"},
		"passes: minimal":        {spec: minimal},
		"passes: percent":        {spec: minimal + "updateStrategy: {rollingUpdate: {maxUnavailable: 25%}}"},
		"passes: number":         {spec: minimal + "updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 2, partition: 1}}"},
		"passes: in place":       {spec: minimal + "updateStrategy: {type: InPlaceIfPossible, rollingUpdate: {maxUnavailable: 2}}"},
		"passes: no replicas":    {spec: minimal + "replicas: 0\nreplacement: {state: Fresh, maxLost: 0}"},
		"passes: a large start":  {spec: minimal + "ordinals: {start: 2147483647}"},
		"passes: two claims":     {spec: claims("- {metadata: {name: a}, spec: {}}\n- {metadata: {name: b}, spec: {}}")},
	})
}

// Running pods keep what a change of these fields would change. Claims can only grow.
func TestClusterIsImmutable(t *testing.T) {
	o := objectOf(t, "StatefulCluster", "immutable-cluster", withClaims)
	must(t, c.Create(t.Context(), o))
	claim := func(spec string) string {
		return "{volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], " + spec + "}}]}"
	}
	const immutable = "spec.volumeClaimTemplates is immutable except for spec.resources.requests.storage"
	tests := map[string]struct{ spec, want string }{
		"selector":              {"{selector: {matchLabels: {app: other}}}", "spec.selector is immutable"},
		"serviceName":           {"{serviceName: other}", "spec.serviceName is immutable"},
		"podManagementPolicy":   {"{podManagementPolicy: OrderedReady}", "spec.podManagementPolicy is immutable"},
		"claims are removed":    {"{volumeClaimTemplates: null}", "spec.volumeClaimTemplates is immutable, because running pods"},
		"another claim":         {"{volumeClaimTemplates: [{metadata: {name: other}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}", immutable},
		"no claim":              {"{volumeClaimTemplates: []}", immutable},
		"another mode":          {"{volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}}]}", immutable},
		"another class":         {claim("storageClassName: fast, resources: {requests: {storage: 1Gi}}"), immutable},
		"another volume mode":   {claim("volumeMode: Block, resources: {requests: {storage: 1Gi}}"), immutable},
		"another volume":        {claim("volumeName: pv, resources: {requests: {storage: 1Gi}}"), immutable},
		"another source":        {claim("dataSource: {kind: PersistentVolumeClaim, name: a}, resources: {requests: {storage: 1Gi}}"), immutable},
		"a limit":               {claim("resources: {limits: {storage: 2Gi}, requests: {storage: 1Gi}}"), immutable},
		"a smaller claim":       {claim("resources: {requests: {storage: 1Mi}}"), "spec.resources.requests.storage cannot be lowered"},
		"no request":            {claim("resources: {}"), "spec.resources.requests.storage cannot be lowered"},
		"passes: a larger one":  {claim("resources: {requests: {storage: 2Gi}}"), ""},
		"passes: same in bytes": {claim("resources: {requests: {storage: '1073741824'}}"), ""},
		"no size":               {claim("resources: {requests: {storage: large}}"), "storage must be a quantity, for example 10Gi"},
		"passes: the rest":      {"{replicas: 5, template: {metadata: {labels: {a: b}}}, updateStrategy: {type: OnDelete}, minReadySeconds: 1, replacement: {state: Fresh}}", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantAnswer(t, patch(t, o, "spec: "+test.spec, client.DryRunAll), test.want) })
	}
}

// A HorizontalPodAutoscaler reads and writes the scale.
func TestClusterScale(t *testing.T) {
	o := objectOf(t, "StatefulCluster", "scaled", minimal)
	must(t, c.Create(t.Context(), o))
	var cluster v1.StatefulCluster
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(o), &cluster))
	cluster.Status = v1.StatefulClusterStatus{Replicas: 1, Selector: "app=coder", Members: []v1.ClusterMember{{
		Name: "scaled-0", State: v1.MemberActive, UID: "1", Revision: "scaled-1", Claims: []v1.MemberClaim{{Volume: "data", Name: "data-scaled-0"}},
	}}, Next: 1, Released: []v1.ReleasedClaim{{Name: "data-scaled-9", Policy: v1.ClaimDelete}}}
	want := cluster.Status.DeepCopy()
	must(t, c.Status().Update(t.Context(), &cluster, client.FieldValidation(metav1.FieldValidationStrict)))
	if diff := cmp.Diff(want, &cluster.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	scale := &autoscalingv1.Scale{}
	must(t, c.SubResource("scale").Get(t.Context(), &cluster, scale))
	if scale.Status.Replicas != 1 || scale.Status.Selector != "app=coder" || scale.Spec.Replicas != 1 {
		t.Errorf("the scale is %+v", scale)
	}
	scale.Spec.Replicas = 4
	must(t, c.SubResource("scale").Update(t.Context(), &cluster, client.WithSubResourceBody(scale)))
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), &cluster); err != nil || *cluster.Spec.Replicas != 4 {
		t.Errorf("replicas are %d (%v), want 4", *cluster.Spec.Replicas, err)
	}
}
