package policies

import (
	"fmt"
	"slices"

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

func commonCEL(s *v1.StatefulSingleton, o Options) []string {
	mutations := holdCEL("containers", namedCEL(s.Spec.Containers)...)
	if s.Spec.HoldInitContainers || len(s.Spec.Containers) > 0 {
		which := []string{notSidecarCEL}
		if !s.Spec.HoldInitContainers {
			which = append(which, namedCEL(s.Spec.Containers)...)
		}
		mutations = append(mutations, holdCEL("initContainers", which...)...)
	}
	mutations = append(mutations, pullSecretsCEL(o)...)
	gate := celAppend("object.spec", "readinessGates", `"/spec"`, celValue(corev1.PodReadinessGate{ConditionType: v1.ReadyCondition}))
	mutations = append(mutations, celIf(gate+" + "+sidecarCEL(o), noSidecarCEL), sidecarAsRootCEL(), limitSidecarCEL(o))
	if s.Spec.ReadinessProbes != v1.ReadinessKubelet {
		mutations = append(mutations, moveReadinessProbesCEL()...)
	}
	if s.Spec.Fencing == v1.FencingLease {
		mutations = append(mutations, removeFencingCEL()...)
	}
	return mutations
}

// ownCEL returns the mutations that differ between singletons. They follow commonCEL. The expression is the condition that a
// pod can be fenced.
func ownCEL(s *v1.StatefulSingleton, o Options, fenceable string) (mutations []string) {
	if s.Spec.Fencing == v1.FencingLease {
		mutations = fenceCEL(s, o, fenceable)
	}
	return append(mutations, extendGracePeriodCEL(s), markCEL(s))
}

// namedCEL returns the condition that a container has one of the names.
func namedCEL(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	return []string{"c.name in " + celValue(names)}
}

func holdCEL(list string, isHeld ...string) []string {
	path := celPathOf(list)
	step := func(operations string, conditions ...string) string {
		return celEach(list, operations, slices.Concat(isHeld, conditions)...)
	}
	return []string{
		mountSignalCEL(list, isHeld...),
		step("["+wrapCEL(list)+"]", notWrappedCEL, isWrappableCEL),
		step("["+celAdd(celPath(path, "startupProbe"), celValue(startedProbe()))+"]", isWrappedCEL, "!has(c.startupProbe)", startupProbeNeededCEL(list)),
		celRemoveFrom(list, isWrappedCEL+" && !("+hasPodUIDCEL+")", "env", "e.name == "+celString(signal.PodUIDEnv)),
		addPodUIDCEL(list),
		refreshBarriersCEL(list),
		// The barrier is the last variable, because the last value of a name wins.
		step(celAppend("c", "env", path, barrierCEL()), notWrappedCEL, "!c.?env.orValue([]).exists(e, "+isBarrierCEL()+")"),
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
