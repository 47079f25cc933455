package policies_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gotest.tools/v3/golden"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// fencedLock returns dbLock with fencing by a Lease.
func fencedLock(hooks *v1.LockHooks) *v1.StatefulSetLock {
	l := dbLock.DeepCopy()
	l.Spec.Fencing, l.Spec.Hooks = v1.LockFencingLease, hooks
	return l
}

func newLockKyverno(t *testing.T, l *v1.StatefulSetLock, o policies.Options) kyverno {
	t.Helper()
	return newKyverno(t, ownPolicy(l, o))
}

// readMember returns a pod in testdata/pods as a pod of StatefulSet db, after a change.
func readMember(t *testing.T, name string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := readPod(t, name, change)
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: types.UID("db"), Controller: new(true)}}
	return pod
}

func wantFencedByLock(t *testing.T, pod *corev1.Pod, wantHeld ...string) {
	t.Helper()
	settings, problem := injected.SettingsOf(pod, "db-lease", wantHeld)
	if problem != "" {
		t.Fatalf("the pod is not fenced: %s", problem)
	}
	if problem := injected.NotFenceable(pod); problem != "" {
		t.Errorf("the pod cannot be fenced: %s", problem)
	}
	if !settings.Lock || settings.Duration.Seconds() != 15 || pod.Annotations[v1.FencingAnnotation] != "Lease" {
		t.Errorf("the settings are %+v and the annotation is %q", settings, pod.Annotations[v1.FencingAnnotation])
	}
	if len(pod.Spec.ReadinessGates) != 0 {
		t.Error("a reader would never be Ready, because the pod has a readiness gate")
	}
	for _, c := range pod.Spec.Containers {
		if !injected.IsSupervised(&c) {
			t.Errorf("the gate does not start container %s", c.Name)
		}
		hooks, err := signal.ParseHooks(func(name string) string { return injected.Variable(&c, name).Value })
		if hooks == nil || err != nil {
			t.Errorf("container %s has no role: %v", c.Name, err)
		}
		seen := map[string]bool{}
		for _, e := range c.Env {
			if seen[e.Name] {
				t.Errorf("container %s has variable %s twice", c.Name, e.Name)
			}
			seen[e.Name] = true
		}
	}
}

// wantReader fails unless the policy made the pod a reader, and changed nothing else.
func wantReader(t *testing.T, before *corev1.Pod, after []byte) {
	t.Helper()
	want := before.DeepCopy()
	want.Labels[v1.StsRoleLabel], want.Labels[v1.LockLabel] = v1.StsRoleReader, "db-lock"
	if diff := cmp.Diff(*want, decoded[corev1.Pod](t, after)); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
}

func TestFencedLockPolicy(t *testing.T) {
	wantGolden(t, ownPolicy(fencedLock(&v1.LockHooks{Promote: []string{"promote"}}), options), "lock-fencing")
}

// The gate starts every regular container of a pod of a lock with fencing. Init containers start as before.
func TestFencedByLock(t *testing.T) {
	pullSecrets := options
	pullSecrets.SidecarPullSecrets = []string{"registry"}
	tests := map[string]struct {
		pod      string
		options  policies.Options
		wantHeld []string
	}{
		"init-containers": {"fencing", options, []string{"db", "backup"}},
		"hooks":           {"hooks", options, []string{"post-start", "pre-stop"}},
		"startup-probe":   {"startup-probe", options, []string{"db"}},
		"run-as-user":     {"run-as-user", options, []string{"db"}},
		"run-as-root":     {"run-as-root", options, nil},
		"pull-secrets":    {"pull-secrets", pullSecrets, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newLockKyverno(t, fencedLock(nil), test.options)
			before := readMember(t, test.pod, nil)
			if test.wantHeld == nil {
				for _, c := range before.Spec.Containers {
					test.wantHeld = append(test.wantHeld, c.Name)
				}
			}

			mutated := k.mutate(t, encode(t, before), firstRequest)

			golden.Assert(t, string(encode(t, decoded[map[string]any](t, mutated))), "readers/"+name+".yaml")
			after := decoded[corev1.Pod](t, mutated)
			wantFencedByLock(t, &after, test.wantHeld...)
			if diff := cmp.Diff(before.Spec.InitContainers, after.Spec.InitContainers[1:]); diff != "" && len(before.Spec.InitContainers) > 0 {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			if before, after := isRestricted(t, *before), isRestricted(t, after); before != after {
				t.Errorf("the pod meets Pod Security restricted: %t before, %t after", before, after)
			}
			wantSame(t, "after a second pass", mutated, k.mutate(t, mutated, secondRequest))
		})
	}
}

