// Command writer is a client of a PostgreSQL server with handoffs. It checks that the server keeps all rows that it
// acknowledged: see `writer --help`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
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
	var clients int
	var timeout time.Duration
	root := &cobra.Command{
		Use:   "writer",
		Short: "Write numbered rows to PostgreSQL, and check that no acknowledged row is lost",
		Long: `writer writes numbered rows to a PostgreSQL server, each in its own transaction. Each client writes a row every 10 ms. The
environment variables of libpq name the server (PGHOST, PGPORT, PGUSER, PGPASSWORD). After an error, a client connects
again.

At SIGTERM, writer stops and compares the table with the acknowledged rows. It prints a line of JSON: the runs of the
server that answered, the pause before each run, the longest pause, the failed transactions, and the lost rows. The exit
code is 1 if a row is lost, or if a server answered again after another server.`,
		Example: `  PGHOST=127.0.0.1 PGUSER=postgres PGPASSWORD=example writer
  PGHOST=127.0.0.1 PGPORT=6432 PGUSER=postgres PGPASSWORD=example writer --clients 8 --timeout 1m
  kubectl exec writer -- /writer stop`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return write(cmd.Context(), clients, timeout) },
	}
	root.Flags().IntVar(&clients, "clients", 1, "number of clients that write at the same time")
	root.Flags().DurationVar(&timeout, "timeout", 2*time.Second, "timeout of a transaction, including the connection")
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
func write(ctx context.Context, clients int, timeout time.Duration) error {
	config, err := pgx.ParseConfig("")
	if err != nil {
		return fmt.Errorf("read the server from the environment, for example PGHOST: %w", err)
	}
	c := client{config: config, timeout: timeout}
	first, err := c.prepare(ctx)
	if err != nil {
		return fmt.Errorf("create the table at %s: %w", config.Host, err)
	}
	var r record
	var next atomic.Int64
	next.Store(first)
	var writers sync.WaitGroup
	for range clients {
		writers.Go(func() {
			c := client{config: config, timeout: timeout}
			for ctx.Err() == nil {
				// A failed row may have been written. The next row has its own number.
				n := next.Add(1) - 1
				// SIGTERM does not end a transaction.
				if server, err := c.insert(context.WithoutCancel(ctx), n); err == nil {
					r.acknowledge(n, server, time.Now())
				} else {
					r.fail()
				}
				pause(ctx)
			}
		})
	}
	writers.Wait()
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
