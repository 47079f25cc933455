package signal

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseLeaseSettings(t *testing.T) {
	old, renewed := Fingerprint([]byte("old")), Fingerprint([]byte("new"))
	valid := map[string]string{
		LeaseEnv: "prod/db", LeaseDurationEnv: "15", HeldEnv: "app,web", PodNameEnv: "db-1",
		APIServerEnv: "https://10.0.0.1:443", AuthoritiesEnv: old + "," + renewed,
	}
	settings := &LeaseSettings{
		Namespace: "prod", Lease: "db", Duration: 15 * time.Second, Held: []string{"app", "web"}, Pod: "db-1",
		APIServer: APIServer{URL: "https://10.0.0.1:443", Authorities: []string{old, renewed}},
	}
	for name, tc := range map[string]struct {
		variable, value string
		want            *LeaseSettings
		wantErr         string
	}{
		"valid":                        {PodNameEnv, "db-1", settings, ""},
		"no fencing":                   {LeaseEnv, "", nil, ""},
		"a Lease without a namespace":  {LeaseEnv, "db", nil, LeaseEnv},
		"a Lease without a name":       {LeaseEnv, "prod/", nil, LeaseEnv},
		"no duration":                  {LeaseDurationEnv, "", nil, LeaseDurationEnv},
		"too short":                    {LeaseDurationEnv, "4", nil, LeaseDurationEnv},
		"too long":                     {LeaseDurationEnv, "3601", nil, LeaseDurationEnv},
		"no held containers":           {HeldEnv, "", nil, HeldEnv},
		"a held container has no name": {HeldEnv, "app,", nil, HeldEnv},
		"no name of the pod":           {PodNameEnv, "", nil, PodNameEnv},
		"no API server":                {APIServerEnv, "", nil, APIServerEnv},
		"a server without TLS":         {APIServerEnv, "http://10.0.0.1:80", nil, APIServerEnv},
		"no authority":                 {AuthoritiesEnv, "", nil, AuthoritiesEnv},
		"an authority is empty":        {AuthoritiesEnv, old + ",", nil, AuthoritiesEnv},
		"no SHA-256":                   {AuthoritiesEnv, "abcd", nil, AuthoritiesEnv},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseLeaseSettings(func(variable string) string {
				if variable == tc.variable {
					return tc.value
				}
				return valid[variable]
			})
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want one about %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}
