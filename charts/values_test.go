package charts

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what each value changes into "+valuesFile)

const valuesFile = "testdata/values.yaml"

// valueCase sets a value, and has all that it changes in the rendered objects.
type valueCase struct {
	// With has other values that are set before and after the change.
	With []string `json:"with,omitempty"`
	Set  []string `json:"set"`
	// Whole is true if Changes has the complete specs of new objects.
	Whole bool `json:"whole,omitempty"`
	// Changes has the new values of fields by kind, name and path, and null for a removed field.
	Changes map[string]any `json:"changes"`
}

// elsewhere are the values that another test sets.
var elsewhere = []string{"enabled", "fullnameOverride", "commonLabels"}

// TestEachValueDoesSomething: a value changes what testdata/values.yaml says, and nothing else. After a change of the chart, run
// `go test ./charts -run EachValueDoes -update`, and review the difference.
func TestEachValueDoesSomething(t *testing.T) {
	all, before := values(t), map[string][]client.Object{}
	for value, tc := range all {
		t.Run(value, func(t *testing.T) {
			with := fmt.Sprint(tc.With)
			if before[with] == nil {
				before[with] = render(t, setting(tc.With)...)
			}
			got := changes(before[with], render(t, setting(slices.Concat(tc.With, tc.Set))...), tc.Whole)
			if len(got) == 0 {
				t.Errorf("%v changes nothing", tc.Set)
			}
			if diff := cmp.Diff(tc.Changes, got); diff != "" && !*update {
				t.Errorf("changes by %v (-want +got):\n%s", tc.Set, diff)
			}
			tc.Changes = got
			all[value] = tc
		})
	}
	if *update {
		data, err := yaml.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(valuesFile, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func values(t *testing.T) (all map[string]valueCase) {
	t.Helper()
	data, err := os.ReadFile(valuesFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// setting returns the flags of helm that set the values.
func setting(values []string) (args []string) {
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return args
}

// changes returns the new values of all fields that differ, by kind, name and path. Of a new object it has the spec, if whole is
// true. If no object of a kind is left, it has the kind only.
func changes(before, after []client.Object, whole bool) map[string]any {
	found := map[string]any{}
	old, now := byName(before), byName(after)
	for key := range sets.KeySet(old).Union(sets.KeySet(now)) {
		kind, _, _ := strings.Cut(key, " ")
		isKind := func(other string) bool { return strings.HasPrefix(other, kind+" ") }
		switch was, is := old[key], now[key]; {
		case is == nil && slices.ContainsFunc(slices.Collect(maps.Keys(now)), isKind):
			found[key] = "removed"
		case is == nil:
			found[kind] = "removed"
		case was != nil:
			compare(key+" ", was, is, found)
		case whole:
			found[key] = is["spec"]
		default:
			found[key] = "added"
		}
	}
	return found
}

// byName returns the objects as JSON values, by kind and name.
func byName(objects []client.Object) map[string]map[string]any {
	found := map[string]map[string]any{}
	for _, o := range objects {
		var value map[string]any
		if data, err := json.Marshal(o); err != nil || json.Unmarshal(data, &value) != nil {
			panic(fmt.Sprintf("%T is no JSON object", o))
		}
		found[o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName()] = value
	}
	return found
}

// compare adds to found the fields of b that differ from those of a. A path has the names of list elements and flags.
func compare(path string, a, b any, found map[string]any) {
	if reflect.DeepEqual(a, b) {
		return
	}
	old, isMap := fields(a)
	now, areMaps := fields(b)
	if isMap && areMaps {
		for key := range sets.KeySet(old).Union(sets.KeySet(now)) {
			next := path + "." + key
			if strings.HasSuffix(path, " ") {
				next = path + key
			}
			compare(next, old[key], now[key], found)
		}
		return
	}
	if was, ok := a.(string); ok && len(was) > 100 {
		if is, ok := b.(string); ok {
			b = different(was, is)
		}
	}
	found[path] = b
}

// fields returns the fields of an object, or the elements of a list: by their names, by the names of flags, or else by their indices.
func fields(value any) (map[string]any, bool) {
	list, ok := value.([]any)
	if !ok {
		value, ok := value.(map[string]any)
		return value, ok
	}
	named := map[string]any{}
	for i, item := range list {
		key := strconv.Itoa(i)
		switch is := item.(type) {
		case map[string]any:
			if name, ok := is["name"].(string); ok {
				key = name
			}
		case string:
			if flag, value, _ := strings.Cut(is, "="); strings.HasPrefix(flag, "--") {
				key, item = flag, value
			}
		}
		if _, twice := named[key]; twice {
			key += " " + strconv.Itoa(i)
		}
		named[key] = item
	}
	return named, true
}

// different returns the part of a long text that differs.
func different(was, is string) string {
	start, end := 0, 0
	for start < min(len(was), len(is)) && was[start] == is[start] {
		start++
	}
	for end < min(len(was), len(is))-start && was[len(was)-1-end] == is[len(is)-1-end] {
		end++
	}
	return "…" + is[start:len(is)-end] + "…"
}

// TestNamesAndLabels: fullnameOverride names all objects of the release, and each object and pod has the common labels. The value
// enabled changes nothing: it is there for the condition of a parent chart, which Helm evaluates.
func TestNamesAndLabels(t *testing.T) {
	objects := render(t, "--set", "enabled=true,fullnameOverride=stfs,commonLabels.team=data,statefulClusters.enabled=true")
	for _, o := range objects {
		if strings.Contains(o.GetName(), name) || o.GetLabels()["team"] != "data" {
			t.Errorf("%T %s has labels %v", o, o.GetName(), o.GetLabels())
		}
	}
	templates := podTemplates(objects)
	if _, ok := templates["Deployment stfs"]; !ok {
		t.Errorf("pods of %v, want of Deployment stfs", slices.Sorted(maps.Keys(templates)))
	}
	for owner, template := range templates {
		if template.Labels["team"] != "data" {
			t.Errorf("the pods of %s have labels %v", owner, template.Labels)
		}
	}
}

// TestAccounts: the guards name the ServiceAccounts of the chart's pods and no other user of the namespace, and the three are
// different.
func TestAccounts(t *testing.T) {
	objects := render(t, append(withClusters, "--set", "serviceAccount.create=false,serviceAccount.name=its-account")...)
	accounts := sets.New[string]()
	for _, template := range podTemplates(objects) {
		accounts.Insert(template.Spec.ServiceAccountName)
	}
	if want := sets.New("its-account", "its-account-clusters", "its-account-uninstall"); !accounts.Equal(want) {
		t.Errorf("ServiceAccounts of the pods: %v, want %v", sets.List(accounts), sets.List(want))
	}
	named := sets.New[string]()
	for _, guard := range all[*admissionregistrationv1.ValidatingAdmissionPolicy](objects) {
		for _, user := range regexp.MustCompile("'system:serviceaccount:"+namespace+":(.*?)'").FindAllStringSubmatch(guard.String(), -1) {
			named.Insert(user[1])
		}
	}
	if !named.Equal(accounts) {
		t.Errorf("the guards name %v, and the pods run as %v", sets.List(named), sets.List(accounts))
	}
}

// TestImageRegistry: the registry replaces that of a repository, if the repository has one.
func TestImageRegistry(t *testing.T) {
	objects := render(t, append(withClusters, "--set", "global.imageRegistry=mirror.example,image.manager.repository=localhost/manager,"+
		"image.gate.repository=team/gate,image.clusterManager.repository=registry:5000/team/clusters,"+
		"image.manager.tag=v1,image.gate.tag=v1,image.clusterManager.tag=v1")...)
	templates := podTemplates(objects)
	manager := templates["Deployment "+name].Spec.Containers[0]
	if want := "mirror.example/manager:v1"; manager.Image != want {
		t.Errorf("image of the controller: %s, want %s", manager.Image, want)
	}
	if want := "--gate-image=mirror.example/team/gate:v1"; !slices.Contains(manager.Args, want) {
		t.Errorf("arguments of the controller: %q, want %s", manager.Args, want)
	}
	if got, want := templates["Deployment "+clusters].Spec.Containers[0].Image, "mirror.example/team/clusters:v1"; got != want {
		t.Errorf("image of the manager of StatefulClusters: %s, want %s", got, want)
	}
}

// TestEachValueIsTested: the tests, values.yaml and README.md have the same values. README.md is generated from the comments of
// the values.
func TestEachValueIsTested(t *testing.T) {
	tested := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(values(t))), elsewhere...)))
	var defaults map[string]any
	readYAML(t, filepath.Join(chart, "values.yaml"), &defaults)
	var there []string
	var walk func(path string, value any)
	walk = func(path string, value any) {
		if children, ok := value.(map[string]any); ok && len(children) > 0 && !slices.Contains(tested, path) {
			for key, child := range children {
				walk(strings.TrimPrefix(path+"."+key, "."), child)
			}
			return
		}
		there = append(there, path)
	}
	walk("", defaults)
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, values, _ := bytes.Cut(readme, []byte("\n## Values\n"))
	var explained []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(.+?)` \\| [A-Za-z]").FindAllSubmatch(values, -1) {
		explained = append(explained, string(row[1]))
	}
	for file, got := range map[string][]string{"values.yaml": there, "README.md": explained} {
		slices.Sort(got)
		if diff := cmp.Diff(tested, got); diff != "" {
			t.Errorf("values (-tested +%s):\n%s", file, diff)
		}
	}
}

// TestWrongValuesAreRefused has a case for each kind of rule that values.yaml sets for the schema, and for what templates reject.
func TestWrongValuesAreRefused(t *testing.T) {
	cases := map[string]struct{ set, want string }{
		"unknown at the top":      {"replica=2", "additional properties 'replica' not allowed"},
		"unknown in an image":     {"image.gate.name=g", "at '/image/gate': additional properties 'name' not allowed"},
		"unknown affinity":        {"affinity.antiAffinity.x=1", "at '/affinity': additional properties 'antiAffinity' not allowed"},
		"unknown toleration":      {"tolerations[0].operater=Exists", "at '/tolerations/0': additional properties 'operater' not allowed"},
		"unknown sidecar amount":  {"sidecar.resources.requests.cup=1", "at '/sidecar/resources/requests': additional properties 'cup' not allowed"},
		"unknown peer":            {"networkPolicy.metricsFrom[0].podselector.x=1", "at '/networkPolicy/metricsFrom/0': additional properties 'podselector' not allowed"},
		"selector in a spread":    {"topologySpreadConstraints[0].labelSelector.x=1", "at '/topologySpreadConstraints/0': additional properties 'labelSelector' not allowed"},
		"no name of a namespace":  {"guards.exemptNamespaces={Network}", "at '/guards/exemptNamespaces/0': 'Network' does not match pattern"},
		"no name of an image":     {"guards.gateImages[0]=", "at '/guards/gateImages/0': minLength: got 0, want 1"},
		"no repository":           {"image.gate.repository=", "at '/image/gate/repository': minLength: got 0, want 1"},
		"half a digest":           {"image.manager.digest=sha256:12", "at '/image/manager/digest': 'sha256:12' does not match pattern"},
		"number for a tag":        {"image.manager.tag=13", "at '/image/manager/tag': got number, want string"},
		"unknown pull policy":     {"image.gate.pullPolicy=Often", "at '/image/gate/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"},
		"pull secret's text":      {"image.gate.pullSecrets={mirror}", "at '/image/gate/pullSecrets/0': got string, want object"},
		"secret without name":     {"imagePullSecrets[0].secret=x", "at '/imagePullSecrets/0': missing property 'name'"},
		"text for a port":         {"networkPolicy.apiServer.ports={https}", "at '/networkPolicy/apiServer/ports/0': got string, want integer"},
		"no replica":              {"replicas=0", "at '/replicas': minimum: got 0, want 1"},
		"text for a switch":       {"crds.install=yes", "at '/crds/install': got string, want boolean"},
		"switch for a quantity":   {"resources.limits.memory=true", "at '/resources/limits/memory': got boolean, want number or string"},
		"number for a label":      {"podLabels.tier=1", "at '/podLabels/tier': got number, want string"},
		"number in commonLabels":  {"commonLabels.tier=1", "at '/commonLabels/tier': got number, want string"},
		"number on a rule":        {"prometheusRule.labels.tier=1", "at '/prometheusRule/labels/tier': got number, want string"},
		"number on the dashboard": {"dashboard.labels.instance=1", "at '/dashboard/labels/instance': got number, want string"},
		"policy for each pod":     {"policyPer=pod", "at '/policyPer': value must be one of 'singleton', 'namespace'"},
		"unknown kind of policy":  {"policyKind=MutatingPolicy", "at '/policyKind': value must be one of 'ClusterPolicy', 'NamespacedMutatingPolicy'"},
		"unknown log level":       {"logLevel=loud", "at '/logLevel': value must be one of 'debug', 'info', 'error'"},
		"unknown log format":      {"logFormat=xml", "at '/logFormat': value must be one of 'json', 'console'"},
		"interval without unit":   {"serviceMonitor.interval=30x", "at '/serviceMonitor/interval': '30x' does not match pattern"},
		"lease without unit":      {"leaderElection.leaseDuration=60x", "at '/leaderElection/leaseDuration': '60x' does not match pattern"},
		"name too long to append": {"fullnameOverride=" + strings.Repeat("n", 53), "at '/fullnameOverride': maxLength: got 53, want 52"},
		"no name of a variable":   {"extraEnv[0].value=x", "at '/extraEnv/0': missing property 'name'"},
		"account of all pods":     {"serviceAccount.name=default", "every pod of the namespace that names no ServiceAccount would have the permissions of the controller"},
		"account in quotes":       {"serviceAccount.name=a'b", "at '/serviceAccount/name': 'a\\'b' does not match pattern"},
		"registry with a scheme":  {"global.imageRegistry=https://mirror.example", "at '/global/imageRegistry': 'https://mirror.example' does not match pattern"},
		"memory of Go":            {"extraEnv[0].name=GOMEMLIMIT", "set resources.limits.memory instead"},
		"pods without guards":     {"policyKind=NamespacedMutatingPolicy,guards.enabled=false", "only the guards reject these pods"},
		"guards without a CRD":    {"crds.install=false", "the guards would have every pod outside guards.exemptNamespaces refused"},
	}
	for what, tc := range cases {
		t.Run(what, func(t *testing.T) { wantRefusal(t, tc.want, "--set", tc.set) })
	}
	wantRefusal(t, "at '/networkPolicy/apiServer/ports': minItems: got 0, want 1", "--set-json", "networkPolicy.apiServer.ports=[]")
	wantRefusal(t, "chart requires kubeVersion: >=1.33.0-0", "--kube-version", "1.32.9")
	wantRefusal(t, "the cluster serves no apps.statefulsingleton.com/v1 StatefulCluster", "--set", "crds.install=false,statefulClusters.enabled=true",
		"--api-versions", "apps.statefulsingleton.com/v1/StatefulSingleton,apps.statefulsingleton.com/v1/StatefulSetLock")
}

func wantRefusal(t *testing.T, want string, args ...string) {
	t.Helper()
	if _, err := helm(t, append([]string{"template", release, chart}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("helm with %v: error %v, want %q", args, err, want)
	}
}
