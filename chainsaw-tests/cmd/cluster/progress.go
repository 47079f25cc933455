package main

import (
	"fmt"
	"os"
	"time"
)

// progress prints a line to standard error. Results go to standard output.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// step runs a long step, and prints its name and duration.
func step(name string, run func() error) error {
	start := time.Now()
	progress("%s ...", name)
	if err := run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	progress("%s: done in %s", name, time.Since(start).Round(100*time.Millisecond))
	return nil
}
