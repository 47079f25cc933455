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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	must(t, os.WriteFile(program, []byte("the program"), 0o500))
	return &Sidecar{
		Volume: Volume(t.TempDir()), Podinfo: t.TempDir(), UID: uid, Program: program,
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
	}, log
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// annotate writes the annotation of the pod, and makes the sidecar read it.
func (s *Sidecar) annotate(t *testing.T, annotation string) {
	t.Helper()
	writeFile(t, filepath.Join(s.Podinfo, "start-signal"), annotation)
	s.follow()
}

// lines returns the lines of a log.
func lines(log fmt.Stringer) []string { return strings.Split(strings.TrimSpace(log.String()), "\n") }

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
				s.annotate(t, annotation)
			}
			if diff := cmp.Diff(tc.wantFile, readFile(t, s.Volume.signalFile())); diff != "" {
				t.Errorf("signal file (-want +got):\n%s", diff)
			}
			got := s.Status()
			want := Status{Released: tc.wantEpoch > 0, Restarted: tc.wantRestarted, Epoch: tc.wantEpoch, Since: got.Since, Problem: got.Problem}
			if got != want || got.Since.IsZero() || (got.Problem != "") != tc.wantProblem {
				t.Errorf("status %+v, want %+v, since set and a problem: %t", got, want, tc.wantProblem)
			}
			if diff := cmp.Diff(tc.wantLog, lines(log)); diff != "" {
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
	if diff := cmp.Diff([]string{reader, writer, reader}, lines(log)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// If the sidecar cannot read the annotation or write the volume, it logs the problem once, and changes nothing.
func TestSidecarKeepsTheSignalAfterAnError(t *testing.T) {
	for wantProblem, disturb := range map[string]func(t *testing.T, s *Sidecar){
		"read the pod's annotation apps.statefulsingleton.com/start-signal": func(t *testing.T, s *Sidecar) {
			path := filepath.Join(s.Podinfo, "start-signal")
			must(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o755)))
		},
		"write the signal file": func(t *testing.T, s *Sidecar) {
			writeFile(t, filepath.Join(s.Podinfo, "start-signal"), signalOf(uid, 2))
			must(t, os.Mkdir(s.Volume.signalFile()+".partial", 0o755))
		},
	} {
		t.Run(wantProblem, func(t *testing.T) {
			s, log := newSidecar(t)
			s.annotate(t, signalOf(uid, 1))
			disturb(t, s)
			s.follow()
			s.follow()
			if got := s.Status(); got.Epoch != 1 || !strings.Contains(got.Problem, wantProblem) {
				t.Errorf("status %+v, want epoch 1 and the problem", got)
			}
			if got, want := readFile(t, s.Volume.signalFile()), signalOf(uid, 1); got != want {
				t.Errorf("signal file %q, want %q", got, want)
			}
			if got := strings.Count(log.String(), wantProblem); got != 1 {
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
		must(t, os.Mkdir(filepath.Join(s.Podinfo, dir), 0o755))
		writeFile(t, filepath.Join(s.Podinfo, dir, "start-signal"), annotation)
		next := filepath.Join(s.Podinfo, "..data_tmp")
		must(t, errors.Join(os.Symlink(dir, next), os.Rename(next, filepath.Join(s.Podinfo, "..data"))))
		if generation > 1 {
			must(t, os.RemoveAll(filepath.Join(s.Podinfo, fmt.Sprintf("..%d", generation-1))))
		}
	}
	project("")
	must(t, os.Symlink("..data/start-signal", filepath.Join(s.Podinfo, "start-signal")))
	writeFile(t, s.Volume.gateFile()+".partial", strings.Repeat("a partial file of a killed sidecar", 10))
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	must(t, s.Volume.AwaitDelivery(t.Context(), uid))
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
		must(t, err)
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
	for wantError, change := range map[string]func(s *Sidecar){
		"POD_UID is empty": func(s *Sidecar) { s.UID = "" },
		"deliver the gate to the held containers: open ": func(s *Sidecar) { s.Volume += "/missing" },
	} {
		t.Run(wantError, func(t *testing.T) {
			s, _ := newSidecar(t)
			change(s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // stops a sidecar that does not fail
			if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), wantError) || s.Status().Delivered {
				t.Errorf("error %v, status %+v", err, s.Status())
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
	s.annotate(t, signalOf(uid, 3))
	if code, body := get("/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	wantStatus := func(want map[string]any) {
		t.Helper()
		_, body := get("/status")
		var got map[string]any
		must(t, json.Unmarshal([]byte(body), &got))
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
	s.annotate(t, signalOf("another", 4))
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
			must(t, s.Volume.deliver(s.Program))
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
	must(t, os.Mkdir(string(volume), 0o755))
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

// Other variables stay, also those whose names begin or end with that of a replaced one.
func TestMainEnvironment(t *testing.T) {
	others := []string{"A=1", "B=", "STATEFULSINGLETON_EPOCH_OLD=3", "STATEFULSINGLETON_POD_UID_OLD=a", "POD_UID=b"}
	environ := slices.Concat([]string{"STATEFULSINGLETON_EPOCH=3", "STATEFULSINGLETON_POD_UID=a"}, others, []string{"STATEFULSINGLETON_POD_UID="})
	if diff := cmp.Diff(append(others, "STATEFULSINGLETON_EPOCH=7"), mainEnvironment(environ, 7)); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestSuperviseOnlyAsPID1(t *testing.T) {
	if code, err := Supervise(Execute("/bin/true", []string{"true"}, nil), nil, func() {}, nil, slog.New(slog.DiscardHandler)); err == nil || code != 0 {
		t.Errorf("exit code %d, error %v", code, err)
	}
}
