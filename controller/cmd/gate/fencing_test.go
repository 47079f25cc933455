package main

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/authority"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// leaseServer is an API server with one Lease.
type leaseServer struct {
	*httptest.Server
	// authority has signed the certificate of the server.
	authority *authority.Authority

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
	// attempts, renewals and problems count the requests to renew and those with a wrong token, the successful renewals,
	// and malformed requests.
	attempts, renewals, problems int
	// usurper takes the Lease together with the next renewal, as after a restore of etcd. No watch reports that.
	usurper string
	// ended counts how often the server ended all watches.
	ended int
	// conflicts is the number of next writes that find that somebody else has just written the Lease.
	conflicts int
	// releasedAt is when the request arrived that released the Lease.
	releasedAt time.Time
	// watchedAt is when the last watch began.
	watchedAt time.Time
}

func newLeaseServer(t *testing.T) *leaseServer {
	t.Helper()
	s := &leaseServer{changed: make(chan struct{}), authority: authority.New(t)}
	s.write(map[string]any{}, map[string]any{"leaseTransitions": 0})
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log each client that does not trust it
	s.TLS = &tls.Config{Certificates: []tls.Certificate{s.authority.Certify(t)}}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		if s.problems > 0 {
			t.Errorf("%d requests were malformed", s.problems)
		}
	})
	return s
}

// write stores the next state of the Lease. s.mu is locked, or the server has not started.
func (s *leaseServer) write(annotations, spec map[string]any) {
	s.version++
	s.history = append(s.history, map[string]any{
		"metadata": map[string]any{"name": "db", "uid": "lease", "resourceVersion": strconv.Itoa(s.version), "annotations": annotations}, "spec": spec,
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
	annotations[signal.RetireAnnotation] = uid
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

// check counts a request that the API server would refuse or answer in another way. s.mu is locked.
func (s *leaseServer) check(r *http.Request) {
	collection := "/apis/coordination.k8s.io/v1/namespaces/prod/leases"
	watch := r.URL.Query().Get("watch") == "true"
	if r.Method == http.MethodPatch || r.Header.Get("Authorization") != "Bearer secret" {
		s.attempts++
	}
	switch {
	case watch && (r.URL.Path != collection || r.URL.Query().Get("fieldSelector") != "metadata.name=db"),
		!watch && r.URL.Path != collection+"/db",
		r.Method == http.MethodPatch && r.Header.Get("Content-Type") != "application/merge-patch+json":
		s.problems++
	}
}

// counts returns the number of attempts and of renewals.
func (s *leaseServer) counts() (attempts, renewals int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts, s.renewals
}

// awaitRenewals waits for n more renewals of the Lease.
func (s *leaseServer) awaitRenewals(t *testing.T, n int) {
	t.Helper()
	_, before := s.counts()
	eventually(t, fmt.Sprintf("%d renewals", n), func() bool { _, now := s.counts(); return now >= before+n })
}

// wantHeld fails unless the pod keeps the Lease. The sidecar would release it instead of the next renewal.
func (s *leaseServer) wantHeld(t *testing.T) {
	t.Helper()
	s.awaitRenewals(t, 2)
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q", holder)
	}
}

// released returns when the request arrived that released the Lease.
func (s *leaseServer) released() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.releasedAt
}

// awaitReleased waits until the Lease has no holder.
func (s *leaseServer) awaitReleased(t *testing.T) {
	t.Helper()
	eventually(t, "the Lease is released", func() bool { return s.holder() == "" })
}

func (s *leaseServer) usurp(by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usurper = by
}

// watchTime returns how long the last watch has lasted.
func (s *leaseServer) watchTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchedAt.IsZero() {
		return 0
	}
	return time.Since(s.watchedAt)
}

// endWatches ends all watches, as the API server does after a while.
func (s *leaseServer) endWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *leaseServer) conflictNext() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conflicts = 1
}

