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

	mu sync.Mutex
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
	// released is when the request arrived that released the Lease, and watched is when the last watch began.
	released, watched time.Time
}

func newLeaseServer(t *testing.T) *leaseServer {
	t.Helper()
	s := &leaseServer{changed: make(chan struct{}), authority: authority.New(t)}
	s.store(map[string]any{}, map[string]any{"leaseTransitions": 0})
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

// store stores the next state of the Lease. s.mu is locked, or the server has not started.
func (s *leaseServer) store(annotations, spec map[string]any) {
	s.history = append(s.history, map[string]any{
		"metadata": map[string]any{"name": "db", "uid": "lease", "resourceVersion": strconv.Itoa(len(s.history) + 1), "annotations": annotations}, "spec": spec,
	})
	s.wakeWatches()
}

func (s *leaseServer) wakeWatches() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *leaseServer) last() (annotations, spec map[string]any) {
	now := s.history[len(s.history)-1]
	return maps.Clone(now["metadata"].(map[string]any)["annotations"].(map[string]any)), maps.Clone(now["spec"].(map[string]any))
}

// with does something while no request is served.
func (s *leaseServer) with(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// grantTo makes a pod the holder.
func (s *leaseServer) grantTo(holder string, epoch int) {
	s.with(func() {
		annotations, spec := s.last()
		spec["holderIdentity"], spec["leaseTransitions"] = holder, epoch
		s.store(annotations, spec)
	})
}

func (s *leaseServer) grant(epoch int) { s.grantTo(fencedIdentity, epoch) }

func (s *leaseServer) annotateLease(name, value string) {
	s.with(func() {
		annotations, spec := s.last()
		annotations[name] = value
		s.store(annotations, spec)
	})
}

// retire makes the pod retire, and revoke makes it end its tenure.
func (s *leaseServer) retire() { s.annotateLease(signal.RetireAnnotation, podUID) }
func (s *leaseServer) revoke(epoch int) {
	s.annotateLease(signal.RevokedAnnotation, strconv.Itoa(epoch))
}

func (s *leaseServer) holder() (holder string) {
	s.with(func() {
		_, spec := s.last()
		holder, _ = spec["holderIdentity"].(string)
	})
	return holder
}

// writing returns the epoch with which the holder runs the writer, by the Lease.
func (s *leaseServer) writing() (epoch string) {
	s.with(func() {
		annotations, _ := s.last()
		epoch, _ = annotations[signal.WritingAnnotation].(string)
	})
	return epoch
}

// counts returns the number of attempts and of renewals.
func (s *leaseServer) counts() (attempts, renewals int) {
	s.with(func() { attempts, renewals = s.attempts, s.renewals })
	return attempts, renewals
}

func (s *leaseServer) setAway(away bool) {
	s.with(func() { s.away = away })
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
		s.patch(w, r)
	}
}

// patch writes the Lease. s.mu is locked.
func (s *leaseServer) patch(w http.ResponseWriter, r *http.Request) {
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
		s.store(s.last())
	}
	if patch.Metadata.ResourceVersion != strconv.Itoa(len(s.history)) {
		http.Error(w, "the object has been modified", http.StatusConflict)
		return
	}
	annotations, spec := s.last()
	maps.Copy(spec, patch.Spec)
	maps.Copy(annotations, patch.Metadata.Annotations)
	if _, ok := patch.Spec["holderIdentity"]; ok {
		s.released = arrived
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
	s.store(annotations, spec)
	answer, delay := s.history[len(s.history)-1], s.delay
	s.mu.Unlock()
	time.Sleep(delay)
	s.mu.Lock()
	_ = json.NewEncoder(w).Encode(answer)
}

