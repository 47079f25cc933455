package policies

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// barrierNameCEL is the name of the ConfigMap for the admission request. The request's type has no field uid, although the
// request has one.
var barrierNameCEL = celString(barrierPrefix) + " + dyn(request).uid"

// Conditions on a container. No condition fails if an optional field is missing.
var (
	isWrappedCEL = fmt.Sprintf("c.?command.orValue([]).size() >= %d && c.command.slice(0, %d) == %s",
		len(signal.Wrapper), len(signal.Wrapper), celValue(signal.Wrapper))
	notWrappedCEL      = "!(" + isWrappedCEL + ")"
	hasCommandCEL      = "c.?command.orValue([]).size() > 0"
	sharesProcessesCEL = "object.spec.?shareProcessNamespace.orValue(false) || object.spec.?hostPID.orValue(false)"
	isWrappableCEL     = hasCommandCEL + " && !has(c.startupProbe) && !c.?lifecycle.?postStart.hasValue() && !(" + sharesProcessesCEL + ")"
	hasPodUIDCEL       = fmt.Sprintf(`c.?env.orValue([]).filter(e, e.name == %s).map(e, e.?valueFrom.?fieldRef.?fieldPath.orValue("")) == ["metadata.uid"]`,
		celString(signal.PodUIDEnv))
	isSidecarCEL  = "c.name == " + celString(v1.SidecarName)
	notSidecarCEL = "!(" + isSidecarCEL + ")"
	noSidecarCEL  = fmt.Sprintf("!%s.exists(c, %s)", celListOf("initContainers"), isSidecarCEL)
)

// subjectCEL has what a policy needs from the singleton that selects the pod, as CEL. The policy of one singleton has constants.
type subjectCEL struct {
	// holds and holdsInit are the conditions that the singleton asks for container c, or init container c, to be held.
	holds, holdsInit string
	// movesProbes and fences are the conditions that it asks for readiness probes by the sidecar, and for fencing by a Lease.
	movesProbes, fences string
	// name, lease (<namespace>/<name>) and leaseSeconds are strings.
	name, lease, leaseSeconds string
	// gracePeriod is a number of seconds.
	gracePeriod string
	// fenceable and queueable are the conditions that the pod can be fenced, and that a fenced pod can queue connections.
	fenceable, queueable string
	// queues is the condition that the singleton asks for the queue of a fenced pod.
	queues string
	// queueSeconds is a string.
	queueSeconds string
	// prefersNode is the condition that the pod should prefer the node of the holder.
	prefersNode string
}

// subjectOf returns the constants for a singleton. The conditions fenceable and queueable are left to the caller.
func subjectOf(s *v1.StatefulSingleton) subjectCEL {
	holds, holdsInit := "true", strconv.FormatBool(s.Spec.HoldInitContainers)
	if names := s.Spec.Containers; len(names) > 0 {
		holds = "c.name in " + celValue(names)
		if !s.Spec.HoldInitContainers {
			holdsInit = holds
		}
	}
	return subjectCEL{
		holds: holds, holdsInit: holdsInit,
		movesProbes: strconv.FormatBool(s.Spec.ReadinessProbes != v1.ReadinessKubelet),
		fences:      strconv.FormatBool(s.Spec.Fencing == v1.FencingLease),
		name:        celString(s.Name), lease: celString(leaseOf(s)), leaseSeconds: celString(leaseSecondsOf(s)),
		gracePeriod: celValue(gracePeriod(s)),
		queues:      strconv.FormatBool(queues(s)), queueSeconds: celString(queueSeconds(s)),
		prefersNode: strconv.FormatBool(prefersNode(s)),
	}
}

// subjectsCEL returns the CEL for the singletons in a variable, which are maps of settingsCEL. Usually there is one. A pod that
// several select is held as each of them asks, and is never released.
func subjectsCEL(variable string) subjectCEL {
	someAsks := func(condition string) string { return fmt.Sprintf("%s.exists(x, %s)", variable, condition) }
	fencing := fmt.Sprintf(`%s.filter(x, x.lease != "")[0]`, variable)
	return subjectCEL{
		holds: someAsks("x.containers.size() == 0 || c.name in x.containers"), holdsInit: someAsks("x.holdsInit || c.name in x.containers"),
		movesProbes: someAsks("x.movesProbes"), fences: someAsks(`x.lease != ""`),
		name: fmt.Sprintf("%s[%s.size() - 1].name", variable, variable), lease: fencing + ".lease", leaseSeconds: fencing + ".leaseSeconds",
		gracePeriod: fmt.Sprintf("%s.map(x, int(x.gracePeriod)).max()", variable),
		queues:      celAll(someAsks(`x.lease != ""`), fencing+`.queueSeconds != ""`), queueSeconds: fencing + ".queueSeconds",
		prefersNode: someAsks("x.prefersNode"),
	}
}

