#!/bin/sh
# Does what the examples need of the official image's entrypoint. The first start creates the database. Each start
# replaces this process by the server.
set -eu

case ${1-} in -*) set -- postgres "$@" ;; esac

if [ "${1-}" = postgres ]; then
	mkdir -p "$PGDATA"
	# The server refuses to run as root.
	if [ "$(id -u)" = 0 ]; then
		chown -R postgres "$PGDATA" /run/postgresql
		exec gosu postgres "$0" "$@"
	fi
	# With fsGroup, the directory can be accessible to a group. The server refuses such a directory.
	chmod 00700 "$PGDATA"
	if [ ! -s "$PGDATA/PG_VERSION" ]; then
		if [ -z "${POSTGRES_PASSWORD-}" ]; then
			echo "POSTGRES_PASSWORD is not set: set the password of the superuser of the new database" >&2
			exit 1
		fi
		# A stop waits until the database is complete, because the next start would use an incomplete one.
		stopped=
		trap 'stopped=yes' INT TERM
		printf '%s\n' "$POSTGRES_PASSWORD" | initdb --pgdata="$PGDATA" --username="${POSTGRES_USER:-postgres}" \
			--pwfile=/dev/stdin --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C
		echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
		echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
		[ -z "$stopped" ] || exit 0
		trap - INT TERM
	fi
fi
exec "$@"