// watch sends the states since the resourceVersion. s.mu is locked.
func (s *leaseServer) watch(w http.ResponseWriter, r *http.Request) {
	s.watched = time.Now()
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

const fencedPodName = "db-1"

var fencedIdentity = signal.HolderIdentity(fencedPodName, podUID)

// fencedPod is a pod with fencing by a Lease, and its API server.
type fencedPod struct {
	*pod
	*leaseServer
	// sidecar is the container, and running its process.
	sidecar container
	running *process
}

// newFenced returns a pod with a Lease of some seconds and held containers, by default app. The sidecar does not run yet.
func newFenced(t *testing.T, seconds int, held ...string) *fencedPod {
	t.Helper()
	if len(held) == 0 {
		held = []string{"app"}
	}
	f := &fencedPod{pod: newPod(t), leaseServer: newLeaseServer(t)}
	dir := f.root + signal.CredentialsDir
	must(t, os.MkdirAll(dir, 0o755))
	f.write(dir+"/token", "secret\n", 0o644)
	f.write(dir+"/ca.crt", string(f.authority.PEM()), 0o644)
	f.sidecar = f.pod.sidecar(signal.APIServerEnv+"="+f.URL, signal.AuthoritiesEnv+"="+signal.Fingerprint(f.authority.DER()), signal.LeaseEnv+"=prod/db",
		signal.LeaseDurationEnv+"="+strconv.Itoa(seconds), signal.HeldEnv+"="+strings.Join(held, ","), signal.PodNameEnv+"="+fencedPodName)
	return f
}

// startFenced returns a pod whose sidecar runs. The test runs in parallel with others.
func startFenced(t *testing.T, seconds int, held ...string) *fencedPod {
	t.Helper()
	t.Parallel()
	f := newFenced(t, seconds, held...)
	f.startSidecar()
	return f
}

func (f *fencedPod) startSidecar() { f.t.Helper(); f.running = f.start(f.sidecar) }

// held returns a held container whose main process is a shell script.
func (f *fencedPod) held(name, script string) container {
	c := f.container(append([]string{"/gate", "wrap", "--"}, shell(script)...)...)
	c.Env, c.Data = append(c.Env, signal.ContainerEnv+"="+name), true
	return c
}

// holds starts a held container, and waits until its gate waits.
func (f *fencedPod) holds(name, script string) *process {
	f.t.Helper()
	app := f.start(f.held(name, script))
	app.says("Held")
	return app
}

// runs returns the process of container app, which runs the script in a pod that holds the Lease.
func (f *fencedPod) runs(script string) *process {
	f.t.Helper()
	app := f.holds("app", script)
	f.grant(7)
	f.wantGrows("app")
	return app
}

// awaitState waits until the sidecar has stored the text in its state.
func (f *fencedPod) awaitState(text string) {
	f.t.Helper()
	eventually(f.t, text+" in the stored state", func() bool {
		state, _ := os.ReadFile(f.volume + "/fence.json")
		return strings.Contains(string(state), text)
	})
}

// awaitRenewals waits for n more renewals of the Lease.
func (f *fencedPod) awaitRenewals(n int) {
	f.t.Helper()
	_, before := f.counts()
	eventually(f.t, fmt.Sprintf("%d renewals", n), func() bool { _, now := f.counts(); return now >= before+n })
}

func (f *fencedPod) wantHolder(want string) {
	f.t.Helper()
	if holder := f.holder(); holder != want {
		f.t.Errorf("the holder is %q, want %q", holder, want)
	}
}

// wantHeld fails unless the pod keeps the Lease. The sidecar would release it instead of the next renewal.
func (f *fencedPod) wantHeld() {
	f.t.Helper()
	f.awaitRenewals(2)
	f.wantHolder(fencedIdentity)
}

// awaitReleased waits until the Lease has no holder.
func (f *fencedPod) awaitReleased() {
	f.t.Helper()
	eventually(f.t, "the Lease is released", func() bool { return f.holder() == "" })
}

// wantStarted fails unless the startup probe of the container has the result.
func (p *process) wantStarted(want bool) {
	p.t.Helper()
	out, err := p.inside("/gate", "started").CombinedOutput()
	if (err == nil) != want || !want && !strings.Contains(string(out), "gate: the main process has not started: the pod does not hold the Lease") {
		p.t.Errorf("gate started: %v, output %q, want success: %t", err, out, want)
	}
}

// wantWithin fails if more time has passed.
func wantWithin(t *testing.T, since time.Time, most time.Duration, what string) {
	t.Helper()
	if took := time.Since(since); took > most {
		t.Errorf("%s after %s, want %s at most", what, took, most)
	}
}

// renewalsInDuration is the number of renewals in the duration of a Lease.
const renewalsInDuration = 5

// A pod runs its main process while it holds the Lease, and releases the Lease after its main process has ended.
func TestFencedHandoff(t *testing.T) {
	f := startFenced(t, 5)
	app := f.holds("app", `trap 'sleep 0.2; echo x >>/data/app; exit 3' TERM; `+writes("app"))
	f.grantTo("db-0_other", 6)
	f.wantRests("app")

	f.grant(7)
	app.says("7\n")
	f.awaitRenewals(renewalsInDuration + 1)
	f.wantGrows("app")

	f.retire()
	f.wantHeld()
	f.wantGrows("app")
	app.stop(3)
	f.awaitReleased()
	f.wantRests("app")

	// The kubelet would restart the container.
	f.holds("app", writes("app"))
	f.grant(8)
	f.awaitReleased()
	f.wantRests("app")
}

// Whoever writes Services and ConfigMaps in a namespace decides what the variables of the Service "kubernetes" and ca.crt
// say. Their server gives no pod the Lease, and gets no token.
func TestFalseAPIServer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// onlyOther: ca.crt lacks the authority of the API server.
		onlyOther bool
		// hijacked: the false server answers at the address of the API server.
		hijacked   bool
		wantStarts bool
	}{
		"in the variables of the Service":  {wantStarts: true},
		"without the true authority":       {onlyOther: true},
		"at the address of the API server": {hijacked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, impostor := newFenced(t, 5), newLeaseServer(t)
			ca := impostor.authority.PEM()
			if !test.onlyOther {
				ca = slices.Concat(ca, f.authority.PEM())
			}
			f.write(f.root+signal.CredentialsDir+"/ca.crt", string(ca), 0o644)
			host, port, err := net.SplitHostPort(impostor.Listener.Addr().String())
			must(t, err)
			// The first of two variables with a name counts.
			f.sidecar.Env = append([]string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port, "HTTPS_PROXY=" + impostor.URL}, f.sidecar.Env...)
			if test.hijacked {
				f.sidecar.Env = append([]string{signal.APIServerEnv + "=" + impostor.URL}, f.sidecar.Env...)
			}
			impostor.grant(7)
			f.startSidecar()
			app := f.holds("app", writes("app"))
			if test.wantStarts {
				f.grant(8)
				app.says("8\n")
			} else {
				f.running.says("Cannot read the Lease")
				f.wantRests("app")
			}
			if attempts, renewals := impostor.counts(); attempts+renewals > 0 {
				t.Errorf("the false server got %d requests", attempts)
			}
		})
	}
}

