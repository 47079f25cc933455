package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The requests of other singletons, users and times do not count, and neither do dry-runs and watches.
func TestCountRequests(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	line := func(user, verb, uri, object string, at time.Duration) string {
		return fmt.Sprintf(`{"verb":%q,"requestURI":%q,"requestReceivedTimestamp":%q,"user":{"username":%q},"objectRef":%s}`+"\n",
			verb, uri, begin.Add(at).Format(time.RFC3339Nano), user, object)
	}
	const mine, theirs = `{"resource":"pods","namespace":"a","name":"s0000-x"}`, `{"resource":"pods","namespace":"b","name":"s0001-x"}`
	controller, ms := world.ControllerUser, time.Millisecond
	log := line(controller, "patch", "/api/v1/namespaces/a/pods/s0000-x", mine, ms) +
		line(controller, "get", "/api/v1/namespaces/b/pods/s0001-x", theirs, ms) +
		line(controller, "get", "/api/v1/nodes/kwok-0", `{"resource":"nodes","name":"kwok-0"}`, ms) +
		line(controller, "create", "/api/v1/namespaces/a/pods?dryRun=All", mine, ms) +
		line(controller, "create", "/api/v1/namespaces/a/events", `{"resource":"events","namespace":"a"}`, ms) +
		line(controller, "watch", "/api/v1/pods", `{"resource":"pods"}`, ms) +
		line(controller, "patch", "/api/v1/namespaces/a/pods/s0000-x", mine, -ms) +
		line("someone", "patch", "/api/v1/namespaces/a/pods/s0000-x", mine, ms)
	state := t.TempDir()
	t.Setenv("STATEFULSINGLETON_CLUSTER", state)
	if err := os.Mkdir(filepath.Join(state, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "logs/control-audit.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	got := &handoffs{}
	if err := countRequests(got, []singleton{{Namespace: "a", Name: "s0000"}}, begin, begin.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	want := &handoffs{Writes: 2, Reads: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