// A pod that cannot be fenced stays a reader. The policy adds nothing, because a wrapper without the rest waits for ever.
func TestNotFencedByLock(t *testing.T) {
	k := newLockKyverno(t, fencedLock(&v1.LockHooks{Demote: []string{"demote"}}), options)
	tests := map[string]struct {
		pod    string
		change func(*corev1.Pod)
	}{
		"no command":                      {pod: "scratch"},
		"no command of another container": {pod: "several-containers"},
		"shareProcessNamespace":           {pod: "fencing", change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }},
		"hostPID":                         {pod: "fencing", change: func(p *corev1.Pod) { p.Spec.HostPID = true }},
		"a volume of the user":            {pod: "fencing", change: addVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})},
		"a mount without a volume":        {pod: "fencing", change: mountCredentials},
		"a mount of an init container":    {pod: "fencing", change: mountCredentialsInit},
		"a mount and the same volume":     {pod: "fencing", change: both(mountCredentials, addVolume(credentialsSource()))},
		"a name that contains a variable": {pod: "fencing", change: rename("db", "{{request.object.metadata.name}}")},
		"a name that separates two names": {pod: "fencing", change: rename("db", "a,b,")},
		"a container with our name":       {pod: "fencing", change: rename("db", v1.SidecarName)},
		"another sidecar with our name":   {pod: "fencing", change: rename("proxy", v1.SidecarName)},
		"an init container with our name": {pod: "fencing", change: rename("migrate", v1.SidecarName)},
		"a StatefulSingleton":             {pod: "fencing", change: func(p *corev1.Pod) { p.Annotations[v1.InjectedAnnotation] = "shop/db" }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := readMember(t, test.pod, test.change)
			wantReader(t, before, k.mutate(t, encode(t, before), firstRequest))
		})
	}
	t.Run("a pod of another StatefulSet", func(t *testing.T) {
		before := readMember(t, "fencing", func(*corev1.Pod) {})
		before.OwnerReferences[0].Name = "db2"
		wantSame(t, "another StatefulSet", encode(t, before), k.mutate(t, encode(t, before), firstRequest))
	})
}

// A pod can be created from the manifest of a fenced pod. Each pass decides anew, and leaves no wrapper without a fence.
func TestFencedByLockAgain(t *testing.T) {
	noHooks, withHooks := fencedLock(nil), fencedLock(&v1.LockHooks{Promote: []string{"promote"}})
	fenced := newLockKyverno(t, noHooks, options).mutate(t, encode(t, readMember(t, "fencing", nil)), firstRequest)
	k := newLockKyverno(t, withHooks, options)
	tests := map[string]struct {
		change func(*corev1.Pod)
		// wantHeld are the held containers after the second pass. Empty: the pod is not fenced.
		wantHeld []string
	}{
		"unchanged":                   {func(*corev1.Pod) {}, []string{"db", "backup"}},
		"with the API's defaults":     {setDefaults, []string{"db", "backup"}},
		"another duration":            {sidecarEnv("FENCING_DURATION_SECONDS", "3600"), []string{"db", "backup"}},
		"another Lease":               {sidecarEnv("FENCING_LEASE", "shop/mine"), []string{"db", "backup"}},
		"another lock":                {sidecarEnv("STATEFULSETLOCK", ""), []string{"db", "backup"}},
		"no settings":                 {func(p *corev1.Pod) { p.Spec.InitContainers[0].Env = p.Spec.InitContainers[0].Env[:2] }, []string{"db", "backup"}},
		"no annotation":               {func(p *corev1.Pod) { delete(p.Annotations, v1.FencingAnnotation) }, []string{"db", "backup"}},
		"no environment":              {func(p *corev1.Pod) { p.Spec.Containers[1].Env = nil }, []string{"db", "backup"}},
		"no mount":                    {func(p *corev1.Pod) { p.Spec.Containers[1].VolumeMounts = nil }, []string{"db", "backup"}},
		"a container more":            {addContainer("late", "a"), []string{"db", "backup", "late"}},
		"a container fewer":           {func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, []string{"db"}},
		"a container without command": {addContainer("late"), nil},
		"nothing after the wrapper":   {func(p *corev1.Pod) { p.Spec.Containers[1].Command = p.Spec.Containers[1].Command[:3] }, nil},
		"shareProcessNamespace":       {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, nil},
		"a mount in the app":          {mountCredentials, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := decoded[corev1.Pod](t, fenced)
			test.change(&pod)

			again := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), secondRequest))

			if test.wantHeld != nil {
				wantFencedByLock(t, &again, test.wantHeld...)
				for _, c := range again.Spec.Containers {
					if got := injected.Variable(&c, "STATEFULSETLOCK_HOOKS").Value; got != `{"promote":["promote"]}` {
						t.Errorf("the hooks of container %s are %s", c.Name, got)
					}
				}
				return
			}
			for _, c := range again.Spec.Containers {
				if slices.Contains(c.Command, "/var/run/signal/gate") {
					t.Errorf("container %s of a pod that is not fenced has the command %q", c.Name, c.Command)
				}
			}
			text := encode(t, again)
			for _, left := range []string{"FENCING_", "STATEFULSETLOCK", "STATEFULSINGLETON_CONTAINER", v1.FencingAnnotation} {
				if bytes.Contains(text, []byte(left)) {
					t.Errorf("%s is left in a pod that is not fenced:\n%s", left, text)
				}
			}
		})
	}
}

