package policies_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// heldCase is a pod that the definitions of "held" must judge in the same way: the CEL of the guard, the JMESPath of the
// policy, and CheckInjected with injected.Containers.
type heldCase struct {
	singleton string
	// pod is the name of a file in testdata/injected.
	pod    string
	change func(*corev1.Pod)
	// wantUnheld are the containers that must be held, and that nothing holds.
	wantUnheld []string
	// wantRefused is part of the guard's message. It is empty if the guard admits the pod.
	wantRefused string
	// kyvernoLeaves is true if the policy changes no container although nothing holds the containers in wantUnheld.
	kyvernoLeaves bool
}

const (
	sidecarChanged = "the status sidecar or one of its volumes is missing or changed"
	nothingHolds   = "but nothing holds its container "
	namesNone      = "names none of its regular containers"
)

// heldSingletons are the singletons of heldCases, as files in testdata/singletons.
var heldSingletons = []string{"default", "named-containers", "named-init-containers", "hold-init-containers", "match-expressions"}

func heldCases() map[string]heldCase {
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	sidecar := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.InitContainers[0]) }
	}
	barrierRef := func(change func(*corev1.ConfigMapKeySelector)) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { change(c.Env[0].ValueFrom.ConfigMapKeyRef) })
	}
	db := []string{"db"}
	return map[string]heldCase{
		"wrapper":               {singleton: "default", pod: "shell"},
		"barrier":               {singleton: "default", pod: "scratch"},
		"probes":                {singleton: "default", pod: "probes"},
		"hooks":                 {singleton: "default", pod: "hooks"},
		"weird strings":         {singleton: "default", pod: "weird-strings"},
		"empty lists":           {singleton: "default", pod: "empty-lists"},
		"existing fields":       {singleton: "default", pod: "existing-fields"},
		"root":                  {singleton: "default", pod: "run-as-root"},
		"generateName":          {singleton: "default", pod: "generate-name"},
		"named containers":      {singleton: "named-containers", pod: "several-containers-one-held"},
		"init containers":       {singleton: "default", pod: "init-containers"},
		"init containers held":  {singleton: "hold-init-containers", pod: "init-containers-held"},
		"init containers named": {singleton: "named-init-containers", pod: "init-containers-named"},
		"match expressions":     {singleton: "match-expressions", pod: "match-expressions"},
		"barrier that is not optional": {singleton: "default", pod: "scratch",
			change: barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Optional = new(false) })},

		"not injected":                   {singleton: "default", pod: "shell", change: uninject, wantUnheld: db, wantRefused: notInjected},
		"generateName not injected":      {singleton: "default", pod: "generate-name", change: uninject, wantUnheld: db, wantRefused: notInjected},
		"match expressions not injected": {singleton: "match-expressions", pod: "match-expressions", change: uninject, wantUnheld: db, wantRefused: notInjected},
		"no annotation":                  {singleton: "default", pod: "shell", change: func(p *corev1.Pod) { p.Annotations = nil }, wantRefused: notInjected},
		"annotation of another namespace": {singleton: "default", pod: "shell", wantRefused: notInjected,
			change: func(p *corev1.Pod) { p.Annotations[v1.InjectedAnnotation] = "shop/db" }},
		"no label":          {singleton: "default", pod: "shell", change: func(p *corev1.Pod) { delete(p.Labels, v1.SingletonLabel) }, wantRefused: notInjected},
		"no readiness gate": {singleton: "default", pod: "shell", change: func(p *corev1.Pod) { p.Spec.ReadinessGates = nil }, wantRefused: notInjected},
		"marked only":       {singleton: "default", pod: "shell", change: func(p *corev1.Pod) { p.Spec.InitContainers = nil }, wantRefused: sidecarChanged},
		"sidecar ends": {singleton: "default", pod: "shell", wantRefused: sidecarChanged,
			change: sidecar(func(c *corev1.Container) { c.RestartPolicy, c.Lifecycle = nil, nil })},
		"sidecar runs something else": {singleton: "default", pod: "shell", wantRefused: sidecarChanged,
			change: sidecar(func(c *corev1.Container) { c.Command = []string{"sleep"} })},
		"signal volume with something in it": {singleton: "default", pod: "shell", wantRefused: sidecarChanged, change: func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}
		}},
		"signal from another annotation": {singleton: "default", pod: "shell", wantRefused: sidecarChanged, change: func(p *corev1.Pod) {
			p.Spec.Volumes[1].DownwardAPI.Items[0].FieldRef.FieldPath = "metadata.annotations['mine']"
		}},

		"no wrapper": {singleton: "default", pod: "shell", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: container(func(c *corev1.Container) { c.Command = c.Command[3:] })},
		// The policy does not put a wrapper in front of a wrapper. Therefore the guard rejects the incomplete command.
		"wrapper of nothing": {singleton: "default", pod: "shell", wantUnheld: db, wantRefused: nothingHolds + "db", kyvernoLeaves: true,
			change: container(func(c *corev1.Container) { c.Command = c.Command[:3] })},
		"wrapper without its volume": {singleton: "default", pod: "shell", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: container(func(c *corev1.Container) { c.VolumeMounts = nil })},
		"no barrier": {singleton: "default", pod: "scratch", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: container(func(c *corev1.Container) { c.Env = nil })},
		"epoch in clear": {singleton: "default", pod: "scratch", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "STATEFULSINGLETON_EPOCH", Value: "1"}} })},
		"optional barrier": {singleton: "default", pod: "scratch", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Optional = new(true) })},
		"barrier of another form": {singleton: "default", pod: "scratch", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Name = "statefulsingleton-mine" })},
		"barrier of another key": {singleton: "default", pod: "scratch", wantUnheld: db, wantRefused: nothingHolds + "db",
			change: barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Key = "mine" })},
		"a container was added": {singleton: "default", pod: "shell", wantUnheld: []string{"late"}, wantRefused: nothingHolds + "late", change: func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "late", Image: "debian"})
		}},
		"init containers not held": {singleton: "hold-init-containers", pod: "init-containers",
			wantUnheld: []string{"migrate", "proxy", "agent", "logs", "chown"}, wantRefused: nothingHolds + "migrate, proxy, agent, logs, chown"},
		"named init containers not held": {singleton: "named-init-containers", pod: "init-containers",
			wantUnheld: []string{"proxy", "chown"}, wantRefused: nothingHolds + "proxy, chown."},
		"none but named init containers": {singleton: "named-init-containers", pod: "init-containers-named", wantRefused: namesNone,
			change: container(func(c *corev1.Container) { c.Name = "database" })},
		"none of the named containers": {singleton: "named-containers", pod: "several-containers-one-held", wantRefused: namesNone,
			change: container(func(c *corev1.Container) { c.Name = "database" })},
	}
}

