package policies

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

var (
	// sidecarEnvCEL are the environment variables of the status sidecar.
	sidecarEnvCEL    = fmt.Sprintf("%s.filter(s, s.name == %s).map(s, s.?env.orValue([])).flatten()", celListOf("initContainers"), celString(v1.SidecarName))
	onHostNetworkCEL = "object.spec.?hostNetwork.orValue(false)"
	probePathCEL     = celString(signal.ProbePathPrefix) + " + c.name"
	asksSidecarCEL   = fmt.Sprintf(`c.?readinessProbe.?httpGet.?path.orValue("") == %s && string(c.?readinessProbe.?httpGet.?port.orValue("")) == %s`,
		probePathCEL, celString(strconv.Itoa(signal.ProbePort)))
	// loopbackCEL are the addresses of serveOnLoopback. The last one wins.
	loopbackCEL = fmt.Sprintf(`%s.filter(e, e.name == %s).map(e, e.?value.orValue("")).filter(e, e.matches(%s))`, sidecarEnvCEL,
		celString(signal.ProbeHostEnv), celString("^"+loopbackAddresses+"$"))
)

func moveReadinessProbesCEL() []string {
	serveOnLoopback := celAppendEach("initContainers", "env", celVariable(signal.ProbeHostEnv, "random("+celString(loopbackAddresses)+")"),
		isSidecarCEL, onHostNetworkCEL, "!c.?env.orValue([]).exists(e, e.name == "+celString(signal.ProbeHostEnv)+")")
	return []string{
		serveOnLoopback,
		celBoth(moveReadinessProbeCEL("containers"), moveReadinessProbeCEL("initContainers")),
		celBoth(askOnLoopbackCEL("containers"), askOnLoopbackCEL("initContainers")),
	}
}

// moveReadinessProbeCEL moves the readiness probes of spec.<list>, except for exec and gRPC probes.
func moveReadinessProbeCEL(list string) string {
	path, name := celPathOf(list)+celString("/readinessProbe/"), celString(signal.ProbeEnvPrefix)+" + c.name"
	move := fmt.Sprintf("[%s, %s, %s, %s]",
		celAdd(`"/spec/initContainers/" + string(k) + "/env/-"`, fmt.Sprintf(`{"name": dyn(%s), "value": dyn(%s)}`, name, originalCEL("readinessProbe"))),
		celRemove(path+" + "+handlersCEL("readinessProbe")+"[0]"),
		celAdd(path+` + "httpGet"`, fmt.Sprintf(`{"path": dyn(%s), "port": dyn(%d), "scheme": dyn(%s)}`, probePathCEL, signal.ProbePort, celString(string(corev1.URISchemeHTTP)))),
		celAdd(path+` + "timeoutSeconds"`, fmt.Sprintf("[c.readinessProbe.?periodSeconds.orValue(10) + c.readinessProbe.?timeoutSeconds.orValue(1) + %d, %d].min()",
			signal.ExtraProbeTimeoutSeconds, maxTimeoutSeconds)))
	each := celEach(list, move, isWrappedCEL, hasOneHandlerCEL("readinessProbe"), "!("+asksSidecarCEL+")", fmt.Sprintf("!%s.exists(e, e.name == %s)", sidecarEnvCEL, name))
	return fmt.Sprintf("%s.transformList(k, s, s.name == %s && has(s.env), %s).flatten()", celListOf("initContainers"), celString(v1.SidecarName), each)
}

// askOnLoopbackCEL adds the loopback address of the sidecar to the readiness probes of spec.<list> that ask the sidecar.
func askOnLoopbackCEL(list string) string {
	return celEach(list, fmt.Sprintf("%s.map(e, %s)", loopbackCEL, celAdd(celPath(celPathOf(list), "readinessProbe/httpGet/host"), "e")),
		onHostNetworkCEL, asksSidecarCEL, "!has(c.readinessProbe.httpGet.host)")
}

// handlersCEL returns the handlers of a probe of c. See handlers.
func handlersCEL(probe string) string {
	return fmt.Sprintf(`["httpGet", "tcpSocket"].filter(e, e in c.%s)`, probe)
}

func hasOneHandlerCEL(probe string) string {
	return fmt.Sprintf("has(c.%s) && %s.size() == 1", probe, handlersCEL(probe))
}

// originalCEL returns a probe of c. See original.
func originalCEL(probe string) string {
	port := fmt.Sprintf("string(c.%[1]s.?httpGet.?port.or(c.%[1]s.?tcpSocket.?port).orValue(0))", probe)
	ports := port + `.matches("^[0-9]+$") ? dyn(null) : c.?ports.orValue(null)`
	return fmt.Sprintf(`base64.encode(bytes(json.marshal({"probe": c.%s, "ports": %s})))`, probe, ports)
}
