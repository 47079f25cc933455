package v1_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const selector = "selector: {matchLabels: {app: db}}\n"

// objectOf returns an object with the spec in YAML, which may be invalid.
func objectOf(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{}}
	if spec != "" {
		var parsed map[string]any
		must(t, yaml.Unmarshal([]byte(spec), &parsed))
		o.Object["spec"] = parsed
	}
	o.SetGroupVersionKind(v1.GroupVersion.WithKind(kind))
	o.SetNamespace(metav1.NamespaceDefault)
	o.SetName(name)
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// accepted returns the object as the API server would store it.
func accepted[T any](t *testing.T, o *unstructured.Unstructured) (got T) {
	t.Helper()
	must(t, client.WithFieldValidation(c, metav1.FieldValidationStrict).Create(t.Context(), o, client.DryRunAll))
	must(t, scheme.Scheme.Convert(o, &got, nil))
	return got
}

// wantAnswer fails unless the API server rejects the object with the error, or accepts it if want is empty.
func wantAnswer(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Error(err)
	case want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want)):
		t.Errorf("the API server answered\n%v\nwant that it rejects the object with\n%s", err, want)
	}
}

// refusal is an object that the API server rejects.
type refusal struct {
	name, spec string
	// want is part of the error. Empty: the API server accepts the object.
	want string
}

// wantRefusals creates the objects.
func wantRefusals(t *testing.T, kind string, tests map[string]refusal) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := objectOf(t, kind, cmp.Or(test.name, "db"), test.spec)
			wantAnswer(t, c.Create(t.Context(), o, client.DryRunAll), test.want)
		})
	}
}

// patch writes a merge patch.
func patch(t *testing.T, o client.Object, patch string, options ...client.PatchOption) error {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(patch))
	must(t, err)
	return c.Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", data), options...)
}

// TestAPIServerKeepsEveryField shows that other values are kept.
func TestDefaults(t *testing.T) {
	want := v1.StatefulSingletonSpec{
		Selector:               v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		MaxTransitionTime:      300,
		TerminationGracePeriod: new(int32(30)),
		Drain:                  v1.DrainSurge,
		Handoff:                v1.HandoffAutomatic,
		ReadinessProbes:        v1.ReadinessSidecar,
		Placement:              v1.PlacementAuto,
		Fencing:                v1.FencingKubelet,
		LeaseDurationSeconds:   new(int32(15)),
		Connections:            v1.ConnectionsRefuse,
		ShutdownDelaySeconds:   new(int32(1)),
	}
	for spec, change := range map[string]func(*v1.StatefulSingletonSpec){
		"":                          func(*v1.StatefulSingletonSpec) {},
		"terminationGracePeriod: 0": func(s *v1.StatefulSingletonSpec) { s.TerminationGracePeriod = new(int32(0)) },
		"leaseDurationSeconds: 0":   func(s *v1.StatefulSingletonSpec) { s.LeaseDurationSeconds = new(int32(0)) },
		"shutdownDelaySeconds: 0":   func(s *v1.StatefulSingletonSpec) { s.ShutdownDelaySeconds = new(int32(0)) },
	} {
		want := want
		change(&want)
		got := accepted[v1.StatefulSingleton](t, objectOf(t, "StatefulSingleton", "db", selector+spec))
		if diff := gocmp.Diff(want, got.Spec); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
	}
}

