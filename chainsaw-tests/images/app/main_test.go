package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
)

// runAsApp is the environment variable that makes the test binary the application.
const runAsApp = "APP_TEST_RUN"

// patience is the timeout for an entry in the journal.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(runAsApp) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// startApp starts the application in its own network namespace, in which its port is free. It waits for the start in
// the journal.
func startApp(t *testing.T, dir, pod string, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), runAsApp+"=1", "DATA="+dir, "POD_NAME="+pod)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, dir, pod+" start ")
	return cmd
}

// await waits until the journal has the events.
func await(t *testing.T, dir, told string) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func() string { return events(t, dir) }, patience, time.Millisecond).Should(gomega.ContainSubstring(told))
}

// journalOf reads the journal of the directory. It returns nil if no journal exists.
func journalOf(t *testing.T, dir string) []journal.Entry {
	t.Helper()
	entries, err := journal.Read(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return entries
}

// events returns the events of the journal without times, for example "a start b start ".
func events(t *testing.T, dir string) string {
	t.Helper()
	var told strings.Builder
	for _, e := range journalOf(t, dir) {
		if e.Event == "alive" {
			continue // their number varies
		}
		told.WriteString(e.Pod + " " + e.Event + " ")
	}
	return told.String()
}

// Tests and the check read the last entry to see whether the process ended.
func TestNoEntryFollowsStop(t *testing.T) {
	dir := t.TempDir()
	a := startApp(t, dir, "a", "ALIVE_SECONDS=0.00001")
	end(t, a, syscall.SIGTERM)
	entries := journalOf(t, dir)
	if last := entries[len(entries)-1]; last.Event != "stop" {
		t.Errorf("the last entry is %+v, want event stop", last)
	}
}

// end sends the signal and returns the exit code, or -1 if the process was killed.
func end(t *testing.T, cmd *exec.Cmd, s os.Signal) int {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the caller checks the exit code
	return cmd.ProcessState.ExitCode()
}

func TestApp(t *testing.T) {
	tests := map[string]struct {
		play         func(t *testing.T, dir string)
		want         string
		wantOverlaps int
	}{
		"one after the other": {
			play: func(t *testing.T, dir string) {
				for _, pod := range []string{"a", "b"} {
					if code := end(t, startApp(t, dir, pod), syscall.SIGTERM); code != 0 {
						t.Errorf("%s: exit code %d, want 0", pod, code)
					}
				}
			},
			want: "a start a stopping a stop b start b stopping b stop ",
		},
		"two at once": {
			play: func(t *testing.T, dir string) {
				a := startApp(t, dir, "a")
				b := startApp(t, dir, "b")
				end(t, a, syscall.SIGTERM)
				end(t, b, syscall.SIGTERM)
			},
			want:         "a start b overlap b start a stopping a stop b stopping b stop ",
			wantOverlaps: 1,
		},
		"the next while one still stops": {
			play: func(t *testing.T, dir string) {
				a := startApp(t, dir, "a", "STOP_SECONDS=60")
				if err := a.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				await(t, dir, "a stopping ")
				end(t, startApp(t, dir, "b"), syscall.SIGTERM)
				end(t, a, syscall.SIGKILL)
			},
			want:         "a start a stopping b overlap b start b stopping b stop ",
			wantOverlaps: 1,
		},
		"one killed": {
			play: func(t *testing.T, dir string) {
				end(t, startApp(t, dir, "a"), syscall.SIGKILL)
				end(t, startApp(t, dir, "b"), syscall.SIGTERM)
			},
			want: "a start b start b stopping b stop ",
		},
		"one killed that wrote how long it lived": {
			play: func(t *testing.T, dir string) {
				a := startApp(t, dir, "a", "ALIVE_SECONDS=0.01")
				entries := func() int { return len(journalOf(t, dir)) }
				gomega.NewWithT(t).Eventually(entries, patience, time.Millisecond).Should(gomega.BeNumerically(">=", 3))
				end(t, a, syscall.SIGKILL)
				end(t, startApp(t, dir, "b"), syscall.SIGTERM)
			},
			want: "a start b start b stopping b stop ",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tc.play(t, dir)
			if diff := cmp.Diff(tc.want, events(t, dir)); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
			got := journal.Summarize(journalOf(t, dir))
			if len(got.Handoffs) != 1 || got.Overlaps != tc.wantOverlaps {
				t.Errorf("summary %+v, want one handoff and %d overlaps", got, tc.wantOverlaps)
			}
		})
	}
}
