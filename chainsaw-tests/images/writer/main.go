// Command writer is a client of a PostgreSQL server with handoffs. It checks that the server keeps all rows that it
// acknowledged: see `writer --help`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

const (
	// interval is the time between two rows, and between two attempts to connect.
	interval = 10 * time.Millisecond
	// reading is the timeout for reading the table at the end.
	reading = 30 * time.Second
)

func main() {
	root := &cobra.Command{
		Use:   "writer",
		Short: "Write numbered rows to PostgreSQL, and check that no acknowledged row is lost",
		Long: `writer writes a numbered row every 10 ms, each in its own transaction, to a PostgreSQL server. The environment variables
of libpq name the server (PGHOST, PGUSER, PGPASSWORD). After an error, writer connects again.

At SIGTERM, writer stops and compares the table with the acknowledged rows. It prints a line of JSON: the runs of the
server that answered, the pause before each run, the longest pause, and the lost rows. The exit code is 1 if a row is
lost, or if a server answered again after another server.`,
		Example: `  PGHOST=127.0.0.1 PGUSER=postgres PGPASSWORD=example writer
  kubectl exec writer -- /writer stop`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return write(cmd.Context()) },
	}
	root.AddCommand(&cobra.Command{
		Use:     "stop",
		Short:   "Send SIGTERM to the writer that is the main process of this container",
		Example: "  kubectl exec writer -- /writer stop",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return syscall.Kill(1, syscall.SIGTERM) },
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}

// write writes rows until ctx ends, and compares them with the table.
func write(ctx context.Context) error {
	config, err := pgx.ParseConfig("")
	if err != nil {
		return fmt.Errorf("read the server from the environment, for example PGHOST: %w", err)
	}
	c := client{config: config}
	first, err := c.prepare(ctx)
	if err != nil {
		return fmt.Errorf("create the table at %s: %w", config.Host, err)
	}
	var r record
	for n := first; ctx.Err() == nil; n++ {
		// A failed row may have been written. The next row has its own number.
		if server, err := c.insert(ctx, n); err == nil {
			r.acknowledge(n, server, time.Now())
		}
		pause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.Background(), reading)
	defer cancel()
	table, err := c.rows(ctx, first)
	if err != nil {
		return fmt.Errorf("read the table at %s within %s: %w", config.Host, reading, err)
	}
	found := r.compare(table)
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		return err
	}
	return found.problem()
}

// pause returns early when ctx ends.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(interval):
	}
}
