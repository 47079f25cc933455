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

const journalFile = "journal.jsonl"

// entry is one line of the journal.
type entry struct {
	// Event is start, overlap, stopping or stop.
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

// begin writes down the start, takes the lock, and writes down an overlap if
// another process has it. It goes on then: what it is for is to tell of it.
func (j *journal) begin() error {
	if err := j.writeAt("start", time.Unix(0, j.run)); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(j.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return fmt.Errorf("open the lock: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return err // never closed: the lock is held until the process is dead
	}
	go func() { _ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) }()
	return j.write("overlap")
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
