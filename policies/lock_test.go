package policies_test

import (
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

var dbLock = &v1.StatefulSetLock{
	ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-lock", UID: "lock"},
	Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 15},
}

// memberOf returns a pod of a StatefulSet.
func memberOf(set string, labels map[string]string) *corev1.Pod {
	pod := podOf("shop", map[string]string{appsv1.StatefulSetPodNameLabel: set + "-0"})
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	maps.Copy(pod.Labels, labels)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set, UID: types.UID(set), Controller: new(true)}}
	return pod
}

// The policy of a lock makes each new pod of its StatefulSet a reader, and changes nothing else.
func TestLockPolicy(t *testing.T) {
	k := newKyverno(t, ownPolicy(dbLock, options))
	orphan := memberOf("db", nil)
	orphan.OwnerReferences = nil
	deputy := memberOf("db", nil)
	deputy.OwnerReferences[0].Controller = nil
	foreign := memberOf("db", nil)
	foreign.OwnerReferences[0].APIVersion = "apps.example.com/v1"
	tests := map[string]struct {
		pod        *corev1.Pod
		wantReader bool
	}{
		"a pod of the StatefulSet":                     {memberOf("db", nil), true},
		"the template makes it a writer":               {memberOf("db", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}), true},
		"the template names another lock":              {memberOf("db", map[string]string{v1.LockLabel: "other"}), true},
		"a pod of another StatefulSet":                 {memberOf("db2", nil), false},
		"a pod without an owner":                       {orphan, false},
		"a pod that the StatefulSet does not control":  {deputy, false},
		"a StatefulSet of another API group":           {foreign, false},
		"a pod of a StatefulSet with a name in quotes": {memberOf("`db`", nil), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := test.pod.DeepCopy()
			if test.wantReader {
				want.Labels[v1.StsRoleLabel], want.Labels[v1.LockLabel] = v1.StsRoleReader, "db-lock"
			}
			mutated := k.mutate(t, encode(t, test.pod), firstRequest)
			if diff := cmp.Diff(*want, decoded[corev1.Pod](t, mutated)); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(*want, decoded[corev1.Pod](t, k.mutate(t, mutated, secondRequest))); diff != "" {
				t.Errorf("a second pass changed the pod (-want +got):\n%s", diff)
			}
		})
	}
}

// fencedLock returns dbLock with fencing by a Lease.
func fencedLock(hooks *v1.LockHooks) *v1.StatefulSetLock {
	l := dbLock.DeepCopy()
	l.Spec.Fencing, l.Spec.Hooks = v1.LockFencingLease, hooks
	return l
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
	}
	wantEachOnce(t, pod.Spec.Containers)
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
			k := newKyverno(t, ownPolicy(fencedLock(nil), test.options))
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
	k := newKyverno(t, ownPolicy(fencedLock(&v1.LockHooks{Demote: []string{"demote"}}), options))
	type notFencedCase struct {
		pod    string
		change func(*corev1.Pod)
	}
	tests := map[string]notFencedCase{
		"no command":                      {pod: "scratch"},
		"no command of another container": {pod: "several-containers"},
		"shareProcessNamespace":           {pod: "fencing", change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }},
		"hostPID":                         {pod: "fencing", change: func(p *corev1.Pod) { p.Spec.HostPID = true }},
		"a container with our name":       {pod: "fencing", change: rename("db", v1.SidecarName)},
		"another sidecar with our name":   {pod: "fencing", change: rename("proxy", v1.SidecarName)},
		"an init container with our name": {pod: "fencing", change: rename("migrate", v1.SidecarName)},
		"a StatefulSingleton":             {pod: "fencing", change: func(p *corev1.Pod) { p.Annotations[v1.InjectedAnnotation] = "shop/db" }},
	}
	for name, not := range notFenceable {
		tests[name] = notFencedCase{not.pod, not.change}
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
	fenced := newKyverno(t, ownPolicy(noHooks, options)).mutate(t, encode(t, readMember(t, "fencing", nil)), firstRequest)
	k := newKyverno(t, ownPolicy(withHooks, options))
	both := []string{"db", "backup"}
	tests := map[string]againCase{
		"another lock":                {sidecarEnv("STATEFULSETLOCK", ""), both},
		"no environment":              {func(p *corev1.Pod) { p.Spec.Containers[1].Env = nil }, both},
		"no mount":                    {func(p *corev1.Pod) { p.Spec.Containers[1].VolumeMounts = nil }, both},
		"a container without command": {addContainer("late"), nil},
		"nothing after the wrapper":   {func(p *corev1.Pod) { p.Spec.Containers[1].Command = p.Spec.Containers[1].Command[:3] }, nil},
	}
	maps.Copy(tests, fencedAgain)
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
			wantNotFenced(t, &again)
		})
	}
}

// Hooks reach the gate as they are in the lock: neither Kyverno nor the kubelet replaces anything in them.
func TestHooksAreLiteral(t *testing.T) {
	hooks := &v1.LockHooks{
		Promote: []string{"sh", "-c", `echo "$STATEFULSETLOCK_EPOCH" '$(POD_IP)' $$ $$(POD_IP) {{request.object.metadata.name}} {{{ \{{ \$(X) $(./x) }} <&> ` + "`\n\\"},
		Demote:  []string{"{{ request.uid }}", "$", "", "é"},
	}
	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(fencedLock(hooks), options)).mutate(t, encode(t, readMember(t, "fencing", nil)), firstRequest))
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
		wantReader(t, before, newKyverno(t, ownPolicy(l, options)).mutate(t, encode(t, before), firstRequest))
	}
}

// The probe of a lock with fencing must be fenced, unless no pod with its containers can be.
func TestFencedLockProbe(t *testing.T) {
	t.Parallel()
	l := fencedLock(nil)
	policy := policies.ClusterPolicy.Of(l)
	probe, err := policies.ProbePod(l, options)
	if err != nil {
		t.Fatal(err)
	}
	probe.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if err := policies.CheckProbe(probe, dbLock, policy); err == nil {
		t.Error("CheckProbe finds nothing wrong without a policy")
	}
	plain := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(dbLock, options)).mutate(t, encode(t, probe), firstRequest))
	fenced := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(l, options)).mutate(t, encode(t, probe), firstRequest))
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
			err := policies.CheckProbe(pod, l, policy)
			if (err != nil) != (test.want != "") || err != nil && (!strings.Contains(err.Error(), test.want) || !errors.Is(err, policies.ErrNotFenced)) {
				t.Errorf("CheckProbe returns %v, want %q", err, test.want)
			}
			if err := policies.CheckProbe(pod, dbLock, policy); err != nil {
				t.Errorf("CheckProbe without fencing: %v", err)
			}
		})
	}
}
