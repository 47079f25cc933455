package gate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

func TestDescribe(t *testing.T) {
	fenced := &signal.LeaseSettings{Namespace: "prod", Lease: "db", Held: []string{"web", "app"}, Pod: "db-1"}
	lock := &signal.LeaseSettings{Namespace: "prod", Lease: "db", Held: []string{"app"}, Pod: "db-1", Lock: true}
	const ours = `{"uid":"` + uid + `",`
	for name, tc := range map[string]struct {
		settings *signal.LeaseSettings
		// annotation, signal, fence and role are the contents of the files. Empty: the file does not exist.
		annotation, signal, fence, role string
		// want are parts of the text, and unwanted is none.
		want     []string
		unwanted string
	}{
		"standby":                   {want: []string{"State:      standby\n", "Epoch:      none\n", "the start signal"}, unwanted: "Problem"},
		"active":                    {signal: signalOf(uid, 7), annotation: signalOf(uid, 7), want: []string{"State:      active\n", "Epoch:      7\n", "Waits for:  nothing\n"}, unwanted: "Problem"},
		"the signal of another pod": {annotation: signalOf("another", 7), want: []string{"State:      standby\n", "Problem:", `"another"`}},
		"a damaged file":            {signal: "{", want: []string{"State:      standby\n", "Problem:"}},
		"fenced standby":            {settings: fenced, want: []string{"State:      standby\n", "app waits before its main process, web waits", "kubectl get lease -n prod db\n"}},
		"fenced and signalled, the Lease does not name the pod": {
			settings: fenced, signal: signalOf(uid, 7), want: []string{"State:      active\n", "Epoch:      7\n", "kubectl get lease -n prod db\n"},
		},
		"fenced and active": {
			settings: fenced, signal: signalOf(uid, 7), fence: ours + `"containers":{"app":{"state":"MayRun"},"web":{"state":"MayRun"}}}`,
			want: []string{"State:      active\n", "Epoch:      7\n", "app may run its main process, web may run its main process\n", "Waits for:  nothing\n"},
		},
		"fenced, and one container waits": {
			settings: fenced, signal: signalOf(uid, 7), fence: ours + `"containers":{"app":{"state":"Ended"},"web":{}}}`,
			want: []string{"State:      active\n", "app has ended, web waits before its main process\n", "kubectl get lease -n prod db\n"},
		},
		"fenced and retired": {
			settings: fenced, signal: signalOf(uid, 7), fence: ours + `"retired":true,"containers":{"app":{"state":"Ended"},"web":{"state":"Unknown"}}}`,
			want: []string{"State:      retired", "web may run its main process (its gate lost the connection"}, unwanted: "kubectl",
		},
		"fenced, with the state of a restored pod": {
			settings: fenced, fence: `{"uid":"another","containers":{"app":{"state":"MayRun"},"web":{}}}`, want: []string{"State:      standby\n"},
		},
		"the role is not known yet": {settings: lock, want: []string{"State:      starting\n", "Epoch:      none\n"}},
		"reader":                    {settings: lock, role: `{"role":"reader"}`, want: []string{"State:      reader\n", "Epoch:      none\n", "kubectl get lease -n prod db, to become the writer\n"}},
		"writer":                    {settings: lock, role: `{"role":"writer","epoch":7}`, want: []string{"State:      writer\n", "Epoch:      7\n", "app may run their main process as the writer", "Waits for:  nothing\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newSidecar(t)
			for path, content := range map[string]string{
				filepath.Join(s.Podinfo, filepath.Base(signal.File)): tc.annotation,
				s.Volume.signalFile():                                tc.signal,
				s.Volume.fenceFile():                                 tc.fence,
				s.Volume.roleFile():                                  tc.role,
			} {
				if content != "" {
					writeFile(t, path, content)
				}
			}
			before := filesIn(t, string(s.Volume))
			got, err := s.Describe(tc.settings)
			must(t, err)
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s\nlacks %q", got, want)
				}
			}
			if tc.unwanted != "" && strings.Contains(got, tc.unwanted) {
				t.Errorf("%s\nhas %q", got, tc.unwanted)
			}
			if after := filesIn(t, string(s.Volume)); after != before {
				t.Errorf("the files were %s, and are %s", before, after)
			}
		})
	}
}

// filesIn returns the names and times of the files.
func filesIn(t *testing.T, dir string) (text string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		text += e.Name() + info.ModTime().String()
	}
	return text
}
