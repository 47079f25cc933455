package main

import (
	"bytes"
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
