package signal

import (
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

		"empty":                {data: "", wantError: "parse signal: EOF"},
		"half":                 {data: `{"uid":"a","epo`, wantError: "parse signal: unexpected EOF"},
		"null":                 {data: "null", wantError: "parse signal: uid is empty"},
		"no uid":               {data: `{"epoch":1}`, wantError: "parse signal: uid is empty"},
		"no epoch":             {data: `{"uid":"a"}`, wantError: "parse signal: epoch is 0, want 1 or more"},
		"a negative epoch":     {data: `{"uid":"a","epoch":-1}`, wantError: "parse signal: epoch is -1, want 1 or more"},
		"two objects":          {data: `{"uid":"a","epoch":1}{"uid":"b","epoch":1}`, wantError: "parse signal: something follows the JSON object"},
		"garbage after":        {data: `{"uid":"a","epoch":1}x`, wantError: "parse signal: something follows the JSON object"},
		"an epoch as a string": {data: `{"uid":"a","epoch":"1"}`, wantError: "parse signal: json: cannot unmarshal string into Go struct field Signal.epoch of type int64"},
		"a broken epoch":       {data: `{"uid":"a","epoch":1.5}`, wantError: "parse signal: json: cannot unmarshal number 1.5 into Go struct field Signal.epoch of type int64"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(tc.data))
			if tc.wantError != "" {
				if err == nil || err.Error() != tc.wantError {
					t.Fatalf("error %v, want %q", err, tc.wantError)
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

// Whatever is read: it is refused, or it is a signal that is written and read again
// as the same.
func FuzzParse(f *testing.F) {
	for _, data := range []string{"", "null", "[]", "{}", `{"uid":"a","epoch":1}`, `{"uid":"a","epoch":1,"time":"2026-01-02T03:04:05+23:59"}`, `{"uid":"a","epoch":1}{}`, `{"UID":"a","Epoch":1}`} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			if s != (Signal{}) {
				t.Errorf("refused, and returned %+v", s)
			}
			return
		}
		if s.UID == "" || s.Epoch < 1 {
			t.Errorf("accepted %+v", s)
		}
		again, err := Parse([]byte(s.String()))
		if err != nil {
			t.Fatalf("refused what it wrote, %s: %v", s, err)
		}
		if again.UID != s.UID || again.Epoch != s.Epoch || !again.Time.Equal(s.Time) {
			t.Errorf("wrote %+v, read %+v", s, again)
		}
	})
}
