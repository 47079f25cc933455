package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

// client reconnects after any error, as a connection pool does.
type client struct {
	config *pgx.ConnConfig
	conn   *pgx.Conn
	// timeout is the timeout of a request, including the connection.
	timeout time.Duration
	// failing is true after a failed request. Only the first of several consecutive errors is printed.
	failing bool
}

type request func(context.Context, *pgx.Conn) error

// do sends one request, and connects first if necessary.
func (c *client) do(parent context.Context, r request) error {
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	err := c.connected(ctx, r)
	if err != nil && !c.failing && parent.Err() == nil {
		fmt.Fprintln(os.Stderr, "the server does not answer:", err)
	}
	if err != nil && c.conn != nil {
		_ = c.conn.Close(ctx) // the connection has failed
		c.conn = nil
	}
	c.failing = err != nil
	return err
}

func (c *client) connected(ctx context.Context, r request) error {
	if c.conn == nil {
		conn, err := pgx.ConnectConfig(ctx, c.config)
		if err != nil {
			return err
		}
		c.conn = conn
	}
	return r(ctx, c.conn)
}

// persist repeats a request until it succeeds. If ctx ends before, it returns the last error.
func (c *client) persist(ctx context.Context, r request) error {
	for {
		err := c.do(ctx, r)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx)
	}
}

// prepare creates the table, and returns the number of the first row to write.
func (c *client) prepare(ctx context.Context) (first int64, err error) {
	err = c.persist(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "create table if not exists written (n bigint primary key)"); err != nil {
			return err
		}
		return conn.QueryRow(ctx, "select coalesce(max(n), 0) + 1 from written").Scan(&first)
	})
	return first, err
}

// insert returns after the row is committed, in a transaction of several requests. server is the start time of the
// server, which identifies the server.
func (c *client) insert(ctx context.Context, n int64) (server time.Time, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, "insert into written (n) values ($1) returning pg_postmaster_start_time()", n).Scan(&server)
		})
	})
	return server, err
}

// rows returns the numbers in the table from first on, in order.
func (c *client) rows(ctx context.Context, first int64) (numbers []int64, err error) {
	err = c.persist(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, "select n from written where n >= $1 order by n", first)
		if err != nil {
			return err
		}
		numbers, err = pgx.CollectRows(found, pgx.RowTo[int64])
		return err
	})
	return numbers, err
}
