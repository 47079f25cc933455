package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLockIsHeldForGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockFile)
	if free, err := takeLock(path); err != nil || !free {
		t.Fatalf("first: free %t, error %v, want it free", free, err)
	}
	// The second collection closes an *os.File without references.
	for range 5 {
		runtime.GC()
	}
	if free, err := takeLock(path); err != nil || free {
		t.Fatalf("second: free %t, error %v, want it taken", free, err)
	}
}

func TestBeginWritesAnOverlapDown(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("STATEFULSINGLETON_EPOCH", "7")
	for _, pod := range []string{"old", "new"} {
		t.Setenv("POD_NAME", pod)
		j, err := openJournal(dir, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := j.begin(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, journalFile))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := readEntries(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if e.Epoch != 7 {
			t.Errorf("entry %+v, want epoch 7", e)
		}
		got = append(got, e.Pod+" "+e.Event)
	}
	if diff := cmp.Diff([]string{"old start", "new overlap", "new start"}, got); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

// In a pod of a StatefulSetLock, only the writer records, with the epoch of its tenure.
func TestRoles(t *testing.T) {
	for name, tt := range map[string]struct {
		environment map[string]string
		want        []entry
	}{
		"no lock": {
			environment: map[string]string{"STATEFULSINGLETON_EPOCH": "3"},
			want:        []entry{{Event: "start", Epoch: 3}, {Event: "stop", Epoch: 3}},
		},
		"the writer": {
			environment: map[string]string{"DEFAULT_ROLE": "reader", "STATEFULSETLOCK_ROLE": "writer", "STATEFULSETLOCK_EPOCH": "7"},
			want:        []entry{{Event: "start", Epoch: 7}, {Event: "stop", Epoch: 7}},
		},
		"a reader":            {environment: map[string]string{"STATEFULSETLOCK_ROLE": "reader", "STATEFULSETLOCK_EPOCH": "0"}},
		"a reader by default": {environment: map[string]string{"DEFAULT_ROLE": "reader"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for variable, value := range tt.environment {
				t.Setenv(variable, value)
			}
			j, err := openJournal(dir, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(j.begin(), j.write("stop")); err != nil {
				t.Fatal(err)
			}
			var got []entry
			for _, e := range journalOf(t, dir) {
				got = append(got, entry{Event: e.Event, Epoch: e.Epoch})
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(filepath.Join(dir, lockFile)); os.IsNotExist(err) != (tt.want == nil) {
				t.Errorf("the lock: %v", err)
			}
		})
	}
}
