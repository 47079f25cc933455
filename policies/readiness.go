package policies

import (
	"fmt"
	"strings"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// maxTimeoutSeconds is the maximum timeout of a request to the sidecar.
const maxTimeoutSeconds = 999_999

var (
	// sidecarEnv are the environment variables of the status sidecar.
	sidecarEnv = fmt.Sprintf("request.object.spec.initContainers[?name == '%s'].env[]", v1.SidecarName)
	// onHostNetwork is the condition that the pod uses the network of its node.
	onHostNetwork = "request.object.spec.hostNetwork == `true`"
	// asksSidecar is the condition that the readiness probe of a container asks the sidecar.
	asksSidecar = fmt.Sprintf("c.readinessProbe.httpGet.path == join('', ['%s', c.name]) && to_string(c.readinessProbe.httpGet.port || '') == '%d'",
		signal.ProbePathPrefix, signal.ProbePort)
	// isMoved is the condition that the sidecar has the readiness probe of a container. A mesh may have changed the
	// probe since then.
	isMoved = fmt.Sprintf("contains(%s.name || `[]`, join('', ['%s', element.c.name]))", sidecarEnv, signal.ProbeEnvPrefix)
)

// moveReadinessProbes returns the rules by which the kubelet asks the sidecar for the readiness of wrapped containers,
// and the sidecar gets the original probes.
func moveReadinessProbes() []kyvernov1.ForEachMutation {
	return []kyvernov1.ForEachMutation{
		serveOnLoopback(),
		moveReadinessProbe("containers"), askOnLoopback("containers"),
		moveReadinessProbe("initContainers"), askOnLoopback("initContainers"),
	}
}

// serveOnLoopback gives the sidecar of a pod on the host network a random loopback address. Each pod of the node needs
// another one, because they all have the same ports.
func serveOnLoopback() kyvernov1.ForEachMutation {
	return changeSidecar([]op{{Op: "add", Path: sidecarPath + "/env/-", Value: encode(corev1.EnvVar{
		Name: signal.ProbeHostEnv, Value: "{{ random('127([.]1[0-9][0-9]){3}') }}",
	})}}, onHostNetwork, fmt.Sprintf("!contains(element.c.env[].name || `[]`, '%s')", signal.ProbeHostEnv))
}

// moveReadinessProbe moves the readiness probes of spec.<list>, except for exec and gRPC probes.
func moveReadinessProbe(list string) kyvernov1.ForEachMutation {
	probe := fmt.Sprintf("/spec/%s/{{element.i}}/readinessProbe", list)
	handlers := func(container string) string {
		return fmt.Sprintf("keys(%s.readinessProbe || `{}`)[?contains('httpGet tcpSocket', @)]", container)
	}
	// Base64 keeps Kyverno from evaluating variables in the user's strings.
	// The ports are needed only for a port that is named, and a variable must not become too long.
	original := "{{ base64_encode(to_string({readinessProbe: element.c.readinessProbe, ports: " +
		"to_number(to_string(element.c.readinessProbe.httpGet.port || element.c.readinessProbe.tcpSocket.port || `0`)) == `null` && element.c.ports || `null`})) }}"
	// The conversions make numbers of the engine's two types equal. Larger numbers would get an exponent.
	timeout := fmt.Sprintf("{{ min([sum([to_number(to_string(element.c.readinessProbe.periodSeconds || `10`)), to_number(to_string(element.c.readinessProbe.timeoutSeconds || `1`)), `%d`]), `%d`]) }}",
		signal.ExtraProbeTimeoutSeconds, maxTimeoutSeconds)
	ops := patch(
		op{Op: "add", Path: "/spec/initContainers/{{element0.i}}/env/-", Value: encode(corev1.EnvVar{
			Name: signal.ProbeEnvPrefix + "{{element.c.name}}", Value: original,
		})},
		op{Op: "remove", Path: probe + "/{{ " + handlers("element.c") + " | [0] }}"},
		op{Op: "add", Path: probe + "/httpGet", Value: encode(map[string]any{
			"path": signal.ProbePathPrefix + "{{element.c.name}}", "port": signal.ProbePort, "scheme": corev1.URISchemeHTTP,
		})},
		op{Op: "add", Path: probe + "/timeoutSeconds", Value: encode(timeout)},
	)
	return kyvernov1.ForEachMutation{
		List: statusSidecar,
		ForEachMutation: &kyvernov1.ForEachMutationWrapper{Items: []kyvernov1.ForEachMutation{{
			List:             indexed(list, isWrapped, "length("+handlers("c")+") == `1`", "!("+asksSidecar+")"),
			AnyAllConditions: all("!(" + isMoved + ")"),
			// The timeout is a number and not a string, and JMESPath knows no escapes.
			PatchesJSON6902: strings.NewReplacer(`"`+timeout+`"`, timeout, `\u0026`, "&").Replace(ops),
		}}},
	}
}

// askOnLoopback adds the loopback address of serveOnLoopback to the readiness probes that ask the sidecar.
func askOnLoopback(list string) kyvernov1.ForEachMutation {
	return kyvernov1.ForEachMutation{
		List:             fmt.Sprintf("%s && %s || `[]`", onHostNetwork, indexed(list, asksSidecar, "c.readinessProbe.httpGet.host == `null`")),
		AnyAllConditions: all(isMoved),
		PatchesJSON6902: patch(op{Op: "add", Path: "/spec/" + list + "/{{element.i}}/readinessProbe/httpGet/host",
			Value: encode(fmt.Sprintf("{{ %s | [?name == '%s'].value | [0] }}", sidecarEnv, signal.ProbeHostEnv))}),
	}
}
