package policies

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

var (
	// hasBarrierCEL is also true for some containers without a barrier. See hasBarrier.
	hasBarrierCEL   = fmt.Sprintf("c.?env.orValue([]).exists(e, e.name == %s && e.?valueFrom.?configMapKeyRef.hasValue())", celString(signal.EpochEnv))
	wrappedNamesCEL = fmt.Sprintf(`(%s.filter(c, %s) + object.spec.containers.filter(c, %s)).map(c, c.name).join(",")`, celListOf("initContainers"), isWrappedCEL, isWrappedCEL)
	regularNamesCEL = `object.spec.containers.map(c, c.name).join(",")`
	isMountCEL      = "e.name == " + celString(signal.CredentialsVolume)
	notMountedCEL   = fmt.Sprintf("!(%s + object.spec.containers).exists(c, c.?volumeMounts.orValue([]).exists(e, %s))", celListOf("initContainers"), isMountCEL)
	notInjectedCEL  = fmt.Sprintf("!object.metadata.?annotations[?%s].hasValue()", celString(v1.InjectedAnnotation))
)

// fenceableCEL returns the condition that a pod can be fenced. See fenceable.
func fenceableCEL(s subjectCEL) string {
	none := func(list string, conditions ...string) string {
		return fmt.Sprintf("!%s.exists(c, %s)", celListOf(list), celAll(append(conditions, notWrappedCEL)...))
	}
	orBarred := func(isHeld string) string { return isHeld + " || " + hasBarrierCEL }
	return celAll(append(fenceablePodCEL(wrappedNamesCEL),
		none("containers", orBarred(s.holds)), none("initContainers", notSidecarCEL, orBarred(s.holdsInit)))...)
}

func fenceablePodCEL(names string) []string {
	return []string{
		"!(" + sharesProcessesCEL + ")",
		// The API server checks names after this policy. A name with a comma would look like two names.
		names + `.matches("^[-a-z0-9]+(,[-a-z0-9]+)*$")`,
		fmt.Sprintf("!%s.exists(e, e.name == %s)", celListOf("volumes"), celString(signal.CredentialsVolume)),
		notMountedCEL,
	}
}

func removeFencingCEL(s subjectCEL) []string {
	containerEnv := "e.name in " + celValue(containerEnvs)
	removals := []string{
		celRemoveFrom("initContainers", isWrappedCEL, "env", containerEnv),
		celRemoveFrom("containers", isWrappedCEL, "env", containerEnv),
	}
	if s.queues != "false" {
		removals = append(removals, celIf(removeQueueCEL(), s.queues))
	}
	return append([]string{celBoth(removals...)}, removeFromSidecarCEL()...)
}

func fenceCEL(s subjectCEL, o Options) []string {
	containers := celBoth(nameContainerCEL("initContainers"), nameContainerCEL("containers"))
	if s.queues != "false" {
		containers = celBoth(celIf(queueCEL(s), s.queues, s.queueable), containers)
	}
	return []string{containers, fenceSidecarCEL(s.lease, s.leaseSeconds, wrappedNamesCEL, apiServerEnvs(o)...)}
}

// removeFromSidecarCEL returns the mutations that remove what fenceSidecarCEL adds. They leave a volume of the user's own.
func removeFromSidecarCEL() []string {
	credentials := fmt.Sprintf("c.name == %s && c.?projected.?sources.orValue([]) == %s", celString(signal.CredentialsVolume), celValue(injected.CredentialsSources()))
	return []string{
		celBoth(
			celRemoveFrom("initContainers", isSidecarCEL, "env", "e.name in "+celValue(fencingEnvs)),
			celRemoveFrom("initContainers", isSidecarCEL, "volumeMounts", isMountCEL),
			celIf("["+celRemove(celString("/metadata/annotations/"+pointer(v1.FencingAnnotation)))+"]",
				fmt.Sprintf("object.metadata.?annotations[?%s].hasValue()", celString(v1.FencingAnnotation)), "!("+noSidecarCEL+")")),
		celEach("volumes", "["+celRemove(`"/spec/volumes/" + string(i)`)+"]", credentials, notMountedCEL) + ".reverse()",
	}
}