func TestRefusals(t *testing.T) {
	const (
		emptySelector = "spec.selector is empty and would select every pod of the namespace: set matchLabels (as {app: my-database}) or matchExpressions"
		badOperator   = "spec.selector.matchExpressions: operator must be In, NotIn, Exists or DoesNotExist"
		badValues     = "spec.selector.matchExpressions: In and NotIn need values, Exists and DoesNotExist take none"
		transition    = "spec.maxTransitionTime is out of range: set seconds from 1 to 3600 (default 300)"
		grace         = "spec.terminationGracePeriod is out of range: set seconds from 0 to 3600 (default 30)"
		lease         = "spec.leaseDurationSeconds is out of range: set seconds from 5 to 3600 (default 15), or 0 for a Lease that never expires"
		delay         = "spec.shutdownDelaySeconds is out of range: set seconds from 0 to 300 (default 1)"
		queue         = "spec.connections is Queue, which needs fencing: Lease and readinessProbes: Sidecar"
		emptyName     = "spec.containers has an empty name: list names of containers of the pod, or remove the field to hold all containers"
		twice         = "spec.containers has a name twice: remove one of them"
		longName      = "metadata.name has more than 63 characters and becomes the value of a label: choose a shorter name"
	)
	expression := func(rest string) string { return "selector: {matchExpressions: [{key: app, " + rest + "}]}" }
	longKey, longValue := strings.Repeat("a", 316), strings.Repeat("a", 63)
	wantRefusals(t, "StatefulSingleton", map[string]refusal{
		"no spec":                  {want: "spec: Required value"},
		"no selector":              {spec: "maxTransitionTime: 10", want: "spec.selector: Required value"},
		"empty selector":           {spec: "selector: {}", want: emptySelector},
		"empty labels":             {spec: "selector: {matchLabels: {}}", want: emptySelector},
		"empty expressions":        {spec: "selector: {matchExpressions: []}", want: emptySelector},
		"both empty":               {spec: "selector: {matchLabels: {}, matchExpressions: []}", want: emptySelector},
		"unknown operator":         {spec: expression("operator: Gt, values: [\"1\"]"), want: badOperator},
		"operator in lower case":   {spec: expression("operator: in, values: [db]"), want: badOperator},
		"In without values":        {spec: expression("operator: In"), want: badValues},
		"NotIn with empty values":  {spec: expression("operator: NotIn, values: []"), want: badValues},
		"Exists with values":       {spec: expression("operator: Exists, values: [db]"), want: badValues},
		"DoesNotExist with values": {spec: expression("operator: DoesNotExist, values: [db]"), want: badValues},

		"transition time of zero": {spec: selector + "maxTransitionTime: 0", want: transition},
		"transition time below":   {spec: selector + "maxTransitionTime: -1", want: transition},
		"transition time above":   {spec: selector + "maxTransitionTime: 3601", want: transition},
		"transition time in text": {spec: selector + "maxTransitionTime: 5m", want: "must be of type integer"},
		"grace period below":      {spec: selector + "terminationGracePeriod: -1", want: grace},
		"grace period above":      {spec: selector + "terminationGracePeriod: 3601", want: grace},

		"lease duration below": {spec: selector + "leaseDurationSeconds: 4", want: lease},
		"lease duration above": {spec: selector + "leaseDurationSeconds: 3601", want: lease},

		"shutdown delay below": {spec: selector + "shutdownDelaySeconds: -1", want: delay},
		"shutdown delay above": {spec: selector + "shutdownDelaySeconds: 301", want: delay},

		"a queue without fencing":            {spec: selector + "connections: Queue", want: queue},
		"a queue with probes by the kubelet": {spec: selector + "connections: Queue\nfencing: Lease\nreadinessProbes: Kubelet", want: queue},
		"passes: a queue with a Lease":       {spec: selector + "connections: Queue\nfencing: Lease"},
		"passes: a queue, and no expiry":     {spec: selector + "connections: Queue\nfencing: Lease\nleaseDurationSeconds: 0"},
		"unknown connections":                {spec: selector + "connections: Drop", want: `supported values: "Refuse", "Queue"`},
		"unknown fencing":                    {spec: selector + "fencing: None", want: `supported values: "Kubelet", "Lease"`},
		"unknown placement":                  {spec: selector + "placement: Beside", want: `supported values: "Auto", "None"`},
		"unknown readinessProbes":            {spec: selector + "readinessProbes: None", want: `supported values: "Sidecar", "Kubelet"`},
		"drain in lower case":                {spec: selector + "drain: surge", want: `supported values: "Surge", "Evict"`},
		"unknown handoff":                    {spec: selector + "handoff: Never", want: `supported values: "Automatic", "Manual"`},
		"empty container name":               {spec: selector + "containers: [db, \"\"]", want: emptyName},
		"container twice":                    {spec: selector + "containers: [db, proxy, db]", want: twice},
		"container name too long":            {spec: selector + "containers: [" + strings.Repeat("a", 64) + "]", want: "Too long: may not be more than 63 bytes"},
		"too many containers":                {spec: selector + "containers: [" + strings.Join(containers(65), ", ") + "]", want: "must have at most 64 items"},

		"too many labels":      {spec: labels(17, "app", "db"), want: "spec.selector.matchLabels: Too many: 17: must have at most 16 items"},
		"label key too long":   {spec: labels(1, strings.Repeat("a", 317), "db"), want: "spec.selector.matchLabels: a key has more than 317 characters, and the key of a label cannot be longer"},
		"label value too long": {spec: labels(1, "app", strings.Repeat("a", 64)), want: "spec.selector.matchLabels: a value has more than 63 characters, and the value of a label cannot be longer: shorten the value"},
		"too many expressions": {spec: expressions(17, "app", 1, "db"), want: "spec.selector.matchExpressions: Too many: 17: must have at most 16 items"},
		"key too long":         {spec: expressions(1, strings.Repeat("a", 317), 1, "db"), want: "spec.selector.matchExpressions[0].key: Too long: may not be more than 317 bytes"},
		"too many values":      {spec: expressions(1, "app", 33, "db"), want: "spec.selector.matchExpressions[0].values: Too many: 33: must have at most 32 items"},
		"value too long":       {spec: expressions(1, "app", 1, strings.Repeat("a", 64)), want: "spec.selector.matchExpressions[0].values[0]: Too long: may not be more than 63 bytes"},

		"singleton's name too long": {name: strings.Repeat("a", 64), spec: selector, want: longName},

		"passes: lowest numbers":  {spec: selector + "maxTransitionTime: 1\nterminationGracePeriod: 0\nleaseDurationSeconds: 5"},
		"passes: highest numbers": {spec: selector + "maxTransitionTime: 3600\nterminationGracePeriod: 3600\nleaseDurationSeconds: 3600"},
		"passes: containers":      {name: longValue, spec: selector + "containers: [" + strings.Join(containers(64), ", ") + "]"},
		"passes: labels":          {name: longValue, spec: labels(16, longKey, longValue)},
		"passes: expressions":     {name: longValue, spec: expressions(16, longKey, 32, longValue)},
	})
}

