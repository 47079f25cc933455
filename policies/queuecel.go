package policies

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

var (
	// tcpPortsCEL are the ports of a container on which clients can wait.
	tcpPortsCEL = `c.?ports.orValue([]).filter(e, !(e.?protocol.orValue("") in ["UDP", "SCTP"]))`
	// queueableCEL is the condition queueable.
	queueableCEL = fmt.Sprintf("object.spec.containers.exists(c, %[1]s && %[2]s.size() > 0) && "+
		"!object.spec.containers.exists(c, %[1]s && %[2]s.size() > 0 && c.?securityContext.?allowPrivilegeEscalation.orValue(true)) && "+
		"!object.spec.containers.exists(c, %[1]s && (c.?livenessProbe.?grpc.hasValue() || c.?readinessProbe.?grpc.hasValue())) && "+
		"!%[3]s.exists(c, %[1]s)", isWrappedCEL, tcpPortsCEL, celListOf("initContainers"))
)

// queueCEL returns the operations of queueRule and queueSetting.
func queueCEL(s subjectCEL) string {
	operations := []string{
		moveLivenessProbesCEL(),
		celAppendEach("containers", "env", celVariable(signal.PortsEnv, tcpPortsCEL+`.map(e, string(e.containerPort)).join(",")`),
			isWrappedCEL, tcpPortsCEL+".size() > 0"),
		celEach("containers", "["+celAdd(celPath(celPathOf("containers"), "startupProbe"), celValue(startedProbe()))+"]", isWrappedCEL, "!has(c.startupProbe)"),
	}
	for _, kind := range probeKinds {
		command := probeCommandCEL(kind)
		isOwn := fmt.Sprintf("%s.size() > 0 && %s != %s", command, command, celValue(gateProbe(kind)))
		operations = append(operations, setProbeCommandCEL(kind, fmt.Sprintf("%s + c.%sProbe.exec.command", celValue(execPrefix(kind)), kind), isOwn))
	}
	return celBoth(append(operations, celAppendEach("initContainers", "env", celVariable(signal.QueueEnv, s.queueSeconds), isSidecarCEL))...)
}

// moveLivenessProbesCEL returns the operations of moveLivenessProbes.
func moveLivenessProbesCEL() string {
	path := celPathOf("containers")
	isMoved := fmt.Sprintf("%s == %s", probeCommandCEL("liveness"), celValue(gateProbe("liveness")))
	move := fmt.Sprintf("[%s, %s, %s, %s]",
		celAdd(celPath(path, "env/-"), celVariable(signal.LivenessEnv, originalCEL("livenessProbe"))),
		celRemove(path+celString("/livenessProbe/")+" + "+handlersCEL("livenessProbe")+"[0]"),
		celAdd(celPath(path, "livenessProbe/exec"), celValue(corev1.ExecAction{Command: gateProbe("liveness")})),
		celAdd(celPath(path, "livenessProbe/timeoutSeconds"), fmt.Sprintf("[c.livenessProbe.?timeoutSeconds.orValue(1) + 1, %d].min()", maxTimeoutSeconds)))
	return celBoth(
		celRemoveFrom("containers", isWrappedCEL+" && !("+isMoved+")", "env", "e.name == "+celString(signal.LivenessEnv)),
		celEach("containers", move, isWrappedCEL, hasOneHandlerCEL("livenessProbe"), "!has(c.livenessProbe.exec)"))
}

// removeQueueCEL returns the operations of removeQueue.
func removeQueueCEL() string {
	isStarted := fmt.Sprintf("c.?startupProbe.?exec.?command.orValue([]) == %s", celValue(startedProbe().Exec.Command))
	operations := []string{celEach("containers", "["+celRemove(celPath(celPathOf("containers"), "startupProbe"))+"]",
		isWrappedCEL, isStarted, "!("+startupProbeNeededCEL("containers")+")")}
	for _, kind := range probeKinds {
		prefix := execPrefix(kind)
		command := probeCommandCEL(kind)
		hasPrefix := fmt.Sprintf("%s.size() >= %d && %s.slice(0, %d) == %s", command, len(prefix), command, len(prefix), celValue(prefix))
		operations = append(operations, setProbeCommandCEL(kind, fmt.Sprintf("%s.slice(%d, %s.size())", command, len(prefix), command), hasPrefix))
	}
	return celBoth(operations...)
}

// probeCommandCEL returns the command of the exec probe of c, or an empty list.
func probeCommandCEL(kind string) string {
	return fmt.Sprintf("c.?%sProbe.?exec.?command.orValue([])", kind)
}

// setProbeCommandCEL returns the operations that set the command of the exec probes of wrapped containers that meet the condition.
func setProbeCommandCEL(kind, command, condition string) string {
	return celEach("containers", "["+celAdd(celPath(celPathOf("containers"), kind+"Probe/exec/command"), command)+"]", isWrappedCEL, condition)
}