// Hooks reach the gate as they are in the lock: neither Kyverno nor the kubelet replaces anything in them.
func TestHooksAreLiteral(t *testing.T) {
	hooks := &v1.LockHooks{
		Promote: []string{"sh", "-c", `echo "$STATEFULSETLOCK_EPOCH" '$(POD_IP)' $$ $$(POD_IP) {{request.object.metadata.name}} {{{ \{{ \$(X) $(./x) }} <&> ` + "`\n\\"},
		Demote:  []string{"{{ request.uid }}", "$", "", "é"},
	}
	got := decoded[corev1.Pod](t, newLockKyverno(t, fencedLock(hooks), options).mutate(t, encode(t, readMember(t, "fencing", nil)), firstRequest))
	for _, c := range got.Spec.Containers {
		found, err := signal.ParseHooks(func(name string) string { return expand(injected.Variable(&c, name).Value) })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&signal.Hooks{Promote: hooks.Promote, Demote: hooks.Demote}, found); diff != "" {
			t.Errorf("hooks of container %s (-want +got):\n%s", c.Name, diff)
		}
	}
}

// expand replaces references like the kubelet, where each variable has the value "replaced".
func expand(value string) string {
	var text strings.Builder
	for i := 0; i < len(value); i++ {
		rest := value[i:]
		switch end := strings.Index(rest, ")"); {
		case strings.HasPrefix(rest, "$$"):
			text.WriteByte('$')
			i++
		case strings.HasPrefix(rest, "$(") && end > 0:
			text.WriteString("replaced")
			i += end
		default:
			text.WriteByte(value[i])
		}
	}
	return text.String()
}

// After fencing is turned off, new pods are plain readers.
func TestLockFencingTurnedOff(t *testing.T) {
	t.Parallel()
	before := readMember(t, "fencing", nil)
	for _, off := range []v1.LockFencing{"", v1.LockFencingNone, v1.LockFencingTermination} {
		l := fencedLock(nil)
		l.Spec.Fencing = off
		wantReader(t, before, newLockKyverno(t, l, options).mutate(t, encode(t, before), firstRequest))
	}
}

// The probe of a lock with fencing must be fenced, unless no pod with its containers can be.
func TestFencedLockProbe(t *testing.T) {
	t.Parallel()
	l := fencedLock(nil)
	policy := policies.ClusterPolicy.Of(l)
	probe, err := policies.ProbePodOf(l, options)
	if err != nil {
		t.Fatal(err)
	}
	probe.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	plain := decoded[corev1.Pod](t, newLockKyverno(t, dbLock, options).mutate(t, encode(t, probe), firstRequest))
	fenced := decoded[corev1.Pod](t, newLockKyverno(t, l, options).mutate(t, encode(t, probe), firstRequest))
	wantFencedByLock(t, &fenced, "probe")
	tests := map[string]struct {
		pod    corev1.Pod
		change func(*corev1.Pod)
		want   string
	}{
		"fenced":      {pod: fenced},
		"not fenced":  {pod: plain, want: "the gate does not start container probe in its role"},
		"no lock":     {pod: fenced, change: sidecarEnv("STATEFULSETLOCK", ""), want: "container status-sidecar has no STATEFULSETLOCK"},
		"no role":     {pod: fenced, change: func(p *corev1.Pod) { p.Spec.Containers[0].Env = p.Spec.Containers[0].Env[:2] }, want: "the gate does not start container probe in its role"},
		"other Lease": {pod: fenced, change: sidecarEnv("FENCING_LEASE", "shop/mine"), want: "FENCING_LEASE of container status-sidecar is not shop/db-lease"},
		"a webhook added a container that cannot be fenced": {pod: plain, change: addContainer("mesh")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := test.pod.DeepCopy()
			pod.Annotations = maps.Clone(pod.Annotations)
			if test.change != nil {
				test.change(pod)
			}
			err := policies.CheckProbeOf(pod, l, policy)
			if (err != nil) != (test.want != "") || err != nil && (!strings.Contains(err.Error(), test.want) || !errors.Is(err, policies.ErrNotFenced)) {
				t.Errorf("CheckProbeOf returns %v, want %q", err, test.want)
			}
			if err := policies.CheckProbeOf(pod, dbLock, policy); err != nil {
				t.Errorf("CheckProbeOf without fencing: %v", err)
			}
		})
	}
}