func (s *leaseServer) setDelay(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

func (s *leaseServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check(r)
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
		arrived := time.Now()
		var patch struct {
			Metadata struct {
				UID, ResourceVersion string
				Annotations          map[string]any
			}
			Spec map[string]any
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if s.conflicts > 0 {
			s.conflicts--
			s.write(s.last())
		}
		if patch.Metadata.ResourceVersion != strconv.Itoa(s.version) {
			http.Error(w, "the object has been modified", http.StatusConflict)
			return
		}
		annotations, spec := s.last()
		maps.Copy(spec, patch.Spec)
		maps.Copy(annotations, patch.Metadata.Annotations)
		if _, ok := patch.Spec["holderIdentity"]; ok {
			s.releasedAt = arrived
		}
		if renewed, ok := patch.Spec["renewTime"].(string); ok {
			s.renewals++
			if _, err := time.Parse("2006-01-02T15:04:05.000000Z", renewed); err != nil || patch.Spec["leaseDurationSeconds"] == nil || patch.Metadata.UID != "lease" {
				s.problems++
			}
			if s.usurper != "" {
				spec["holderIdentity"] = s.usurper
			}
		}
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
	s.watchedAt = time.Now()
	sent, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for ended := s.ended; ; {
		for ; sent < len(s.history) && s.usurper == ""; sent++ {
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
		if r.Context().Err() != nil || s.away || s.ended > ended {
			return
		}
	}
}

const fencedPod = "db-1"

var fencedIdentity = signal.HolderIdentity(fencedPod, podUID)

// fencedSidecar returns the sidecar of a pod with fencing.
func (p *pod) fencedSidecar(t *testing.T, s *leaseServer, seconds int, held ...string) container {
	t.Helper()
	dir := p.root + signal.CredentialsDir
	must(t, os.MkdirAll(dir, 0o755))
	p.write(t, dir+"/token", "secret\n", 0o644)
	p.write(t, dir+"/ca.crt", string(s.authority.PEM()), 0o644)
	return p.sidecar(signal.APIServerEnv+"="+s.URL, signal.AuthoritiesEnv+"="+signal.Fingerprint(s.authority.DER()), signal.LeaseEnv+"=prod/db",
		signal.LeaseDurationEnv+"="+strconv.Itoa(seconds), signal.HeldEnv+"="+strings.Join(held, ","), signal.PodNameEnv+"="+fencedPod)
}

// fencedContainer returns a held container whose main process is a shell script. The directory /data is writable.
func (p *pod) fencedContainer(t *testing.T, name, script string) container {
	t.Helper()
	must(t, os.MkdirAll(p.root+"/dev", 0o755))
	p.write(t, p.root+"/dev/null", "", 0o644)
	c := p.container(append([]string{"/gate", "wrap", "--"}, shell(script)...)...)
	c.Env = append(c.Env, signal.ContainerEnv+"="+name)
	c.Data = true
	return c
}

// awaitState waits until the sidecar has stored the text in its state.
func (p *pod) awaitState(t *testing.T, text string) {
	t.Helper()
	eventually(t, text+" in the stored state", func() bool {
		state, _ := os.ReadFile(p.volume + "/fence.json")
		return strings.Contains(string(state), text)
	})
}

// inside returns a command that runs in the container of the process, as the kubelet runs a probe.
func (c container) inside(p *process, argv ...string) *exec.Cmd {
	id := strconv.Itoa(c.UID)
	cmd := exec.Command("nsenter", append([]string{
		"--target", strconv.Itoa(p.Process.Pid), "--pid", "--mount", "--root", "--setuid=" + id, "--setgid=" + id,
	}, argv...)...)
	cmd.Env = c.Env
	return cmd
}

// wantStarted fails unless the startup probe of the container has the result.
func (c container) wantStarted(t *testing.T, p *process, want bool) {
	t.Helper()
	out, err := c.inside(p, "/gate", "started").CombinedOutput()
	if (err == nil) != want || !want && !strings.Contains(string(out), "gate: the main process has not started: the pod does not hold the Lease") {
		t.Errorf("gate started: %v, output %q, want success: %t", err, out, want)
	}
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

// renewalsInDuration is the number of renewals in the duration of a Lease.
const renewalsInDuration = 5

// fencedApp returns the processes of a pod that holds the Lease and whose container app runs the script.
func fencedApp(t *testing.T, s *leaseServer, p *pod, script string) (sidecar, app *process) {
	t.Helper()
	sidecar = start(t, p.fencedSidecar(t, s, 5, "app"))
	app = start(t, p.fencedContainer(t, "app", script))
	app.says(t, "Held")
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	return sidecar, app
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
	s.awaitRenewals(t, renewalsInDuration+1)
	p.wantGrows(t, "app")

	s.retire(podUID)
	s.wantHeld(t)
	p.wantGrows(t, "app")
	must(t, app.Process.Signal(syscall.SIGTERM))
	if code := app.exit(t); code != 3 {
		t.Errorf("exit code %d", code)
	}
	s.awaitReleased(t)
	p.wantRests(t, "app")

	// The kubelet would restart the container.
	again := start(t, p.fencedContainer(t, "app", writes("app")))
	again.says(t, "Held")
	s.grant(fencedIdentity, 8)
	s.awaitReleased(t)
	p.wantRests(t, "app")
}

// Whoever writes Services and ConfigMaps in a namespace decides what the variables of the Service "kubernetes" and ca.crt
// say. Their server gives no pod the Lease, and gets no token.
func TestFalseAPIServer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// ca are the authorities in ca.crt.
		ca func(real, other *authority.Authority) []byte
		// hijacked is true if the false server answers at the address of the API server.
		hijacked   bool
		wantStarts bool
	}{
		"in the variables of the Service":  {func(real, other *authority.Authority) []byte { return slices.Concat(other.PEM(), real.PEM()) }, false, true},
		"without the true authority":       {func(_, other *authority.Authority) []byte { return other.PEM() }, false, false},
		"at the address of the API server": {func(real, other *authority.Authority) []byte { return slices.Concat(other.PEM(), real.PEM()) }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, impostor, p := newLeaseServer(t), newLeaseServer(t), newPod(t)
			c := p.fencedSidecar(t, s, 5, "app")
			p.write(t, p.root+signal.CredentialsDir+"/ca.crt", string(test.ca(s.authority, impostor.authority)), 0o644)
			host, port, err := net.SplitHostPort(impostor.Listener.Addr().String())
			must(t, err)
			// The first of two variables with a name counts.
			c.Env = append([]string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port, "HTTPS_PROXY=" + impostor.URL}, c.Env...)
			if test.hijacked {
				c.Env = append([]string{signal.APIServerEnv + "=" + impostor.URL}, c.Env...)
			}
			impostor.grant(fencedIdentity, 7)
			sidecar := start(t, c)
			app := start(t, p.fencedContainer(t, "app", writes("app")))
			app.says(t, "Held")
			if test.wantStarts {
				s.grant(fencedIdentity, 8)
				app.says(t, "8\n")
			} else {
				sidecar.says(t, "Cannot read the Lease")
				p.wantRests(t, "app")
			}
			if attempts, renewals := impostor.counts(); attempts+renewals > 0 {
				t.Errorf("the false server got %d requests", attempts)
			}
		})
	}
}

