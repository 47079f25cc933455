package policies_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gotest.tools/v3/golden"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

func TestInjection(t *testing.T) {
	resources := options
	resources.SidecarResources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
	pullSecrets := options
	pullSecrets.SidecarPullSecrets = []string{"registry", "mirror", "mirror"}
	tests := map[string]struct {
		pod       string
		singleton string
		// installation has the options of the policy. Default: options.
		installation *policies.Options
		restricted   bool
	}{
		"shell":                       {pod: "shell", singleton: "default"},
		"scratch":                     {pod: "scratch", singleton: "default"},
		"weird-strings":               {pod: "weird-strings", singleton: "default"},
		"empty-lists":                 {pod: "empty-lists", singleton: "default"},
		"several-containers":          {pod: "several-containers", singleton: "default"},
		"several-containers-one-held": {pod: "several-containers", singleton: "named-containers"},
		"init-containers":             {pod: "init-containers", singleton: "default"},
		"init-containers-held":        {pod: "init-containers", singleton: "hold-init-containers"},
		"init-containers-named":       {pod: "init-containers", singleton: "named-init-containers"},
		"probes":                      {pod: "probes", singleton: "readiness-by-kubelet"},
		"readiness":                   {pod: "readiness", singleton: "default"},
		"hooks":                       {pod: "hooks", singleton: "default"},
		"share-process-namespace":     {pod: "share-process-namespace", singleton: "hold-init-containers"},
		"host-pid":                    {pod: "host-pid", singleton: "default"},
		"restricted":                  {pod: "restricted", singleton: "hold-init-containers", restricted: true},
		"run-as-user":                 {pod: "run-as-user", singleton: "default", restricted: true},
		"run-as-root":                 {pod: "run-as-root", singleton: "default"},
		"guaranteed":                  {pod: "guaranteed", singleton: "default"},
		"limited-in-part":             {pod: "limited-in-part", singleton: "default"},
		"pull-secrets":                {pod: "pull-secrets", singleton: "default", installation: &pullSecrets},
		"pull-secrets-of-none":        {pod: "shell", singleton: "default", installation: &pullSecrets},
		"sidecar-resources":           {pod: "guaranteed", singleton: "default", installation: &resources},
		"existing-fields":             {pod: "existing-fields", singleton: "grace-period"},
		"own-epoch":                   {pod: "own-epoch", singleton: "default"},
		"shorter-grace-period":        {pod: "shell", singleton: "grace-period"},
		"generate-name":               {pod: "generate-name", singleton: "default"},
		"match-expressions":           {pod: "match-expressions", singleton: "match-expressions"},
		"fencing":                     {pod: "fencing", singleton: "fencing"},
		"fencing-init-containers":     {pod: "fencing", singleton: "fencing-init-containers"},
		"fencing-named-containers":    {pod: "several-containers", singleton: "fencing-named-containers"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := readSingleton(t, test.singleton)
			k := newKyverno(t, ownPolicy(s, ptr.Deref(test.installation, options)))
			original := readFile(t, filepath.Join("testdata", "pods", test.pod+".yaml"))

			injected := k.mutate(t, original, firstRequest)

			golden.Assert(t, string(encode(t, decoded[map[string]any](t, injected))), "injected/"+name+".yaml")
			before, after := decoded[corev1.Pod](t, original), decoded[corev1.Pod](t, injected)
			if err := policies.CheckInjected(&before, s); err == nil {
				t.Error("CheckInjected finds nothing missing before the injection")
			}
			if err := policies.CheckInjected(&after, s); err != nil {
				t.Errorf("CheckInjected after the injection: %v", err)
			}
			wantSuffixes(t, before, after)
			if diff := cmp.Diff(before, withoutInjection(after, before), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the user's own fields changed (-want +got):\n%s", diff)
			}
			if got := isRestricted(t, before); got != test.restricted {
				t.Errorf("restricted before the injection is %t, want %t", got, test.restricted)
			}
			if got := isRestricted(t, after); got != test.restricted {
				t.Errorf("restricted after the injection is %t, want %t", got, test.restricted)
			}

			// Only the UID of the request may change.
			again := k.mutate(t, injected, secondRequest)
			again = bytes.ReplaceAll(again, []byte(secondRequest), []byte(firstRequest))
			if diff := cmp.Diff(decoded[map[string]any](t, injected), decoded[map[string]any](t, again)); diff != "" {
				t.Errorf("a second pass changed the pod (-first +second):\n%s", diff)
			}
		})
	}
}

