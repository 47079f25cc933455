package main

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
)

// leaseServer is an API server with one Lease.
type leaseServer struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	// history has each state of the Lease, from version 1 on.
	history []map[string]any
	// changed is closed after the next write.
	changed chan struct{}
	// away is true while the server answers no request.
	away bool
	// delay is the time between a write and its answer.
	delay time.Duration
}

func newLeaseServer(t *testing.T) *leaseServer {
	t.Helper()
	s := &leaseServer{changed: make(chan struct{})}
	s.write(map[string]any{}, map[string]any{"leaseTransitions": 0})
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// write stores the next state of the Lease. s.mu is locked, or the server has not started.
func (s *leaseServer) write(annotations, spec map[string]any) {
	s.version++
	s.history = append(s.history, map[string]any{
		"metadata": map[string]any{"name": "db", "resourceVersion": strconv.Itoa(s.version), "annotations": annotations}, "spec": spec,
	})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *leaseServer) last() (annotations, spec map[string]any) {
	now := s.history[len(s.history)-1]
	return maps.Clone(now["metadata"].(map[string]any)["annotations"].(map[string]any)), maps.Clone(now["spec"].(map[string]any))
}

// grant makes the pod the holder.
func (s *leaseServer) grant(holder string, epoch int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	annotations, spec := s.last()
	spec["holderIdentity"], spec["leaseTransitions"] = holder, epoch
	s.write(annotations, spec)
}

func (s *leaseServer) retire(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	annotations, spec := s.last()
	annotations[fencing.RetireAnnotation] = uid
	s.write(annotations, spec)
}

func (s *leaseServer) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, spec := s.last()
	holder, _ := spec["holderIdentity"].(string)
	return holder
}

func (s *leaseServer) setAway(away bool) {
	s.mu.Lock()
	s.away = away
	s.mu.Unlock()
	if away {
		s.CloseClientConnections()
	}
}

