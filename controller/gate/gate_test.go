package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/onsi/gomega"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const uid = "6f1c0a53-6b5e-4a52-9a0c-6a3f7d1f2f10"

func signalOf(uid string, epoch int64) string {
	return signal.Signal{UID: uid, Epoch: epoch, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}.String()
}

// newSidecar returns a sidecar whose pod has no signal. The log has no times.
func newSidecar(t *testing.T) (s *Sidecar, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	program := filepath.Join(t.TempDir(), "gate")
	if err := os.WriteFile(program, []byte("the program"), 0o500); err != nil {
		t.Fatal(err)
	}
	return &Sidecar{
		Volume: Volume(t.TempDir()), Podinfo: t.TempDir(), UID: uid, Program: program,
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
	}, log
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readFile returns "" for a file that does not exist.
func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	gomega.NewWithT(t).Eventually(condition, 10*time.Second, time.Millisecond).Should(gomega.BeTrue(), "%s", what)
}

// Each case is a sequence of annotations that the sidecar reads.
func TestSidecarFollows(t *testing.T) {
	first, second, foreign := signalOf(uid, 1), signalOf(uid, 2), signalOf("another", 9)
	elsewhere := `{"uid":"` + uid + `","epoch":1,"time":"2026-01-02T05:04:05+02:00"}`
	const (
		held     = `level=INFO msg="Held: main processes wait until the controller releases this pod"`
		released = `level=INFO msg="Released: the held containers may start their main processes" epoch=`
	)
	refused := func(why string) string {
		return `level=ERROR msg="annotation apps.statefulsingleton.com/start-signal does not release the pod: ` + why + `"`
	}
	isForeign := refused(`it is for a pod with uid \"another\", and this pod has uid \"` + uid + `\"`)
	tests := map[string]struct {
		// stale is in the signal file before the sidecar starts.
		stale       string
		annotations []string
		wantFile    string
		wantEpoch   int64
		// wantRestarted: the pod was released before the sidecar's first read.
		wantRestarted bool
		wantProblem   bool
		wantLog       []string
	}{
		"held":                      {annotations: []string{"", ""}, wantLog: []string{held}},
		"released":                  {annotations: []string{"", first, first}, wantFile: first, wantEpoch: 1, wantLog: []string{held, released + "1"}},
		"released before the start": {annotations: []string{first}, wantFile: first, wantEpoch: 1, wantRestarted: true, wantLog: []string{released + "1"}},
		"released again":            {annotations: []string{first, second}, wantFile: second, wantEpoch: 2, wantRestarted: true, wantLog: []string{released + "1", released + "2"}},
		"signal removed":            {annotations: []string{first, ""}, wantLog: []string{released + "1", held}},
		"of another pod":            {annotations: []string{foreign, foreign}, wantProblem: true, wantLog: []string{isForeign, held}},
		"replaced by a foreign one": {annotations: []string{first, foreign}, wantProblem: true, wantLog: []string{released + "1", isForeign, held}},
		"malformed":                 {annotations: []string{first, `{"uid":`}, wantProblem: true, wantLog: []string{released + "1", refused("parse signal: unexpected end of JSON input"), held}},
		"corrected":                 {annotations: []string{"x", first}, wantFile: first, wantEpoch: 1, wantLog: []string{refused("parse signal: invalid character 'x' looking for beginning of value"), held, released + "1"}},
		"without an epoch":          {annotations: []string{`{"uid":"` + uid + `"}`}, wantProblem: true, wantLog: []string{refused("parse signal: epoch is 0, but must be at least 1"), held}},
		"in another time zone":      {annotations: []string{elsewhere, elsewhere}, wantFile: elsewhere, wantEpoch: 1, wantRestarted: true, wantLog: []string{released + "1"}},
		"restarted, released":       {stale: first, annotations: []string{first}, wantFile: first, wantEpoch: 1, wantRestarted: true, wantLog: []string{released + "1"}},
		"restarted, removed":        {stale: first, annotations: []string{""}, wantLog: []string{held}},
		"stale, of another pod":     {stale: foreign, annotations: []string{""}, wantLog: []string{held}},
		"stale, half written":       {stale: `{"uid":`, annotations: []string{first}, wantFile: first, wantEpoch: 1, wantRestarted: true, wantLog: []string{released + "1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, log := newSidecar(t)
			if tc.stale != "" {
				writeFile(t, s.Volume.signalFile(), tc.stale)
			}
			for _, annotation := range tc.annotations {
				writeFile(t, filepath.Join(s.Podinfo, "start-signal"), annotation)
				s.follow()
			}
			if diff := cmp.Diff(tc.wantFile, readFile(t, s.Volume.signalFile())); diff != "" {
				t.Errorf("signal file (-want +got):\n%s", diff)
			}
			want := Status{Released: tc.wantEpoch > 0, Restarted: tc.wantRestarted, Epoch: tc.wantEpoch}
			if diff := cmp.Diff(want, s.Status(), cmpopts.IgnoreFields(Status{}, "Since", "Problem")); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if got := s.Status(); got.Since.IsZero() || (got.Problem != "") != tc.wantProblem {
				t.Errorf("status %+v, want since set and a problem: %t", got, tc.wantProblem)
			}
			if diff := cmp.Diff(tc.wantLog, strings.Split(strings.TrimSpace(log.String()), "\n")); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

// In a pod of a StatefulSetLock, the sidecar says in which role the main processes run.
func TestSidecarOfALock(t *testing.T) {
	s, log := newSidecar(t)
	s.Fenced, s.Lock = true, true
	for _, epoch := range []int64{0, 7, 7, 0} {
		s.leaseReleases(epoch > 0, epoch, false)
	}
	reader, writer := `level=INFO msg="Reader: the main processes run as readers"`, `level=INFO msg="Writer: the main processes may run as the writer" epoch=7`
	if diff := cmp.Diff([]string{reader, writer, reader}, strings.Split(strings.TrimSpace(log.String()), "\n")); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// If the sidecar cannot read the annotation or write the volume, it logs the problem once, and changes nothing.
func TestSidecarKeepsTheSignalAfterAnError(t *testing.T) {
	tests := map[string]struct {
		disturb     func(t *testing.T, s *Sidecar)
		wantProblem string
	}{
		"the annotation cannot be read": {
			disturb: func(t *testing.T, s *Sidecar) {
				path := filepath.Join(s.Podinfo, "start-signal")
				if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
					t.Fatal(err)
				}
			},
			wantProblem: "read the pod's annotation apps.statefulsingleton.com/start-signal",
		},
		"the volume cannot be written": {
			disturb: func(t *testing.T, s *Sidecar) {
				writeFile(t, filepath.Join(s.Podinfo, "start-signal"), signalOf(uid, 2))
				if err := os.Mkdir(s.Volume.signalFile()+".partial", 0o755); err != nil {
					t.Fatal(err)
				}
			},
			wantProblem: "write the signal file",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, log := newSidecar(t)
			writeFile(t, filepath.Join(s.Podinfo, "start-signal"), signalOf(uid, 1))
			s.follow()
			tc.disturb(t, s)
			s.follow()
			s.follow()
			if got := s.Status(); got.Epoch != 1 || !strings.Contains(got.Problem, tc.wantProblem) {
				t.Errorf("status %+v, want epoch 1 and the problem %q", got, tc.wantProblem)
			}
			if got, want := readFile(t, s.Volume.signalFile()), signalOf(uid, 1); got != want {
				t.Errorf("signal file %q, want %q", got, want)
			}
			if got := strings.Count(log.String(), tc.wantProblem); got != 1 {
				t.Errorf("logged %d times, want once:\n%s", got, log)
			}
		})
	}
}

// The test updates the projected file as the kubelet does: a new directory, and then a new target of symlink ..data.
func TestSidecarRuns(t *testing.T) {
	s, _ := newSidecar(t)
	generation := 0
	project := func(annotation string) {
		t.Helper()
		generation++
		dir := fmt.Sprintf("..%d", generation)
		if err := os.Mkdir(filepath.Join(s.Podinfo, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(s.Podinfo, dir, "start-signal"), annotation)
		next := filepath.Join(s.Podinfo, "..data_tmp")
		if err := errors.Join(os.Symlink(dir, next), os.Rename(next, filepath.Join(s.Podinfo, "..data"))); err != nil {
			t.Fatal(err)
		}
		if generation > 1 {
			if err := os.RemoveAll(filepath.Join(s.Podinfo, fmt.Sprintf("..%d", generation-1))); err != nil {
				t.Fatal(err)
			}
		}
	}
	project("")
	if err := os.Symlink("..data/start-signal", filepath.Join(s.Podinfo, "start-signal")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.Volume.gateFile()+".partial", strings.Repeat("a partial file of a killed sidecar", 10))
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	if err := s.Volume.AwaitDelivery(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, s.Volume.gateFile()); got != "the program" {
		t.Errorf("delivered %q", got)
	}
	// The sidecar uses inotify until the release. Later, an inotify instance would delay the exit of the sidecar.
	for epoch := range int64(3) {
		project(signalOf(uid, epoch+1))
		eventually(t, "the signal file is written", func() bool { return readFile(t, s.Volume.signalFile()) == signalOf(uid, epoch+1) })
	}
	eventually(t, "no inotify instance", func() bool { return inotifyInstances(t) == 0 })
	modes := map[string]fs.FileMode{s.Volume.gateFile(): 0o755, s.Volume.signalFile(): 0o644, s.Volume.pipeFile(): fs.ModeNamedPipe | 0o644}
	for path, want := range modes {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode(); got != want {
			t.Errorf("mode of %s is %s, want %s", path, got, want)
		}
	}
	project("")
	eventually(t, "the signal file is removed", func() bool { return readFile(t, s.Volume.signalFile()) == "" })
	entries, err := os.ReadDir(string(s.Volume))
	if err != nil || len(entries) != 2 {
		t.Errorf("the volume has %v (error %v), want only the gate and the wake-up pipe", entries, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

func TestSidecarRefusesToRun(t *testing.T) {
	tests := map[string]struct {
		change    func(s *Sidecar)
		wantError string
	}{
		"no uid":    {func(s *Sidecar) { s.UID = "" }, "POD_UID is empty"},
		"no volume": {func(s *Sidecar) { s.Volume += "/missing" }, "deliver the gate to the held containers: open "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := newSidecar(t)
			tc.change(s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // stops a sidecar that does not fail
			if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), tc.wantError) {
				t.Errorf("error %v, want %q", err, tc.wantError)
			}
			if s.Status().Delivered {
				t.Error("status: the gate is delivered")
			}
		})
	}
}

func TestServe(t *testing.T) {
	s, _ := newSidecar(t)
	get := func(path string) (code int, body string) {
		r := httptest.NewRecorder()
		s.handler(NewReadiness(s, "", nil)).ServeHTTP(r, httptest.NewRequest(http.MethodGet, path, nil))
		return r.Code, r.Body.String()
	}
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable {
		t.Errorf("/healthz before the delivery: %d %q", code, body)
	}
	s.status.Delivered = true
	writeFile(t, filepath.Join(s.Podinfo, "start-signal"), signalOf(uid, 3))
	s.follow()
	if code, body := get("/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	wantStatus := func(want map[string]any) {
		t.Helper()
		_, body := get("/status")
		var got map[string]any
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		since, err := time.Parse(time.RFC3339Nano, fmt.Sprint(got["since"]))
		if err != nil || time.Since(since) > time.Minute {
			t.Errorf("since is %v (error %v), want the time of the change", got["since"], err)
		}
		delete(got, "since")
		// No other field: a client that can connect to the port must not read the uid or the epoch.
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("/status (-want +got):\n%s", diff)
		}
	}
	wantStatus(map[string]any{"delivered": true, "released": true})
	writeFile(t, filepath.Join(s.Podinfo, "start-signal"), signalOf("another", 4))
	s.follow()
	if got := s.Status().Problem; !strings.Contains(got, uid) || !strings.Contains(got, "another") {
		t.Errorf("problem %q, want both uids, which must not be served", got)
	}
	wantStatus(map[string]any{"delivered": true, "released": false, "problem": "see the log of container status-sidecar"})
}

// A backup tool can have restored the gate and the signal of another pod before the sidecar starts.
func TestAwaitDelivery(t *testing.T) {
	tests := map[string]struct {
		gate, signal string
		// wantWaits is the reason in the error. Empty: no wait.
		wantWaits string
	}{
		"an empty volume":      {wantWaits: "gate: no such file or directory"},
		"gate":                 {gate: "a program"},
		"gate, signal":         {gate: "a program", signal: signalOf(uid, 1)},
		"gate, foreign signal": {gate: "a program", signal: signalOf("another", 9), wantWaits: `has the signal of another pod, with uid "another"`},
		"gate, half a signal":  {gate: "a program", signal: `{"uid":`, wantWaits: "parse signal: unexpected end of JSON input"},
		"foreign signal":       {signal: signalOf("another", 9), wantWaits: "gate: no such file or directory"},
		"signal":               {signal: signalOf(uid, 1), wantWaits: "gate: no such file or directory"},
		"gate, signal, no uid": {gate: "a program", signal: `{"epoch":1}`, wantWaits: "uid is empty"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := newSidecar(t)
			writeFile(t, filepath.Join(s.Podinfo, "start-signal"), "")
			for path, content := range map[string]string{s.Volume.gateFile(): tc.gate, s.Volume.signalFile(): tc.signal} {
				if content != "" {
					writeFile(t, path, content)
				}
			}
			once, cancel := context.WithCancel(t.Context())
			cancel()

			err := s.Volume.AwaitDelivery(once, uid)

			if tc.wantWaits == "" && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if tc.wantWaits != "" && (err == nil || !strings.Contains(err.Error(), tc.wantWaits+". See the log of container status-sidecar")) {
				t.Errorf("error %v, want it to wait for %q", err, tc.wantWaits)
			}
			if err := s.Volume.deliver(s.Program); err != nil {
				t.Fatal(err)
			}
			s.follow()
			if err := s.Volume.AwaitDelivery(once, uid); err != nil {
				t.Errorf("after the delivery: error %v, want none", err)
			}
		})
	}
}

// Inotify cannot watch a directory that does not exist yet.
func TestChangesWithoutInotify(t *testing.T) {
	_, log := newSidecar(t)
	volume := Volume(filepath.Join(t.TempDir(), "later"))
	changed := changes(t.Context(), string(volume), time.Millisecond, slog.New(slog.NewTextHandler(log, nil)))
	if !strings.Contains(log.String(), "Polling the directory instead") {
		t.Errorf("log %q, want the warning about inotify", log)
	}
	if err := os.Mkdir(string(volume), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, volume.signalFile(), signalOf(uid, 1))
	for range changed {
		if _, err := volume.Signal(uid); err == nil {
			return
		}
	}
}

// The poll interval is an hour, so only inotify can report the change.
func TestChangesWithoutPolling(t *testing.T) {
	for range 100 {
		volume := Volume(t.TempDir())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		written := make(chan error, 1)
		go func() {
			written <- writeWhole(volume.signalFile(), 0o644, strings.NewReader(signalOf(uid, 1)))
		}()
		found := false
		for range changes(ctx, string(volume), time.Hour, slog.New(slog.DiscardHandler)) {
			if _, err := volume.Signal(uid); err == nil {
				found = true
				break
			}
		}
		cancel()
		if err := <-written; err != nil || !found {
			t.Fatalf("found the signal: %t (error %v)", found, err)
		}
	}
}

func TestMainEnvironment(t *testing.T) {
	tests := map[string]struct {
		environ, want []string
	}{
		"added":               {environ: []string{"A=1", "B="}, want: []string{"A=1", "B=", "STATEFULSINGLETON_EPOCH=7"}},
		"replaced":            {environ: []string{"STATEFULSINGLETON_EPOCH=3", "A=1"}, want: []string{"A=1", "STATEFULSINGLETON_EPOCH=7"}},
		"a longer name stays": {environ: []string{"STATEFULSINGLETON_EPOCH_OLD=3"}, want: []string{"STATEFULSINGLETON_EPOCH_OLD=3", "STATEFULSINGLETON_EPOCH=7"}},
		"the pod's uid":       {environ: []string{"STATEFULSINGLETON_POD_UID=a", "A=1", "STATEFULSINGLETON_POD_UID="}, want: []string{"A=1", "STATEFULSINGLETON_EPOCH=7"}},
		"another uid stays":   {environ: []string{"STATEFULSINGLETON_POD_UID_OLD=a", "POD_UID=b"}, want: []string{"STATEFULSINGLETON_POD_UID_OLD=a", "POD_UID=b", "STATEFULSINGLETON_EPOCH=7"}},
		"empty":               {environ: nil, want: []string{"STATEFULSINGLETON_EPOCH=7"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, mainEnvironment(tc.environ, 7)); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}