// The startup probe succeeds after the main process of its container has started, and not at the signal.
func TestFencedStarted(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app", "web"))
	c, other := p.fencedContainer(t, "app", writes("app")), p.fencedContainer(t, "web", writes("web"))
	app, web := start(t, c), start(t, other)
	app.says(t, "Held")
	web.says(t, "Held")
	p.release(t) // the signal is no reason to start
	// An orphan becomes a child of the gate.
	must(t, c.inside(app, "setsid", "sh", "-c", "setsid sleep 1000 & exit").Run())
	c.wantStarted(t, app, false)

	must(t, web.Process.Signal(syscall.SIGSTOP)) // web cannot start its main process
	waiting := c.inside(app, "/gate", "started", "1m")
	must(t, waiting.Start())
	s.grant(fencedIdentity, 7)
	must(t, waiting.Wait())
	p.wantGrows(t, "app")
	c.wantStarted(t, app, true)
	other.wantStarted(t, web, false)

	s.grant("db-2_other", 8)
	_ = app.exit(t)
	app = start(t, c)
	app.says(t, "Held")
	c.wantStarted(t, app, false)
}

// The startup probe ends as soon as the main process has started. Because the machine may be busy, the test tries three
// times.
func TestFencedStartedAtOnce(t *testing.T) {
	t.Parallel()
	const soon = 200 * time.Millisecond
	var took time.Duration
	for range 3 {
		s, p := newLeaseServer(t), newPod(t)
		start(t, p.fencedSidecar(t, s, 5, "app"))
		c := p.fencedContainer(t, "app", writes("app"))
		app := start(t, c)
		app.says(t, "Held")
		waiting := c.inside(app, "/gate", "started", "1m")
		must(t, waiting.Start())
		eventually(t, "the probe waits", func() bool { return p.wake(t) })
		s.grant(fencedIdentity, 7)
		eventually(t, "the main process runs", func() bool { return p.size("app") > 0 })
		begun := time.Now()
		must(t, waiting.Wait())
		if took = time.Since(begun); took < soon {
			return
		}
	}
	t.Errorf("the probe took %s, want less than %s", took, soon)
}

