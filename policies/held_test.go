package policies_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
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

	notOneUID       = "container db does not have variable STATEFULSINGLETON_POD_UID exactly once"
	processesShared = "in a pod with shareProcessNamespace or hostPID, because other processes could forge the signal"
)

// heldSingletons are the singletons of heldCases, as files in testdata/singletons.
var heldSingletons = []string{"default", "named-containers", "named-init-containers", "hold-init-containers", "match-expressions"}

func heldCases() map[string]heldCase {
	barrierRef := func(change func(*corev1.ConfigMapKeySelector)) func(*corev1.Pod) {
		return inApp(func(c *corev1.Container) { change(c.Env[0].ValueFrom.ConfigMapKeyRef) })
	}
	env := func(env ...corev1.EnvVar) func(*corev1.Pod) {
		return inApp(func(c *corev1.Container) { c.Env = env })
	}
	literal, otherField := corev1.EnvVar{Name: podUID().Name, Value: "a"}, podUID()
	otherField.ValueFrom.FieldRef.FieldPath = "metadata.name"
	share := func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }
	db := []string{"db"}
	// A case of pod shell or scratch is for singleton default.
	held := func(pod string, change func(*corev1.Pod)) heldCase {
		return heldCase{singleton: "default", pod: pod, change: change}
	}
	refused := func(pod, refused string, change func(*corev1.Pod)) heldCase {
		return heldCase{singleton: "default", pod: pod, change: change, wantRefused: refused}
	}
	unheld := func(pod, reason string, change func(*corev1.Pod)) heldCase {
		return heldCase{singleton: "default", pod: pod, change: change, wantRefused: reason, wantUnheld: db}
	}
	left := func(pod, reason string, change func(*corev1.Pod)) heldCase {
		c := unheld(pod, reason, change)
		c.kyvernoLeaves = true
		return c
	}
	return map[string]heldCase{
		"wrapper":                      held("shell", nil),
		"barrier":                      held("scratch", nil),
		"probes":                       held("probes", nil),
		"hooks":                        held("hooks", nil),
		"weird strings":                held("weird-strings", nil),
		"empty lists":                  held("empty-lists", nil),
		"existing fields":              held("existing-fields", nil),
		"root":                         held("run-as-root", nil),
		"generateName":                 held("generate-name", nil),
		"named containers":             {singleton: "named-containers", pod: "several-containers-one-held"},
		"init containers":              held("init-containers", nil),
		"init containers held":         {singleton: "hold-init-containers", pod: "init-containers-held"},
		"init containers named":        {singleton: "named-init-containers", pod: "init-containers-named"},
		"match expressions":            {singleton: "match-expressions", pod: "match-expressions"},
		"barrier that is not optional": held("scratch", barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Optional = new(false) })),
		"barrier in a shared pod":      held("scratch", share),
		"processes are not shared":     held("shell", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(false) }),

		"not injected":                    unheld("shell", notInjected, uninject),
		"generateName not injected":       unheld("generate-name", notInjected, uninject),
		"match expressions not injected":  {singleton: "match-expressions", pod: "match-expressions", change: uninject, wantUnheld: db, wantRefused: notInjected},
		"no annotation":                   refused("shell", notInjected, func(p *corev1.Pod) { p.Annotations = nil }),
		"annotation of another namespace": refused("shell", notInjected, func(p *corev1.Pod) { p.Annotations[v1.InjectedAnnotation] = "elsewhere/db" }),
		"no label":                        refused("shell", notInjected, func(p *corev1.Pod) { delete(p.Labels, v1.SingletonLabel) }),
		"no readiness gate":               refused("shell", notInjected, func(p *corev1.Pod) { p.Spec.ReadinessGates = nil }),
		"marked only":                     refused("shell", sidecarChanged, func(p *corev1.Pod) { p.Spec.InitContainers = nil }),
		"sidecar ends":                    refused("shell", sidecarChanged, inSidecar(func(c *corev1.Container) { c.RestartPolicy, c.Lifecycle = nil, nil })),
		"sidecar runs something else":     refused("shell", sidecarChanged, inSidecar(func(c *corev1.Container) { c.Command = []string{"sleep"} })),
		"signal volume with something in it": refused("shell", sidecarChanged, func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}
		}),
		"signal from another annotation": refused("shell", sidecarChanged, func(p *corev1.Pod) {
			p.Spec.Volumes[1].DownwardAPI.Items[0].FieldRef.FieldPath = "metadata.annotations['mine']"
		}),

		"no wrapper": unheld("shell", nothingHolds+"db", inApp(func(c *corev1.Container) { c.Command = c.Command[3:] })),
		// The policy does not put a wrapper in front of a wrapper. Therefore the guard rejects the incomplete command.
		"wrapper of nothing":         left("shell", nothingHolds+"db", inApp(func(c *corev1.Container) { c.Command = c.Command[:3] })),
		"wrapper without its volume": unheld("shell", nothingHolds+"db", inApp(func(c *corev1.Container) { c.VolumeMounts = nil })),
		"no uid":                     unheld("shell", notOneUID, env()),
		"a literal uid":              unheld("shell", notOneUID, env(literal)),
		"another field as uid":       unheld("shell", notOneUID, env(otherField)),
		"the uid twice":              unheld("shell", notOneUID, env(podUID(), podUID())),
		"a literal after the uid":    unheld("shell", notOneUID, env(podUID(), literal)),
		"the uid under another name": unheld("shell", notOneUID, env(corev1.EnvVar{Name: "POD_UID", ValueFrom: podUID().ValueFrom})),
		// The policy adds no barrier to a wrapper, so nothing holds the container.
		"processes of the pod":  left("shell", processesShared, share),
		"processes of the node": left("shell", processesShared, func(p *corev1.Pod) { p.Spec.HostPID = true }),
		"no barrier":            unheld("scratch", nothingHolds+"db", env()),
		"epoch in clear":        unheld("scratch", nothingHolds+"db", env(corev1.EnvVar{Name: "STATEFULSINGLETON_EPOCH", Value: "1"})),
		"optional barrier":      unheld("scratch", nothingHolds+"db", barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Optional = new(true) })),
		"barrier of another form": unheld("scratch", nothingHolds+"db",
			barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Name = "statefulsingleton-mine" })),
		"barrier of another key": unheld("scratch", nothingHolds+"db", barrierRef(func(r *corev1.ConfigMapKeySelector) { r.Key = "mine" })),
		"a container was added":  {singleton: "default", pod: "shell", wantUnheld: []string{"late"}, wantRefused: nothingHolds + "late", change: addContainer("late")},
		"init containers not held": {singleton: "hold-init-containers", pod: "init-containers",
			wantUnheld: []string{"migrate", "proxy", "agent", "logs", "chown"}, wantRefused: nothingHolds + "migrate, proxy, agent, logs, chown"},
		"named init containers not held": {singleton: "named-init-containers", pod: "init-containers",
			wantUnheld: []string{"proxy", "chown"}, wantRefused: nothingHolds + "proxy, chown."},
		"none but named init containers": {singleton: "named-init-containers", pod: "init-containers-named", wantRefused: namesNone, change: rename("db", "database")},
		"none of the named containers":   {singleton: "named-containers", pod: "several-containers-one-held", wantRefused: namesNone, change: rename("db", "database")},
	}
}

