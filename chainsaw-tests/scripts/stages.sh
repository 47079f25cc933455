#!/bin/bash
# Runs make with each argument, one after the other, and prints at the end how long each took. Of the targets of one argument, two run
# at a time. Usage: stages.sh 'TARGET...'...
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p dist
: >dist/stages.tsv
trap 'echo "== Stages:"; cat dist/stages.tsv' EXIT

# stage TARGET...
stage() {
  local start=$SECONDS result=passed
  echo "== make $*"
  make --jobs=2 --output-sync=line "$@" || result=failed
  printf '%d min %02d s\t%s\tmake %s\n' $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)) $result "$*" >>dist/stages.tsv
  [ $result = passed ]
}

for targets; do
  # shellcheck disable=SC2086 # several targets
  stage $targets
done
