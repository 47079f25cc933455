#!/bin/bash
# Hands the singleton postgres over by each planned cause, ROUNDS times (default 1) with each kind of fencing.
set -euo pipefail
. ../../../scripts/postgres.sh

handoffs() {
  for _ in $(seq "${ROUNDS:-1}"); do
    roll
    delete
    hand_over
    drain Drain
    evict
  done
}

fence() {
  kubectl patch stfs postgres -n "$NAMESPACE" --type=merge --patch='{"spec":{"fencing":"Lease","leaseDurationSeconds":30}}'
  kubectl wait stfs/postgres -n "$NAMESPACE" --for=condition=PolicyInstalled --timeout=1m
  kubectl patch deployment postgres -n "$NAMESPACE" --patch-file ../../../../examples/pgbouncer/patches/command.yaml
  handed_over Rollout
  kubectl wait stfs/postgres -n "$NAMESPACE" --for=condition=Fenced --timeout=1m
}

client_is_served
handoffs
fence
handoffs