func (s *leaseServer) setDelay(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

func (s *leaseServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.away:
		http.Error(w, "away", http.StatusServiceUnavailable)
	case r.Header.Get("Authorization") != "Bearer secret":
		http.Error(w, "no token", http.StatusUnauthorized)
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") == "true":
		s.watch(w, r)
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(s.history[len(s.history)-1])
	case r.Method == http.MethodPatch:
		var patch struct {
			Metadata struct{ ResourceVersion string }
			Spec     map[string]any
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if patch.Metadata.ResourceVersion != strconv.Itoa(s.version) {
			http.Error(w, "the object has been modified", http.StatusConflict)
			return
		}
		annotations, spec := s.last()
		maps.Copy(spec, patch.Spec)
		s.write(annotations, spec)
		answer, delay := s.history[len(s.history)-1], s.delay
		s.mu.Unlock()
		time.Sleep(delay)
		s.mu.Lock()
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// watch sends the states since the resourceVersion. s.mu is locked.
func (s *leaseServer) watch(w http.ResponseWriter, r *http.Request) {
	sent, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for {
		for ; sent < len(s.history); sent++ {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": s.history[sent]})
		}
		w.(http.Flusher).Flush()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if r.Context().Err() != nil || s.away {
			return
		}
	}
}

const fencedPod = "db-1"

var fencedIdentity = fencing.HolderIdentity(fencedPod, podUID)

// fencedSidecar returns the sidecar of a pod with fencing.
func (p *pod) fencedSidecar(t *testing.T, s *leaseServer, seconds int, held ...string) container {
	t.Helper()
	dir := p.root + fencing.CredentialsDir
	must(t, os.MkdirAll(dir, 0o755))
	p.write(t, dir+"/token", "secret\n", 0o644)
	p.write(t, dir+"/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})), 0o644)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	must(t, err)
	return p.sidecar("KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port, fencing.LeaseEnv+"=prod/db",
		fencing.DurationEnv+"="+strconv.Itoa(seconds), fencing.HeldEnv+"="+strings.Join(held, ","), fencing.PodNameEnv+"="+fencedPod)
}

// fencedContainer returns a held container whose main process is a shell script. The directory /data is writable.
func (p *pod) fencedContainer(t *testing.T, name, script string) container {
	t.Helper()
	must(t, os.MkdirAll(p.root+"/dev", 0o755))
	p.write(t, p.root+"/dev/null", "", 0o644)
	c := p.wrapped(shell(script)...)
	c.Env = append(c.Env, fencing.ContainerEnv+"="+name)
	c.Data = true
	return c
}

// writes is a script that writes its epoch to a file until it is stopped.
func writes(file string) string {
	return fmt.Sprintf(`echo $STATEFULSINGLETON_EPOCH >&2; while :; do echo x >>/data/%s; sleep 0.001; done`, file)
}

func (p *pod) size(file string) int64 { return fileSize(filepath.Join(p.root, "data", file)) }

// wantGrows waits until the file grows.
func (p *pod) wantGrows(t *testing.T, file string) {
	t.Helper()
	before := p.size(file)
	eventually(t, file+" grows", func() bool { return p.size(file) > before })
}

// wantRests fails if the file grows.
func (p *pod) wantRests(t *testing.T, file string) {
	t.Helper()
	before := p.size(file)
	if time.Sleep(100 * time.Millisecond); p.size(file) != before {
		t.Errorf("%s grows", file)
	}
}

// A pod runs its main process while it holds the Lease, and releases the Lease after its main process has ended.
func TestFencedHandoff(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	app := start(t, p.fencedContainer(t, "app", `trap 'sleep 0.2; echo x >>/data/app; exit 3' TERM; `+writes("app")))
	app.says(t, "Held")
	s.grant("db-0_other", 6)
	p.wantRests(t, "app")

	s.grant(fencedIdentity, 7)
	app.says(t, "7\n")
	p.wantGrows(t, "app")
	time.Sleep(6 * time.Second) // more than the duration
	p.wantGrows(t, "app")

	s.retire(podUID)
	p.wantGrows(t, "app")
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q while the main process runs", holder)
	}
	must(t, app.Process.Signal(syscall.SIGTERM))
	if code := app.exit(t); code != 3 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, "the Lease is released", func() bool { return s.holder() == "" })
	p.wantRests(t, "app")

	// The kubelet would restart the container.
	again := start(t, p.fencedContainer(t, "app", writes("app")))
	again.says(t, "Held")
	s.grant(fencedIdentity, 8)
	time.Sleep(time.Second)
	p.wantRests(t, "app")
}

// A command that cannot be started does not run, and its gate says so.
func TestFencedStartFails(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app"))
	s.grant(fencedIdentity, 7)
	c := p.fencedContainer(t, "app", "")
	c.Argv = []string{"/gate", "wrap", "--", "/missing"}
	if code, _, stderr := runToEnd(t, c); code != 127 || !strings.Contains(stderr, `start the main process "/missing"`) {
		t.Errorf("exit code %d; stderr:\n%s", code, stderr)
	}
	s.retire(podUID)
	eventually(t, "the Lease is released", func() bool { return s.holder() == "" })
}

// The main process restarts while the pod holds the Lease.
func TestFencedRestart(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	s.grant(fencedIdentity, 7)
	for range 3 {
		if code, _, stderr := runToEnd(t, p.fencedContainer(t, "app", "exit 4")); code != 4 {
			t.Fatalf("exit code %d; stderr:\n%s", code, stderr)
		}
	}
	s.retire(podUID)
	eventually(t, "the Lease is released", func() bool { return s.holder() == "" })
}

// Without renewals, the main process gets SIGTERM after two thirds of the duration, and SIGKILL before its end.
func TestFencedExpiry(t *testing.T) {
	for name, cut := range map[string]func(s *leaseServer, sidecar *process){
		"the API server is away": func(s *leaseServer, _ *process) { s.setAway(true) },
		"the sidecar is stopped": func(_ *leaseServer, sidecar *process) { _ = sidecar.Process.Signal(syscall.SIGSTOP) },
		"the sidecar is killed":  func(_ *leaseServer, sidecar *process) { _ = sidecar.Process.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := newLeaseServer(t), newPod(t)
			sidecar := start(t, p.fencedSidecar(t, s, 5, "app"))
			app := start(t, p.fencedContainer(t, "app", `trap 'echo terminated >&2' TERM; `+writes("app")))
			s.grant(fencedIdentity, 7)
			p.wantGrows(t, "app")
			time.Sleep(1500 * time.Millisecond) // it was renewed
			begun := time.Now()
			cut(s, sidecar)
			app.says(t, "terminated")
			stopped := time.Since(begun)
			if code := app.exit(t); code != 137 {
				t.Errorf("exit code %d; stderr:\n%s", code, read(t, app.stderr))
			}
			if killed := time.Since(begun); stopped < 2*time.Second || killed > 5*time.Second {
				t.Errorf("SIGTERM after %s, end after %s", stopped, killed)
			}
			p.wantRests(t, "app")
		})
	}
}

// The term of a renewal begins when the request is sent, and not with the answer.
func TestFencedSlowRenewal(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	app := start(t, p.fencedContainer(t, "app", `trap 'echo terminated >&2; exit 9' TERM; `+writes("app")))
	s.setDelay(1500 * time.Millisecond)
	s.grant(fencedIdentity, 7)
	app.says(t, "7\n")
	begun := time.Now()
	s.setAway(true)
	app.says(t, "terminated")
	// Two thirds of the duration after the request was sent, which is at most 1.8 s after its answer.
	if stopped := time.Since(begun); stopped > 2500*time.Millisecond {
		t.Errorf("SIGTERM %s after the answer", stopped)
	}
}

// Nothing starts if the sidecar could forget it.
func TestFencedFullVolume(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	must(t, os.MkdirAll(p.volume+"/fence.json.partial", 0o755)) // the state cannot be written
	sidecar := start(t, p.fencedSidecar(t, s, 60, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	app.says(t, "Held")
	s.grant(fencedIdentity, 7)
	sidecar.says(t, "Cannot store the state")
	p.wantRests(t, "app")
}

// A pod that is no longer named ends its processes at once.
func TestFencedUnnamed(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	s.grant("db-2_other", 8)
	if code := app.exit(t); code != 137 {
		t.Errorf("exit code %d", code)
	}
}

// A gate that is killed reports nothing, so the pod does not release the Lease.
func TestFencedGateIsKilled(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	must(t, app.Process.Kill())
	_ = app.exit(t)
	s.retire(podUID)
	time.Sleep(time.Second)
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q", holder)
	}
}

// The main process survives a restart of the sidecar, and the Lease is not released on later reports.
func TestFencedSidecarRestarts(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	c := p.fencedSidecar(t, s, 5, "app")
	sidecar := start(t, c)
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	must(t, sidecar.Process.Kill())
	_ = sidecar.exit(t)
	start(t, c)
	time.Sleep(6 * time.Second) // more than the duration
	p.wantGrows(t, "app")

	s.retire(podUID)
	must(t, app.Process.Signal(syscall.SIGTERM))
	_ = app.exit(t)
	time.Sleep(time.Second)
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q", holder)
	}
}

// Every held container must have ended.
func TestFencedContainers(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app", "web"))
	app, web := start(t, p.fencedContainer(t, "app", writes("app"))), start(t, p.fencedContainer(t, "web", writes("web")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	p.wantGrows(t, "web")
	s.retire(podUID)
	must(t, app.Process.Signal(syscall.SIGTERM))
	_ = app.exit(t)
	time.Sleep(time.Second)
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q while container web runs", holder)
	}
	must(t, web.Process.Signal(syscall.SIGTERM))
	_ = web.exit(t)
	eventually(t, "the Lease is released", func() bool { return s.holder() == "" })
}

// A main process can't report its own end.
func TestFencedForgedReport(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app"))
	forge := `perl -MSocket -e 'for my $c ("app", "web") { socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($s, sockaddr_un("/var/run/signal/fence.sock")) or die;
		syswrite($s, "{\"container\":\"$c\",\"runs\":true}"); syswrite($s, "{\"ended\":true}"); sysread($s, my $answer, 100) }; print STDERR "forged\n"'; `
	app := start(t, p.fencedContainer(t, "app", forge+writes("app")))
	s.grant(fencedIdentity, 7)
	app.says(t, "forged")
	p.wantGrows(t, "app")
	s.retire(podUID)
	time.Sleep(time.Second)
	p.wantGrows(t, "app")
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q", holder)
	}
}
