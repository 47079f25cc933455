package signal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)
	tests := map[string]struct {
		data      string
		want      Signal
		wantError string
	}{
		"whole":             {data: `{"uid":"a","epoch":3,"time":"2026-01-02T03:04:05.6789Z"}`, want: Signal{UID: "a", Epoch: 3, Time: at}},
		"without a time":    {data: `{"uid":"a","epoch":1}`, want: Signal{UID: "a", Epoch: 1}},
		"a newline after":   {data: "{\"uid\":\"a\",\"epoch\":1}\n", want: Signal{UID: "a", Epoch: 1}},
		"an unknown field":  {data: `{"uid":"a","epoch":1,"later":true}`, want: Signal{UID: "a", Epoch: 1}},
		"the highest epoch": {data: `{"uid":"a","epoch":9223372036854775807}`, want: Signal{UID: "a", Epoch: 1<<63 - 1}},

		"empty":                 {data: "", wantError: "unexpected end of JSON input"},
		"cut off":               {data: `{"uid":"a","epo`, wantError: "unexpected end of JSON input"},
		"null":                  {data: "null", wantError: "uid is empty"},
		"a list":                {data: `[{"uid":"a","epoch":1}]`, wantError: "json: cannot unmarshal array into Go value of type signal.Signal"},
		"no uid":                {data: `{"epoch":1}`, wantError: "uid is empty"},
		"a uid of null":         {data: `{"uid":null,"epoch":1}`, wantError: "uid is empty"},
		"no epoch":              {data: `{"uid":"a"}`, wantError: "epoch is 0, but must be at least 1"},
		"a negative epoch":      {data: `{"uid":"a","epoch":-1}`, wantError: "epoch is -1, but must be at least 1"},
		"two objects":           {data: `{"uid":"a","epoch":1}{"uid":"b","epoch":1}`, wantError: "invalid character '{' after top-level value"},
		"garbage after":         {data: `{"uid":"a","epoch":1}x`, wantError: "invalid character 'x' after top-level value"},
		"an epoch as a string":  {data: `{"uid":"a","epoch":"1"}`, wantError: "json: cannot unmarshal string into Go struct field Signal.epoch of type int64"},
		"a broken epoch":        {data: `{"uid":"a","epoch":1.5}`, wantError: "json: cannot unmarshal number 1.5 into Go struct field Signal.epoch of type int64"},
		"an epoch too high":     {data: `{"uid":"a","epoch":9223372036854775808}`, wantError: "json: cannot unmarshal number 9223372036854775808 into Go struct field Signal.epoch of type int64"},
		"two uids":              {data: `{"uid":"b","epoch":1,"uid":"a"}`, wantError: `duplicate field "uid"`},
		"two epochs":            {data: `{"uid":"a","epoch":2,"epoch":1}`, wantError: `duplicate field "epoch"`},
		"keys in capitals":      {data: `{"UID":"a","Epoch":1}`, wantError: "uid is empty"},
		"a uid in both cases":   {data: `{"uid":"a","UID":"b","epoch":1}`, want: Signal{UID: "a", Epoch: 1}},
		"not UTF-8":             {data: "{\"uid\":\"a\xff\",\"epoch\":1}", wantError: "the signal is not UTF-8"},
		"too long":              {data: `{"uid":"a","epoch":1}` + strings.Repeat(" ", MaxLength), wantError: "the signal is longer than 1024 bytes"},
		"nested":                {data: `{"uid":"a","epoch":1,"x":` + strings.Repeat("[", 900), wantError: "unexpected end of JSON input"},
		"an invalid time":       {data: `{"uid":"a","epoch":1,"time":"now"}`, wantError: `parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006"`},
		"a time before year 1":  {data: `{"uid":"a","epoch":1,"time":"0000-06-01T00:00:00Z"}`, wantError: "time is outside the years 1 to 9999"},
		"a time after the last": {data: `{"uid":"a","epoch":1,"time":"9999-12-31T23:59:59-01:00"}`, wantError: "time is outside the years 1 to 9999"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(tc.data))
			if tc.wantError != "" {
				if want := "parse signal: " + tc.wantError; err == nil || err.Error() != want {
					t.Fatalf("error %v, want %q", err, want)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("signal (-want +got):\n%s", diff)
			}
		})
	}
}

// Each input is rejected, or it is a signal. A plain JSON decoder finds the same uid and epoch in a signal, and writing
// and reading it again gives the same signal.
func FuzzParse(f *testing.F) {
	for _, data := range []string{
		"", "null", "[]", "{}", `"uid"`, `{"uid":"a","epoch":1}`, `{"uid":"a","epoch":1,"time":"2026-01-02T03:04:05+23:59"}`,
		`{"uid":"a","epoch":1}{}`, `{"UID":"a","Epoch":1}`, `{"uid":"a","uid":"b","epoch":1}`, `{"uid":"a","epoch":1e3}`,
		`{"uid":"a","epoch":9223372036854775808}`, "{\"uid\":\"\xff\",\"epoch\":1}", `{"uid":"\ud800","epoch":1}`, `{"uid":"` + strings.Repeat("<", 500) + `","epoch":1}`, `{"u\u0069d":"a","epoch":1}`,
		`{"uid":"a","epoch":1,"time":"0000-01-01T00:00:00+23:59"}`, `{"uid":"a","epoch":1,"time":"9999-12-31T23:59:59.999999999-23:59"}`,
		"\ufeff{\"uid\":\"a\",\"epoch\":1}", "{\"uid\":\"a\",\"epoch\":1}\x00", `{"uid":"a","epoch":1,"later":{"uid":"b"}}`, `{"uid":"a","epoch":1,"x":[[[[`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			if s != (Signal{}) {
				t.Errorf("rejected, and returned %+v", s)
			}
			return
		}
		var plain map[string]any
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if err := decoder.Decode(&plain); err != nil || decoder.More() {
			t.Fatalf("accepted data that is not one JSON object: error %v", err)
		}
		if s.UID == "" || s.Epoch < 1 || plain["uid"] != s.UID || fmt.Sprint(plain["epoch"]) != fmt.Sprint(s.Epoch) {
			t.Errorf("accepted %+v, but a plain decoder returns %v", s, plain)
		}
		written := s.String()
		if len(written) > MaxLength {
			return // the escapes of an invalid uid are long
		}
		again, err := Parse([]byte(written))
		if err != nil {
			t.Fatalf("rejected its own output %s: %v", written, err)
		}
		if again.UID != s.UID || again.Epoch != s.Epoch || !again.Time.Equal(s.Time) {
			t.Errorf("wrote %+v, read %+v", s, again)
		}
	})
}