// The barrier of a copied pod may already be open.
func TestCopiedPodGetsItsOwnBarrier(t *testing.T) {
	t.Parallel()
	s := readSingleton(t, "default")
	k := newKyverno(t, ownPolicy(s, options))
	holder := k.mutate(t, readFile(t, "testdata/pods/scratch.yaml"), firstRequest)

	standby := k.mutate(t, holder, secondRequest)

	if bytes.Contains(standby, []byte(firstRequest)) {
		t.Errorf("the copy waits for the ConfigMap of the pod that it was copied from:\n%s", standby)
	}
}

// A manifest can contain variables with the name from which the gate reads the pod's UID.
func TestWrappedContainerHasOnePodUID(t *testing.T) {
	wrapped := []string{"/var/run/signal/gate", "wrap", "--", "a"}
	literal := corev1.EnvVar{Name: podUID().Name, Value: "literal"}
	otherField := podUID()
	otherField.ValueFrom = &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}
	withVersion := podUID()
	withVersion.ValueFrom = &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}
	a, b := corev1.EnvVar{Name: "A", Value: "a"}, corev1.EnvVar{Name: "B", Value: "$(STATEFULSINGLETON_POD_UID)"}
	tests := map[string]struct {
		command   []string
		env, want []corev1.EnvVar
	}{
		"none":                      {env: []corev1.EnvVar{a, b}, want: []corev1.EnvVar{a, b, podUID()}},
		"no environment":            {want: []corev1.EnvVar{podUID()}},
		"a literal":                 {env: []corev1.EnvVar{literal, a}, want: []corev1.EnvVar{a, podUID()}},
		"an empty one":              {env: []corev1.EnvVar{{Name: podUID().Name}, a}, want: []corev1.EnvVar{a, podUID()}},
		"another field":             {env: []corev1.EnvVar{a, otherField}, want: []corev1.EnvVar{a, podUID()}},
		"a literal after ours":      {env: []corev1.EnvVar{a, podUID(), literal, b}, want: []corev1.EnvVar{a, b, podUID()}},
		"a literal before ours":     {env: []corev1.EnvVar{literal, a, podUID()}, want: []corev1.EnvVar{a, podUID()}},
		"many":                      {env: []corev1.EnvVar{literal, literal, podUID(), a, literal, otherField, podUID(), b, literal}, want: []corev1.EnvVar{a, b, podUID()}},
		"ours twice":                {env: []corev1.EnvVar{podUID(), podUID()}, want: []corev1.EnvVar{podUID()}},
		"ours in the middle":        {env: []corev1.EnvVar{a, podUID(), b}, want: []corev1.EnvVar{a, podUID(), b}},
		"ours as the API fills in":  {env: []corev1.EnvVar{withVersion, a}, want: []corev1.EnvVar{withVersion, a}},
		"a copy that comes wrapped": {command: wrapped, env: []corev1.EnvVar{literal, a}, want: []corev1.EnvVar{a, podUID()}},
	}
	pod := decoded[corev1.Pod](t, readFile(t, "testdata/pods/shell.yaml"))
	pod.Spec.Containers, pod.Spec.InitContainers = nil, nil
	// All cases are in one pod, because the changes of one container must not affect another container.
	names := slices.Sorted(maps.Keys(tests))
	for i, name := range names {
		tc := tests[name]
		c := corev1.Container{Name: fmt.Sprint("c", i), Image: "debian", Command: []string{"a"}, Env: tc.env}
		if tc.command != nil {
			c.Command = tc.command
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		pod.Spec.InitContainers[i].Name = fmt.Sprint("i", i)
	}
	// Only a barrier can hold a container without a command, and a barrier needs no UID.
	barred := corev1.Container{Name: "barred", Image: "debian", Env: []corev1.EnvVar{literal}}
	pod.Spec.Containers = append(pod.Spec.Containers, barred)
	k := newKyverno(t, ownPolicy(readSingleton(t, "hold-init-containers"), options))

	got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))

	byName := map[string][]corev1.EnvVar{}
	for _, c := range allContainers(got) {
		byName[c.Name] = c.Env
	}
	for i, name := range names {
		for _, container := range []string{fmt.Sprint("c", i), fmt.Sprint("i", i)} {
			if diff := cmp.Diff(tests[name].want, byName[container]); diff != "" {
				t.Errorf("%s, container %s (-want +got):\n%s", name, container, diff)
			}
		}
	}
	if diff := cmp.Diff([]corev1.EnvVar{literal, barrier(firstRequest)}, byName["barred"]); diff != "" {
		t.Errorf("a container at the barrier (-want +got):\n%s", diff)
	}
}