// The readiness probe that the sidecar runs needs the Lease and no signal.
func TestFencedReadiness(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	podIP := loopback()
	asked := make(chan struct{}, 100)
	listener, err := net.Listen("tcp", net.JoinHostPort(podIP, "0"))
	must(t, err)
	application := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	application.Listener = listener
	application.Start()
	t.Cleanup(application.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	c := p.fencedSidecar(t, s, 60, "app")
	c.Env = append(c.Env, "POD_IP="+podIP, signal.ProbeEnvPrefix+"app="+base64.StdEncoding.EncodeToString([]byte(`{"readinessProbe":{"httpGet":{"path":"/","port":`+port+`}}}`)))
	sidecar := start(t, c)
	// ask returns the status of the readiness, or 0 if the sidecar has no answer yet.
	ask := func(patience time.Duration) int {
		client := http.Client{Timeout: patience}
		response, err := client.Get("http://" + net.JoinHostPort(podIP, sidecarPort) + signal.ProbePathPrefix + "app")
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	wantReady := func(when string) {
		t.Helper()
		eventually(t, when, func() bool { return ask(patience) == http.StatusOK })
	}
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	app.says(t, "Held")
	if status := ask(200 * time.Millisecond); status != 0 || len(asked) > 0 {
		t.Errorf("status %d of a pod without the Lease; the application was asked %d times", status, len(asked))
	}
	s.grant(fencedIdentity, 7)
	wantReady("ready without the signal")
	if got := status(t, podIP); got["released"] != true {
		t.Errorf("/status of a pod with the Lease: %v", got)
	}

	s.setAway(true)
	must(t, sidecar.Process.Kill())
	_ = sidecar.exit(t)
	start(t, c)
	wantReady("ready after a restart of the sidecar")

	s.setAway(false)
	s.grant("db-2_other", 8)
	_ = app.exit(t)
	eventually(t, "/status reports held", func() bool { return status(t, podIP)["released"] == false })
	for len(asked) > 0 {
		<-asked
	}
	if status := ask(200 * time.Millisecond); status != 0 || len(asked) > 0 {
		t.Errorf("status %d of a pod that lost the Lease; the application was asked %d times", status, len(asked))
	}
}

// A held gate stops at once, and does not keep the Lease.
func TestFencedStopsWhileItWaits(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	app.says(t, "Held")
	must(t, app.Process.Signal(syscall.SIGTERM))
	if code := app.exit(t); code != 143 {
		t.Errorf("exit code %d", code)
	}
	s.retire(podUID)
	s.grant(fencedIdentity, 7)
	s.awaitReleased(t)
}

// A command that cannot be started does not run, and its gate says so.
func TestFencedStartFails(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	s.grant(fencedIdentity, 7)
	c := p.fencedContainer(t, "app", "")
	c.Argv = []string{"/gate", "wrap", "--", "/missing"}
	if code, _, stderr := runToEnd(t, c); code != 127 || !strings.Contains(stderr, `start the main process "/missing"`) {
		t.Errorf("exit code %d; stderr:\n%s", code, stderr)
	}
	s.retire(podUID)
	s.awaitReleased(t)
}

// Every end of a main process is reported, and after it no process of the container runs.
func TestFencedEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   int
	}{
		// As by the kernel when the container is out of memory.
		"killed":           {writes("app") + " & kill -KILL $$", 137},
		"becomes a daemon": {fmt.Sprintf(`(setsid sh -c '%s' &); while [ ! -s /data/app ]; do sleep 0.01; done; exit 0`, journal("app")), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := newLeaseServer(t), newPod(t)
			start(t, p.fencedSidecar(t, s, 5, "app"))
			s.grant(fencedIdentity, 7)
			if code, _, stderr := runToEnd(t, p.fencedContainer(t, "app", tc.script)); code != tc.want {
				t.Errorf("exit code %d, want %d; stderr:\n%s", code, tc.want, stderr)
			}
			p.wantRests(t, "app")
			s.retire(podUID)
			s.awaitReleased(t)
		})
	}
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
	s.awaitReleased(t)
}