// The startup probe succeeds after the main process of its container has started, and not at the signal.
func TestFencedStarted(t *testing.T) {
	f := startFenced(t, 5, "app", "web")
	app, web := f.holds("app", writes("app")), f.holds("web", writes("web"))
	f.release() // the signal is no reason to start
	// An orphan becomes a child of the gate.
	must(t, app.inside("setsid", "sh", "-c", "setsid sleep 1000 & exit").Run())
	app.wantStarted(false)

	web.send(syscall.SIGSTOP) // web cannot start its main process
	waiting := app.inside("/gate", "started", "1m")
	must(t, waiting.Start())
	f.grant(7)
	must(t, waiting.Wait())
	f.wantGrows("app")
	app.wantStarted(true)
	web.wantStarted(false)

	f.grantTo("db-2_other", 8)
	_ = app.exit()
	f.holds("app", writes("app")).wantStarted(false)
}

// The startup probe ends as soon as the main process has started. Because the machine may be busy, the test tries three
// times.
func TestFencedStartedAtOnce(t *testing.T) {
	t.Parallel()
	const soon = 200 * time.Millisecond
	var took time.Duration
	for range 3 {
		f := newFenced(t, 5)
		f.startSidecar()
		waiting := f.holds("app", writes("app")).inside("/gate", "started", "1m")
		must(t, waiting.Start())
		eventually(t, "the probe waits", f.wake)
		f.grant(7)
		eventually(t, "the main process runs", func() bool { return f.size("app") > 0 })
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
	f, podIP := newFenced(t, 60), loopback()
	asked := make(chan struct{}, 100)
	listener, err := net.Listen("tcp", net.JoinHostPort(podIP, "0"))
	must(t, err)
	application := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	application.Listener = listener
	application.Start()
	t.Cleanup(application.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	probe := `{"probe":{"httpGet":{"path":"/","port":` + port + `}}}`
	f.sidecar.Env = append(f.sidecar.Env, "POD_IP="+podIP, signal.ProbeEnvPrefix+"app="+base64.StdEncoding.EncodeToString([]byte(probe)))
	f.startSidecar()
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
	wantNoAnswer := func(when string) {
		t.Helper()
		if status := ask(200 * time.Millisecond); status != 0 || len(asked) > 0 {
			t.Errorf("status %d %s; the application was asked %d times", status, when, len(asked))
		}
	}
	app := f.holds("app", writes("app"))
	wantNoAnswer("without the Lease")
	f.grant(7)
	wantReady("ready without the signal")
	if got := status(t, podIP); got["released"] != true {
		t.Errorf("/status of a pod with the Lease: %v", got)
	}

	f.setAway(true)
	f.running.kill()
	f.startSidecar()
	wantReady("ready after a restart of the sidecar")

	f.setAway(false)
	f.grantTo("db-2_other", 8)
	_ = app.exit()
	eventually(t, "/status reports held", func() bool { return status(t, podIP)["released"] == false })
	for len(asked) > 0 {
		<-asked
	}
	wantNoAnswer("after the pod lost the Lease")
}

// A held gate stops at once, and does not keep the Lease.
func TestFencedStopsWhileItWaits(t *testing.T) {
	f := startFenced(t, 5)
	f.holds("app", writes("app")).stop(143)
	f.retire()
	f.grant(7)
	f.awaitReleased()
}

// Every end of a main process is reported, and after it no process of the container runs. The main process can start again
// while the pod holds the Lease.
func TestFencedEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		argv []string
		want int
	}{
		// As by the kernel when the container is out of memory.
		"killed":            {shell(writes("app") + " & kill -KILL $$"), 137},
		"becomes a daemon":  {shell(fmt.Sprintf(`(setsid sh -c '%s' &); while [ ! -s /data/app ]; do sleep 0.01; done; exit 0`, journal("app"))), 0},
		"fails":             {shell("exit 4"), 4},
		"cannot be started": {[]string{"/missing"}, 127},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFenced(t, 5)
			f.grant(7)
			c := f.held("app", "")
			c.Argv = append([]string{"/gate", "wrap", "--"}, tc.argv...)
			for range 2 {
				f.start(c).wantExit(tc.want)
				f.wantRests("app")
			}
			f.retire()
			f.awaitReleased()
		})
	}
}

