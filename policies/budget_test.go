package policies_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// fleet returns singletons with the selector, each a second older than the next.
func fleet(count int, selector v1.LabelSelector) (all []policies.Subject) {
	for i := range count {
		s := singletonOf(selector)
		s.Name, s.UID, s.CreationTimestamp = fmt.Sprintf("db-%d", i), types.UID(fmt.Sprint(i)), metav1.Unix(int64(i), 0)
		all = append(all, s)
	}
	return all
}

func namesOf(subjects []policies.Subject) (names []string) {
	for _, s := range subjects {
		names = append(names, s.GetName())
	}
	return names
}

// The budget of a namespace has room for as many objects as the documentation says, and the oldest objects get it.
func TestWithinBudget(t *testing.T) {
	fenced := func(all []policies.Subject) []policies.Subject {
		for _, s := range all {
			s.(*v1.StatefulSingleton).Spec.Fencing = v1.FencingLease
		}
		return all
	}
	queueing := func(all []policies.Subject) []policies.Subject {
		for _, s := range fenced(all) {
			s.(*v1.StatefulSingleton).Spec.Connections = v1.ConnectionsQueue
		}
		return all
	}
	ordinary, largest := v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}}, largestRendered(t)
	locks := func(count int) (all []policies.Subject) {
		for i, s := range fleet(count, ordinary) {
			all = append(all, &v1.StatefulSetLock{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: s.GetName(), CreationTimestamp: metav1.Unix(int64(i), 0)},
				Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db"},
			})
		}
		return all
	}
	tests := map[string]struct {
		all  []policies.Subject
		per  policies.Per
		want int
	}{
		"ordinary selectors":                {fleet(100, ordinary), policies.PerSingleton, 68},
		"ordinary selectors, shared policy": {fleet(1000, ordinary), policies.PerNamespace, 201},
		"fenced, shared policy":             {fenced(fleet(1000, ordinary)), policies.PerNamespace, 62},
		"with a queue, shared policy":       {queueing(fleet(1000, ordinary)), policies.PerNamespace, 53},
		"largest selectors":                 {fleet(100, largest), policies.PerSingleton, 15},
		"largest selectors, shared policy":  {fleet(100, largest), policies.PerNamespace, 8},
		"invalid selectors":                 {fleet(100, largestSelector()), policies.PerSingleton, 0},
		"locks":                             {locks(100), policies.PerSingleton, 68},
		"no objects":                        {nil, policies.PerNamespace, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var want []string
			if test.want > 0 {
				want = namesOf(test.all[:test.want])
			}
			if diff := gocmp.Diff(want, namesOf(policies.DefaultBudget.Within(test.all, test.per, nil))); diff != "" {
				t.Errorf("objects that get a policy (-want +got):\n%s", diff)
			}
		})
	}
}

// Every shared policy within the budget has at most a third of the size that etcd stores, and no expression that is too long for
// the API server.
func TestSharedPolicyFits(t *testing.T) {
	shortLabels := v1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 16 {
		shortLabels.MatchLabels[strconv.Itoa(i)] = ""
	}
	rapid.Check(t, func(t *rapid.T) {
		var variants []v1.StatefulSingletonSpec
		for range rapid.IntRange(1, 40).Draw(t, "variants") {
			values := rapid.IntRange(1, 60).Draw(t, "values")
			spec := v1.StatefulSingletonSpec{
				Selector:           rapid.SampledFrom([]v1.LabelSelector{selectorOfValues(values), shortLabels}).Draw(t, "selector"),
				HoldInitContainers: rapid.Bool().Draw(t, "init containers"),
				Fencing:            rapid.SampledFrom([]v1.Fencing{"", v1.FencingLease}).Draw(t, "fencing"),
				Connections:        rapid.SampledFrom([]v1.Connections{v1.ConnectionsRefuse, v1.ConnectionsQueue}).Draw(t, "connections"),
				ReadinessProbes:    rapid.SampledFrom([]v1.ReadinessProber{v1.ReadinessSidecar, v1.ReadinessKubelet}).Draw(t, "readiness"),
			}
			for i := range rapid.IntRange(0, 64).Draw(t, "containers") {
				spec.Containers = append(spec.Containers, longText("container", i, 63))
			}
			variants = append(variants, spec)
		}
		all := fleet(300, v1.LabelSelector{})
		for i, s := range all {
			s.(*v1.StatefulSingleton).Spec = variants[i%len(variants)]
		}
		kind := rapid.SampledFrom(policies.Kinds).Draw(t, "kind")
		policy := fullPolicy(t, kind, all)
		data, err := policy.MarshalJSON()
		if most := policies.WebhooksLimit / 3; err != nil || len(data) > most {
			t.Errorf("%s has %d bytes, want at most %d (%v)", kind, len(data), most, err)
		}
		if selected := selectorCondition(t, policy); len(selected) > longestExpression {
			t.Errorf("%s has an expression of %d bytes, want at most %d", kind, len(selected), longestExpression)
		}
	})
}

