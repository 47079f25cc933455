package main

import (
	"fmt"
	"os"
	"time"
)

// progress prints a line for the person who waits; results go to standard output, progress never does.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// step runs a long step and prints what it was and how long it took.
func step(name string, run func() error) error {
	start := time.Now()
	progress("%s ...", name)
	if err := run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	progress("%s: done in %s", name, time.Since(start).Round(100*time.Millisecond))
	return nil
}