// Without renewals, the main process gets SIGTERM after two thirds of the duration, and SIGKILL before its end.
func TestFencedExpiry(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(f *fencedPod){
		"the API server is away": func(f *fencedPod) { f.setAway(true) },
		"the sidecar is stopped": func(f *fencedPod) { f.running.send(syscall.SIGSTOP) },
		"the sidecar is killed":  func(f *fencedPod) { f.running.send(syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			f := startFenced(t, 5)
			app := f.runs(`trap 'echo terminated >&2' TERM; ` + writes("app"))
			f.awaitRenewals(2)
			begun := time.Now()
			cut(f)
			app.says("terminated")
			if stopped := time.Since(begun); stopped < 2*time.Second {
				t.Errorf("SIGTERM after %s", stopped)
			}
			app.wantExit(137)
			wantWithin(t, begun, 5*time.Second, "the end")
			f.wantRests("app")
		})
	}
}

// With a Lease that never expires, the main process needs one renewal for each start. It runs on without the API server, and ends when
// the Lease names another pod.
func TestFencedForever(t *testing.T) {
	f := startFenced(t, signal.NeverExpires)
	app := f.runs(writes("app"))
	_, renewed := f.counts()
	f.setAway(true)
	app.kill()
	f.running.says("Cannot renew")
	app = f.holds("app", writes("app"))
	f.wantRests("app")
	f.running.kill()
	f.startSidecar()
	f.running.says("Cannot read the Lease")
	f.wantRests("app")

	f.setAway(false)
	f.wantGrows("app")
	if _, now := f.counts(); now > renewed+3 {
		t.Errorf("the pod renewed the Lease %d times for two starts", now)
	}
	f.grantTo("db-2_other", 8)
	app.wantExit(137)
}

