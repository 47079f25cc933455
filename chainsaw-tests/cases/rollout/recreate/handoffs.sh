#!/bin/bash
# Rolls the Deployment postgres out cold, changes its strategy with the command of the status, and rolls it out again.
set -euo pipefail
. ../../../scripts/postgres.sh

# There is no client. A server that starts while another one runs, or after one was killed, finds a data directory that was not shut
# down.
client_is_served() {
  kubectl logs -n "$NAMESPACE" "$(status activePod)" -c postgres | grep "database system was shut down at"
  echo "gap of $(status lastTransition.gapMilliseconds) ms"
}

roll
command=$(status 'conditions[?(@.type=="Warm")].message' | sed 's/.*, run: //')
echo "$command"
sh -c "$command"
roll