// settingsCEL returns what subjectsCEL reads.
func settingsCEL(s *v1.StatefulSingleton) string {
	settings := map[string]any{
		"name": s.Name, "containers": append([]string{}, s.Spec.Containers...), "holdsInit": s.Spec.HoldInitContainers,
		"movesProbes": s.Spec.ReadinessProbes != v1.ReadinessKubelet, "gracePeriod": gracePeriod(s), "lease": "", "queueSeconds": "",
		"prefersNode": prefersNode(s),
	}
	if s.Spec.Fencing == v1.FencingLease {
		settings["lease"], settings["leaseSeconds"] = leaseOf(s), leaseSecondsOf(s)
	}
	if queues(s) {
		settings["queueSeconds"] = queueSeconds(s)
	}
	return celValue(settings)
}

func leaseOf(s *v1.StatefulSingleton) string { return s.Namespace + "/" + signal.LeaseName(s.Name) }

func leaseSecondsOf(s *v1.StatefulSingleton) string {
	return strconv.Itoa(int(signal.LeaseSeconds(s.Spec.LeaseDurationSeconds)))
}

// injectCEL returns the mutations that inject a pod of the namespace. Kyverno decodes and encodes the whole pod for each of them,
// so operations that do not depend on each other are in one mutation.
func injectCEL(namespace string, s subjectCEL, o Options) []string {
	mutations := holdCEL(s)
	mutations = append(mutations, pullSecretsCEL(o)...)
	gate := celAppend("object.spec", "readinessGates", `"/spec"`, celValue(corev1.PodReadinessGate{ConditionType: v1.ReadyCondition}))
	mutations = append(mutations, celIf(gate+" + "+sidecarCEL(o), noSidecarCEL), celBoth(sidecarAsRootCEL(), limitSidecarCEL(o)))
	if s.movesProbes != "false" {
		mutations = append(mutations, celEachIf(s.movesProbes, moveReadinessProbesCEL()...)...)
	}
	if s.fences != "false" {
		mutations = append(mutations, celEachIf(s.fences, removeFencingCEL(s)...)...)
		mutations = append(mutations, celEachIf(celAll(s.fences, s.fenceable), fenceCEL(s, o)...)...)
	}
	last := []string{extendGracePeriodCEL(s), markCEL(namespace, s)}
	if s.prefersNode != "false" {
		last = append(last, preferNodeCEL(s))
	}
	return append(mutations, celBoth(last...))
}

// holdCEL returns the mutations that hold containers with the wrapper or the barrier. See hold.
func holdCEL(s subjectCEL) []string {
	steps := holdListCEL("containers", s.holds)
	if s.holdsInit != "false" {
		for i, step := range holdListCEL("initContainers", notSidecarCEL, s.holdsInit) {
			steps[i] = celBoth(steps[i], step)
		}
	}
	return steps
}

func holdListCEL(list string, isHeld ...string) []string {
	path := celPathOf(list)
	each := func(operations string, conditions ...string) string {
		return celEach(list, operations, slices.Concat(isHeld, conditions)...)
	}
	return []string{
		celBoth(mountSignalCEL(list, isHeld...), each("["+wrapCEL(list)+"]", notWrappedCEL, isWrappableCEL)),
		celBoth(
			each("["+celAdd(celPath(path, "startupProbe"), celValue(startedProbe()))+"]", isWrappedCEL, "!has(c.startupProbe)", startupProbeNeededCEL(list)),
			celRemoveFrom(list, isWrappedCEL+" && !("+hasPodUIDCEL+")", "env", "e.name == "+celString(signal.PodUIDEnv))),
		celBoth(
			addPodUIDCEL(list),
			refreshBarriersCEL(list),
			// The barrier is the last variable, because the last value of a name wins.
			each(celAppend("c", "env", path, barrierCEL()), notWrappedCEL, "!c.?env.orValue([]).exists(e, "+isBarrierCEL()+")")),
	}
}

func mountSignalCEL(list string, conditions ...string) string {
	noMount := "!c.?volumeMounts.orValue([]).exists(e, e.name == " + celString(signalVolume) + ")"
	return celAppendEach(list, "volumeMounts", celValue(signalMount()), slices.Concat(conditions, []string{noMount})...)
}

