package policies_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gotest.tools/v3/golden"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// mutatingGoldens are the policies in testdata/policies that are also there as NamespacedMutatingPolicy. The engine checks the
// others.
var mutatingGoldens = []string{"namespace", "lock", "lock-fencing"}

func TestRender(t *testing.T) {
	for name, policy := range map[string]rendering{
		"default":      ownPolicy(readSingleton(t, "default"), options),
		"fencing":      ownPolicy(readSingleton(t, "fencing"), options),
		"namespace":    sharedPolicy(named(t, "default", "db"), named(t, "grace-period", "queue")),
		"lock":         ownPolicy(dbLock, options),
		"lock-fencing": ownPolicy(fencedLock(&v1.LockHooks{Promote: []string{"promote"}}), options),
	} {
		t.Run(name, func(t *testing.T) {
			golden.Assert(t, string(encode(t, policy.render(t, policies.ClusterPolicy).Object)), "policies/"+name+".yaml")
			if slices.Contains(mutatingGoldens, name) {
				golden.Assert(t, string(encode(t, policy.render(t, policies.NamespacedMutatingPolicy).Object)), "policies/mutating-"+name+".yaml")
			}
		})
	}
}

func TestRenderRefusesSelector(t *testing.T) {
	tests := map[string]v1.LabelSelector{
		"empty":            {},
		"wildcard":         {MatchLabels: map[string]string{"app": "*"}},
		"Kyverno's braces": {MatchLabels: map[string]string{"app": "{{ request.object }}"}},
		"quoted key":       {MatchLabels: map[string]string{`a" || "a`: "b"}},
		"no such operator": {MatchExpressions: []v1.LabelSelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"db"}}}},
		"quoted value":     {MatchExpressions: []v1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{`"] || true || ["`}}}},
	}
	for name, selector := range tests {
		t.Run(name, func(t *testing.T) {
			s := singletonOf(selector)
			if err := policies.Validate(s); err == nil {
				t.Error("Validate finds nothing wrong")
			}
			if _, err := policies.RenderNamespace("shop", []v1.StatefulSingleton{*s}, options); err == nil {
				t.Error("RenderNamespace finds nothing wrong")
			}
			if policy, err := policies.Render(s, options); err == nil {
				t.Errorf("Render gives %v, want an error", policy.Object["spec"])
			} else if !strings.Contains(err.Error(), "spec.selector") {
				t.Errorf("the error does not name spec.selector: %v", err)
			}
		})
	}
}

// The names of two policies differ, and are DNS labels of at most 63 characters, as Kyverno requires.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	singletons := []types.NamespacedName{
		{Namespace: "shop", Name: "db"}, {Namespace: "a-b", Name: "c"}, {Namespace: "a", Name: "b-c"}, {Namespace: "a", Name: "b.c"},
		{Namespace: long, Name: long}, {Namespace: long, Name: long[:62] + "b"}, {Namespace: "shop", Name: "b"}, {Namespace: "shop", Name: "db-lock"},
	}
	var names []string
	for _, key := range singletons {
		names = append(names, policies.Name(key))
	}
	for _, namespace := range []string{"shop", "a-b", "shop-db", long} {
		names = append(names, policies.NamespaceName(namespace))
	}
	other := dbLock.DeepCopy()
	other.Namespace, other.Name = "shop-db", "lock"
	names = append(names, policies.NameOf(dbLock), policies.NameOf(other))
	wantLabels(t, names)
}

// wantLabels checks that the names differ, and are DNS labels of at most 63 characters.
func wantLabels(t *testing.T, names []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] || !regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,61}[a-z0-9]$`).MatchString(name) {
			t.Errorf("the name %q is there twice, or it is no DNS label of at most 63 characters", name)
		}
		seen[name] = true
	}
}

func TestProbePod(t *testing.T) {
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	in, notIn := metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn
	exists, doesNotExist := metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist
	tests := map[string]struct {
		selector v1.LabelSelector
		wantErr  bool
	}{
		"match labels":      {selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db", "empty": ""}}},
		"in":                {selector: selectorOf(expression("tier", in, "gold", "silver"))},
		"not in":            {selector: selectorOf(expression("tier", notIn, "gold"))},
		"exists":            {selector: selectorOf(expression("tier", exists))},
		"does not exist":    {selector: selectorOf(expression("tier", doesNotExist))},
		"in and not in":     {selector: selectorOf(expression("tier", in, "gold", "silver"), expression("tier", notIn, "gold"))},
		"exists and not in": {selector: selectorOf(expression("tier", exists), expression("tier", notIn, "any-0", "any-1"))},
		"generated values":  {selector: selectorOf(expression("tier", exists), expression("tier", notIn, "", "any-0", "any-1"))},
		"contradiction":     {selector: selectorOf(expression("tier", exists), expression("tier", doesNotExist)), wantErr: true},
		"no value is left":  {selector: selectorOf(expression("tier", in, "gold"), expression("tier", notIn, "gold")), wantErr: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod, err := policies.ProbePod(singletonOf(test.selector), policies.Options{SidecarResources: &corev1.ResourceRequirements{Requests: requests}})
			if test.wantErr {
				if err == nil {
					t.Errorf("ProbePod gives labels %v, want an error", pod.Labels)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			selector, err := test.selector.Parse()
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(labels.Set(pod.Labels)) {
				t.Errorf("%s does not select labels %v", selector, pod.Labels)
			}
			if !isRestricted(t, *pod) {
				t.Error("the probe pod is not restricted")
			}
			// Otherwise a LimitRange that admits the sidecar could reject the probe.
			if diff := cmp.Diff(requests, pod.Spec.Containers[0].Resources.Requests); diff != "" {
				t.Errorf("the probe pod does not request as much as the sidecar (-want +got):\n%s", diff)
			}
			if pod.Name == "" || pod.GenerateName != "" {
				t.Error("the probe pod has no fixed name: each rejection has another message, and the controller writes the status each time")
			}
		})
	}
}

func TestProbePodIsInjected(t *testing.T) {
	for _, name := range []string{"default", "named-containers", "named-init-containers", "hold-init-containers", "match-expressions", "fencing", "fencing-named-containers", "queue"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := readSingleton(t, name)
			probe, err := policies.ProbePod(s, options)
			if err != nil {
				t.Fatal(err)
			}
			pod := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, probe), firstRequest))
			if err := policies.CheckProbe(&pod, s, policies.ClusterPolicy.Of(s)); err != nil {
				t.Error(err)
			}
			if !isRestricted(t, pod) {
				t.Error("the injected probe pod is not restricted")
			}
		})
	}
}

func singletonOf(selector v1.LabelSelector) *v1.StatefulSingleton {
	return &v1.StatefulSingleton{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
		Spec:       v1.StatefulSingletonSpec{Selector: selector},
	}
}

func selectorOf(expressions ...v1.LabelSelectorRequirement) v1.LabelSelector {
	return v1.LabelSelector{MatchExpressions: expressions}
}

func expression(key string, operator metav1.LabelSelectorOperator, values ...string) v1.LabelSelectorRequirement {
	return v1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
}
