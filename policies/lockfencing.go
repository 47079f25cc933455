package policies

import (
	"fmt"
	"slices"
	"strings"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Conditions and names of a pod that the Lease of a lock fences. Init containers have no role.
var (
	regularNames = "join(',', request.object.spec.containers[].name)"
	// notInjected is the condition that no StatefulSingleton holds the pod. Otherwise the pod would start before the signal.
	notInjected = fmt.Sprintf("request.object.metadata.annotations.%q == `null`", v1.InjectedAnnotation)
	// isForeign is the condition that an init container only has the name of the sidecar.
	isForeign = fmt.Sprintf("name == '%s' && !(command == ['%s'] && args == ['sidecar'])", v1.SidecarName, imageGate)
)

// lockFencingRules returns the rules that prepare a pod of the lock's StatefulSet for the gate. The first rule removes what an
// earlier pass or the manifest of another pod has left. The second rule adds everything, or nothing if the pod cannot be
// fenced: a container with the wrapper and without the rest would never start.
func lockFencingRules(l *v1.StatefulSetLock, o Options, ofSet string) []kyvernov1.Rule {
	// The rule must have only one kind of steps, so a list of one element adds the sidecar.
	addSidecar := kyvernov1.ForEachMutation{
		List: listLiteral([]string{v1.SidecarName}), AnyAllConditions: all(noSidecar), PatchesJSON6902: patch(sidecarOps(o)...),
	}
	steps := []kyvernov1.ForEachMutation{
		step(
			mountSignal("containers"),
			operations(indexed("containers", notWrapped), prepend("containers", "command", signal.Wrapper)...)),
		step(addPodUID("containers"), nameContainers("containers"), addHooks(l)),
		addSidecar, sidecarAsRoot(), limitSidecar(o),
		fenceSidecar(l.Namespace+"/"+l.Spec.LeaseName, l.Spec.LeaseDurationSeconds, regularNames, lockEnvs(l, o)...),
	}
	if len(o.SidecarPullSecrets) > 0 {
		steps = append(steps, addPullSecrets(o))
	}
	return []kyvernov1.Rule{
		{
			Name:                "remove-fencing",
			RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(ofSet, notInjected)},
			Mutation:            &kyvernov1.Mutation{ForEachMutation: removeLockFencing()},
		},
		{
			Name:                "fence",
			RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(append([]string{ofSet, notInjected}, fenceableByLock()...)...)},
			Mutation:            &kyvernov1.Mutation{ForEachMutation: steps},
		},
	}
}

// fenceableByLock returns the conditions that a pod can be fenced. They must not be weaker than lockFenceable.
func fenceableByLock() []string {
	return append(fenceablePod(regularNames),
		"length(request.object.spec.containers[?length(command || `[]`) == `0`]) == `0`",
		fmt.Sprintf("!contains(request.object.spec.containers[].name, '%s')", v1.SidecarName),
		fmt.Sprintf("length(request.object.spec.initContainers[?%s] || `[]`) == `0`", isForeign),
	)
}

// lockFencingEnvs are the environment variables that the rule "fence" adds to each regular container.
var lockFencingEnvs = []string{signal.PodUIDEnv, signal.ContainerEnv, signal.HooksEnv}

// removeLockFencing returns the rules that remove what the later rules add, except the sidecar and its own volumes, which do
// nothing in a pod that is not fenced.
func removeLockFencing() []kyvernov1.ForEachMutation {
	unwrap := slices.Repeat([]string{"{op: 'remove', path: join('', ['/spec/containers/', to_string(i), '/command/0'])}"}, len(signal.Wrapper))
	return removeFromSidecar(
		removeFrom("containers", "`true`", "env", fmt.Sprintf("contains(%s, e.name)", listLiteral(lockFencingEnvs))),
		removeFrom("containers", "`true`", "volumeMounts", fmt.Sprintf("e.name == '%s'", signalVolume)),
		operations(indexed("containers", isWrapped), unwrap...))
}

// lockEnvs returns the environment variables that only the sidecars of a lock have, and those with the API server.
func lockEnvs(l *v1.StatefulSetLock, o Options) []corev1.EnvVar {
	return append(apiServerEnvs(o), corev1.EnvVar{Name: signal.LockEnv, Value: l.Name})
}

// addHooks returns the operations that add the lock's hooks to the environment of each regular container. See
// signal.HooksEnv.
func addHooks(l *v1.StatefulSetLock) string {
	return operations(indexed("containers", isWrapped), addEach("containers", "env/-", hooksEnv(l)))
}

// hooksEnv returns the environment variable with the lock's hooks.
func hooksEnv(l *v1.StatefulSetLock) corev1.EnvVar {
	hooks := signal.Hooks{}
	if l.Spec.Hooks != nil {
		hooks = signal.Hooks{Promote: l.Spec.Hooks.Promote, Demote: l.Spec.Hooks.Demote}
	}
	// The kubelet replaces $(NAME) by the value of a variable, and $$ by $.
	return corev1.EnvVar{Name: signal.HooksEnv, Value: strings.ReplaceAll(string(encode(hooks)), "$", "$$")}
}

// lockFenceable returns true if the policy of a lock can fence the pod.
func lockFenceable(pod *corev1.Pod) bool {
	return injected.NotFenceable(pod) == "" &&
		!slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return len(c.Command) == 0 })
}

// notFencedByLock returns why the Lease of the lock does not fence the pod. Empty: the Lease does.
func notFencedByLock(pod *corev1.Pod, l *v1.StatefulSetLock) string {
	var names []string
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if !injected.IsSupervised(c) || injected.Variable(c, signal.HooksEnv).Value == "" {
			return fmt.Sprintf("the gate does not start container %s in its role", c.Name)
		}
		names = append(names, c.Name)
	}
	settings, problem := injected.SettingsOf(pod, l.Spec.LeaseName, names)
	if problem == "" && !settings.Lock {
		problem = fmt.Sprintf("container %s has no %s", v1.SidecarName, signal.LockEnv)
	}
	return problem
}