// wrapCEL returns the operation that puts the wrapper in front of the command.
func wrapCEL(list string) string {
	return celAdd(celPath(celPathOf(list), "command"), celValue(signal.Wrapper)+" + c.command")
}

func startupProbeNeededCEL(list string) string {
	if list == "initContainers" {
		return fmt.Sprintf(`c.?restartPolicy.orValue("") == %s`, celString(string(corev1.ContainerRestartPolicyAlways)))
	}
	return "has(c.livenessProbe) || !has(c.readinessProbe)"
}

// addPodUIDCEL adds the UID of the pod to the environment of a wrapped container.
func addPodUIDCEL(list string) string {
	return celAppendEach(list, "env", celValue(fieldEnv(signal.PodUIDEnv, "metadata.uid")), isWrappedCEL, "!("+hasPodUIDCEL+")")
}

// barrierCEL returns the environment variable that keeps a container from starting.
func barrierCEL() string {
	return fmt.Sprintf(`{"name": dyn(%s), "valueFrom": dyn({"configMapKeyRef": {"name": %s, "key": %s}})}`,
		celString(signal.EpochEnv), barrierNameCEL, celString(signal.EpochKey))
}

func refreshBarriersCEL(list string) string {
	path := celPathOf(list) + `"/env/" + string(j) + "/valueFrom/configMapKeyRef/name"`
	return celEach(list, fmt.Sprintf("c.?env.orValue([]).transformList(j, e, %s, %s)", isBarrierCEL(), celAdd(path, barrierNameCEL)))
}

func isBarrierCEL() string {
	const ref = "e.?valueFrom.?configMapKeyRef"
	return fmt.Sprintf(`e.name == %s && %s.?name.orValue("").startsWith(%s) && %s.?name.orValue("").size() == %d && %s.?key.orValue("") == %s && !%s.?optional.orValue(false)`,
		celString(signal.EpochEnv), ref, celString(barrierPrefix), ref, barrierLength, ref, celString(signal.EpochKey), ref)
}

func pullSecretsCEL(o Options) (mutations []string) {
	for _, name := range o.pullSecrets() {
		missing := fmt.Sprintf(`!%s.exists(e, e.?name.orValue("") == %s)`, celListOf("imagePullSecrets"), celString(name))
		mutations = append(mutations, celIf(celAppend("object.spec", "imagePullSecrets", `"/spec"`, celValue(corev1.LocalObjectReference{Name: name})), missing))
	}
	return mutations
}

// sidecarCEL returns the operations that add the sidecar as the first init container, and its volumes.
func sidecarCEL(o Options) string {
	var volumes []string
	for _, volume := range sidecarVolumes() {
		volumes = append(volumes, celValue(volume))
	}
	return fmt.Sprintf("%s + %s + [%s]", celAppend("object.spec", "volumes", `"/spec"`, volumes...),
		celEnsure("object.spec", "initContainers", `"/spec"`, "[]"), celAdd(`"/spec/initContainers/0"`, celValue(sidecar(o))))
}

func sidecarAsRootCEL() string {
	return celEach("initContainers", "["+celRemove(celPath(celPathOf("initContainers"), "securityContext/runAsNonRoot"))+"]",
		isSidecarCEL, "c.?securityContext.?runAsNonRoot.orValue(false)", "object.spec.?securityContext.?runAsUser.orValue(-1) == 0")
}

func limitSidecarCEL(o Options) string {
	const limited = "c.?resources.?limits.?cpu.hasValue()"
	path, limit := celPathOf("initContainers"), celValue(o.sidecarCPULimit())
	missing := func(field string) string {
		return fmt.Sprintf("(c.?resources.?%s.hasValue() ? [] : [%s])", field, celAdd(celPath(path, "resources/"+field), "{}"))
	}
	operations := fmt.Sprintf("%s + %s + %s + [%s, %s]", celEnsure("c", "resources", path, "{}"), missing("requests"), missing("limits"),
		celAdd(celPath(path, "resources/requests/cpu"), limit), celAdd(celPath(path, "resources/limits/cpu"), limit))
	return celEach("initContainers", operations, isSidecarCEL, "!"+limited,
		"object.spec.containers.all(c, "+limited+")",
		fmt.Sprintf("object.spec.initContainers.all(c, %s || %s)", isSidecarCEL, limited))
}
