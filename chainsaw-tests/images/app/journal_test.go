package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
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

// In a pod of a StatefulSetLock, only the writer records, with the epoch of its tenure. An application without a role records
// only the writes of clients. No entry follows the stop of a writer.
func TestRoles(t *testing.T) {
	for name, tt := range map[string]struct {
		environment map[string]string
		want        []journal.Entry
		wantLock    bool
		// wantServed are the status codes of a write before and of a write after the stop.
		wantServed []int
	}{
		"no lock": {
			environment: map[string]string{"STATEFULSINGLETON_EPOCH": "3"},
			want:        []journal.Entry{{Event: "start", Epoch: 3}, {Event: "write", Epoch: 3}, {Event: "stop", Epoch: 3}},
			wantLock:    true,
			wantServed:  []int{http.StatusOK, http.StatusServiceUnavailable},
		},
		"the writer": {
			environment: map[string]string{"DEFAULT_ROLE": "reader", "STATEFULSETLOCK_ROLE": "writer", "STATEFULSETLOCK_EPOCH": "7"},
			want:        []journal.Entry{{Event: "start", Epoch: 7}, {Event: "write", Epoch: 7}, {Event: "stop", Epoch: 7}},
			wantLock:    true,
			wantServed:  []int{http.StatusOK, http.StatusServiceUnavailable},
		},
		"a reader": {
			environment: map[string]string{"STATEFULSETLOCK_ROLE": "reader", "STATEFULSETLOCK_EPOCH": "0"},
			wantServed:  []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		},
		"a reader by default": {
			environment: map[string]string{"DEFAULT_ROLE": "reader"},
			wantServed:  []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		},
		"no role": {
			environment: map[string]string{"DEFAULT_ROLE": "none"},
			want:        []journal.Entry{{Event: "write"}, {Event: "write"}},
			wantServed:  []int{http.StatusOK, http.StatusOK},
		},
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
			var served []int
			write := func() {
				answer := httptest.NewRecorder()
				j.handler(time.Now()).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/", nil))
				served = append(served, answer.Code)
			}
			err = j.begin()
			write()
			if err := errors.Join(err, j.write("stop")); err != nil {
				t.Fatal(err)
			}
			write()
			if diff := cmp.Diff(tt.wantServed, served); diff != "" {
				t.Errorf("answers to writes (-want +got):\n%s", diff)
			}
			var got []journal.Entry
			for _, e := range journalOf(t, dir) {
				got = append(got, journal.Entry{Event: e.Event, Epoch: e.Epoch})
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(filepath.Join(dir, lockFile)); os.IsNotExist(err) == tt.wantLock {
				t.Errorf("the lock: %v", err)
			}
		})
	}
}
