package results

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/bench/figures"
)

var update = flag.Bool("update", false, "update the golden files")

// results returns invented results in round numbers.
func results() *Results {
	triple := func(n int64) figures.Distribution { return figures.Distribution{P50: n, P95: 2 * n, Max: 3 * n} }
	return &Results{
		Date:       time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine:    figures.Machine{CPU: "a processor", CPUs: 2, MemoryGiB: 16, Kernel: "6.1", System: "a system", Nodes: 2},
		Versions:   map[string]string{"statefulsingleton": "abc1234", "kyverno": "v1.19.1"},
		Namespaces: 50, Nodes: 22, IdleSeconds: 60,
		Steps: []Step{
			{Singletons: 1, Injected: 1, InstallSeconds: 1, Kyverno: Kyverno{MiB: 100, Policies: 1, Webhooks: 1, WebhookBytes: 3000, SelectedMS: triple(30), OtherMS: triple(3)}},
			{
				Singletons: 1000, Injected: 500, Refused: "NotInjected: not held", InstallSeconds: 300,
				Controller: Controller{IdleMiB: 90, PeakMiB: 120, IdleCores: 0.0625, IdleReconciles: 3.25, IdleRequests: 30, RestartSeconds: 60},
				Kyverno: Kyverno{
					MiB: 300, Policies: 1000, Webhooks: 500, WebhookBytes: 1500000, Error: "request is too large",
					SelectedMS: triple(50), OtherMS: triple(20),
				},
				Handoffs: []Handoffs{{
					Cause: "deletion", N: 100, DecidedMS: triple(1000), ReadyMS: triple(1500),
					Legs:  []figures.Leg{{From: "cause", To: figures.Asked, Distribution: triple(100)}},
					Cores: 0.5, QueueMS: 2.5, Writes: 7.5, DryRuns: 0.25, Reads: 25,
					Requests: map[string]float64{"patch pods": 2, "get nodes": 1.25},
				}},
			},
			{Singletons: 1000, PolicyPer: "namespace", Injected: 1000, InstallSeconds: 30, Kyverno: Kyverno{MiB: 200, Policies: 50, Webhooks: 50}},
		},
		Forms: []Form{
			{Name: "each its own", WrittenSeconds: 50, Refused: "not injected", Kyverno: Kyverno{MiB: 300, Policies: 1000, Webhooks: 500}},
			{Name: "one for all", WrittenSeconds: 40, ServedSeconds: 45, Kyverno: Kyverno{MiB: 200, Policies: 1000, Webhooks: 1, SelectedMS: triple(30), OtherMS: triple(5)}},
		},
	}
}

func TestTables(t *testing.T) {
	got, err := results().Tables()
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "tables.md")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("tables (-want +got), update them with go test -update:\n%s", diff)
	}
}

func TestWriteAndRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "benchmarks", "scale.json")
	if err := results().Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(results(), got); diff != "" {
		t.Errorf("results (-written +read):\n%s", diff)
	}
}
