package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The files of the data directory.
const (
	journalFile = "events.jsonl"
	lockFile    = "lock"
)

// entry is one line of the journal.
type entry struct {
	// Event is overlap, start, stopping or stop.
	Event string `json:"event"`
	Pod   string `json:"pod"`
	// Run tells the processes of one pod apart: when it started, in nanoseconds.
	Run   int64     `json:"run"`
	Epoch int64     `json:"epoch"`
	Time  time.Time `json:"time"`
}

// journal is what one process writes down.
type journal struct {
	dir   string
	file  *os.File
	pod   string
	run   int64
	epoch int64
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
	return j, nil
}

// begin takes the lock, writes down an overlap if another process has it, and the
// start. It goes on in either case: what it is for is to tell of an overlap.
func (j *journal) begin() error {
	free, err := takeLock(filepath.Join(j.dir, lockFile))
	if err != nil {
		return err
	}
	if !free {
		if err := j.write("overlap"); err != nil {
			return err
		}
	}
	return j.writeAt("start", time.Unix(0, j.run))
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

func (j *journal) write(event string) error { return j.writeAt(event, time.Now()) }

// writeAt appends one line by one write, so that the lines of two processes never mix.
func (j *journal) writeAt(event string, at time.Time) error {
	line, err := json.Marshal(entry{Event: event, Pod: j.pod, Run: j.run, Epoch: j.epoch, Time: at.UTC()})
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s into the journal: %w", event, err)
	}
	fmt.Println(string(line))
	return nil
}