// longestExpression is the size in code points of the longest CEL expression that the API server compiles.
const longestExpression = 100_000

// selectorCondition returns the condition of the policy with the selectors, as it is in Kyverno's webhooks.
func selectorCondition(t rapid.TB, policy *unstructured.Unstructured) string {
	t.Helper()
	path := []string{"spec", "webhookConfiguration", "matchConditions"}
	if policy.GetKind() == string(policies.NamespacedMutatingPolicy) {
		path = []string{"spec", "matchConditions"}
	}
	conditions, _, err := unstructured.NestedSlice(policy.Object, path...)
	if err != nil {
		t.Fatal(err)
	}
	for _, condition := range conditions {
		if condition.(map[string]any)["name"] == "selector" {
			return condition.(map[string]any)["expression"].(string)
		}
	}
	t.Fatal("no condition has the selectors")
	return ""
}

// fullPolicy returns the shared policy of the singletons within the budget.
func fullPolicy(t rapid.TB, kind policies.Kind, all []policies.Subject) *unstructured.Unstructured {
	t.Helper()
	return renderShared(t, kind, policies.DefaultBudget.Within(all, policies.PerNamespace, nil))
}

// An invalid object takes no room, so the objects after it get a policy.
func TestInvalidTakesNoRoom(t *testing.T) {
	all := fleet(3, v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
	all[1].(*v1.StatefulSingleton).Spec.Selector = largestSelector()
	if diff := gocmp.Diff([]string{"db-0", "db-2"}, namesOf(policies.DefaultBudget.Within(all, policies.PerSingleton, nil))); diff != "" {
		t.Errorf("objects that get a policy (-want +got):\n%s", diff)
	}
}

// The objects that get a policy do not depend on the order of the list. A new object and a deletion take the policy from no
// other object.
func TestBudgetInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		per := rapid.SampledFrom([]policies.Per{policies.PerSingleton, policies.PerNamespace}).Draw(t, "per")
		all := fleet(rapid.IntRange(1, 120).Draw(t, "count"), v1.LabelSelector{})
		for i, s := range all {
			s.(*v1.StatefulSingleton).Spec.Selector = selectorOfValues(rapid.IntRange(1, 100).Draw(t, "values"))
			s.SetCreationTimestamp(metav1.Unix(int64(i/rapid.IntRange(1, 3).Draw(t, "per second")), 0))
		}
		byAge := func(a, b policies.Subject) int {
			return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetUID(), b.GetUID()))
		}
		before := policies.DefaultBudget.Within(all, per, nil)

		shuffled := rapid.Permutation(all).Draw(t, "order")
		if diff := gocmp.Diff(namesOf(before), namesOf(policies.DefaultBudget.Within(shuffled, per, nil))); diff != "" {
			t.Errorf("the order of the list matters (-first +second):\n%s", diff)
		}
		newest := singletonOf(selectorOfValues(1))
		newest.Name, newest.CreationTimestamp = "newest", metav1.Unix(int64(time.Hour), 0)
		if after := policies.DefaultBudget.Within(append(slices.Clone(all), newest), per, nil); !slices.Equal(before, after[:len(before)]) {
			t.Errorf("a new object takes the room of an older one: %v, before %v", namesOf(after), namesOf(before))
		}
		gone := rapid.SampledFrom(all).Draw(t, "deleted")
		is := func(s policies.Subject) bool { return s == gone }
		after := policies.DefaultBudget.Within(slices.DeleteFunc(slices.Clone(all), is), per, nil)
		for _, s := range before {
			if s != gone && !slices.Contains(after, s) {
				t.Errorf("the deletion of %s takes the room of %s", gone.GetName(), s.GetName())
			}
		}
		if !slices.IsSortedFunc(before, byAge) {
			t.Errorf("not from the oldest to the newest: %v", namesOf(before))
		}
	})
}

