package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// lockSidecar returns the sidecar of a pod of a StatefulSetLock.
func (p *pod) lockSidecar(t *testing.T, s *leaseServer, seconds int, held ...string) container {
	t.Helper()
	c := p.fencedSidecar(t, s, seconds, held...)
	c.Env = append(c.Env, signal.LockEnv+"=db")
	return c
}

// lockContainer returns a container of a pod of a StatefulSetLock.
func (p *pod) lockContainer(t *testing.T, name, script, hooks string) container {
	t.Helper()
	c := p.fencedContainer(t, name, script)
	c.Env = append(c.Env, signal.HooksEnv+"="+hooks)
	return c
}

// writesAsWriter is a script that says its role, and writes to a file while it is the writer. It ends on SIGTERM.
func writesAsWriter(file string) string {
	return `echo "I am the $STATEFULSETLOCK_ROLE of epoch $STATEFULSETLOCK_EPOCH" >&2; trap 'exit 0' TERM; ` +
		`while :; do [ "$STATEFULSETLOCK_ROLE" = reader ] || echo x >>/data/` + file + `; [ -e /data/kill ] && kill -KILL $$; sleep 0.001; done`
}

// revoke makes the holder end its tenure.
func (s *leaseServer) revoke(epoch int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	annotations, spec := s.last()
	annotations[signal.RevokedAnnotation] = strconv.Itoa(epoch)
	s.write(annotations, spec)
}

// writing returns the epoch with which the holder runs the writer, by the Lease.
func (s *leaseServer) writing() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	annotations, _ := s.last()
	epoch, _ := annotations[signal.WritingAnnotation].(string)
	return epoch
}

// awaitWriting waits until the Lease says that the holder runs the writer with the epoch.
func (s *leaseServer) awaitWriting(t *testing.T, epoch int) {
	t.Helper()
	eventually(t, "the Lease says that the pod writes", func() bool { return s.writing() == strconv.Itoa(epoch) })
}

// wantRole waits until the file with the role has the content.
func (p *pod) wantRole(t *testing.T, want string) {
	t.Helper()
	eventually(t, "role "+want, func() bool {
		content, _ := os.ReadFile(filepath.Join(p.volume, filepath.Base(signal.RoleFile)))
		return strings.TrimSpace(string(content)) == want
	})
}

// A main process runs as a reader, starts again as the writer when the pod gets a tenure, and as a reader when the tenure
// ends.
func TestRoleChanges(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.lockSidecar(t, s, 5, "app"))
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), "{}"))
	app.says(t, "I am the reader of epoch 0")
	p.wantRole(t, `{"role":"reader"}`)
	for epoch := 7; epoch < 9; epoch++ {
		s.grant(fencedIdentity, epoch)
		app.says(t, "I am the writer of epoch "+strconv.Itoa(epoch))
		s.awaitWriting(t, epoch)
		p.wantRole(t, `{"role":"writer","epoch":`+strconv.Itoa(epoch)+`}`)
		p.wantGrows(t, "app")
		s.revoke(epoch)
		s.awaitReleased(t)
		p.wantRests(t, "app")
		p.wantRole(t, `{"role":"reader"}`)
	}
	must(t, app.Process.Signal(syscall.SIGTERM))
	if code := app.exit(t); code != 0 {
		t.Errorf("exit code %d; stderr:\n%s", code, read(t, app.stderr))
	}
}

// A writer that is killed releases the Lease at once, and its container ends with its exit code.
func TestRoleWriterIsKilled(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.lockSidecar(t, s, 60, "app", "web"))
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), "{}"))
	web := start(t, p.lockContainer(t, "web", strings.Replace(writesAsWriter("web"), "/data/kill", "/data/other", 1), "{}"))
	s.grant(fencedIdentity, 7)
	s.awaitWriting(t, 7)
	p.wantGrows(t, "app")
	p.wantGrows(t, "web")
	begun := time.Now()
	p.write(t, p.root+"/data/kill", "", 0o644)
	s.awaitReleased(t)
	if took := time.Since(begun); took > time.Second {
		t.Errorf("released after %s", took)
	}
	p.wantRests(t, "app")
	p.wantRests(t, "web")
	if code := app.exit(t); code != 137 {
		t.Errorf("exit code %d", code)
	}
	web.says(t, "I am the reader of epoch 0")
}

// Without renewals, the writer ends before the Lease expires, and runs as a reader.
func TestRoleExpiry(t *testing.T) {
	t.Parallel()
	for name, ignore := range map[string]string{"a writer that stops": "", "a writer that ignores SIGTERM": "trap '' TERM; "} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := newLeaseServer(t), newPod(t)
			start(t, p.lockSidecar(t, s, 5, "app"))
			script := writesAsWriter("app")
			if ignore != "" {
				script = strings.Replace(script, "trap 'exit 0' TERM; ", `[ "$STATEFULSETLOCK_ROLE" = reader ] && trap 'exit 0' TERM || trap '' TERM; `, 1)
			}
			app := start(t, p.lockContainer(t, "app", script, "{}"))
			s.grant(fencedIdentity, 7)
			p.wantGrows(t, "app")
			s.awaitRenewals(t, 2)
			begun := time.Now()
			s.setAway(true)
			if ignore == "" {
				eventually(t, "the reader after the writer", func() bool {
					said := read(t, app.stderr)
					return strings.LastIndex(said, "I am the reader") > strings.Index(said, "I am the writer")
				})
			} else if code := app.exit(t); code != 137 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("the writer ended after %s", took)
			}
			p.wantRests(t, "app")
			p.wantRole(t, `{"role":"reader"}`)
		})
	}
}