// A main process ends in time although nobody reads the output of its container.
func TestFencedExpiryWithBlockedOutput(t *testing.T) {
	f := startFenced(t, 5)
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
	app := f.start(f.held("app", `while :; do echo x >>/data/app; sleep 0.01; done`), func(cmd *exec.Cmd) { cmd.Stderr = writer })
	f.grant(7)
	f.wantGrows("app")
	begun := time.Now()
	f.setAway(true)
	_ = app.exit()
	wantWithin(t, begun, 5*time.Second, "the end")
	f.wantRests("app")
}

// runsAsRoot starts a process in the container that the gate may not kill.
func (f *fencedPod) runsAsRoot(app *process) {
	f.t.Helper()
	other := app.insideAs(0, shell(journal("other"))...)
	must(f.t, other.Start())
	f.t.Cleanup(func() { _ = other.Wait() })
	f.wantGrows("other")
}

// The kernel ends processes that the gate may not kill.
func TestFencedExpiryOfOtherUsers(t *testing.T) {
	f := startFenced(t, 5)
	app := f.runs(writes("app"))
	f.runsAsRoot(app)
	begun := time.Now()
	f.setAway(true)
	_ = app.exit()
	wantWithin(t, begun, 5*time.Second, "the end")
	f.wantRests("other")
}

// A gate that cannot end all processes of its container does not report the end.
func TestFencedProcessesStay(t *testing.T) {
	f := startFenced(t, 15)
	app := f.runs(writes("app"))
	f.runsAsRoot(app)
	f.retire()
	app.stop(143)
	if said := app.said(); !strings.Contains(said, "did not end after SIGKILL") {
		t.Errorf("stderr:\n%s", said)
	}
	f.awaitRenewals(1)
	f.wantHolder(fencedIdentity)
}

// The term of a renewal begins when the request is sent, and not with the answer.
func TestFencedSlowRenewal(t *testing.T) {
	f := startFenced(t, 15)
	app := f.start(f.held("app", `trap 'echo terminated >&2; exit 9' TERM; `+writes("app")))
	f.with(func() { f.delay = 1300 * time.Millisecond })
	begun := time.Now()
	f.grant(7)
	f.wantGrows("app")
	f.setAway(true)
	app.says("terminated")
	wantWithin(t, begun, 10800*time.Millisecond, "SIGTERM") // two thirds of the duration after the request was sent
}

// Nothing starts if the sidecar could forget it.
func TestFencedFullVolume(t *testing.T) {
	f := startFenced(t, 5)
	must(t, os.MkdirAll(f.volume+"/fence.json.partial", 0o755)) // the state cannot be written
	f.holds("app", writes("app"))
	f.grant(7)
	f.running.says("Cannot store the state")
	f.wantRests("app")
}

// A pod that is no longer named ends its processes at once. A container that starts again waits.
func TestFencedUnnamed(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(f *fencedPod){
		"by a watch":   func(f *fencedPod) { f.grantTo("db-2_other", 8) },
		"by an answer": func(f *fencedPod) { f.with(func() { f.usurper = "db-2_other" }) },
	} {
		t.Run(name, func(t *testing.T) {
			f := startFenced(t, 5)
			app := f.runs(writes("app"))
			take(f)
			app.wantExit(137)
			f.holds("app", writes("app"))
			f.wantRests("app")
		})
	}
}

// A gate that is killed takes its container with it. It reports nothing, so the pod does not release the Lease.
func TestFencedGateIsKilled(t *testing.T) {
	f := startFenced(t, 5)
	f.runs(writes("app")).kill()
	f.wantRests("app")
	f.retire()
	f.wantHeld()
}

// The main process survives a restart of the sidecar, also while the API server is away. Later reports are not trusted.
func TestFencedSidecarRestarts(t *testing.T) {
	f := startFenced(t, 30)
	app := f.runs(writes("app"))
	f.setAway(true)
	f.running.kill()
	f.startSidecar()
	f.running.says("Cannot read the Lease")
	f.wantGrows("app")
	f.setAway(false)
	f.awaitRenewals(1)
	f.wantGrows("app")

	f.retire()
	app.stop(143)
	f.awaitRenewals(1)
	f.wantHolder(fencedIdentity)
}

