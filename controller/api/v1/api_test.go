package v1_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// singletonOf returns a StatefulSingleton with the spec in YAML, which may be invalid.
func singletonOf(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		t.Fatalf("parse the spec of the test: %v", err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": parsed}}
	o.SetGroupVersionKind(v1.GroupVersion.WithKind("StatefulSingleton"))
	o.SetNamespace(metav1.NamespaceDefault)
	o.SetName(name)
	return o
}

func TestDefaults(t *testing.T) {
	asDefault := v1.StatefulSingletonSpec{
		Selector:               v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		MaxTransitionTime:      300,
		TerminationGracePeriod: new(int32(30)),
		Drain:                  v1.DrainSurge,
		Handoff:                v1.HandoffAutomatic,
		ReadinessProbes:        v1.ReadinessSidecar,
		Fencing:                v1.FencingKubelet,
		LeaseDurationSeconds:   15,
	}
	with := func(change func(*v1.StatefulSingletonSpec)) v1.StatefulSingletonSpec {
		spec := *asDefault.DeepCopy()
		change(&spec)
		return spec
	}
	tests := map[string]struct {
		spec string
		want v1.StatefulSingletonSpec
	}{
		"only a selector": {spec: selector, want: asDefault},
		"zero is kept": {
			spec: selector + "terminationGracePeriod: 0",
			want: with(func(s *v1.StatefulSingletonSpec) { s.TerminationGracePeriod = new(int32(0)) }),
		},
		"a deprecated field of older manifests": {
			spec: selector + "respectPodGracePeriod: false",
			want: with(func(s *v1.StatefulSingletonSpec) { s.RespectPodGracePeriod = new(false) }),
		},
		"lowest numbers": {
			spec: selector + "maxTransitionTime: 1",
			want: with(func(s *v1.StatefulSingletonSpec) { s.MaxTransitionTime = 1 }),
		},
		"highest numbers": {
			spec: selector + "maxTransitionTime: 3600\nterminationGracePeriod: 3600\nleaseDurationSeconds: 3600",
			want: with(func(s *v1.StatefulSingletonSpec) {
				s.MaxTransitionTime, s.TerminationGracePeriod, s.LeaseDurationSeconds = 3600, new(int32(3600)), 3600
			}),
		},
		"containers": {
			spec: selector + "containers: [db, proxy]\nholdInitContainers: true",
			want: with(func(s *v1.StatefulSingletonSpec) {
				s.Containers, s.HoldInitContainers = []string{"db", "proxy"}, true
			}),
		},
		"drains and rollouts": {
			spec: selector + "drain: Evict\nhandoff: Manual",
			want: with(func(s *v1.StatefulSingletonSpec) {
				s.Drain, s.Handoff = v1.DrainEvict, v1.HandoffManual
			}),
		},
		"readiness probes": {
			spec: selector + "readinessProbes: Kubelet",
			want: with(func(s *v1.StatefulSingletonSpec) { s.ReadinessProbes = v1.ReadinessKubelet }),
		},
		"fencing": {
			spec: selector + "fencing: Lease\nleaseDurationSeconds: 5",
			want: with(func(s *v1.StatefulSingletonSpec) { s.Fencing, s.LeaseDurationSeconds = v1.FencingLease, 5 }),
		},
		"expressions": {
			spec: "selector: {matchExpressions: [{key: app, operator: In, values: [db]}, {key: old, operator: DoesNotExist}]}",
			want: with(func(s *v1.StatefulSingletonSpec) {
				s.Selector = v1.LabelSelector{MatchExpressions: []v1.LabelSelectorRequirement{
					{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"db"}},
					{Key: "old", Operator: metav1.LabelSelectorOpDoesNotExist},
				}}
			}),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := singletonOf(t, "db", test.spec)
			if err := c.Create(t.Context(), o, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			var got v1.StatefulSingleton
			if err := scheme.Scheme.Convert(o, &got, nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	const (
		emptySelector = "spec.selector is empty and would select every pod of the namespace: set matchLabels (as {app: my-database}) or matchExpressions"
		badOperator   = "spec.selector.matchExpressions: operator must be In, NotIn, Exists or DoesNotExist"
		badValues     = "spec.selector.matchExpressions: In and NotIn need values, Exists and DoesNotExist take none"
		transition    = "spec.maxTransitionTime is out of range: set seconds from 1 to 3600 (default 300)"
		grace         = "spec.terminationGracePeriod is out of range: set seconds from 0 to 3600 (default 30)"
		lease         = "spec.leaseDurationSeconds is out of range: set seconds from 5 to 3600 (default 15)"
		emptyName     = "spec.containers has an empty name: list names of containers of the pod, or remove the field to hold all containers"
		twice         = "spec.containers has a name twice: remove one of them"
		longName      = "metadata.name has more than 63 characters and becomes the value of a label: choose a shorter name"
	)
	expression := func(rest string) string { return "selector: {matchExpressions: [{key: app, " + rest + "}]}" }
	tests := map[string]struct {
		name string
		spec string
		want string
	}{
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

		"unknown fencing":         {spec: selector + "fencing: None", want: `supported values: "Kubelet", "Lease"`},
		"unknown readinessProbes": {spec: selector + "readinessProbes: None", want: `supported values: "Sidecar", "Kubelet"`},
		"drain in lower case":     {spec: selector + "drain: surge", want: `supported values: "Surge", "Evict"`},
		"unknown handoff":         {spec: selector + "handoff: Never", want: `supported values: "Automatic", "Manual"`},
		"empty container name":    {spec: selector + "containers: [db, \"\"]", want: emptyName},
		"container twice":         {spec: selector + "containers: [db, proxy, db]", want: twice},
		"container name too long": {spec: selector + "containers: [" + strings.Repeat("a", 64) + "]", want: "Too long: may not be more than 63 bytes"},
		"too many containers":     {spec: selector + "containers: [" + strings.Join(containers(65), ", ") + "]", want: "must have at most 64 items"},

		"too many labels":      {spec: labels(17, "app", "db"), want: "spec.selector.matchLabels: Too many: 17: must have at most 16 items"},
		"label key too long":   {spec: labels(1, strings.Repeat("a", 317), "db"), want: "spec.selector.matchLabels: a key has more than 317 characters, and the key of a label cannot be longer"},
		"label value too long": {spec: labels(1, "app", strings.Repeat("a", 64)), want: "spec.selector.matchLabels: a value has more than 63 characters, and the value of a label cannot be longer: shorten the value"},
		"too many expressions": {spec: expressions(17, "app", 1, "db"), want: "spec.selector.matchExpressions: Too many: 17: must have at most 16 items"},
		"key too long":         {spec: expressions(1, strings.Repeat("a", 317), 1, "db"), want: "spec.selector.matchExpressions[0].key: Too long: may not be more than 317 bytes"},
		"too many values":      {spec: expressions(1, "app", 33, "db"), want: "spec.selector.matchExpressions[0].values: Too many: 33: must have at most 32 items"},
		"value too long":       {spec: expressions(1, "app", 1, strings.Repeat("a", 64)), want: "spec.selector.matchExpressions[0].values[0]: Too long: may not be more than 63 bytes"},

		"singleton's name too long": {name: strings.Repeat("a", 64), spec: selector, want: longName},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := singletonOf(t, "db", test.spec)
			if test.name != "" {
				o.SetName(test.name)
			}
			if test.spec == "" {
				delete(o.Object, "spec")
			}
			wantRefused(t, c.Create(t.Context(), o, client.DryRunAll), test.want)
		})
	}
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
		texts := make([]string, values)
		for j := range texts {
			texts[j] = fmt.Sprintf("%q", value)
		}
		all = append(all, fmt.Sprintf("{key: %s%c, operator: In, values: [%s]}", key, 'a'+i, strings.Join(texts, ", ")))
	}
	return "selector: {matchExpressions: [" + strings.Join(all, ", ") + "]}"
}

func containers(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("c%d", i))
	}
	return names
}

