package signal

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseProbe(t *testing.T) {
	tests := map[string]struct {
		json      string
		want      *Probe
		wantError string
	}{
		"http": {
			json: `{"probe":{"httpGet":{"path":"/a?b","port":8080,"host":"h","scheme":"HTTPS","httpHeaders":[{"name":"Host","value":"x"}]},"timeoutSeconds":3,"periodSeconds":2,"successThreshold":1},"ports":null}`,
			want: &Probe{HTTPGet: &HTTPGet{Path: "/a?b", Port: float64(8080), Host: "h", Scheme: "HTTPS", Headers: []HTTPHeader{{"Host", "x"}}}, TimeoutSeconds: 3, PeriodSeconds: 2},
		},
		"tcp":         {json: `{"probe":{"tcpSocket":{"port":"sql"}}}`, want: &Probe{TCPSocket: &TCPSocket{Port: "sql"}}},
		"exec":        {json: `{"probe":{"exec":{"command":["a"]}}}`, wantError: "decode probe: it has neither httpGet nor tcpSocket"},
		"none":        {json: `{}`, wantError: "decode probe: it has neither httpGet nor tcpSocket"},
		"not JSON":    {json: `{`, wantError: "decode probe: unexpected end of JSON input"},
		"wrong types": {json: `{"probe":{"tcpSocket":{"port":1,"host":2}}}`, wantError: "decode probe: json: cannot unmarshal number into Go struct field TCPSocket.probe.tcpSocket.host of type string"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseProbe(base64.StdEncoding.EncodeToString([]byte(test.json)))
			if message := text(err); message != test.wantError {
				t.Fatalf("error %q, want %q", message, test.wantError)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreUnexported(Probe{})); diff != "" {
				t.Errorf("probe (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := ParseProbe("{"); err == nil {
		t.Error("text that is not base64 is accepted")
	}
}

func TestProbeString(t *testing.T) {
	tests := map[string]Probe{
		"httpGet http://:8080/":          {HTTPGet: &HTTPGet{Port: float64(8080)}},
		"httpGet https://db:web/ready?a": {HTTPGet: &HTTPGet{Port: "web", Path: "/ready?a", Host: "db", Scheme: "HTTPS"}},
		"tcpSocket :5432":                {TCPSocket: &TCPSocket{Port: float64(5432)}},
		"tcpSocket db:sql":               {TCPSocket: &TCPSocket{Port: "sql", Host: "db"}},
	}
	for want, p := range tests {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestPortNumber(t *testing.T) {
	p := &Probe{ports: []containerPort{{"sql", 5432}, {"80", 8080}, {"", 1}}}
	tests := map[string]struct {
		port      any
		want      string
		wantError string
	}{
		"a number":             {float64(8080), "8080", ""},
		"a name":               {"sql", "5432", ""},
		"a number in quotes":   {"81", "81", ""},
		"a name of digits":     {"80", "8080", ""},
		"an unknown name":      {"http", "", `the container has no port with the name "http"`},
		"too high":             {float64(65536), "", "65536 is not a port"},
		"zero":                 {float64(0), "", "0 is not a port"},
		"negative, in quotes":  {"-1", "", "-1 is not a port"},
		"missing in the probe": {nil, "", "<nil> is not a port"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := p.PortNumber(test.port)
			if got != test.want || text(err) != test.wantError {
				t.Errorf("port %q, error %q, want %q, %q", got, text(err), test.want, test.wantError)
			}
		})
	}
}

// The sidecar answers before the kubelet gives up, and later than one period.
func TestProbeTimes(t *testing.T) {
	for _, p := range []Probe{{}, {PeriodSeconds: 1}, {PeriodSeconds: 300, TimeoutSeconds: 60}} {
		period, timeout := p.PeriodSeconds, p.TimeoutSeconds
		if period == 0 {
			period, timeout = 10, 1
		}
		kubelet := time.Duration(period+timeout+ExtraProbeTimeoutSeconds) * time.Second
		if p.Patience() <= time.Duration(period)*time.Second || p.Patience()+p.Timeout() >= kubelet {
			t.Errorf("%+v: patience %s and timeout %s, want them above the period and below the kubelet's %s", p, p.Patience(), p.Timeout(), kubelet)
		}
	}
}