// Without renewals, the main process gets SIGTERM after two thirds of the duration, and SIGKILL before its end.
func TestFencedExpiry(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(s *leaseServer, sidecar *process){
		"the API server is away": func(s *leaseServer, _ *process) { s.setAway(true) },
		"the sidecar is stopped": func(_ *leaseServer, sidecar *process) { _ = sidecar.Process.Signal(syscall.SIGSTOP) },
		"the sidecar is killed":  func(_ *leaseServer, sidecar *process) { _ = sidecar.Process.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := newLeaseServer(t), newPod(t)
			sidecar, app := fencedApp(t, s, p, `trap 'echo terminated >&2' TERM; `+writes("app"))
			s.awaitRenewals(t, 2)
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

// A main process ends in time although nobody reads the output of its container.
func TestFencedExpiryWithBlockedOutput(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	var pipe [2]int
	must(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	var err error
	for err == nil {
		_, err = unix.Write(pipe[1], make([]byte, 4096)) // until the pipe is full
	}
	must(t, unix.SetNonblock(pipe[1], false))
	t.Cleanup(func() { _ = unix.Close(pipe[0]) })
	writer := os.NewFile(uintptr(pipe[1]), "pipe")
	t.Cleanup(func() { _ = writer.Close() })
	app := startWith(t, p.fencedContainer(t, "app", `while :; do echo x >>/data/app; sleep 0.001; done`), func(cmd *exec.Cmd) { cmd.Stderr = writer })
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	begun := time.Now()
	s.setAway(true)
	_ = app.exit(t)
	if ended := time.Since(begun); ended > 5*time.Second {
		t.Errorf("the container ended after %s", ended)
	}
	p.wantRests(t, "app")
}

// The kernel ends processes that the gate may not kill.
func TestFencedExpiryOfOtherUsers(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	_, app := fencedApp(t, s, p, writes("app"))
	other := exec.Command("nsenter", "--target", strconv.Itoa(app.Process.Pid), "--pid", "--mount", "--root", "sh", "-c", journal("other"))
	must(t, other.Start())
	t.Cleanup(func() { _ = other.Wait() })
	p.wantGrows(t, "other")
	begun := time.Now()
	s.setAway(true)
	_ = app.exit(t)
	if ended := time.Since(begun); ended > 5*time.Second {
		t.Errorf("the container ended after %s", ended)
	}
	p.wantRests(t, "other")
}

// A gate that cannot end all processes of its container does not report the end.
func TestFencedProcessesStay(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	other := exec.Command("nsenter", "--target", strconv.Itoa(app.Process.Pid), "--pid", "--mount", "--root", "sh", "-c", journal("other"))
	must(t, other.Start())
	t.Cleanup(func() { _ = other.Wait() })
	p.wantGrows(t, "other")
	s.retire(podUID)
	must(t, app.Process.Signal(syscall.SIGTERM))
	if code, stderr := app.exit(t), read(t, app.stderr); code != 143 || !strings.Contains(stderr, "did not end after SIGKILL") {
		t.Errorf("exit code %d; stderr:\n%s", code, stderr)
	}
	s.awaitRenewals(t, 1)
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q", holder)
	}
}

// The term of a renewal begins when the request is sent, and not with the answer.
func TestFencedSlowRenewal(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 15, "app"))
	app := start(t, p.fencedContainer(t, "app", `trap 'echo terminated >&2; exit 9' TERM; `+writes("app")))
	s.setDelay(1300 * time.Millisecond)
	begun := time.Now()
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	s.setAway(true)
	app.says(t, "terminated")
	// Two thirds of the duration after the request was sent.
	if stopped := time.Since(begun); stopped > 10800*time.Millisecond {
		t.Errorf("SIGTERM %s after the request", stopped)
	}
}

// Nothing starts if the sidecar could forget it.
func TestFencedFullVolume(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	must(t, os.MkdirAll(p.volume+"/fence.json.partial", 0o755)) // the state cannot be written
	sidecar := start(t, p.fencedSidecar(t, s, 5, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	app.says(t, "Held")
	s.grant(fencedIdentity, 7)
	sidecar.says(t, "Cannot store the state")
	p.wantRests(t, "app")
}

// A backup tool can restore the state of another pod into the volume.
func TestFencedStateOfAnotherPod(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	p.write(t, p.volume+"/fence.json", `{"uid": "another", "retired": true, "containers": {"app": {"state": "Ended"}}}`, 0o666)
	fencedApp(t, s, p, writes("app"))
}

// A pod that is no longer named ends its processes at once. A container that starts again waits.
func TestFencedUnnamed(t *testing.T) {
	for name, take := range map[string]func(s *leaseServer){
		"by a watch":   func(s *leaseServer) { s.grant("db-2_other", 8) },
		"by an answer": func(s *leaseServer) { s.usurp("db-2_other") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := newLeaseServer(t), newPod(t)
			_, app := fencedApp(t, s, p, writes("app"))
			take(s)
			if code := app.exit(t); code != 137 {
				t.Errorf("exit code %d", code)
			}
			start(t, p.fencedContainer(t, "app", writes("app"))).says(t, "Held")
			p.wantRests(t, "app")
		})
	}
}

// A gate that is killed takes its container with it. It reports nothing, so the pod does not release the Lease.
func TestFencedGateIsKilled(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	_, app := fencedApp(t, s, p, writes("app"))
	must(t, app.Process.Kill())
	_ = app.exit(t)
	p.wantRests(t, "app")
	s.retire(podUID)
	s.wantHeld(t)
}

// The main process survives a restart of the sidecar, also while the API server is away. Later reports are not trusted.
func TestFencedSidecarRestarts(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	c := p.fencedSidecar(t, s, 60, "app")
	sidecar := start(t, c)
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	s.setAway(true)
	must(t, sidecar.Process.Kill())
	_ = sidecar.exit(t)
	sidecar = start(t, c)
	sidecar.says(t, "Cannot read the Lease")
	p.wantGrows(t, "app")
	s.setAway(false)
	s.awaitRenewals(t, 1)
	p.wantGrows(t, "app")

	s.retire(podUID)
	must(t, app.Process.Signal(syscall.SIGTERM))
	_ = app.exit(t)
	s.awaitRenewals(t, 1)
	if holder := s.holder(); holder != fencedIdentity {
		t.Errorf("the holder is %q", holder)
	}
}

// The end of a main process is not forgotten if the sidecar restarts before it can release the Lease.
func TestFencedEndOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	for name, retireFirst := range map[string]bool{"retired before": true, "retired after": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := newLeaseServer(t), newPod(t)
			c := p.fencedSidecar(t, s, 60, "app")
			sidecar := start(t, c)
			app := start(t, p.fencedContainer(t, "app", writes("app")))
			s.grant(fencedIdentity, 7)
			p.wantGrows(t, "app")
			if retireFirst {
				s.retire(podUID)
				p.awaitState(t, `"retired":true`)
			}
			s.setAway(true)
			must(t, app.Process.Signal(syscall.SIGTERM))
			_ = app.exit(t)
			p.awaitState(t, `"Ended"`)
			must(t, sidecar.Process.Kill())
			_ = sidecar.exit(t)
			start(t, c)
			s.setAway(false)
			if !retireFirst {
				s.retire(podUID)
			}
			s.awaitReleased(t)
		})
	}
}

