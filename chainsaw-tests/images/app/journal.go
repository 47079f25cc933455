package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
)

// lockFile is the lock in the data directory.
const lockFile = "lock"

// The roles of a process.
const (
	writer = "writer"
	// reader records nothing.
	reader = "reader"
	// noRole takes no lock, and records only the writes of clients.
	noRole = "none"
)

// recorder writes the entries of one process.
type recorder struct {
	dir   string
	file  *os.File
	pod   string
	run   int64
	epoch int64
	boot  string
	role  string

	mu sync.Mutex
	// stopped is true after event stop. No entry follows.
	stopped bool
}

func openJournal(dir string, started time.Time) (*recorder, error) {
	if dir == "" {
		dir = "/data"
	}
	j := &recorder{dir: dir, pod: os.Getenv("POD_NAME"), run: started.UnixNano()}
	var err error
	if j.pod == "" {
		if j.pod, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("find a name for the journal: %w", err)
		}
	}
	if j.role, err = roleFromEnvironment(); err != nil || j.role == reader {
		return j, err
	}
	if j.file, err = os.OpenFile(filepath.Join(dir, journal.File), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666); err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	if j.epoch, err = epochFromEnvironment(); err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("find out which boot this is: %w", err)
	}
	j.boot = strings.TrimSpace(string(boot))
	return j, nil
}

// roleFromEnvironment returns the role in a StatefulSetLock. Without a StatefulSetLock, the process is a writer.
func roleFromEnvironment() (string, error) {
	const variable = "STATEFULSETLOCK_ROLE"
	role := cmp.Or(os.Getenv(variable), os.Getenv("DEFAULT_ROLE"), writer)
	if !slices.Contains([]string{writer, reader, noRole}, role) {
		return "", fmt.Errorf("%s or DEFAULT_ROLE is %q: want %s, %s or %s", variable, role, writer, reader, noRole)
	}
	return role, nil
}

// epochFromEnvironment returns 0 if the pod belongs to no StatefulSetLock and no StatefulSingleton.
func epochFromEnvironment() (int64, error) {
	for _, variable := range []string{"STATEFULSETLOCK_EPOCH", "STATEFULSINGLETON_EPOCH"} {
		text := os.Getenv(variable)
		if text == "" {
			continue
		}
		epoch, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s is %q: want a number", variable, text)
		}
		return epoch, nil
	}
	return 0, nil
}

// begin takes the lock and records the start. If another process has the lock, it records an overlap and continues,
// because its purpose is to report overlaps.
func (j *recorder) begin() error {
	if j.role != writer {
		return nil
	}
	started := journal.Now()
	free, err := takeLock(filepath.Join(j.dir, lockFile))
	if err != nil {
		return err
	}
	if !free {
		if err := j.write("overlap"); err != nil {
			return err
		}
	}
	return j.writeAt("start", time.Unix(0, j.run), started)
}

// takeLock returns whether the lock was free. If it was not, it takes the lock as soon as possible. The file descriptor
// is never closed, and only the end of the process releases the lock. The garbage collector would close an *os.File.
func takeLock(path string) (free bool, err error) {
	lock, err := syscall.Open(path, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o666)
	if err != nil {
		return false, fmt.Errorf("open the lock %s: %w", path, err)
	}
	err = syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		go func() { _ = syscall.Flock(lock, syscall.LOCK_EX) }()
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	return true, nil
}

// beat records repeatedly that the process runs, until the context ends. After a SIGKILL, only these entries show how
// long it ran.
func (j *recorder) beat(ctx context.Context, every time.Duration) {
	tick := time.Tick(every)
	for {
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
		if err := j.write("alive"); err != nil {
			fmt.Fprintln(os.Stderr, "app:", err)
		}
	}
}

// write records an event of the process, if the process is a writer.
func (j *recorder) write(event string) error {
	if j.role != writer {
		return nil
	}
	return j.record(event)
}

// serveWrite records a write of a client. It returns an error if the process is a reader, or has stopped.
func (j *recorder) serveWrite() error {
	if j.role == reader {
		return fmt.Errorf("%s reader", j.pod)
	}
	return j.record("write")
}

// record appends an entry with the current time.
func (j *recorder) record(event string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		return fmt.Errorf("%s has stopped", j.pod)
	}
	j.stopped = event == "stop"
	return j.writeAt(event, time.Now(), journal.Now())
}

// writeAt appends one line with one write, so lines of two processes never mix.
func (j *recorder) writeAt(event string, at time.Time, monotonic time.Duration) error {
	line, err := json.Marshal(journal.Entry{Event: event, Pod: j.pod, Run: j.run, Epoch: j.epoch, Time: at.UTC(), Monotonic: monotonic.Nanoseconds(), Boot: j.boot})
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s into the journal: %w", event, err)
	}
	if event != "alive" && event != "write" {
		fmt.Println(string(line))
	}
	return nil
}
