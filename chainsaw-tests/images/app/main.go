// Command app is an application that must never run twice. It takes an exclusive lock on a file in its data directory.
// Its journal in the same directory records when it started, when it stopped, and whether another process had the lock.
// The kernel releases the lock only when the process has ended, so the journal shows every overlap.
//
// In a pod of a StatefulSetLock, only the writer must never run twice. A reader takes no lock, and records nothing. An
// application that knows no role takes no lock, and records only the writes of clients.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const address = ":8080"

func main() {
	root := &cobra.Command{
		Use:   "app",
		Short: "An application that must never run twice, and that records when it did",
		Long: `An application that must never run twice, and that records when it did. Its environment:
  DATA            directory of the lock and the journal (default /data)
  POD_NAME        its name in the journal (default: the hostname)
  START_SECONDS   how long it takes to be ready (default 0)
  STOP_SECONDS    how long it takes to stop after SIGTERM (default 0)
  CRASH_SECONDS   when it crashes by itself (default: never)
  MEMORY_SECONDS  when it starts to allocate all available memory (default: never)
  ALIVE_SECONDS   how often it records that it is alive (default: never)
  DEFAULT_ROLE    the role if STATEFULSETLOCK_ROLE is empty (default writer):
                  writer: takes the lock, and records all events
                  reader: records nothing, and rejects writes of clients
                  none:   takes no lock, and records only writes of clients
A client writes by a POST request, which the journal records.`,
		Example: `  DATA=/tmp/data app
  app check /tmp/data --min-handoffs 3`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context()) },
	}
	root.AddCommand(checkCommand(), waitCommand())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

// waitCommand returns the command for init containers.
func waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "wait DURATION",
		Short:   "Do nothing for that long",
		Example: "  app wait 5s",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[0])
			if err != nil {
				return err
			}
			select {
			case <-time.After(d):
				return nil
			case <-cmd.Context().Done():
				return cmd.Context().Err()
			}
		},
	}
}

// serve runs the main process. No other process may run from here on.
func serve(ctx context.Context) error {
	started := time.Now()
	var startFor, stopFor, crashAfter, eatAfter, beat time.Duration
	for name, d := range map[string]*time.Duration{
		"START_SECONDS": &startFor, "STOP_SECONDS": &stopFor,
		"CRASH_SECONDS": &crashAfter, "MEMORY_SECONDS": &eatAfter, "ALIVE_SECONDS": &beat,
	} {
		if err := seconds(name, d); err != nil {
			return err
		}
	}
	j, err := openJournal(os.Getenv("DATA"), started)
	if err != nil {
		return err
	}
	if err := j.begin(); err != nil {
		return err
	}
	if crashAfter > 0 {
		time.AfterFunc(crashAfter, func() { os.Exit(1) })
	}
	if eatAfter > 0 {
		time.AfterFunc(eatAfter, eatMemory)
	}
	beating, endBeat := context.WithCancel(context.WithoutCancel(ctx))
	defer endBeat()
	var beats sync.WaitGroup
	if beat > 0 && j.role == writer {
		beats.Go(func() { j.beat(beating, beat) })
	}
	server := &http.Server{Addr: address, Handler: j.handler(started.Add(startFor)), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", address, err)
	case <-ctx.Done():
	}
	if err := j.write("stopping"); err != nil {
		return err
	}
	time.Sleep(stopFor)
	endBeat()
	beats.Wait() // no entry follows "stop"
	return errors.Join(server.Close(), j.write("stop"))
}

// eatMemory never returns.
func eatMemory() {
	eaten := []byte{1}
	for {
		eaten = bytes.Repeat(eaten, 2)
	}
}

// seconds reads a duration from the environment.
func seconds(name string, d *time.Duration) error {
	text := os.Getenv(name)
	if text == "" {
		return nil
	}
	parsed, err := time.ParseDuration(text + "s")
	if err != nil {
		return fmt.Errorf("%s is %q: use a number of seconds, for example 1.5", name, text)
	}
	*d = parsed
	return nil
}

// handler answers /ready after the start, and other paths with the name and the epoch. A reader has no epoch, and rejects
// writes.
func (j *recorder) handler(ready time.Time) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if time.Now().Before(ready) {
			http.Error(w, "starting", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		if j.role == reader {
			_, _ = fmt.Fprintf(w, "%s reader\n", j.pod)
			return
		}
		_, _ = fmt.Fprintf(w, "%s epoch %d\n", j.pod, j.epoch)
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, _ *http.Request) {
		if err := j.serveWrite(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintf(w, "%s epoch %d\n", j.pod, j.epoch)
	})
	return mux
}
