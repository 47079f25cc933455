package policies_test

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gotest.tools/v3/golden"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

// injection is an injection by a policy, whose result is in testdata/injected.
type injection struct {
	// pod is a file in testdata/pods. Default: the name of the injection.
	pod string
	// singleton is a file in testdata/singletons. Default: default.
	singleton string
	// change changes the options of the policy.
	change func(*policies.Options)
	// restricted is true if the pod meets Pod Security "restricted", before and after the injection.
	restricted bool
	// wantFenced has the held containers if the pod is fenced.
	wantFenced []string
	// wantQueue is how long a client may wait if the pod queues connections.
	wantQueue time.Duration
}

var injections = map[string]injection{
	"shell":                       {},
	"scratch":                     {},
	"weird-strings":               {},
	"empty-lists":                 {},
	"several-containers":          {},
	"several-containers-one-held": {pod: "several-containers", singleton: "named-containers"},
	"init-containers":             {},
	"init-containers-held":        {pod: "init-containers", singleton: "hold-init-containers"},
	"init-containers-named":       {pod: "init-containers", singleton: "named-init-containers"},
	"probes":                      {singleton: "readiness-by-kubelet"},
	"readiness":                   {},
	"hooks":                       {},
	"share-process-namespace":     {singleton: "hold-init-containers"},
	"host-pid":                    {},
	"restricted":                  {singleton: "hold-init-containers", restricted: true},
	"run-as-user":                 {restricted: true},
	"run-as-root":                 {},
	"guaranteed":                  {},
	"limited-in-part":             {},
	"pull-secrets":                {change: addPullSecrets},
	"pull-secrets-of-none":        {pod: "shell", change: addPullSecrets},
	"sidecar-resources": {pod: "guaranteed", change: func(o *policies.Options) {
		o.SidecarResources = &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
		}
	}},
	"existing-fields":          {singleton: "grace-period"},
	"own-epoch":                {},
	"shorter-grace-period":     {pod: "shell", singleton: "grace-period"},
	"generate-name":            {},
	"match-expressions":        {singleton: "match-expressions"},
	"placement":                {singleton: "node-claims"},
	"fencing":                  {singleton: "fencing", wantFenced: []string{"db", "backup"}},
	"fencing-init-containers":  {pod: "fencing", singleton: "fencing-init-containers", wantFenced: []string{"migrate", "proxy", "db", "backup"}},
	"fencing-named-containers": {pod: "several-containers", singleton: "fencing-named-containers", wantFenced: []string{"db"}},
	"queue":                    {singleton: "queue", wantFenced: []string{"db", "web", "worker", "backup"}, wantQueue: 2 * time.Minute},
}

func addPullSecrets(o *policies.Options) {
	o.SidecarPullSecrets = []string{"registry", "mirror", "mirror"}
}

func TestInjection(t *testing.T) {
	for name, test := range injections {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := readSingleton(t, cmp.Or(test.singleton, "default")), options
			if test.change != nil {
				test.change(&o)
			}
			k := newKyverno(t, ownPolicy(s, o))
			original := readFile(t, filepath.Join("testdata", "pods", cmp.Or(test.pod, name)+".yaml"))

			injected := k.mutate(t, original, firstRequest)

			golden.Assert(t, string(encode(t, decoded[map[string]any](t, injected))), "injected/"+name+".yaml")
			before, after := decoded[corev1.Pod](t, original), decoded[corev1.Pod](t, injected)
			if err := policies.CheckInjected(&before, s); err == nil {
				t.Error("CheckInjected finds nothing missing before the injection")
			}
			if err := policies.CheckInjected(&after, s); err != nil {
				t.Errorf("CheckInjected after the injection: %v", err)
			}
			if test.wantFenced != nil {
				wantFenced(t, &after, s, test.wantFenced...)
				wantQueued(t, &after, s, test.wantQueue)
			}
			if diff := gocmp.Diff(before, withoutInjection(after, before), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the user's own fields changed (-want +got):\n%s", diff)
			}
			if was, is := isRestricted(t, before), isRestricted(t, after); was != test.restricted || is != test.restricted {
				t.Errorf("restricted: %t before and %t after the injection, want %t", was, is, test.restricted)
			}
			wantSame(t, "after a second pass", injected, k.mutate(t, injected, secondRequest))
		})
	}
}

// The barrier of a copied pod may already be open. Another admission webhook may add containers to the pod before the API server
// calls Kyverno again.
func TestSecondPass(t *testing.T) {
	t.Parallel()
	s := readSingleton(t, "default")
	k := newKyverno(t, ownPolicy(s, options))
	pod := decoded[corev1.Pod](t, k.mutate(t, readFile(t, "testdata/pods/scratch.yaml"), firstRequest))
	addContainer("late", "a")(&pod)
	addContainer("later")(&pod)

	again := k.mutate(t, encode(t, pod), secondRequest)

	if bytes.Contains(again, []byte(firstRequest)) {
		t.Errorf("the copy waits for the ConfigMap of the pod that it was copied from:\n%s", again)
	}
	pod = decoded[corev1.Pod](t, again)
	if err := policies.CheckInjected(&pod, s); err != nil {
		t.Error(err)
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
			if diff := gocmp.Diff(tests[name].want, byName[container]); diff != "" {
				t.Errorf("%s, container %s (-want +got):\n%s", name, container, diff)
			}
		}
	}
	if diff := gocmp.Diff([]corev1.EnvVar{literal, barrier(firstRequest)}, byName["barred"]); diff != "" {
		t.Errorf("a container at the barrier (-want +got):\n%s", diff)
	}
}