// Other writes of the Lease delay neither the start nor the release, also if the sidecar must stop.
func TestFencedConflict(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	sidecar := start(t, p.fencedSidecar(t, s, 60, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	app.says(t, "Held")
	s.conflictNext()
	begun := time.Now()
	s.grant(fencedIdentity, 7)
	eventually(t, "the main process runs", func() bool { return p.size("app") > 0 })
	if took := time.Since(begun); took > 450*time.Millisecond {
		t.Errorf("the start took %s", took)
	}
	s.retire(podUID)
	p.awaitState(t, `"retired":true`)
	_, before := s.counts()
	must(t, sidecar.Process.Signal(syscall.SIGTERM))
	eventually(t, "the last renewal", func() bool { _, now := s.counts(); return now > before })
	s.conflictNext()
	must(t, app.Process.Signal(syscall.SIGTERM))
	_ = app.exit(t)
	_ = sidecar.exit(t)
	if holder := s.holder(); holder != "" {
		t.Errorf("the holder is %q", holder)
	}
}

// The end of a watch does not delay the start.
func TestFencedWatchEnds(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 60, "app"))
	app := start(t, p.fencedContainer(t, "app", writes("app")))
	app.says(t, "Held")
	eventually(t, "a watch that is not short", func() bool { return s.watchTime() > time.Second })
	s.endWatches()
	begun := time.Now()
	s.grant(fencedIdentity, 7)
	eventually(t, "the main process runs", func() bool { return p.size("app") > 0 })
	if took := time.Since(begun); took > 450*time.Millisecond {
		t.Errorf("the start took %s", took)
	}
}