func testHeld(t *testing.T, c client.Client) {
	singletons, policy := map[string]*v1.StatefulSingleton{}, map[string]kyverno{}
	for _, file := range heldSingletons {
		singletons[file] = createSingleton(t, c, "held-"+file, readSingleton(t, file))
		policy[file] = newKyverno(t, ownPolicy(singletons[file], options))
	}
	for _, s := range singletons {
		waitForRefusal(t, c, bare(s.Namespace, s), notInjected)
	}
	for name, test := range heldCases() {
		t.Run(name, func(t *testing.T) {
			s := singletons[test.singleton]
			pod := injectedPod(t, test.pod, s)
			if test.change != nil {
				test.change(pod)
			}
			err := policies.CheckInjected(pod, s)
			if (err != nil) != (test.wantRefused != "") {
				t.Errorf("CheckInjected returns %v, want an error: %t", err, test.wantRefused != "")
			}
			if diff := cmp.Diff(test.wantUnheld, unheldByCheck(err), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("containers that CheckInjected does not accept as held (-want +got):\n%s", diff)
			}
			wantHeldAgain := test.wantUnheld
			if test.kyvernoLeaves {
				wantHeldAgain = nil
			}
			if diff := cmp.Diff(wantHeldAgain, policy[test.singleton].holds(t, pod), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("containers that the policy holds (-want +got):\n%s", diff)
			}
			wantAnswer(t, c.Create(t.Context(), pod, client.DryRunAll), test.wantRefused)
		})
	}
	t.Run("too large for the policy", func(t *testing.T) {
		s := singletons["default"]
		for variables, want := range map[int]string{
			policies.MaxVariables: notInjected,
			policies.MaxVariables + 1: fmt.Sprintf("the pod has 1 containers with %d environment variables and mounts, and the limits are %d and %d",
				policies.MaxVariables+1, policies.MaxContainers, policies.MaxVariables),
		} {
			pod := bare(s.Namespace, s)
			pod.Spec.Containers[0].Env = podWith(1, variables).Spec.Containers[0].Env
			wantAnswer(t, c.Create(t.Context(), pod, client.DryRunAll), want)
		}
	})
	// The guard also admits a larger pod that is held.
	t.Run("as large as a pod can be", func(t *testing.T) {
		pod := injectedPod(t, "scratch", singletons["default"])
		enlarge(pod)
		if err := policies.CheckInjected(pod, singletons["default"]); err != nil {
			t.Error(err)
		}
		wantAnswer(t, c.Create(t.Context(), pod, client.DryRunAll), "")
	})
}

