package fencing

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	old, renewed := Fingerprint([]byte("old")), Fingerprint([]byte("new"))
	valid := map[string]string{
		LeaseEnv: "prod/db", DurationEnv: "15", HeldEnv: "app,web", PodNameEnv: "db-1",
		URLEnv: "https://10.0.0.1:443", AuthoritiesEnv: old + "," + renewed,
	}
	settings := &Settings{
		Namespace: "prod", Lease: "db", Duration: 15 * time.Second, Held: []string{"app", "web"}, Pod: "db-1",
		APIServer: APIServer{URL: "https://10.0.0.1:443", Authorities: []string{old, renewed}},
	}
	for name, tc := range map[string]struct {
		variable, value string
		want            *Settings
		wantErr         string
	}{
		"valid":                        {PodNameEnv, "db-1", settings, ""},
		"no fencing":                   {LeaseEnv, "", nil, ""},
		"a Lease without a namespace":  {LeaseEnv, "db", nil, LeaseEnv},
		"a Lease without a name":       {LeaseEnv, "prod/", nil, LeaseEnv},
		"no duration":                  {DurationEnv, "", nil, DurationEnv},
		"too short":                    {DurationEnv, "4", nil, DurationEnv},
		"too long":                     {DurationEnv, "3601", nil, DurationEnv},
		"no held containers":           {HeldEnv, "", nil, HeldEnv},
		"a held container has no name": {HeldEnv, "app,", nil, HeldEnv},
		"no name of the pod":           {PodNameEnv, "", nil, PodNameEnv},
		"no API server":                {URLEnv, "", nil, URLEnv},
		"a server without TLS":         {URLEnv, "http://10.0.0.1:80", nil, URLEnv},
		"no authority":                 {AuthoritiesEnv, "", nil, AuthoritiesEnv},
		"an authority is empty":        {AuthoritiesEnv, old + ",", nil, AuthoritiesEnv},
		"no SHA-256":                   {AuthoritiesEnv, "abcd", nil, AuthoritiesEnv},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(func(variable string) string {
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