// Another admission webhook may add a container after Kyverno mutated the pod. The API server then calls Kyverno again.
func TestContainerAddedBetweenTwoPassesIsHeld(t *testing.T) {
	t.Parallel()
	s := readSingleton(t, "default")
	k := newKyverno(t, ownPolicy(s, options))
	pod := decoded[corev1.Pod](t, k.mutate(t, readFile(t, "testdata/pods/shell.yaml"), firstRequest))
	pod.Spec.Containers = append(pod.Spec.Containers,
		corev1.Container{Name: "late", Image: "debian", Command: []string{"a"}},
		corev1.Container{Name: "later", Image: "debian"})

	pod = decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), secondRequest))

	if err := policies.CheckInjected(&pod, s); err != nil {
		t.Errorf("after the second pass: %v", err)
	}
}

func TestStringsAreUnchanged(t *testing.T) {
	t.Parallel()
	want := randomStrings("\n")
	pod := decoded[corev1.Pod](t, readFile(t, "testdata/pods/shell.yaml"))
	pod.Spec.Containers[0].Command = want
	pod.Spec.Containers[0].Args = want
	k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))

	got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))

	if diff := cmp.Diff(slices.Concat([]string{"/var/run/signal/gate", "wrap", "--"}, want), got.Spec.Containers[0].Command); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got.Spec.Containers[0].Args); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
}

// randomStrings returns strings of tokens with a meaning in Kyverno, JMESPath, JSON, YAML or a shell, and of more. Each
// call with the same arguments returns the same strings.
func randomStrings(more ...string) []string {
	pieces := append(more, "{", "{{", "}", "}}", "{{-", "$(", "$", ")", "(", "\\", "\\\\", "`", "'", "\"", ",", " ", "@", "||", "[]", ":",
		"request.object", "element", "elementIndex", "/", "~1", "#", "- ", "a", "0", "null", "é")
	random := rand.New(rand.NewPCG(1, 2))
	strs := []string{"a"}
	for range 400 {
		var s strings.Builder
		for range random.IntN(8) {
			s.WriteString(pieces[random.IntN(len(pieces))])
		}
		strs = append(strs, s.String())
	}
	return strs
}

func TestOtherPodsAreUnchanged(t *testing.T) {
	tests := map[string]func(*corev1.Pod){
		"another label":     func(p *corev1.Pod) { p.Labels["app"] = "web" },
		"no labels":         func(p *corev1.Pod) { p.Labels = nil },
		"another namespace": func(p *corev1.Pod) { p.Namespace = "other" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))
			pod := decoded[corev1.Pod](t, readFile(t, "testdata/pods/shell.yaml"))
			change(&pod)

			got := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))

			if diff := cmp.Diff(pod, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the pod changed (-want +got):\n%s", diff)
			}
		})
	}
}

func decoded[T any](t testing.TB, data []byte) T {
	t.Helper()
	var object T
	decode(t, data, &object)
	return object
}

