package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// startLock returns a pod of a StatefulSetLock whose sidecar runs. The test runs in parallel with others.
func startLock(t *testing.T, seconds int, held ...string) *fencedPod {
	t.Helper()
	t.Parallel()
	f := newFenced(t, seconds, held...)
	f.sidecar.Env = append(f.sidecar.Env, signal.LockEnv+"=db")
	f.startSidecar()
	return f
}

// withRole starts a held container of a pod of a StatefulSetLock.
func (f *fencedPod) withRole(name, script, hooks string) *process {
	f.t.Helper()
	c := f.held(name, script)
	c.Env = append(c.Env, signal.HooksEnv+"="+hooks)
	return f.start(c)
}

// endsOnTerm makes a script end on SIGTERM.
const endsOnTerm = `trap 'exit 0' TERM; `

// writesAsWriter is a script that says its role, and writes to a file while it is the writer. It ends on SIGTERM.
func writesAsWriter(file string) string {
	return `echo "I am the $STATEFULSETLOCK_ROLE of epoch $STATEFULSETLOCK_EPOCH" >&2; ` + endsOnTerm +
		`while :; do [ "$STATEFULSETLOCK_ROLE" = reader ] || echo x >>/data/` + file + `; [ -e /data/kill-` + file + ` ] && kill -KILL $$; sleep 0.01; done`
}

// readers returns how often the main process has started as a reader.
func (p *process) readers() int { return strings.Count(p.said(), "I am the reader") }

// awaitWriting waits until the Lease says that the holder runs the writer with the epoch.
func (f *fencedPod) awaitWriting(epoch int) {
	f.t.Helper()
	eventually(f.t, "the Lease says that the pod writes", func() bool { return f.writing() == strconv.Itoa(epoch) })
}

// becomesWriter grants the Lease, and waits until the Lease says that the pod writes.
func (f *fencedPod) becomesWriter(epoch int) {
	f.t.Helper()
	f.grant(epoch)
	f.awaitWriting(epoch)
}

// endsTenure revokes the tenure, and waits until the pod has released the Lease and does not write.
func (f *fencedPod) endsTenure(epoch int) {
	f.t.Helper()
	f.revoke(epoch)
	f.awaitReleased()
	f.wantRests("app")
}

const reader = `{"role":"reader"}`

// wantRole waits until the file with the role has the content.
func (f *fencedPod) wantRole(want string) {
	f.t.Helper()
	eventually(f.t, "role "+want, func() bool {
		content, _ := os.ReadFile(filepath.Join(f.volume, filepath.Base(signal.RoleFile)))
		return strings.TrimSpace(string(content)) == want
	})
}

// A main process runs as a reader, starts again as the writer when the pod gets a tenure, and as a reader when the tenure
// ends.
func TestRoleChanges(t *testing.T) {
	f := startLock(t, 5)
	app := f.withRole("app", writesAsWriter("app"), "{}")
	app.says("I am the reader of epoch 0")
	f.wantRole(reader)
	for epoch := 7; epoch < 9; epoch++ {
		f.becomesWriter(epoch)
		app.says("I am the writer of epoch " + strconv.Itoa(epoch))
		f.wantRole(`{"role":"writer","epoch":` + strconv.Itoa(epoch) + `}`)
		f.wantGrows("app")
		f.endsTenure(epoch)
		f.wantRole(reader)
	}
	app.stop(0)
}

// A writer that is killed releases the Lease at once, and its container ends with its exit code.
func TestRoleWriterIsKilled(t *testing.T) {
	f := startLock(t, 60, "app", "web")
	app, web := f.withRole("app", writesAsWriter("app"), "{}"), f.withRole("web", writesAsWriter("web"), "{}")
	f.becomesWriter(7)
	f.wantGrows("app")
	f.wantGrows("web")
	begun := time.Now()
	f.write(f.root+"/data/kill-app", "", 0o644)
	f.awaitReleased()
	wantWithin(t, begun, time.Second, "the release")
	f.wantRests("app", "web")
	app.wantExit(137)
	web.says("I am the reader of epoch 0")
}

// Without renewals, the writer ends before the Lease expires, and runs as a reader.
func TestRoleExpiry(t *testing.T) {
	t.Parallel()
	for name, ignores := range map[string]bool{"a writer that stops": false, "a writer that ignores SIGTERM": true} {
		t.Run(name, func(t *testing.T) {
			f := startLock(t, 5)
			script := writesAsWriter("app")
			if ignores {
				script = strings.Replace(script, endsOnTerm, `[ "$STATEFULSETLOCK_ROLE" = reader ] && trap 'exit 0' TERM || trap '' TERM; `, 1)
			}
			app := f.withRole("app", script, "{}")
			f.grant(7)
			f.wantGrows("app")
			f.awaitRenewals(2)
			begun := time.Now()
			f.setAway(true)
			if ignores {
				app.wantExit(137)
			} else {
				eventually(t, "the reader after the writer", func() bool {
					said := app.said()
					return strings.LastIndex(said, "I am the reader") > strings.Index(said, "I am the writer")
				})
			}
			wantWithin(t, begun, 5*time.Second, "the end of the writer")
			f.wantRests("app")
			f.wantRole(reader)
		})
	}
}

