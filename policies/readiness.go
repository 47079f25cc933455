package policies

import (
	"fmt"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// maxTimeoutSeconds is the maximum timeout of a moved probe.
const maxTimeoutSeconds = 999_999

var (
	// sidecarEnv are the environment variables of the status sidecar.
	sidecarEnv = fmt.Sprintf("request.object.spec.initContainers[?name == '%s'].env[]", v1.SidecarName)
	// onHostNetwork is the condition that the pod uses the network of its node.
	onHostNetwork = "request.object.spec.hostNetwork == `true`"
	// asksSidecar is the condition that the readiness probe of c asks the sidecar.
	asksSidecar = fmt.Sprintf("c.readinessProbe.httpGet.path == join('', ['%s', c.name]) && to_string(c.readinessProbe.httpGet.port || '') == '%d'",
		signal.ProbePathPrefix, signal.ProbePort)
	// loopbackVariable is the variable with the address of serveOnLoopback, in a list of at most one element. The last variable
	// of a name wins.
	loopbackVariable = fmt.Sprintf("%s | [?name == '%s' && regex_match('^%s$', value || '')] | [-1:]", sidecarEnv, signal.ProbeHostEnv, loopbackAddresses)
)

// loopbackAddresses is the regular expression of the addresses of serveOnLoopback.
const loopbackAddresses = "127([.]1[0-9][0-9]){3}"

// moveReadinessProbes returns the rules by which the kubelet asks the sidecar for the readiness of wrapped containers,
// and the sidecar gets the original probes.
func moveReadinessProbes() []kyvernov1.ForEachMutation {
	return []kyvernov1.ForEachMutation{
		serveOnLoopback(),
		sidecarStep(moveReadinessProbe("containers"), moveReadinessProbe("initContainers")),
		askOnLoopback("containers", "initContainers"),
	}
}

// serveOnLoopback gives the sidecar of a pod on the host network a random loopback address. Each pod of the node needs
// another one, because they all have the same ports.
func serveOnLoopback() kyvernov1.ForEachMutation {
	return changeSidecar([]op{{Op: "add", Path: sidecarPath + "/env/-", Value: encode(corev1.EnvVar{
		Name: signal.ProbeHostEnv, Value: "{{ random('" + loopbackAddresses + "') }}",
	})}}, onHostNetwork, fmt.Sprintf("!contains(element.c.env[].name || `[]`, '%s')", signal.ProbeHostEnv))
}

// moveReadinessProbe returns the operations of a sidecarStep that move the readiness probes of wrapped containers of spec.<list>,
// except for exec and gRPC probes.
func moveReadinessProbe(list string) string {
	timeout := fmt.Sprintf("min([sum([%s, %s, `%d`]), `%d`])",
		secondsOf("readinessProbe.periodSeconds", 10), secondsOf("readinessProbe.timeoutSeconds", 1), signal.ExtraProbeTimeoutSeconds, maxTimeoutSeconds)
	return operations(unmovedReadinessProbes(list),
		fmt.Sprintf("{op: 'add', path: '%s/env/-', value: {name: join('', ['%s', c.name]), value: %s}}", sidecarPlace, signal.ProbeEnvPrefix, original("readinessProbe")),
		removeHandler(list, "readinessProbe"),
		addExpression(list, "readinessProbe/httpGet", fmt.Sprintf("{path: join('', ['%s', c.name]), port: `%d`, scheme: '%s'}",
			signal.ProbePathPrefix, signal.ProbePort, corev1.URISchemeHTTP)),
		addExpression(list, "readinessProbe/timeoutSeconds", timeout))
}

// unmovedReadinessProbes returns the containers whose readiness probe the sidecar can run and does not have, as indexed does. A
// mesh may have changed the probe since the sidecar got the original. A condition on a container sees no other part of the pod,
// so the names of the sidecar's variables are matched as the keys of two objects, of which the second replaces elements of the
// first.
func unmovedReadinessProbes(list string) string {
	movable := indexed(list, isWrapped, hasOneHandler("readinessProbe"), "!("+asksSidecar+")")
	return fmt.Sprintf("sort_by(values(merge(object_from_lists(%[1]s.join('', ['%[2]s', c.name]), %[1]s), object_from_lists(%[3]s.name, %[3]s)))[?c], &i)[*]",
		movable, signal.ProbeEnvPrefix, sidecarEnv)
}

// askOnLoopback adds the loopback address of serveOnLoopback to the readiness probes that ask the sidecar.
func askOnLoopback(lists ...string) kyvernov1.ForEachMutation {
	const address = "ADDRESS-OF-THE-SIDECAR"
	var all []string
	for _, list := range lists {
		asking := indexed(list, asksSidecar, "c.readinessProbe.httpGet.host == `null`")
		all = append(all, operations(asking, addEach(list, "readinessProbe/httpGet/host", address)))
	}
	condition := fmt.Sprintf("%s && length(%s) > `0`", onHostNetwork, loopbackVariable)
	return stepWith(address, loopbackVariable+" | [0].value", when(condition, all...))
}

// handlers returns the handlers of a probe of c that the sidecar and the gate can run.
func handlers(probe string) string {
	return fmt.Sprintf("keys(c.%s || `{}`)[?contains('httpGet tcpSocket', @)]", probe)
}

// hasOneHandler returns the condition that the sidecar and the gate can run a probe of c. A valid probe has one handler.
func hasOneHandler(probe string) string {
	return fmt.Sprintf("length(%s) == `1`", handlers(probe))
}

// removeHandler returns the operation that removes the handler of a probe of each container of spec.<list>.
func removeHandler(list, probe string) string {
	return fmt.Sprintf("{op: 'remove', path: join('', ['/spec/%s/', to_string(i), '/%s/', (%s | [0])])}", list, probe, handlers(probe))
}

// original returns a probe of c as signal.ParseProbe reads it. Base64 keeps user's strings out of Kyverno's variables. The ports
// are needed only for a port that is named, and a variable must not become too long.
func original(probe string) string {
	return fmt.Sprintf("base64_encode(to_string({probe: c.%[1]s, ports: "+
		"to_number(to_string(c.%[1]s.httpGet.port || c.%[1]s.tcpSocket.port || `0`)) == `null` && c.ports || `null`}))", probe)
}

// secondsOf returns a field of c with the API server's default. The conversions make numbers of the engine's two types equal.
func secondsOf(field string, byDefault int) string {
	return fmt.Sprintf("to_number(to_string(c.%s || `%d`))", field, byDefault)
}