// nameContainerCEL adds its name to the environment of each wrapped container. See signal.ContainerEnv.
func nameContainerCEL(list string) string {
	return celAppendEach(list, "env", celVariable(signal.ContainerEnv, "c.name"), isWrappedCEL)
}

// fenceSidecarCEL gives the sidecar the settings and the credentials, and marks the pod. See fenceSidecar. The lease, the seconds
// and the names are CEL.
func fenceSidecarCEL(lease, seconds, names string, more ...corev1.EnvVar) string {
	path := celPathOf("initContainers")
	env := []string{
		celVariable(signal.LeaseEnv, lease),
		celVariable(signal.LeaseDurationEnv, seconds),
		celVariable(signal.HeldEnv, names),
		celValue(fieldEnv(signal.PodNameEnv, "metadata.name")),
	}
	for _, variable := range more {
		env = append(env, celValue(variable))
	}
	return celEach("initContainers", fmt.Sprintf("%s + %s + %s + %s",
		celAppend("c", "env", path, env...),
		celAppend("c", "volumeMounts", path, celValue(credentialsMount())),
		celAppend("object.spec", "volumes", `"/spec"`, celValue(credentialsVolume())),
		celSet("annotations", v1.FencingAnnotation, celString(string(v1.FencingLease)))), isSidecarCEL)
}

func removeLockFencingCEL() []string {
	remove := "[" + celRemove(celPath(celPathOf("containers"), "command/0")) + "]"
	unwrap := celEach("containers", fmt.Sprintf("%s + %s + %s", remove, remove, remove), isWrappedCEL)
	return celEachIf(notInjectedCEL, append([]string{celBoth(
		celRemoveFrom("containers", "true", "env", "e.name in "+celValue(lockFencingEnvs)),
		celRemoveFrom("containers", "true", "volumeMounts", "e.name == "+celString(signalVolume)),
		unwrap,
	)}, removeFromSidecarCEL()...)...)
}

func fenceableByLockCEL() []string {
	isForeign := fmt.Sprintf(`%s && !(c.?command.orValue([]) == %s && c.?args.orValue([]) == ["sidecar"])`, isSidecarCEL, celValue([]string{imageGate}))
	return slices.Concat([]string{notInjectedCEL}, fenceablePodCEL(regularNamesCEL), []string{
		"object.spec.containers.all(c, " + hasCommandCEL + ")",
		"!object.spec.containers.exists(c, " + isSidecarCEL + ")",
		fmt.Sprintf("!%s.exists(c, %s)", celListOf("initContainers"), isForeign),
	})
}

// fenceByLockCEL returns the mutations that prepare a pod of the lock's StatefulSet for the gate. The credentials are the
// last, because a pod that has them is not fenceable.
func fenceByLockCEL(l *v1.StatefulSetLock, o Options) []string {
	mutations := []string{
		celBoth(mountSignalCEL("containers"), celEach("containers", "["+wrapCEL("containers")+"]", notWrappedCEL)),
		addPodUIDCEL("containers"), nameContainerCEL("containers"),
		celAppendEach("containers", "env", celValue(hooksEnv(l)), isWrappedCEL),
		celIf(sidecarCEL(o), noSidecarCEL), celBoth(sidecarAsRootCEL(), limitSidecarCEL(o)),
	}
	mutations = append(mutations, pullSecretsCEL(o)...)
	lease, seconds := celString(l.Namespace+"/"+l.Spec.LeaseName), celString(strconv.Itoa(int(l.Spec.LeaseDurationSeconds)))
	return append(mutations, fenceSidecarCEL(lease, seconds, regularNamesCEL, lockEnvs(l, o)...))
}