// The end of a main process is not forgotten if the sidecar restarts before it can release the Lease.
func TestFencedEndOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	for name, retireFirst := range map[string]bool{"retired before": true, "retired after": false} {
		t.Run(name, func(t *testing.T) {
			f := startFenced(t, 60)
			app := f.runs(writes("app"))
			if retireFirst {
				f.retire()
				f.awaitState(`"retired":true`)
			}
			f.setAway(true)
			app.stop(143)
			f.awaitState(`"Ended"`)
			f.running.kill()
			f.startSidecar()
			f.setAway(false)
			if !retireFirst {
				f.retire()
			}
			f.awaitReleased()
		})
	}
}

// startsSoon grants the Lease, and fails unless the main process starts without waiting for anything else.
func (f *fencedPod) startsSoon() {
	f.t.Helper()
	begun := time.Now()
	f.grant(7)
	eventually(f.t, "the main process runs", func() bool { return f.size("app") > 0 })
	wantWithin(f.t, begun, 450*time.Millisecond, "the start")
}

// Other writes of the Lease delay neither the start nor the release, also if the sidecar must stop.
func TestFencedConflict(t *testing.T) {
	f := startFenced(t, 60)
	conflictNext := func() { f.with(func() { f.conflicts = 1 }) }
	app := f.holds("app", writes("app"))
	conflictNext()
	f.startsSoon()
	f.retire()
	f.awaitState(`"retired":true`)
	_, before := f.counts()
	f.running.send(syscall.SIGTERM)
	eventually(t, "the last renewal", func() bool { _, now := f.counts(); return now > before })
	conflictNext()
	app.stop(143)
	_ = f.running.exit()
	f.wantHolder("")
}

// The end of a watch does not delay the start.
func TestFencedWatchEnds(t *testing.T) {
	f := startFenced(t, 60)
	f.holds("app", writes("app"))
	eventually(t, "a watch that is not short", func() (long bool) {
		f.with(func() { long = !f.watched.IsZero() && time.Since(f.watched) > time.Second })
		return long
	})
	f.with(func() { f.ended++; f.wakeWatches() }) // as the API server does after a while
	f.startsSoon()
}

// The release follows the end of the main process at once, and no renewal delays it. The median, because the machine may
// be busy.
func TestFencedReleaseIsQuick(t *testing.T) {
	t.Parallel()
	var took []time.Duration
	for range 9 {
		f := newFenced(t, 60)
		f.startSidecar()
		app := f.start(f.held("app", `echo x >/data/app; exec sleep 1000`))
		f.grant(7)
		eventually(t, "the main process runs", func() bool { return f.size("app") > 0 })
		f.retire()
		f.awaitState(`"retired":true`)
		begun := time.Now()
		app.send(syscall.SIGTERM)
		f.awaitReleased()
		f.with(func() { took = append(took, f.released.Sub(begun)) })
		if _, renewals := f.counts(); renewals > 1 {
			t.Errorf("the Lease was renewed %d times, want only the renewal before the start", renewals)
		}
		_ = app.exit()
	}
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("the release arrives %s after SIGTERM; from %s to %s", median, took[0], took[len(took)-1])
	if most := 200 * time.Millisecond; median > most {
		t.Errorf("the release arrives after %s, want %s at most", median, most)
	}
}

// awaitSilence waits until the sidecar has not renewed the Lease for a while.
func (f *fencedPod) awaitSilence(while time.Duration) {
	f.t.Helper()
	seen, since := 0, time.Now()
	eventually(f.t, "no more renewals", func() bool {
		if _, renewals := f.counts(); renewals != seen {
			seen, since = renewals, time.Now()
		}
		return time.Since(since) > while
	})
}

// A pod that retires after its main process has ended releases the Lease at once, without waiting for the next renewal.
func TestFencedReleaseAfterTheEnd(t *testing.T) {
	f := startFenced(t, 3600)
	f.grant(7)
	f.start(f.held("app", "exit 4")).wantExit(4)
	f.awaitSilence(time.Second)
	f.retire()
	f.awaitReleased()
}