// installedIn renders the shared policy of the singletons, and returns what a controller reads from it.
func installedIn(t rapid.TB, kind policies.Kind, all []policies.Subject) policies.Installed {
	t.Helper()
	installed, err := policies.InstalledIn(renderShared(t, kind, all))
	if err != nil {
		t.Fatal(err)
	}
	return installed
}

func renderShared(t rapid.TB, kind policies.Kind, all []policies.Subject) *unstructured.Unstructured {
	t.Helper()
	var singletons []v1.StatefulSingleton
	for _, s := range all {
		singletons = append(singletons, *s.(*v1.StatefulSingleton))
	}
	o := options
	o.Kind = kind
	policy, err := policies.RenderNamespace("shop", singletons, o)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// clone returns copies, which a test can change.
func clone(all []policies.Subject) (copies []policies.Subject) {
	for _, s := range all {
		copies = append(copies, s.DeepCopyObject().(policies.Subject))
	}
	return copies
}

func specOf(s policies.Subject) *v1.StatefulSingletonSpec { return &s.(*v1.StatefulSingleton).Spec }

// variantsOf returns the variants of the objects by name.
func variantsOf(all []policies.Subject) map[string]string {
	variants := map[string]string{}
	for _, s := range all {
		variants[s.GetName()] = policies.Variant(s)
	}
	return variants
}

// A singleton that grows takes the room of no other singleton of a full shared policy. The policy keeps its earlier rules until
// there is room.
func TestGrowthInSharedPolicy(t *testing.T) {
	all := fleet(202, v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}})
	before := all[:201]
	installed := installedIn(t, policies.ClusterPolicy, before)
	grown, alike, fenced := clone(all), clone(all), clone(all)
	specOf(grown[0]).Containers = []string{"db"}
	specOf(grown[100]).Fencing = v1.FencingLease
	without := slices.Delete(clone(grown), 150, 190)
	for i := range all {
		specOf(alike[i]).ReadinessProbes = v1.ReadinessKubelet
		specOf(fenced[i]).Fencing = v1.FencingLease
	}
	for name, test := range map[string]struct{ all, want []policies.Subject }{
		"unchanged":                             {all, before},
		"grown":                                 {grown, before},
		"grown, with room":                      {without, without},
		"all changed, and as large":             {alike, alike[:201]},
		"all fenced, with no room for one more": {fenced, before},
	} {
		t.Run(name, func(t *testing.T) {
			got := policies.DefaultBudget.Within(test.all, policies.PerNamespace, installed)
			if diff := gocmp.Diff(variantsOf(test.want), variantsOf(got)); diff != "" {
				t.Errorf("variants (-want +got):\n%s", diff)
			}
		})
	}
}

// With longer rules, the singletons of a shared policy can exceed the budget. All of them stay. They can
// become smaller, but nothing else gets room.
func TestSharedPolicyAboveBudget(t *testing.T) {
	all := fleet(400, v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}})
	before := all[100:]
	for _, s := range before[:100] {
		specOf(s).Fencing = v1.FencingLease
	}
	installed := installedIn(t, policies.ClusterPolicy, before)

	changed := clone(all)
	specOf(changed[150]).Fencing = ""
	specOf(changed[250]).Fencing, specOf(changed[251]).Fencing = v1.FencingLease, v1.FencingLease
	want := variantsOf(before)
	want["db-150"] = policies.Variant(changed[150])
	if diff := gocmp.Diff(want, variantsOf(policies.DefaultBudget.Within(changed, policies.PerNamespace, installed))); diff != "" {
		t.Errorf("variants (-want +got):\n%s", diff)
	}
}

