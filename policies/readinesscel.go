package policies

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// loopbackAddresses is the regular expression of the addresses of serveOnLoopback.
const loopbackAddresses = "127([.]1[0-9][0-9]){3}"

var (
	// sidecarEnvCEL are the environment variables of the status sidecar.
	sidecarEnvCEL       = fmt.Sprintf("%s.filter(s, s.name == %s).map(s, s.?env.orValue([])).flatten()", celListOf("initContainers"), celString(v1.SidecarName))
	onHostNetworkCEL    = "object.spec.?hostNetwork.orValue(false)"
	probePathCEL        = celString(signal.ProbePathPrefix) + " + c.name"
	originalProbeCEL    = celString(signal.ProbeEnvPrefix) + " + c.name"
	asksSidecarCEL      = fmt.Sprintf(`c.?readinessProbe.?httpGet.?path.orValue("") == %s && string(c.?readinessProbe.?httpGet.?port.orValue("")) == %s`, probePathCEL, celString(strconv.Itoa(signal.ProbePort)))
	isMovedCEL          = sidecarEnvCEL + ".exists(e, e.name == " + originalProbeCEL + ")"
	handlersCEL         = `["httpGet", "tcpSocket"].filter(e, e in c.readinessProbe)`
	hasOneHandlerCEL    = "has(c.readinessProbe) && " + handlersCEL + ".size() == 1"
	probePortCEL        = `string(c.readinessProbe.?httpGet.?port.or(c.readinessProbe.?tcpSocket.?port).orValue(0))`
	portsOfProbeCEL     = probePortCEL + `.matches("^[0-9]+$") ? dyn(null) : c.?ports.orValue(null)`
	originalCEL         = fmt.Sprintf(`base64.encode(bytes(json.marshal({"readinessProbe": c.readinessProbe, "ports": %s})))`, portsOfProbeCEL)
	timeoutOfSidecarCEL = fmt.Sprintf("[c.readinessProbe.?periodSeconds.orValue(10) + c.readinessProbe.?timeoutSeconds.orValue(1) + %d, %d].min()", signal.ExtraProbeTimeoutSeconds, maxTimeoutSeconds)
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
	probe := celPathOf(list) + `"/readinessProbe/"`
	move := fmt.Sprintf("[%s, %s, %s, %s]",
		celAdd(`"/spec/initContainers/" + string(k) + "/env/-"`, fmt.Sprintf(`{"name": dyn(%s), "value": dyn(%s)}`, originalProbeCEL, originalCEL)),
		celRemove(probe+" + "+handlersCEL+"[0]"),
		celAdd(probe+` + "httpGet"`, fmt.Sprintf(`{"path": dyn(%s), "port": dyn(%d), "scheme": dyn(%s)}`, probePathCEL, signal.ProbePort, celString(string(corev1.URISchemeHTTP)))),
		celAdd(probe+` + "timeoutSeconds"`, timeoutOfSidecarCEL))
	each := celEach(list, move, isWrappedCEL, hasOneHandlerCEL, "!("+asksSidecarCEL+")", "!("+isMovedCEL+")")
	return fmt.Sprintf("%s.transformList(k, s, s.name == %s && has(s.env), %s).flatten()", celListOf("initContainers"), celString(v1.SidecarName), each)
}

// askOnLoopbackCEL adds the loopback address of the sidecar to the readiness probes that ask the sidecar.
func askOnLoopbackCEL(list string) string {
	host := fmt.Sprintf(`%s.filter(e, e.name == %s).map(e, e.?value.orValue(""))`, sidecarEnvCEL, celString(signal.ProbeHostEnv))
	return celEach(list, fmt.Sprintf("%s.map(e, %s)", host, celAdd(celPath(celPathOf(list), "readinessProbe/httpGet/host"), "e")),
		onHostNetworkCEL, asksSidecarCEL, isMovedCEL, "!has(c.readinessProbe.httpGet.host)")
}