// The kubelet stops the sidecar right after the held containers. The Lease is released nevertheless.
func TestFencedSidecarStops(t *testing.T) {
	f := startFenced(t, 5)
	app := f.runs(writes("app"))
	f.retire()
	f.with(func() { f.delay = 300 * time.Millisecond })
	app.stop(143)
	f.running.stop(0)
	f.wantHolder("")
}

// A main process can neither report its own end nor take the connection of its gate.
func TestFencedForgedReport(t *testing.T) {
	f := startFenced(t, 5)
	app := f.runs(`perl -MSocket -e 'for my $c ("app", "web") { socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($s, sockaddr_un("/var/run/signal/fence.sock")) or die;
		syswrite($s, "{\"container\":\"$c\",\"runs\":true}"); syswrite($s, "{\"ended\":true}"); sysread($s, my $answer, 100) }
		my $gate = syscall(434, 1, 0); die "pidfd_open" if $gate < 0;
		for my $n (3..30) { my $fd = syscall(438, $gate, $n, 0); print STDERR "took $n\n" if $fd >= 0 }
		print STDERR "forged\n"'; ` + writes("app"))
	app.says("forged")
	if said := app.said(); strings.Contains(said, "took") {
		t.Errorf("the main process took files of the gate:\n%s", said)
	}
	f.retire()
	f.wantHeld()
	f.wantGrows("app")
}

// The PID of a main process is always the same, and never that of a thread of a later gate. A PID file could name it.
func TestFencedPID(t *testing.T) {
	f := startFenced(t, 5)
	c := f.held("app", "echo $$; exec sleep 1000")
	c.Env = append(c.Env, "GOMAXPROCS=64") // as on a large node, where the gate may start more threads
	app := f.start(c)
	app.says("Held")
	f.grant(7)
	eventually(t, "the main process runs", func() bool { return app.printed() != "" })
	pid := strings.TrimSpace(app.printed())
	if pid != "100" { // threads that the gate started while it waited have lower PIDs
		t.Errorf("PID %s, want 100", pid)
	}
	// The threads that the gate had before the start.
	out, err := app.inside("sh", "-c", "ls /proc/1/task").Output()
	threads := strings.Fields(string(out))
	if must(t, err); len(threads) < 2 || slices.Contains(threads, pid) {
		t.Errorf("threads %v of the gate, PID %s of the main process", threads, pid)
	}
}

// The main process inherits no file of the gate.
func TestFencedFiles(t *testing.T) {
	f := startFenced(t, 5)
	f.grant(7)
	code, out, _ := f.run(f.held("app", `for f in /proc/$$/fd/*; do readlink $f || true; done`))
	if code != 0 || strings.Contains(out, "socket:") || strings.Contains(out, "anon_inode:") {
		t.Errorf("exit code %d, files:\n%s", code, out)
	}
}

// A sidecar that is refused says why, and does not repeat itself.
func TestFencedRefused(t *testing.T) {
	t.Parallel()
	f := newFenced(t, 5)
	f.write(f.root+signal.CredentialsDir+"/token", "expired", 0o644)
	f.startSidecar()
	f.running.says("no token")
	before, _ := f.counts()
	begun := time.Now()
	eventually(t, "more attempts", func() bool { now, _ := f.counts(); return now >= before+4 })
	if took := time.Since(begun); took < time.Second {
		t.Errorf("4 attempts within %s", took)
	}
	if n := strings.Count(f.running.said(), "no token"); n != 1 {
		t.Errorf("%d lines, want 1:\n%s", n, f.running.said())
	}
}

// A holder whose renewals fail does not try more often with time.
func TestFencedRetries(t *testing.T) {
	f := startFenced(t, 5)
	f.grant(7)
	f.awaitRenewals(1)
	f.setAway(true)
	before, _ := f.counts()
	begun := time.Now()
	eventually(t, "attempts to renew", func() bool { now, _ := f.counts(); return now >= before+15 })
	// Two attempts in a second, and one for each renewal that is due.
	if took := time.Since(begun); took < 4*time.Second {
		t.Errorf("15 attempts to renew within %s", took)
	}
}
