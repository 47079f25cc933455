#!/bin/bash
# Hands the singleton postgres over once by each planned cause, ROUNDS times (default 2).
set -euo pipefail
. ../../../scripts/postgres.sh

client_is_served
for _ in $(seq "${ROUNDS:-2}"); do
  roll
  delete
  hand_over
  drain Drain
  evict
done
