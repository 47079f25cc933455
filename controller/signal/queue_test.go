package signal_test

import (
	"strings"
	"testing"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// The guard of the Lease rejects a longer annotation.
const maxAnnotation = 4096

func TestQueueReport(t *testing.T) {
	report := signal.QueueReport{Epoch: 7, Reason: "OtherUser", Message: "Set it.", Ports: map[uint16]string{80: "Dual", 443: "Pair"}}
	got, err := signal.ParseQueueReport(report.String())
	if err != nil || got.String() != report.String() || got.Ports[443] != "Pair" {
		t.Errorf("report %+v, error %v, want %+v", got, err, report)
	}
	if got, err := signal.ParseQueueReport(""); err != nil || got.Epoch != 0 || got.Ports != nil {
		t.Errorf("without a report: %+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"no JSON": "dual", "a list": "[]", "no port": `{"ports":{"65536":"Dual"}}`, "another shape": `{"ports":{"80":"Round"}}`, "a reason with spaces": `{"reason":"it was"}`, "a message without a reason": `{"message":"a"}`,
		"too long": `{"reason":"A","message":"` + strings.Repeat("a", maxAnnotation) + `"}`,
	} {
		if got, err := signal.ParseQueueReport(text); err == nil {
			t.Errorf("%s: report %+v, want an error", name, got)
		}
	}
}

// A report never keeps the pod from renewing its Lease.
func TestQueueReportFits(t *testing.T) {
	report := signal.QueueReport{Epoch: 7, Ports: map[uint16]string{}}
	for port := range uint16(1000) {
		report.Ports[60000+port] = "IPv4"
	}
	text := report.String()
	if got, err := signal.ParseQueueReport(text); err != nil || len(text) > maxAnnotation || got.Epoch != 7 || got.Message == "" || len(got.Ports) > 0 {
		t.Errorf("report of %d bytes: %+v, %v", len(text), got, err)
	}
}