var notHeld = regexp.MustCompile(`container (\S+) is not held`)

// unheldByCheck returns the containers that an error of CheckInjected names as not held.
func unheldByCheck(err error) (names []string) {
	if err == nil {
		return nil
	}
	for _, match := range notHeld.FindAllStringSubmatch(err.Error(), -1) {
		names = append(names, match[1])
	}
	return names
}

// holds returns the containers of the pod that the policy changes, because they are not held yet.
func (k kyverno) holds(t *testing.T, pod *corev1.Pod) (names []string) {
	t.Helper()
	mutated := decoded[corev1.Pod](t, k.mutate(t, encode(t, pod), firstRequest))
	after := map[string]corev1.Container{}
	for _, c := range allContainers(mutated) {
		after[c.Name] = c
	}
	for _, c := range allContainers(*pod) {
		same := slices.Equal(c.Command, after[c.Name].Command) &&
			cmp.Equal(c.Env, after[c.Name].Env, cmpopts.EquateEmpty()) && cmp.Equal(c.VolumeMounts, after[c.Name].VolumeMounts, cmpopts.EquateEmpty())
		if !same && c.Name != v1.SidecarName {
			names = append(names, c.Name)
		}
	}
	return names
}

// testNotGuarded: the guard "held" admits these pods, although nothing holds them.
func testNotGuarded(t *testing.T, c client.Client) {
	guarded := createSingleton(t, c, "not-guarded", readSingleton(t, "default"))
	deleted := readSingleton(t, "default")
	deleted.Finalizers = []string{v1.PolicyFinalizer}
	deleted = createSingleton(t, c, "not-guarded-deleted", deleted)
	if err := c.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	waitForRefusal(t, c, bare(guarded.Namespace, guarded), notInjected)
	tests := map[string]struct {
		singleton *v1.StatefulSingleton
		change    func(*corev1.Pod)
	}{
		"another label":              {singleton: guarded, change: func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }},
		"no labels":                  {singleton: guarded, change: func(p *corev1.Pod) { p.Labels = nil }},
		"another namespace":          {singleton: guarded, change: func(p *corev1.Pod) { p.Namespace = "default" }},
		"singleton is being deleted": {singleton: deleted, change: func(*corev1.Pod) {}},
		"mirror of a static pod": {singleton: guarded, change: func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
			p.Spec.NodeName = "node"
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := bare(test.singleton.Namespace, test.singleton)
			test.change(pod)
			// The API server reads with a delay that a singleton is being deleted.
			err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
				return c.Create(ctx, pod.DeepCopy(), client.DryRunAll) == nil, nil
			})
			if err != nil {
				t.Errorf("refused: %v", c.Create(t.Context(), pod, client.DryRunAll))
			}
		})
	}
}