// Hooks change the role of a main process that keeps running.
func TestRoleHooks(t *testing.T) {
	f := startLock(t, 60)
	app := f.withRole("app", `echo "started as $STATEFULSETLOCK_ROLE" >&2; `+endsOnTerm+`while :; do [ -e /data/writer ] && echo x >>/data/app; sleep 0.01; done`,
		`{"promote":["sh","-c","echo promote $STATEFULSETLOCK_EPOCH >&2; touch /data/writer"],"demote":["rm","/data/writer"]}`)
	app.says("started as reader")
	for epoch := 7; epoch < 9; epoch++ {
		f.becomesWriter(epoch)
		app.says("promote " + strconv.Itoa(epoch))
		f.wantGrows("app")
		f.endsTenure(epoch)
	}
	if starts := strings.Count(app.said(), "started as"); starts != 1 {
		t.Errorf("the main process started %d times", starts)
	}
}

// A pod whose promote hook fails gives up its tenure, and its main process starts again as a reader.
func TestRolePromoteFails(t *testing.T) {
	f := startLock(t, 60)
	app := f.withRole("app", writesAsWriter("app"), `{"promote":["false"]}`)
	app.says("I am the reader")
	f.grant(7)
	f.awaitReleased()
	eventually(t, "the next reader", func() bool { return app.readers() == 2 })
}

// A writer keeps running while its sidecar restarts, and then ends its tenure as before.
func TestRoleSidecarRestarts(t *testing.T) {
	f := startLock(t, 15)
	app := f.withRole("app", writesAsWriter("app"), "{}")
	f.becomesWriter(7)
	f.running.kill()
	f.startSidecar()
	f.awaitRenewals(2)
	f.wantGrows("app")
	if starts := strings.Count(app.said(), "I am the writer"); starts != 1 {
		t.Errorf("the writer started %d times", starts)
	}
	f.wantRole(`{"role":"writer","epoch":7}`)
	f.endsTenure(7)
}

// A gate whose reader did not end before its pod lost the Lease has started no writer. The sidecar knows of the writer that
// the gate starts in the next tenure.
func TestRoleMissesATenure(t *testing.T) {
	f := startLock(t, 60)
	script := strings.Replace(writesAsWriter("app"), endsOnTerm, "trap 'until [ -e /data/end ]; do sleep 0.01; done; exit 0' TERM; ", 1)
	app := f.withRole("app", script, "{}")
	app.says("I am the reader")
	f.grant(7)
	f.awaitState("MayRun")
	app.says("The role changes")
	f.grantTo("other", 8)
	f.wantRole(reader)
	f.write(f.root+"/data/end", "", 0o644)
	eventually(t, "the next reader", func() bool { return app.readers() == 2 })
	f.becomesWriter(9)
	f.awaitState(`{"app":{"state":"MayRun"}}`)
	if said := app.said(); strings.Contains(said, "I am the writer of epoch 7") {
		t.Errorf("the pod was the writer after it lost the Lease:\n%s", said)
	}
}

// The environment of a container does not let a main process of a StatefulSingleton run.
func TestRoleOfASingleton(t *testing.T) {
	f := startFenced(t, 5)
	app := f.withRole("app", writesAsWriter("app"), "{}")
	app.says("Waiting for container status-sidecar to write the role of the pod")
	f.grant(7)
	f.awaitRenewals(2)
	app.stop(143)
	if said := app.said(); strings.Contains(said, "I am") {
		t.Errorf("the main process has started:\n%s", said)
	}
}

// The sidecar does not renew the Lease of a tenure that ends if the gate of the writer is gone. Another pod becomes the writer
// after the Lease has expired.
func TestRoleGateIsGone(t *testing.T) {
	f := startLock(t, 5)
	app := f.withRole("app", writesAsWriter("app"), "{}")
	f.becomesWriter(7)
	app.kill()
	f.wantHeld()
	f.revoke(7)
	f.awaitSilence(3 * time.Second) // three periods
	f.wantHolder(fencedIdentity)    // the pod must not release the Lease without a report
}

// A sidecar that restarts during a promote hook does not take the pod for the writer.
func TestRoleSidecarRestartsDuringTheHook(t *testing.T) {
	f := startLock(t, 15)
	app := f.withRole("app", writesAsWriter("app"), `{"promote":["sh","-c","echo promoting >&2; until [ -e /data/promoted ]; do sleep 0.01; done"]}`)
	f.grant(7)
	app.says("promoting")
	f.running.kill()
	f.startSidecar()
	f.awaitRenewals(2)
	if writing := f.writing(); writing != "" {
		t.Errorf("the Lease says that the pod writes with epoch %s", writing)
	}
	f.write(f.root+"/data/promoted", "", 0o644)
	f.awaitWriting(7)
}