// labels returns a selector with n labels, whose keys begin with key.
func labels(n int, key, value string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%c: %q", key, 'a'+i, value))
	}
	return "selector: {matchLabels: {" + strings.Join(all, ", ") + "}}"
}

// expressions returns a selector with n expressions, each with the given number of values. The keys begin with key.
func expressions(n int, key string, values int, value string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("{key: %s%c, operator: In, values: [%s]}", key, 'a'+i, strings.Repeat(fmt.Sprintf("%q, ", value), values)))
	}
	return "selector: {matchExpressions: [" + strings.Join(all, ", ") + "]}"
}

func containers(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("c%d", i))
	}
	return names
}

func TestUpdates(t *testing.T) {
	const immutable = "spec.selector is immutable, because the controller would forget pods that still run: create another StatefulSingleton instead"
	o := create(t, "updates")
	for name, test := range map[string]struct{ patch, want string }{
		"another value":       {"spec: {selector: {matchLabels: {app: other}}}", immutable},
		"one more label":      {"spec: {selector: {matchLabels: {tier: gold}}}", immutable},
		"one more expression": {"spec: {selector: {matchExpressions: [{key: a, operator: Exists}]}}", immutable},
		"no labels":           {"spec: {selector: {matchLabels: null}}", immutable},
		"out of range":        {"spec: {maxTransitionTime: 9999}", "spec.maxTransitionTime is out of range"},
		"other fields":        {"spec: {maxTransitionTime: 7, containers: [db]}", ""},
		"the same selector":   {"spec: {selector: {matchLabels: {app: db}}}", ""},
		"containers cleared":  {"spec: {containers: null}", ""},
		"an annotation":       {"metadata: {annotations: {a: b}}", ""},
	} {
		t.Run(name, func(t *testing.T) { wantAnswer(t, patch(t, o, test.patch, client.DryRunAll), test.want) })
	}
}

// A write of the status does not change the spec, and a write of the spec does not change the status.
func TestStatusSubresource(t *testing.T) {
	o := create(t, "status")
	o.Status.Phase = v1.PhaseRunning
	o.Spec.MaxTransitionTime = 7
	must(t, c.Status().Update(t.Context(), o))
	if o.Spec.MaxTransitionTime != 300 || o.Generation != 1 {
		t.Errorf("a write of status changed the spec: maxTransitionTime %d, generation %d", o.Spec.MaxTransitionTime, o.Generation)
	}
	o.Status.Phase = v1.PhaseFailed
	must(t, c.Update(t.Context(), o))
	if o.Status.Phase != v1.PhaseRunning {
		t.Errorf("a write of the spec changed the status: phase %s", o.Status.Phase)
	}
	o.Status.Phase = "Dancing"
	wantAnswer(t, c.Status().Update(t.Context(), o), `Unsupported value: "Dancing"`)
}

// The API server returns a table with the columns that kubectl prints.
func TestTable(t *testing.T) {
	o := create(t, "table")
	o.Status = v1.StatefulSingletonStatus{
		ActivePod: "db-1", Epoch: 3, Phase: v1.PhaseTransitioning, StandbyPods: []string{"db-2", "db-3"},
		LastTransition: &v1.Transition{Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, GapMilliseconds: new(int64(248))},
		Message:        "pod db-1 is terminating",
		Conditions: []metav1.Condition{
			{Type: v1.ConditionPolicyInstalled, Status: metav1.ConditionTrue, Reason: "Installed", LastTransitionTime: metav1.Now()},
			{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "HolderStopping", LastTransitionTime: metav1.Now()},
			{Type: v1.ConditionWarm, Status: metav1.ConditionTrue, Reason: "OwnerSurges", LastTransitionTime: metav1.Now()},
		},
	}
	must(t, c.Status().Update(t.Context(), o))
	var table metav1.Table
	must(t, restClient(t).Get().Namespace(corev1.NamespaceDefault).Resource("statefulsingletons").Name(o.Name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(&table))
	cells := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		cells[column.Name] = table.Rows[0].Cells[i]
	}
	delete(cells, "Age")
	want := map[string]any{
		"Name": "table", "Status": "Transitioning", "Ready": "False", "Active Pod": "db-1", "Standby": "db-2", "Warm": "True", "Epoch": int64(3),
		"Gap": int64(248), "Proof": "KubeletReported", "Message": "pod db-1 is terminating",
	}
	if diff := gocmp.Diff(want, cells); diff != "" {
		t.Errorf("row of kubectl get stfs -o wide (-want +got):\n%s", diff)
	}
}