// The API server accepts the greatest numbers and lengths that it allows.
func TestLimits(t *testing.T) {
	longKey, longValue := strings.Repeat("a", 316), strings.Repeat("a", 63)
	for what, spec := range map[string]string{
		"containers":  selector + "containers: [" + strings.Join(containers(64), ", ") + "]",
		"labels":      labels(16, longKey, longValue),
		"expressions": expressions(16, longKey, 32, longValue),
	} {
		o := singletonOf(t, strings.Repeat("a", 63), spec)
		if err := c.Create(t.Context(), o, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestUpdates(t *testing.T) {
	const immutable = "spec.selector is immutable, because the controller would forget pods that still run: create another StatefulSingleton instead"
	o := create(t, "updates")
	tests := map[string]struct {
		patch       string
		wantRefused string
	}{
		"another value":       {patch: `{"spec":{"selector":{"matchLabels":{"app":"other"}}}}`, wantRefused: immutable},
		"one more label":      {patch: `{"spec":{"selector":{"matchLabels":{"tier":"gold"}}}}`, wantRefused: immutable},
		"one more expression": {patch: `{"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}}`, wantRefused: immutable},
		"no labels":           {patch: `{"spec":{"selector":{"matchLabels":null}}}`, wantRefused: immutable},
		"other fields":        {patch: `{"spec":{"maxTransitionTime":7,"containers":["db"]}}`},
		"the same selector":   {patch: `{"spec":{"selector":{"matchLabels":{"app":"db"}}}}`},
		"out of range":        {patch: `{"spec":{"maxTransitionTime":9999}}`, wantRefused: "spec.maxTransitionTime is out of range"},
		"containers cleared":  {patch: `{"spec":{"containers":null}}`},
		"an annotation":       {patch: `{"metadata":{"annotations":{"a":"b"}}}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := c.Patch(t.Context(), o.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(test.patch)), client.DryRunAll)
			if test.wantRefused != "" {
				wantRefused(t, err, test.wantRefused)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// A write of the status does not change the spec, and a write of the spec does not change the status.
func TestStatusSubresource(t *testing.T) {
	o := create(t, "status")
	o.Status.Phase = v1.PhaseRunning
	o.Spec.MaxTransitionTime = 7
	if err := c.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if o.Spec.MaxTransitionTime != 300 || o.Generation != 1 {
		t.Errorf("a write of status changed the spec: maxTransitionTime %d, generation %d", o.Spec.MaxTransitionTime, o.Generation)
	}
	o.Status.Phase = v1.PhaseFailed
	if err := c.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if o.Status.Phase != v1.PhaseRunning {
		t.Errorf("a write of the spec changed the status: phase %s", o.Status.Phase)
	}
	o.Status.Phase = "Dancing"
	wantRefused(t, c.Status().Update(t.Context(), o), `Unsupported value: "Dancing"`)
}

// The fields that measure a handoff keep their fractions of a second.
func TestTimesKeepMicroseconds(t *testing.T) {
	o := create(t, "times")
	at := metav1.NewMicroTime(metav1.Now().Truncate(1e9).Add(123456e3))
	o.Status.TransitionTimestamp = &at
	o.Status.LastTransition = &v1.Transition{Cause: v1.CauseCreated, Started: &at}
	if err := c.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for field, got := range map[string]*metav1.MicroTime{
		"transitionTimestamp": o.Status.TransitionTimestamp, "lastTransition.started": o.Status.LastTransition.Started,
	} {
		if !got.Equal(&at) {
			t.Errorf("%s is %s, want %s", field, got, at)
		}
	}
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
		},
	}
	if err := c.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	table := tableOf(t, o.Name)
	var narrow, wide []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			narrow = append(narrow, column.Name)
		}
		wide = append(wide, column.Name)
	}
	if diff := cmp.Diff([]string{"Name", "Status", "Ready", "Active Pod", "Standby", "Epoch", "Age"}, narrow); diff != "" {
		t.Errorf("columns of kubectl get stfs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Name", "Status", "Ready", "Active Pod", "Standby", "Epoch", "Age", "Gap", "Proof", "Message"}, wide); diff != "" {
		t.Errorf("columns of kubectl get stfs -o wide (-want +got):\n%s", diff)
	}
	cells := map[string]any{}
	for i, cell := range table.Rows[0].Cells {
		cells[wide[i]] = cell
	}
	delete(cells, "Age")
	want := map[string]any{
		"Name": "table", "Status": "Transitioning", "Ready": "False", "Active Pod": "db-1", "Standby": "db-2", "Epoch": int64(3),
		"Gap": int64(248), "Proof": "KubeletReported", "Message": "pod db-1 is terminating",
	}
	if diff := cmp.Diff(want, cells); diff != "" {
		t.Errorf("row of kubectl get stfs -o wide (-want +got):\n%s", diff)
	}
}

// kubectl get stfs -A --field-selector status.phase=Failed lists the singletons that need a person.
func TestSelectedByPhase(t *testing.T) {
	for name, phase := range map[string]v1.Phase{"selected-failed": v1.PhaseFailed, "selected-running": v1.PhaseRunning} {
		o := create(t, name)
		o.Status.Phase = phase
		if err := c.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	var list v1.StatefulSingletonList
	if err := c.List(t.Context(), &list, client.MatchingFields{"status.phase": string(v1.PhaseFailed)}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range list.Items {
		if strings.HasPrefix(o.Name, "selected-") {
			got = append(got, o.Name)
		}
	}
	if diff := cmp.Diff([]string{"selected-failed"}, got); diff != "" {
		t.Errorf("StatefulSingletons whose phase is Failed (-want +got):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	resources, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerResourcesForGroupVersion("apps.statefulsingleton.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]metav1.APIResource{}
	for _, r := range resources.APIResources {
		byName[r.Name] = r
	}
	if diff := cmp.Diff([]string{
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
		if diff := cmp.Diff(want, got); diff != "" {
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
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func tableOf(t *testing.T, name string) *metav1.Table {
	t.Helper()
	asking := rest.CopyConfig(config)
	asking.GroupVersion, asking.APIPath = &v1.GroupVersion, "/apis"
	asking.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	restClient, err := rest.RESTClientFor(asking)
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	err = restClient.Get().Namespace(corev1.NamespaceDefault).Resource("statefulsingletons").Name(name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(&table)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("the table has %d rows, want 1", len(table.Rows))
	}
	return &table
}

func wantRefused(t *testing.T, err error, want string) {
	t.Helper()
	if !apierrors.IsInvalid(err) {
		t.Fatalf("the API server answered %v, want that it rejects the object", err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("the API server rejects the object with\n%v\nwant\n%s", err, want)
	}
}
