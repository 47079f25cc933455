package policies

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// defaultTransitionSeconds is the default of spec.maxTransitionTime.
const defaultTransitionSeconds = 300

// queues returns true if the policy of s prepares fenced pods to queue the connections of clients.
func queues(s *v1.StatefulSingleton) bool {
	return s.Spec.Connections == v1.ConnectionsQueue && s.Spec.Fencing == v1.FencingLease
}

// queueSeconds returns how long a client may wait, as the value of signal.QueueEnv.
func queueSeconds(s *v1.StatefulSingleton) string {
	return strconv.Itoa(int(cmp.Or(s.Spec.MaxTransitionTime, defaultTransitionSeconds)))
}

var (
	// isTCP is the condition on a port of a container that clients can wait on the port.
	isTCP = "protocol != 'UDP' && protocol != 'SCTP'"
	// queueable is the condition that the held containers of a pod that is fenced can queue connections. It must not be weaker
	// than injected.NotQueueableBy.
	queueable = fmt.Sprintf("length(request.object.spec.containers[?%[1]s && length(ports[?%[2]s] || `[]`) > `0`]) > `0` && "+
		"length(request.object.spec.containers[?%[1]s && length(ports[?%[2]s] || `[]`) > `0` && securityContext.allowPrivilegeEscalation != `false`]) == `0` && "+
		"length(request.object.spec.containers[?%[1]s && (livenessProbe.grpc != `null` || readinessProbe.grpc != `null`)]) == `0` && "+
		"length(request.object.spec.initContainers[?%[1]s] || `[]`) == `0`", hasWrapper, isTCP)

	// probeKinds are the kinds of exec probes that the gate runs.
	probeKinds = []string{"liveness", "readiness"}
	// isLivenessMoved is the condition that the liveness probe of c is moved, so that its original is in signal.LivenessEnv.
	isLivenessMoved = fmt.Sprintf("c.livenessProbe.exec.command == %s", jmesLiteral(gateProbe("liveness")))
)

// queueRule returns the rule that prepares the held containers of a pod for the queue, if the rule "fence" will fence the pod. A
// pod that queues is Ready while no main process runs, so no probe may ask the application then.
func queueRule(s *v1.StatefulSingleton) kyvernov1.Rule {
	lists := []string{
		moveLivenessProbes(),
		operations(indexed("containers", isWrapped, fmt.Sprintf("length(c.ports[?%s] || `[]`) > `0`", isTCP)),
			addExpression("containers", "env/-", fmt.Sprintf("{name: '%s', value: join(',', c.ports[?%s].to_string(containerPort))}", signal.PortsEnv, isTCP))),
		operations(indexed("containers", isWrapped, "c.startupProbe == `null`"), addEach("containers", "startupProbe", startedProbe())),
	}
	for _, kind := range probeKinds {
		command := fmt.Sprintf("c.%sProbe.exec.command", kind)
		isOwn := fmt.Sprintf("length(%s || `[]`) > `0` && %s != %s", command, command, jmesLiteral(gateProbe(kind)))
		lists = append(lists, operations(indexed("containers", isWrapped, isOwn), prepend("containers", kind+"Probe/exec/command", execPrefix(kind))...))
	}
	return kyvernov1.Rule{
		Name:                "queue",
		RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(append(fenceable(s), queueable)...)},
		Mutation:            &kyvernov1.Mutation{ForEachMutation: []kyvernov1.ForEachMutation{step(lists...)}},
	}
}

// moveLivenessProbes returns the operations by which the gate in each wrapped container runs the liveness probe for the kubelet,
// except for exec and gRPC probes. The sidecar must not run it, because whoever can block its port could get the main process
// killed. A probe stays moved in later passes and keeps its variable. Other variables of that name are removed.
func moveLivenessProbes() string {
	timeout := fmt.Sprintf("min([sum([%s, `1`]), `%d`])", secondsOf("livenessProbe.timeoutSeconds", 1), maxTimeoutSeconds)
	return fmt.Sprintf("[%s, %s][]",
		removeFrom("containers", isWrapped+" && !("+isLivenessMoved+")", "env", fmt.Sprintf("e.name == '%s'", signal.LivenessEnv)),
		operations(indexed("containers", isWrapped, hasOneHandler("livenessProbe"), "c.livenessProbe.exec == `null`"),
			addExpression("containers", "env/-", fmt.Sprintf("{name: '%s', value: %s}", signal.LivenessEnv, original("livenessProbe"))),
			removeHandler("containers", "livenessProbe"),
			addEach("containers", "livenessProbe/exec", corev1.ExecAction{Command: gateProbe("liveness")}),
			addExpression("containers", "livenessProbe/timeoutSeconds", timeout)))
}

// queueSetting returns the operation of a sidecarStep that tells the sidecar of a queueable pod how long a client may wait.
func queueSetting(s *v1.StatefulSingleton) string {
	setting := corev1.EnvVar{Name: signal.QueueEnv, Value: queueSeconds(s)}
	return when(queueable, fmt.Sprintf("[{op: 'add', path: '%s/env/-', value: %s}]", sidecarPlace, jmesLiteral(setting)))
}

// gateProbe is the command of a moved probe. The gate runs the original once the main process runs.
func gateProbe(kind string) []string {
	return []string{signal.GatePath, "probe", kind}
}

// execPrefix is the command in front of the command of an exec probe, which the gate also runs once the main process runs.
func execPrefix(kind string) []string {
	return append(gateProbe(kind), "--")
}

// removeQueue returns the operations that remove from wrapped containers what queueRule adds, except for variables, which
// removeFencing removes, and for moved liveness probes.
func removeQueue() []string {
	// Without the queue, a container that needs no startup probe has none.
	isStarted := fmt.Sprintf("c.startupProbe.exec.command == %s", jmesLiteral(startedProbe().Exec.Command))
	lists := []string{operations(indexed("containers", isWrapped, isStarted, "!"+startupProbeNeeded("containers")),
		"{op: 'remove', path: join('', ['/spec/containers/', to_string(i), '/startupProbe'])}")}
	for _, kind := range probeKinds {
		prefix := execPrefix(kind)
		hasPrefix := fmt.Sprintf("(c.%sProbe.exec.command || `[]`)[:%d] == %s", kind, len(prefix), jmesLiteral(prefix))
		first := fmt.Sprintf("{op: 'remove', path: join('', ['/spec/containers/', to_string(i), '/%sProbe/exec/command/0'])}", kind)
		lists = append(lists, operations(indexed("containers", isWrapped, hasPrefix), slices.Repeat([]string{first}, len(prefix))...))
	}
	return lists
}
