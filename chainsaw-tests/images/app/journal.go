package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The files of the data directory.
const (
	journalFile = "events.jsonl"
	lockFile    = "lock"
)

// entry is one line of the journal.
type entry struct {
	// Event is overlap, start, alive, stopping or stop.
	Event string `json:"event"`
	Pod   string `json:"pod"`
	// Run tells the processes of one pod apart: when it started, in nanoseconds.
	Run   int64     `json:"run"`
	Epoch int64     `json:"epoch"`
	Time  time.Time `json:"time"`
	// Monotonic is the machine's time since it was booted, in nanoseconds. Nobody
	// sets that clock, and all processes of one machine share it. Zero: not known.
	Monotonic int64 `json:"monotonic,omitempty"`
	// Boot tells the boots of machines apart.
	Boot string `json:"boot,omitempty"`
}

// journal is what one process writes down.
type journal struct {
	dir   string
	file  *os.File
	pod   string
	run   int64
	epoch int64
	boot  string
}

func openJournal(dir string, started time.Time) (*journal, error) {
	if dir == "" {
		dir = "/data"
	}
	file, err := os.OpenFile(filepath.Join(dir, journalFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j := &journal{dir: dir, file: file, pod: os.Getenv("POD_NAME"), run: started.UnixNano()}
	if j.pod == "" {
		if j.pod, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("find a name for the journal: %w", err)
		}
	}
	if text := os.Getenv("STATEFULSINGLETON_EPOCH"); text != "" {
		if j.epoch, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("STATEFULSINGLETON_EPOCH is %q: want a number", text)
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("find out which boot this is: %w", err)
	}
	j.boot = strings.TrimSpace(string(boot))
	return j, nil
}

// begin takes the lock, writes down an overlap if another process has it, and the
// start. It goes on in either case: what it is for is to tell of an overlap.
func (j *journal) begin() error {
	monotonic, err := sinceBoot()
	if err != nil {
		return err
	}
	free, err := takeLock(filepath.Join(j.dir, lockFile))
	if err != nil {
		return err
	}
	if !free {
		if err := j.write("overlap"); err != nil {
			return err
		}
	}
	return j.writeAt("start", time.Unix(0, j.run), monotonic)
}

// takeLock tells whether the lock was free. Where it was not, it is taken as soon
// as it is. The descriptor is a bare one and never closed: only the process's death
// gives the lock up, where an *os.File would give it up once it is garbage.
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

// sinceBoot is the machine's clock that nobody sets.
func sinceBoot() (nanoseconds int64, err error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, fmt.Errorf("read the time since the boot: %w", err)
	}
	return t.Nano(), nil
}

// beat writes down that the process is alive, for ever. After a SIGKILL, only these entries show how long the process
// lived.
func (j *journal) beat(every time.Duration) {
	for range time.Tick(every) {
		if err := j.write("alive"); err != nil {
			fmt.Fprintln(os.Stderr, "app:", err)
		}
	}
}

func (j *journal) write(event string) error {
	monotonic, err := sinceBoot()
	if err != nil {
		return err
	}
	return j.writeAt(event, time.Now(), monotonic)
}

// writeAt appends one line by one write, because then the lines of two processes never mix.
func (j *journal) writeAt(event string, at time.Time, monotonic int64) error {
	line, err := json.Marshal(entry{Event: event, Pod: j.pod, Run: j.run, Epoch: j.epoch, Time: at.UTC(), Monotonic: monotonic, Boot: j.boot})
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s into the journal: %w", event, err)
	}
	if event != "alive" {
		fmt.Println(string(line))
	}
	return nil
}