// An operator sees the active pod and its epoch, and with -o wide what a person must do.
func TestColumns(t *testing.T) {
	for resource, want := range map[string]map[int64][]string{
		"statefulsingletons": {0: {"Status", "Ready", "Active Pod", "Standby", "Warm", "Epoch", "Age"}, 1: {"Gap", "Proof", "Message"}},
		"statefulsetlocks":   {0: {"Writer", "Epoch", "Fencing", "Ready", "Age"}, 1: {"Lease", "Last Failover", "Message"}},
		"statefulclusters":   {0: {"Desired", "Current", "Available", "Ready", "Age"}, 1: {"Updated", "Revision", "Message"}},
	} {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("apiextensions.k8s.io/v1")
		o.SetKind("CustomResourceDefinition")
		must(t, c.Get(t.Context(), client.ObjectKey{Name: resource + "." + v1.GroupVersion.Group}, o))
		versions, _, err := unstructured.NestedSlice(o.Object, "spec", "versions")
		must(t, err)
		got := map[int64][]string{}
		for _, column := range versions[0].(map[string]any)["additionalPrinterColumns"].([]any) {
			priority, _, _ := unstructured.NestedInt64(column.(map[string]any), "priority")
			got[priority] = append(got[priority], column.(map[string]any)["name"].(string))
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("columns of %s (-want +got):\n%s", resource, diff)
		}
	}
}

// kubectl get stfs -A --field-selector status.phase=Failed lists the singletons that need a person.
func TestSelectedByPhase(t *testing.T) {
	for name, phase := range map[string]v1.Phase{"selected-failed": v1.PhaseFailed, "selected-running": v1.PhaseRunning} {
		o := create(t, name)
		o.Status.Phase = phase
		must(t, c.Status().Update(t.Context(), o))
	}
	var list v1.StatefulSingletonList
	must(t, c.List(t.Context(), &list, client.MatchingFields{"status.phase": string(v1.PhaseFailed)}))
	var got []string
	for _, o := range list.Items {
		if strings.HasPrefix(o.Name, "selected-") {
			got = append(got, o.Name)
		}
	}
	if diff := gocmp.Diff([]string{"selected-failed"}, got); diff != "" {
		t.Errorf("StatefulSingletons whose phase is Failed (-want +got):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	resources, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerResourcesForGroupVersion("apps.statefulsingleton.com/v1")
	must(t, err)
	byName := map[string]metav1.APIResource{}
	for _, r := range resources.APIResources {
		byName[r.Name] = r
	}
	if diff := gocmp.Diff([]string{
		"statefulclusters", "statefulclusters/scale", "statefulclusters/status",
		"statefulsetlocks", "statefulsetlocks/status", "statefulsingletons", "statefulsingletons/status",
	}, slices.Sorted(maps.Keys(byName))); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	for name, want := range map[string]metav1.APIResource{
		"statefulsingletons": {SingularName: "statefulsingleton", Kind: "StatefulSingleton", Namespaced: true, ShortNames: []string{"stfs"}},
		"statefulclusters":   {SingularName: "statefulcluster", Kind: "StatefulCluster", Namespaced: true, ShortNames: []string{"stc"}},
		"statefulsetlocks":   {SingularName: "statefulsetlock", Kind: "StatefulSetLock", Namespaced: true, ShortNames: []string{"ssl"}},
	} {
		r := byName[name]
		got := metav1.APIResource{SingularName: r.SingularName, Kind: r.Kind, Namespaced: r.Namespaced, ShortNames: r.ShortNames}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	}
}

// create creates a singleton in the default namespace.
func create(t *testing.T, name string) *v1.StatefulSingleton {
	t.Helper()
	o := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}
	must(t, c.Create(t.Context(), o))
	return o
}

// restClient returns a client that sends requests as they are.
func restClient(t *testing.T) *rest.RESTClient {
	t.Helper()
	asking := rest.CopyConfig(config)
	asking.GroupVersion, asking.APIPath, asking.NegotiatedSerializer = &v1.GroupVersion, "/apis", scheme.Codecs.WithoutConversion()
	raw, err := rest.RESTClientFor(asking)
	must(t, err)
	return raw
}
