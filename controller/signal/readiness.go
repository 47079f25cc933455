package signal

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// ProbePort is the port of the sidecar.
	ProbePort = 9909
	// ProbePathPrefix begins the path of a request for the readiness of a container. The name of the container follows.
	ProbePathPrefix = "/ready/"
	// ProbeEnvPrefix begins the name of the sidecar's environment variable with the original probe of a container, as
	// ParseProbe reads it. The name of the container follows.
	ProbeEnvPrefix = "READINESS_PROBE_"
	// LivenessEnv is the environment variable of a held container with its original liveness probe, as ParseProbe reads it, if its
	// connections are queued. The gate runs the probe, because the probe must succeed until the main process runs.
	LivenessEnv = "STATEFULSINGLETON_LIVENESS_PROBE"
	// ProbeHostEnv is the sidecar's environment variable with the loopback address on which it serves in a pod with
	// hostNetwork. On the address of the node, the ports of two pods would clash.
	ProbeHostEnv = "READINESS_HOST"
	// extraPatience is how much longer than a period the sidecar may wait before it answers. The kubelet's next
	// request then follows at once, and one request is always open while a pod is held.
	extraPatience = 10 * time.Second
	// ExtraProbeTimeoutSeconds is how much longer than the period and the timeout of the original probe the kubelet waits
	// for the sidecar. It must be more than the sidecar's patience.
	ExtraProbeTimeoutSeconds = 15
)

// Probe is the readiness or liveness probe of a container as the user wrote it: the fields of a Kubernetes Probe that the gate
// needs. A policy changes the readiness probe of a wrapped container into a request to the sidecar, which gets the original, and the
// liveness probe into a command of the gate in the container. Either HTTPGet or TCPSocket is set.
type Probe struct {
	HTTPGet   *HTTPGet   `json:"httpGet"`
	TCPSocket *TCPSocket `json:"tcpSocket"`
	// TimeoutSeconds is the time limit of one check. Default: 1.
	TimeoutSeconds int `json:"timeoutSeconds"`
	// PeriodSeconds is how often the kubelet asks. Default: 10.
	PeriodSeconds int `json:"periodSeconds"`

	ports []containerPort
}

// HTTPGet is a check by an HTTP GET request.
type HTTPGet struct {
	Path string `json:"path"`
	// Port is a number or the name of a port.
	Port any `json:"port"`
	// Host is empty for the address of the pod.
	Host string `json:"host"`
	// Scheme is HTTP or HTTPS. Empty: HTTP.
	Scheme  string       `json:"scheme"`
	Headers []HTTPHeader `json:"httpHeaders"`
}

// HTTPHeader is a header of an HTTP request.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocket is a check by a TCP connection.
type TCPSocket struct {
	// Port is a number or the name of a port.
	Port any `json:"port"`
	// Host is empty for the address of the pod.
	Host string `json:"host"`
}

type containerPort struct {
	Name          string `json:"name"`
	ContainerPort int    `json:"containerPort"`
}

// ParseProbe parses the value of an environment variable with an original probe: base64 of a JSON object with the probe and
// the ports of the container.
func ParseProbe(value string) (*Probe, error) {
	data, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return nil, fmt.Errorf("decode probe: %w", err)
	}
	var container struct {
		Probe *Probe          `json:"probe"`
		Ports []containerPort `json:"ports"`
	}
	if err := json.Unmarshal(data, &container); err != nil {
		return nil, fmt.Errorf("decode probe: %w", err)
	}
	p := container.Probe
	if p == nil || p.HTTPGet == nil && p.TCPSocket == nil {
		return nil, errors.New("decode probe: it has neither httpGet nor tcpSocket")
	}
	p.ports = container.Ports
	return p, nil
}

// Timeout is the time limit of one check.
func (p *Probe) Timeout() time.Duration {
	return time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
}

// Patience is how long the sidecar may wait before it answers.
func (p *Probe) Patience() time.Duration {
	period := 10 * time.Second
	if p.PeriodSeconds > 0 {
		period = time.Duration(p.PeriodSeconds) * time.Second
	}
	return period + extraPatience
}

// PortNumber returns the number of a port of the container, as the kubelet finds it (pkg/probe: ResolveContainerPort):
// a name can also be a number in quotes.
func (p *Probe) PortNumber(port any) (string, error) {
	var number int
	switch port := port.(type) {
	case float64:
		number = int(port)
	case string:
		if i := slices.IndexFunc(p.ports, func(c containerPort) bool { return c.Name == port }); i >= 0 {
			number = p.ports[i].ContainerPort
		} else if n, err := strconv.Atoi(port); err == nil {
			number = n
		} else {
			return "", fmt.Errorf("the container has no port with the name %q", port)
		}
	}
	if number < 1 || number > 65535 {
		return "", fmt.Errorf("%v is not a port", port)
	}
	return strconv.Itoa(number), nil
}

// String describes the probe for people, for example "httpGet https://:8443/ready".
func (p *Probe) String() string {
	if p.HTTPGet != nil {
		scheme := cmp.Or(strings.ToLower(p.HTTPGet.Scheme), "http")
		return fmt.Sprintf("httpGet %s://%s:%v/%s", scheme, p.HTTPGet.Host, p.HTTPGet.Port, strings.TrimPrefix(p.HTTPGet.Path, "/"))
	}
	return fmt.Sprintf("tcpSocket %s:%v", p.TCPSocket.Host, p.TCPSocket.Port)
}