// Hooks change the role of a main process that keeps running.
func TestRoleHooks(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.lockSidecar(t, s, 60, "app"))
	script := `echo "started as $STATEFULSETLOCK_ROLE" >&2; trap 'exit 0' TERM; while :; do [ -e /data/writer ] && echo x >>/data/app; sleep 0.001; done`
	app := start(t, p.lockContainer(t, "app", script, `{"promote":["sh","-c","echo promote $STATEFULSETLOCK_EPOCH >&2; touch /data/writer"],"demote":["rm","/data/writer"]}`))
	app.says(t, "started as reader")
	for epoch := 7; epoch < 9; epoch++ {
		s.grant(fencedIdentity, epoch)
		app.says(t, "promote "+strconv.Itoa(epoch))
		s.awaitWriting(t, epoch)
		p.wantGrows(t, "app")
		s.revoke(epoch)
		s.awaitReleased(t)
		p.wantRests(t, "app")
	}
	if starts := strings.Count(read(t, app.stderr), "started as"); starts != 1 {
		t.Errorf("the main process started %d times", starts)
	}
}

// A pod whose promote hook fails gives up its tenure, and its main process starts again as a reader.
func TestRolePromoteFails(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.lockSidecar(t, s, 60, "app"))
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), `{"promote":["false"]}`))
	app.says(t, "I am the reader")
	s.grant(fencedIdentity, 7)
	s.awaitReleased(t)
	eventually(t, "the next reader", func() bool { return strings.Count(read(t, app.stderr), "I am the reader") == 2 })
}

// A writer keeps running while its sidecar restarts, and then ends its tenure as before.
func TestRoleSidecarRestarts(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	c := p.lockSidecar(t, s, 15, "app")
	sidecar := start(t, c)
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), "{}"))
	s.grant(fencedIdentity, 7)
	s.awaitWriting(t, 7)
	must(t, sidecar.Process.Kill())
	_ = sidecar.exit(t)
	start(t, c)
	s.awaitRenewals(t, 2)
	p.wantGrows(t, "app")
	if starts := strings.Count(read(t, app.stderr), "I am the writer"); starts != 1 {
		t.Errorf("the writer started %d times", starts)
	}
	p.wantRole(t, `{"role":"writer","epoch":7}`)
	s.revoke(7)
	s.awaitReleased(t)
	p.wantRests(t, "app")
}

// A gate whose reader did not end before its pod lost the Lease has started no writer. The sidecar knows of the writer that
// the gate starts in the next tenure.
func TestRoleMissesATenure(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.lockSidecar(t, s, 60, "app"))
	script := strings.Replace(writesAsWriter("app"), "trap 'exit 0' TERM; ", "trap 'until [ -e /data/end ]; do sleep 0.001; done; exit 0' TERM; ", 1)
	app := start(t, p.lockContainer(t, "app", script, "{}"))
	app.says(t, "I am the reader")
	s.grant(fencedIdentity, 7)
	p.awaitState(t, "MayRun")
	app.says(t, "The role changes")
	s.grant("other", 8)
	p.wantRole(t, `{"role":"reader"}`)
	p.write(t, p.root+"/data/end", "", 0o644)
	eventually(t, "the next reader", func() bool { return strings.Count(read(t, app.stderr), "I am the reader") == 2 })
	s.grant(fencedIdentity, 9)
	s.awaitWriting(t, 9)
	p.awaitState(t, `{"app":{"state":"MayRun"}}`)
	if said := read(t, app.stderr); strings.Contains(said, "I am the writer of epoch 7") {
		t.Errorf("the pod was the writer after it lost the Lease:\n%s", said)
	}
}

// The environment of a container does not let a main process of a StatefulSingleton run.
func TestRoleOfASingleton(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), "{}"))
	app.says(t, "Waiting for container status-sidecar to write the role of the pod")
	s.grant(fencedIdentity, 7)
	s.awaitRenewals(t, 2)
	must(t, app.Process.Signal(syscall.SIGTERM))
	if code := app.exit(t); code != 143 {
		t.Errorf("exit code %d", code)
	}
	if said := read(t, app.stderr); strings.Contains(said, "I am") {
		t.Errorf("the main process has started:\n%s", said)
	}
}

// The sidecar does not renew the Lease of a tenure that ends if the gate of the writer is gone. Another pod becomes the writer
// after the Lease has expired.
func TestRoleGateIsGone(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.lockSidecar(t, s, 5, "app"))
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), "{}"))
	s.grant(fencedIdentity, 7)
	s.awaitWriting(t, 7)
	must(t, app.Process.Kill())
	_ = app.exit(t)
	s.wantHeld(t)
	s.revoke(7)
	_, last := s.counts()
	silent := time.Now()
	eventually(t, "no renewal for three periods", func() bool {
		if _, now := s.counts(); now != last {
			last, silent = now, time.Now()
		}
		return time.Since(silent) > 3*time.Second
	})
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q: the pod must not release the Lease without a report", holder)
	}
}

// A sidecar that restarts during a promote hook does not take the pod for the writer.
func TestRoleSidecarRestartsDuringTheHook(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	c := p.lockSidecar(t, s, 15, "app")
	sidecar := start(t, c)
	app := start(t, p.lockContainer(t, "app", writesAsWriter("app"), `{"promote":["sh","-c","echo promoting >&2; until [ -e /data/promoted ]; do sleep 0.01; done"]}`))
	s.grant(fencedIdentity, 7)
	app.says(t, "promoting")
	must(t, sidecar.Process.Kill())
	_ = sidecar.exit(t)
	start(t, c)
	s.awaitRenewals(t, 2)
	if writing := s.writing(); writing != "" {
		t.Errorf("the Lease says that the pod writes with epoch %s", writing)
	}
	p.write(t, p.root+"/data/promoted", "", 0o644)
	s.awaitWriting(t, 7)
}