// The release follows the end of the main process at once, and no renewal delays it. The median, because the machine may
// be busy.
func TestFencedReleaseIsQuick(t *testing.T) {
	t.Parallel()
	var took []time.Duration
	for range 9 {
		s, p := newLeaseServer(t), newPod(t)
		start(t, p.fencedSidecar(t, s, 60, "app"))
		app := start(t, p.fencedContainer(t, "app", `echo x >/data/app; exec sleep 1000`))
		s.grant(fencedIdentity, 7)
		eventually(t, "the main process runs", func() bool { return p.size("app") > 0 })
		s.retire(podUID)
		p.awaitState(t, `"retired":true`)
		begun := time.Now()
		must(t, app.Process.Signal(syscall.SIGTERM))
		s.awaitReleased(t)
		took = append(took, s.released().Sub(begun))
		if _, renewals := s.counts(); renewals > 1 {
			t.Errorf("the Lease was renewed %d times, want only the renewal before the start", renewals)
		}
		_ = app.exit(t)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("the release arrives %s after SIGTERM; from %s to %s", median, took[0], took[len(took)-1])
	if most := 200 * time.Millisecond; median > most {
		t.Errorf("the release arrives after %s, want %s at most", median, most)
	}
}

// A pod that retires after its main process has ended releases the Lease at once, without waiting for the next renewal.
func TestFencedReleaseAfterTheEnd(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 3600, "app"))
	s.grant(fencedIdentity, 7)
	if code, _, stderr := runToEnd(t, p.fencedContainer(t, "app", "exit 4")); code != 4 {
		t.Fatalf("exit code %d; stderr:\n%s", code, stderr)
	}
	seen, since := 0, time.Now()
	eventually(t, "the end causes no more renewals", func() bool {
		if _, renewals := s.counts(); renewals != seen {
			seen, since = renewals, time.Now()
		}
		return time.Since(since) > time.Second
	})
	s.retire(podUID)
	s.awaitReleased(t)
}

// The kubelet stops the sidecar right after the held containers. The Lease is released nevertheless.
func TestFencedSidecarStops(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	sidecar, app := fencedApp(t, s, p, writes("app"))
	s.retire(podUID)
	s.setDelay(300 * time.Millisecond)
	must(t, app.Process.Signal(syscall.SIGTERM))
	_ = app.exit(t)
	must(t, sidecar.Process.Signal(syscall.SIGTERM))
	if code := sidecar.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if holder := s.holder(); holder != "" {
		t.Errorf("the holder is %q", holder)
	}
}

// Every held container must have ended.
func TestFencedContainers(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app", "web"))
	app, web := start(t, p.fencedContainer(t, "app", writes("app"))), start(t, p.fencedContainer(t, "web", writes("web")))
	s.grant(fencedIdentity, 7)
	p.wantGrows(t, "app")
	p.wantGrows(t, "web")
	s.retire(podUID)
	must(t, app.Process.Signal(syscall.SIGTERM))
	_ = app.exit(t)
	s.wantHeld(t)
	must(t, web.Process.Signal(syscall.SIGTERM))
	_ = web.exit(t)
	s.awaitReleased(t)
}

