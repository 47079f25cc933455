#!/bin/bash
# Hands the singleton postgres over by each planned cause, ROUNDS times (default 1). The pods of the second half are fenced and queue
# connections.
set -euo pipefail
. ../../../scripts/postgres.sh

fence() {
  kubectl patch stfs postgres -n "$NAMESPACE" --type=merge --patch='{"spec":{"fencing":"Lease","leaseDurationSeconds":30,"connections":"Queue"}}'
  kubectl wait stfs/postgres -n "$NAMESPACE" --for=condition=PolicyInstalled --timeout=1m
  kubectl patch deployment postgres -n "$NAMESPACE" --patch-file ../../../../examples/pgbouncer/patches/command.yaml
  handed_over Rollout
  kubectl wait stfs/postgres -n "$NAMESPACE" --for=condition=Fenced --timeout=1m
  kubectl wait stfs/postgres -n "$NAMESPACE" --for=condition=ConnectionsQueued --timeout=1m
}

client_is_served
for _ in $(seq "${ROUNDS:-1}"); do
  roll
  delete
  hand_over
done
fence
for _ in $(seq "${ROUNDS:-1}"); do
  drain Drain
  evict
done
