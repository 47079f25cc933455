package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The requests of other singletons, users and times do not count. The time of requests counts for every singleton, but not
// that of requests for which no reconcile of a singleton waits.
func TestCountRequests(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	line := func(user, verb, uri, object string, at, took time.Duration) string {
		return fmt.Sprintf(`{"verb":%q,"requestURI":%q,"requestReceivedTimestamp":%q,"stageTimestamp":%q,"user":{"username":%q},"objectRef":%s}`+"\n",
			verb, uri, begin.Add(at).Format(time.RFC3339Nano), begin.Add(at+took).Format(time.RFC3339Nano), user, object)
	}
	const mine, theirs = `{"resource":"pods","namespace":"a","name":"s0000-x"}`, `{"resource":"pods","namespace":"b","name":"s0001-x"}`
	controller, ms := world.ControllerUser, time.Millisecond
	log := line(controller, "patch", "/api/v1/namespaces/a/pods/s0000-x", mine, ms, 20*ms) +
		line(controller, "get", "/api/v1/namespaces/b/pods/s0001-x", theirs, ms, 10*ms) +
		line(controller, "get", "/api/v1/nodes/kwok-0", `{"resource":"nodes","name":"kwok-0"}`, ms, 5*ms) +
		line(controller, "create", "/api/v1/namespaces/a/pods?dryRun=All", mine, ms, 500*ms) +
		line(controller, "create", "/api/v1/namespaces/a/events", `{"resource":"events","namespace":"a"}`, ms, 500*ms) +
		line(controller, "watch", "/api/v1/pods", `{"resource":"pods"}`, ms, 500*ms) +
		line(controller, "patch", "/api/v1/namespaces/a/pods/s0000-x", mine, -ms, 500*ms) +
		line("someone", "patch", "/api/v1/namespaces/a/pods/s0000-x", mine, ms, 500*ms)
	state := t.TempDir()
	t.Setenv("STATEFULSINGLETON_CLUSTER", state)
	if err := os.Mkdir(filepath.Join(state, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "logs/control-audit.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	got := &figures.Handoffs{}
	if err := countRequests(got, []singleton{{Namespace: "a", Name: "s0000"}}, begin, begin.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	want := &figures.Handoffs{
		Writes: 2, DryRuns: 1, Reads: 1, RequestMS: 35,
		Requests: map[string]float64{"patch pods": 1, "get nodes": 1, "create pods (dry-run)": 1, "create events": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