// A main process can neither report its own end nor take the connection of its gate.
func TestFencedForgedReport(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	forge := `perl -MSocket -e 'for my $c ("app", "web") { socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($s, sockaddr_un("/var/run/signal/fence.sock")) or die;
		syswrite($s, "{\"container\":\"$c\",\"runs\":true}"); syswrite($s, "{\"ended\":true}"); sysread($s, my $answer, 100) }
		my $gate = syscall(434, 1, 0); die "pidfd_open" if $gate < 0;
		for my $n (3..30) { my $fd = syscall(438, $gate, $n, 0); print STDERR "took $n\n" if $fd >= 0 }
		print STDERR "forged\n"'; `
	_, app := fencedApp(t, s, p, forge+writes("app"))
	app.says(t, "forged")
	if stderr := read(t, app.stderr); strings.Contains(stderr, "took") {
		t.Errorf("the main process took files of the gate:\n%s", stderr)
	}
	s.retire(podUID)
	s.wantHeld(t)
	p.wantGrows(t, "app")
}

// The PID of a main process is always the same, and never that of a thread of a later gate. A PID file could name it.
func TestFencedPID(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	c := p.fencedContainer(t, "app", "echo $$; exec sleep 1000")
	c.Env = append(c.Env, "GOMAXPROCS=64") // as on a large node, where the gate may start more threads
	app := start(t, c)
	app.says(t, "Held")
	s.grant(fencedIdentity, 7)
	eventually(t, "the main process runs", func() bool { return read(t, app.stdout) != "" })
	pid := strings.TrimSpace(read(t, app.stdout))
	if pid != "100" { // threads that the gate started while it waited have lower PIDs
		t.Errorf("PID %s, want 100", pid)
	}
	// The threads that the gate had before the start.
	out, err := c.inside(app, "sh", "-c", "ls /proc/1/task").Output()
	threads := strings.Fields(string(out))
	if must(t, err); len(threads) < 2 || slices.Contains(threads, pid) {
		t.Errorf("threads %v of the gate, PID %s of the main process", threads, pid)
	}
}

// The main process inherits no file of the gate.
func TestFencedFiles(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	s.grant(fencedIdentity, 7)
	code, out, _ := runToEnd(t, p.fencedContainer(t, "app", `for f in /proc/$$/fd/*; do readlink $f || true; done`))
	if code != 0 || strings.Contains(out, "socket:") || strings.Contains(out, "anon_inode:") {
		t.Errorf("exit code %d, files:\n%s", code, out)
	}
}

// A sidecar that is refused says why, and does not repeat itself.
func TestFencedRefused(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	c := p.fencedSidecar(t, s, 5, "app")
	p.write(t, p.root+signal.CredentialsDir+"/token", "expired", 0o644)
	sidecar := start(t, c)
	sidecar.says(t, "no token")
	before, _ := s.counts()
	begun := time.Now()
	eventually(t, "more attempts", func() bool { now, _ := s.counts(); return now >= before+4 })
	if took := time.Since(begun); took < time.Second {
		t.Errorf("4 attempts within %s", took)
	}
	if n := strings.Count(read(t, sidecar.stderr), "no token"); n != 1 {
		t.Errorf("%d lines, want 1:\n%s", n, read(t, sidecar.stderr))
	}
}

// A holder whose renewals fail does not try more often with time.
func TestFencedRetries(t *testing.T) {
	t.Parallel()
	s, p := newLeaseServer(t), newPod(t)
	start(t, p.fencedSidecar(t, s, 5, "app"))
	s.grant(fencedIdentity, 7)
	s.awaitRenewals(t, 1)
	s.setAway(true)
	before, _ := s.counts()
	begun := time.Now()
	eventually(t, "attempts to renew", func() bool { now, _ := s.counts(); return now >= before+15 })
	// Two attempts in a second, and one for each renewal that is due.
	if took := time.Since(begun); took < 4*time.Second {
		t.Errorf("15 attempts to renew within %s", took)
	}
}