// CheckInjected and the policy judge each case in the same way.
func TestHeldCases(t *testing.T) {
	policy := map[string]kyverno{}
	for _, file := range heldSingletons {
		policy[file] = newKyverno(t, ownPolicy(readSingleton(t, file), options))
	}
	for name, test := range heldCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := readSingleton(t, test.singleton)
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
		})
	}
}

// The guard judges each case of TestHeldCases in the same way.
func testHeld(t *testing.T, c client.Client) {
	singletons := createSingletons(t, c, "held-", heldSingletons...)
	for name, test := range heldCases() {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod(t, test.pod, singletons[test.singleton])
			if test.change != nil {
				test.change(pod)
			}
			wantAnswer(t, tryCreate(t, c, pod), test.wantRefused)
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
			wantAnswer(t, tryCreate(t, c, pod), want)
		}
	})
	// The guard also admits a larger pod that is held.
	t.Run("as large as a pod can be", func(t *testing.T) {
		pod := injectedPod(t, "scratch", singletons["default"])
		enlarge(pod)
		if err := policies.CheckInjected(pod, singletons["default"]); err != nil {
			t.Error(err)
		}
		wantAnswer(t, tryCreate(t, c, pod), "")
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
	for name, pod := range map[string]*corev1.Pod{
		"another label":              podOf(guarded.Namespace, map[string]string{"app": "web"}),
		"no labels":                  podOf(guarded.Namespace, nil),
		"another namespace":          bare("default", guarded),
		"singleton is being deleted": bare(deleted.Namespace, deleted),
	} {
		t.Run(name, func(t *testing.T) { waitForAdmission(t, c, pod) })
	}
	mirrored := bare(guarded.Namespace, guarded)
	mirror(mirrored)
	wantAnswer(t, tryCreate(t, c, mirrored), "")
}
