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
		Short: "Write numbered rows to PostgreSQL, and tell whether one is lost that was acknowledged",
		Long: `writer writes numbered rows, one every 10 ms and each in a transaction of its own, to the PostgreSQL that its
environment names as libpq reads it (PGHOST, PGUSER, PGPASSWORD), and connects again whenever that fails.

At SIGTERM it stops, compares the table with what was acknowledged, and prints a line of JSON: the runs of the server
that answered, how long none did before each, the longest pause, and the rows that are lost. The exit code is 1 if one
is, or if a server answered again after another one had.`,
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
		return fmt.Errorf("read which server to write to from PGHOST and the like: %w", err)
	}
	c := client{config: config}
	first, err := c.prepare(ctx)
	if err != nil {
		return fmt.Errorf("make the table at %s: %w", config.Host, err)
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