// No order of growth, deletions and new singletons takes the rules of an installed singleton. The policy comes to rest.
func TestInstalledStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(policies.Kinds).Draw(t, "kind")
		small := v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
		drawn := func(what string) (spec v1.StatefulSingletonSpec) {
			spec.Selector = small
			spec.Fencing = rapid.SampledFrom([]v1.Fencing{v1.FencingKubelet, v1.FencingLease}).Draw(t, what+" fencing")
			spec.Connections = rapid.SampledFrom([]v1.Connections{v1.ConnectionsRefuse, v1.ConnectionsQueue}).Draw(t, what+" connections")
			spec.HoldInitContainers = rapid.Bool().Draw(t, what+" init containers")
			for i := range rapid.SampledFrom([]int{0, 0, 1, 64}).Draw(t, what+" containers") {
				spec.Containers = append(spec.Containers, longText("container", i, 63))
			}
			return spec
		}
		all := fleet(rapid.IntRange(1, 150).Draw(t, "count"), small)
		for _, s := range all {
			*specOf(s) = drawn("first")
		}
		now := policies.DefaultBudget.Within(all, policies.PerNamespace, nil)
		installed := installedIn(t, kind, now)
		for step := range rapid.IntRange(1, 4).Draw(t, "steps") {
			gone := rapid.SampledFrom(all).Draw(t, "deleted")
			all = slices.DeleteFunc(clone(all), func(s policies.Subject) bool { return s.GetName() == gone.GetName() })
			for range rapid.IntRange(0, 20).Draw(t, "changes") {
				if len(all) > 0 {
					*specOf(rapid.SampledFrom(all).Draw(t, "changed")) = drawn("changed")
				}
			}
			added := fleet(1, small)[0]
			added.SetName(fmt.Sprintf("added-%d", step))
			added.SetUID(types.UID(added.GetName()))
			added.SetCreationTimestamp(metav1.Unix(rapid.Int64Range(0, 200).Draw(t, "created"), 0))
			all = append(all, added)
			now, installed = awaitRest(t, kind, all, now, installed)
		}
	})
}

// awaitRest applies WithinBudget until it changes nothing, and returns what is installed then.
func awaitRest(t *rapid.T, kind policies.Kind, all, before []policies.Subject, installed policies.Installed) ([]policies.Subject, policies.Installed) {
	current := variantsOf(all)
	for range len(all) + 1 {
		now := policies.DefaultBudget.Within(rapid.Permutation(all).Draw(t, "order"), policies.PerNamespace, installed)
		old, is := variantsOf(before), variantsOf(now)
		for _, s := range all {
			name := s.GetName()
			_, was := old[name]
			switch variant, stays := is[name]; {
			case was && !stays:
				t.Fatalf("%s loses its rules", name)
			case stays && variant != current[name] && (variant != old[name] || !was):
				t.Fatalf("%s has rules for %s, want for %s or %s", name, variant, current[name], old[name])
			case was && old[name] == current[name] && variant != current[name]:
				t.Fatalf("%s loses the rules of its present spec", name)
			}
		}
		policy := renderShared(t, kind, now)
		if data, err := policy.MarshalJSON(); err != nil || len(data) > policies.DefaultBudget.Policy {
			t.Fatalf("%s has %d bytes, want at most %d (%v)", kind, len(data), policies.DefaultBudget.Policy, err)
		}
		var err error
		if installed, err = policies.InstalledIn(policy); err != nil {
			t.Fatal(err)
		}
		if maps.Equal(old, is) {
			return now, installed
		}
		before = now
	}
	t.Fatal("the policy does not come to rest")
	return nil, nil
}

// The annotation with the singletons of a shared policy is within the limit of Kubernetes, also if every singleton has many
// containers with long names.
func TestInstalledAnnotation(t *testing.T) {
	all := fleet(1000, v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
	for i, s := range all {
		s.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)))
		for c := range 64 {
			specOf(s).Containers = append(specOf(s).Containers, longText(fmt.Sprintf("%d-of-%d", c, i%20), c, 63))
		}
	}
	policy := fullPolicy(t, policies.ClusterPolicy, all)
	if err := validation.ValidateAnnotationsSize(policy.GetAnnotations()); err != nil {
		t.Error(err)
	}
	policy.SetAnnotations(map[string]string{policies.InstalledAnnotation: "?"})
	if _, err := policies.InstalledIn(policy); err == nil || !strings.HasSuffix(err.Error(), "singletons can lose their rules") {
		t.Errorf("invalid annotation: %v, want an error that says what to do", err)
	}
	policy.SetAnnotations(nil)
	if installed, err := policies.InstalledIn(policy); len(installed) > 0 || err != nil {
		t.Errorf("no annotation: %v, %v, want no singletons", installed, err)
	}
}