// randomStrings returns strings of tokens with a meaning in Kyverno, JMESPath, JSON, YAML or a shell. Each call returns the same
// strings.
func randomStrings() []string {
	pieces := []string{"\n", "{", "{{", "}", "}}", "{{-", "$(", "$", ")", "(", "\\", "\\\\", "`", "'", "\"", ",", " ", "@", "||", "[]", ":",
		"request.object", "element", "elementIndex", "/", "~1", "#", "- ", "a", "0", "null", "é"}
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
	k := newKyverno(t, ownPolicy(readSingleton(t, "default"), options))
	for name, change := range map[string]func(*corev1.Pod){
		"another label":     func(p *corev1.Pod) { p.Labels["app"] = "web" },
		"no labels":         func(p *corev1.Pod) { p.Labels = nil },
		"another namespace": func(p *corev1.Pod) { p.Namespace = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := encode(t, readPod(t, "shell", change))
			wantSame(t, "another pod", pod, k.mutate(t, pod, firstRequest))
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

// withoutInjection returns the pod without the fields that a policy adds. Replaced fields have the value of the original.
func withoutInjection(pod, original corev1.Pod) corev1.Pod {
	pod = *pod.DeepCopy()
	delete(pod.Annotations, "apps.statefulsingleton.com/injected")
	delete(pod.Annotations, "apps.statefulsingleton.com/fencing")
	delete(pod.Labels, "apps.statefulsingleton.com/singleton")
	pod.Spec.TerminationGracePeriodSeconds = original.Spec.TerminationGracePeriodSeconds
	pod.Spec.Affinity = original.Spec.Affinity // see TestPlacement
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
			restoreProbe(&list[i], sidecar)
			release(&list[i])
		}
	}
	return pod
}

// restoreProbe gives a container the readiness probe that the sidecar has, and its moved liveness probe.
func restoreProbe(c *corev1.Container, sidecar corev1.Container) {
	for _, variable := range slices.Concat(sidecar.Env, c.Env) {
		var probe **corev1.Probe
		switch variable.Name {
		case "READINESS_PROBE_" + c.Name:
			probe = &c.ReadinessProbe
		case "STATEFULSINGLETON_LIVENESS_PROBE":
			probe = &c.LivenessProbe
		default:
			continue
		}
		var original struct {
			Probe *corev1.Probe          `json:"probe"`
			Ports []corev1.ContainerPort `json:"ports"`
		}
		data, err := base64.StdEncoding.DecodeString(variable.Value)
		if err == nil {
			err = json.Unmarshal(data, &original)
		}
		if err == nil && (original.Ports == nil || gocmp.Equal(original.Ports, c.Ports)) {
			*probe = original.Probe
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
	releaseProbe(c.LivenessProbe, "liveness")
	releaseProbe(c.ReadinessProbe, "readiness")
	if last := len(c.Env) - 1; last >= 0 && c.Env[last] == containerEnv(c.Name) {
		c.Env = c.Env[:last]
	}
	if last := len(c.Env) - 1; last >= 0 && c.Env[last].Name == "STATEFULSINGLETON_PORTS" {
		c.Env = c.Env[:last]
	}
	if last := len(c.Env) - 1; last >= 0 && c.Env[last].Name == "STATEFULSINGLETON_LIVENESS_PROBE" {
		c.Env = c.Env[:last]
	}
	// The API server sets the default of APIVersion.
	asWritten := cmpopts.IgnoreFields(corev1.ObjectFieldSelector{}, "APIVersion")
	if last := len(c.Env) - 1; last >= 0 && (gocmp.Equal(c.Env[last], barrier(firstRequest)) || gocmp.Equal(c.Env[last], podUID(), asWritten)) {
		c.Env = c.Env[:last]
	}
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return gocmp.Equal(m, corev1.VolumeMount{Name: "statefulsingleton-signal", MountPath: "/var/run/signal", ReadOnly: true})
	})
}

// releaseProbe removes the gate from the command of an exec probe.
func releaseProbe(p *corev1.Probe, kind string) {
	prefix := []string{"/var/run/signal/gate", "probe", kind, "--"}
	if p != nil && p.Exec != nil && len(p.Exec.Command) > len(prefix) && slices.Equal(p.Exec.Command[:len(prefix)], prefix) {
		p.Exec.Command = p.Exec.Command[len(prefix):]
	}
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