func allContainers(pod corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

// wantSuffixes checks that each command ends with the user's command, and that the args are the user's.
func wantSuffixes(t *testing.T, before, after corev1.Pod) {
	t.Helper()
	now := map[string]corev1.Container{}
	for _, c := range allContainers(after) {
		now[c.Name] = c
	}
	for _, want := range allContainers(before) {
		got := now[want.Name]
		added := len(got.Command) - len(want.Command)
		if added != 0 && added != 3 || !slices.Equal(got.Command[added:], want.Command) {
			t.Errorf("container %s: command is %q, want it to end with %q", want.Name, got.Command, want.Command)
		}
		if !slices.Equal(got.Args, want.Args) {
			t.Errorf("container %s: args are %q, want %q", want.Name, got.Args, want.Args)
		}
	}
}

// withoutInjection returns the pod without the fields that a policy adds. Replaced fields have the value of the original.
func withoutInjection(pod, original corev1.Pod) corev1.Pod {
	pod = *pod.DeepCopy()
	delete(pod.Annotations, "apps.statefulsingleton.com/injected")
	delete(pod.Annotations, "apps.statefulsingleton.com/fencing")
	delete(pod.Labels, "apps.statefulsingleton.com/singleton")
	pod.Spec.TerminationGracePeriodSeconds = original.Spec.TerminationGracePeriodSeconds
	pod.Spec.ReadinessGates = slices.DeleteFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return g.ConditionType == "apps.statefulsingleton.com/singleton-ready"
	})
	ours := sets.New("statefulsingleton-signal", "statefulsingleton-podinfo", "statefulsingleton-credentials")
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return ours.Has(v.Name) })
	pod.Spec.ImagePullSecrets = pod.Spec.ImagePullSecrets[:len(original.Spec.ImagePullSecrets)]
	var sidecar corev1.Container
	if pod.Spec.InitContainers[0].Name == "status-sidecar" {
		sidecar = pod.Spec.InitContainers[0]
		pod.Spec.InitContainers = pod.Spec.InitContainers[1:]
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			release(&list[i])
			restoreProbe(&list[i], sidecar)
		}
	}
	return pod
}

// restoreProbe gives a container the readiness probe that the sidecar has.
func restoreProbe(c *corev1.Container, sidecar corev1.Container) {
	for _, variable := range sidecar.Env {
		if variable.Name != "READINESS_PROBE_"+c.Name {
			continue
		}
		var original struct {
			ReadinessProbe *corev1.Probe          `json:"readinessProbe"`
			Ports          []corev1.ContainerPort `json:"ports"`
		}
		data, err := base64.StdEncoding.DecodeString(variable.Value)
		if err == nil {
			err = json.Unmarshal(data, &original)
		}
		if err == nil && (original.Ports == nil || cmp.Equal(original.Ports, c.Ports)) {
			c.ReadinessProbe = original.ReadinessProbe
		}
	}
}

func release(c *corev1.Container) {
	if len(c.Command) > 3 && slices.Equal(c.Command[:3], []string{"/var/run/signal/gate", "wrap", "--"}) {
		c.Command = c.Command[3:]
	}
	if p := c.StartupProbe; p != nil && p.Exec != nil && slices.Equal(p.Exec.Command, []string{"/var/run/signal/gate", "started", "20s"}) {
		c.StartupProbe = nil
	}
	if last := len(c.Env) - 1; last >= 0 && c.Env[last] == containerEnv(c.Name) {
		c.Env = c.Env[:last]
	}
	// The API server sets the default of APIVersion.
	asWritten := cmpopts.IgnoreFields(corev1.ObjectFieldSelector{}, "APIVersion")
	if last := len(c.Env) - 1; last >= 0 && (cmp.Equal(c.Env[last], barrier(firstRequest)) || cmp.Equal(c.Env[last], podUID(), asWritten)) {
		c.Env = c.Env[:last]
	}
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return cmp.Equal(m, corev1.VolumeMount{Name: "statefulsingleton-signal", MountPath: "/var/run/signal", ReadOnly: true})
	})
}

func podUID() corev1.EnvVar {
	return corev1.EnvVar{Name: "STATEFULSINGLETON_POD_UID", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
	}}
}

func barrier(requestUID string) corev1.EnvVar {
	return corev1.EnvVar{Name: "STATEFULSINGLETON_EPOCH", ValueFrom: &corev1.EnvVarSource{
		ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "statefulsingleton-" + requestUID}, Key: "epoch",
		},
	}}
}

// isRestricted returns true if the Pod Security Standard "restricted" admits the pod.
func isRestricted(t *testing.T, pod corev1.Pod) bool {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
	if !result.Allowed {
		t.Logf("restricted forbids: %s", result.ForbiddenDetail())
	}
	return result.Allowed
}
